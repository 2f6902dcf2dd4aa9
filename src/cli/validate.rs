//! `amk validate`: judges a schedule file.

use std::path::PathBuf;
use std::time::Instant;

use amk::target::{Target, load_target_file, resolve};
use amk_schedule_ir::limits::MAX_FILE_BYTES;
use amk_schedule_ir::text::{self, SourceMap};
use amk_schedule_ir::{FORMAT_VERSION, Program};
use amk_validator::{Fault, Place, Report, Witness, check};
use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::place::{Mark, SourceText, printable};
use super::{Failure, Outcome, Verdict, files};
use crate::output::{self, Output, Tone};

/// Most faults that are shown to a person; `--json` lists all.
const SHOWN: usize = 20;
/// Most nodes of a cycle that are shown to a person.
const SHOWN_NODES: usize = 16;

/// Judge a schedule: can it deadlock, race or leave its buffers?
#[derive(Args)]
#[command(after_help = "\
The file is a schedule in text (.sched) or JSON form; what it is, is decided by its content. Exit code
0 if the schedule is accepted, 1 if it is rejected, 2 if the file is no schedule.

Examples:
  amk validate out/model.sched
  amk validate out/model.sched.json --target h200 --json")]
pub struct ValidateArgs {
    /// The schedule; - for standard input.
    file: PathBuf,
    /// The part to judge for, such as sm_90a or h200; by default the one the schedule names.
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// A target record to judge for.
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    target_file: Option<PathBuf>,
}

#[derive(Serialize)]
struct ValidateDocument<'a> {
    ok: bool,
    faults: &'a [Fault],
    skipped: &'a [amk_validator::Skipped],
    omitted: u64,
    instructions: usize,
    seconds: f64,
    target: &'a str,
    program_hash: String,
}

/// A program read from a file, with the text its places are in.
struct Loaded {
    program: Program,
    map: SourceMap,
    /// What the places are shown in: the file, or the text form of a JSON file.
    name: String,
    text: String,
}

pub fn run(args: &ValidateArgs, out: &Output) -> Outcome {
    let name = args.file.display().to_string();
    let bytes = files::read_limited(&args.file, MAX_FILE_BYTES)?;
    let loaded = load(&name, bytes, out)?;
    let target = target(args, &loaded.program)?;
    let start = Instant::now();
    let report = check(&loaded.program, &target);
    let seconds = start.elapsed().as_secs_f64();
    out.document(&ValidateDocument {
        ok: report.ok,
        faults: &report.faults,
        skipped: &report.skipped,
        omitted: report.omitted,
        instructions: report.instructions,
        seconds,
        target: &target.name,
        program_hash: amk_schedule_ir::hash::hex(&loaded.program.hash()),
    });
    if !out.json() {
        show(&loaded, &report, &target, seconds, out);
    }
    Ok(Verdict::of(report.ok))
}

fn target(args: &ValidateArgs, program: &Program) -> Result<Target, Failure> {
    if let Some(file) = &args.target_file {
        return load_target_file(file).map_err(Failure::input);
    }
    let name = args.target.as_deref().unwrap_or(&program.sm_arch);
    resolve(name).map(|r| r.target).map_err(|error| {
        let failure = Failure::input(printable(&error.to_string()));
        match args.target {
            Some(_) => failure,
            None => failure.help(
                "the schedule names this target; give another with --target or --target-file",
            ),
        }
    })
}

/// Text or JSON, by the first character that is no blank.
fn load(name: &str, bytes: Vec<u8>, out: &Output) -> Result<Loaded, Failure> {
    if bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{') {
        return load_json(name, &bytes);
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        Failure::input(format!(
            "{name} is no schedule: byte {at} is not UTF-8; a schedule is text or JSON as `amk compile` writes it"
        ))
    })?;
    match text::parse_with_map(&text) {
        Ok((program, map)) => Ok(Loaded { program, map, name: name.to_owned(), text }),
        Err(e) => {
            let message = printable(&e.message);
            let mut failure = Failure::input(format!("{name}:{}:{}: {message}", e.line, e.column));
            let source = SourceText::new(name, &text);
            let mark = Mark {
                line: e.line,
                column: Some(e.column),
                message: &message,
                label: "here",
                help: None,
            };
            failure.rendered = Some(source.render(&mark, out.color_err()));
            Err(failure)
        }
    }
}

