//! `amk validate`: judges a schedule file.

use std::path::{Path, PathBuf};
use std::time::Instant;

use amk::target::Target;
use amk_schedule_ir::Program;
use amk_validator::{Fault, Place, Report, Witness, certify, check};
use clap::Args;
use serde::Serialize;

use super::place::{Mark, SourceText, printable, visible};
use super::program::{Loaded, TargetArgs};
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
  amk validate out/model.sched.json --target h200 --json
  amk validate out/model.sched --certificate out/model.cert")]
pub struct ValidateArgs {
    /// The schedule; - for standard input.
    file: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
    /// Write the evidence of an acceptance, which `amk check` checks without any search.
    #[arg(long, value_name = "OUT")]
    certificate: Option<PathBuf>,
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
    /// The certificate, where one was asked for and the schedule accepted.
    certificate: Option<&'a Path>,
}

pub fn run(args: &ValidateArgs, out: &Output) -> Outcome {
    let loaded = Loaded::read(&args.file, out)?;
    let target = args.target.resolve(&loaded.program)?;
    let start = Instant::now();
    let report = check(&loaded.program, &target);
    let seconds = start.elapsed().as_secs_f64();
    let certificate = match (&args.certificate, report.ok) {
        (Some(path), true) => Some(write_certificate(path, &loaded.program)?),
        _ => None,
    };
    out.document(&ValidateDocument {
        ok: report.ok,
        faults: &report.faults,
        skipped: &report.skipped,
        omitted: report.omitted,
        instructions: report.instructions,
        seconds,
        target: &target.name,
        program_hash: amk_schedule_ir::hash::hex(&loaded.program.hash()),
        certificate,
    });
    if !out.json() {
        show(&loaded, &report, &target, seconds, out);
    }
    Ok(Verdict::of(report.ok))
}

fn write_certificate<'a>(path: &'a Path, program: &Program) -> Result<&'a Path, Failure> {
    let certificate = certify(program).ok_or_else(|| {
        Failure::input("this schedule was accepted and has no certificate: a fault of amk itself")
    })?;
    let mut json = serde_json::to_vec(&certificate).map_err(Failure::environment)?;
    json.push(b'\n');
    files::write(path, &json)?;
    Ok(path)
}

fn show(loaded: &Loaded, report: &Report, target: &Target, seconds: f64, out: &Output) {
    let took = output::seconds(seconds);
    if report.ok {
        let accepted = out.paint(Tone::Good, "accepted");
        out.line(format!(
            "{accepted}: {} for {} can neither deadlock nor race ({} instructions, {took})",
            visible(&loaded.program.name),
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