fn load_json(name: &str, bytes: &[u8]) -> Result<Loaded, Failure> {
    /// The version is looked at first: another one may have other fields.
    #[derive(Deserialize)]
    struct Versioned {
        version: Option<Value>,
    }
    let unreadable = |e: serde_json::Error| {
        Failure::input(format!("{name} is no schedule: {}", printable(&e.to_string())))
    };
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(unreadable)?;
    match versioned.version {
        Some(v) if v == FORMAT_VERSION => {}
        found => {
            let found = found.map_or_else(|| "none".to_owned(), |v| printable(&v.to_string()));
            let found: String = found.chars().take(40).collect();
            return Err(Failure::input(format!(
                "{name}: format version {found} is not known; this program reads version {FORMAT_VERSION}"
            )));
        }
    }
    let program: Program = serde_json::from_slice(bytes).map_err(unreadable)?;
    let text = text::print(&program);
    // What was printed parses, unless the program holds what only JSON can say; then places are left out.
    let map = text::parse_with_map(&text).map(|(_, map)| map).unwrap_or_default();
    Ok(Loaded { program, map, name: format!("{name}, as text"), text })
}

fn show(loaded: &Loaded, report: &Report, target: &Target, seconds: f64, out: &Output) {
    let took = output::seconds(seconds);
    if report.ok {
        let accepted = out.paint(Tone::Good, "accepted");
        out.line(format!(
            "{accepted}: {} for {} can neither deadlock nor race ({} instructions, {took})",
            printable(&loaded.program.name),
            target.name,
            report.instructions
        ));
        return;
    }
    let source = SourceText::new(&loaded.name, &loaded.text);
    for fault in report.faults.iter().take(SHOWN) {
        let message = format!("{} ({}): {}", fault.invariant, invariant_name(fault), fault.message);
        match line_of(fault, loaded) {
            Some(line) => {
                let mark = Mark {
                    line,
                    column: None,
                    message: &message,
                    label: "here",
                    help: witness(&fault.witness),
                };
                out.line(source.render(&mark, out.color_out()));
            }
            _ => {
                out.line(printable(&message));
                if let Some(witness) = witness(&fault.witness) {
                    out.line(format!("  {}", printable(&witness)));
                }
            }
        }
    }
    let more = report.faults.len().saturating_sub(SHOWN) as u64 + report.omitted;
    if more > 0 {
        out.line(format!("... and {more} more; --json lists them"));
    }
    for skipped in &report.skipped {
        out.line(format!(
            "{} was not judged in full: {}",
            skipped.invariant,
            printable(&skipped.reason)
        ));
    }
    let rejected = out.paint(Tone::Bad, "rejected");
    let total = report.faults.len() + usize::try_from(report.omitted).unwrap_or(usize::MAX);
    out.line(format!(
        "{rejected}: {} in {} instructions for {} ({took})",
        output::count(total, "fault"),
        report.instructions,
        target.name
    ));
}

/// The line a fault is shown at; the program as a whole stands at its header, which comments precede.
fn line_of(fault: &Fault, loaded: &Loaded) -> Option<u32> {
    let line = match fault.place {
        Place::Program => {
            let header = loaded.text.lines().position(|l| l.trim_start().starts_with("amk"))?;
            u32::try_from(header + 1).ok()
        }
        place => place.line(&loaded.map),
    };
    line.filter(|l| *l > 0)
}

fn invariant_name(fault: &Fault) -> &'static str {
    use amk_validator::Invariant as I;
    match fault.invariant {
        I::S => "structure",
        I::B => "bounds",
        I::C => "coverage",
        I::D => "deadlock",
        I::R => "race",
        I::E => "epochs",
        I::M => "memory model",
        I::O => "resources",
        I::K => "KV capacity",
    }
}

fn witness(witness: &Witness) -> Option<String> {
    match witness {
        Witness::None => None,
        Witness::Cycle { nodes } => {
            let mut text = String::from("each waits for the next, the last for the first:");
            for node in nodes.iter().take(SHOWN_NODES) {
                text += &format!("\n  {node}");
            }
            if nodes.len() > SHOWN_NODES {
                text += &format!("\n  ... {} more", nodes.len() - SHOWN_NODES);
            }
            Some(text)
        }
        Witness::Race { first, second, missing } => {
            Some(format!("first access: {first}\nsecond access: {second}\nmissing: {missing}"))
        }
        Witness::Range { buffer, elements } => Some(format!("elements {elements} of {buffer}")),
    }
}
