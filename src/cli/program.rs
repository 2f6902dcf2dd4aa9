//! A schedule file as an argument, and the part it is judged for.

use std::path::{Path, PathBuf};

use amk::target::{Target, load_target_file, resolve};
use amk_schedule_ir::limits::MAX_FILE_BYTES;
use amk_schedule_ir::text::{self, SourceMap};
use amk_schedule_ir::{FORMAT_VERSION, Program};
use clap::Args;
use serde::Deserialize;
use serde_json::Value;

use super::place::{Mark, SourceText, printable, visible};
use super::{Failure, files};
use crate::output::Output;

/// The part to judge a schedule for.
#[derive(Args)]
#[group(skip)]
pub struct TargetArgs {
    /// The part to judge for, such as sm_90a or h200; by default the one the schedule names.
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// A target record to judge for.
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    target_file: Option<PathBuf>,
}

impl TargetArgs {
    /// The part; the schedule's own default where none was asked for.
    pub fn resolve(&self, program: &Program) -> Result<Target, Failure> {
        if let Some(file) = &self.target_file {
            return load_target_file(file).map_err(Failure::input);
        }
        let name = self.target.as_deref().unwrap_or(&program.sm_arch);
        resolve(name).map(|r| r.target).map_err(|error| {
            let failure = Failure::input(visible(&error.to_string()));
            match self.target {
                Some(_) => failure,
                None => failure.help(
                    "the schedule names this target; give another with --target or --target-file",
                ),
            }
        })
    }
}

/// A program read from a file, with the text its places are in.
pub struct Loaded {
    pub program: Program,
    pub map: SourceMap,
    /// What the places are shown in: the file, or the text form of a JSON file.
    pub name: String,
    pub text: String,
}

impl Loaded {
    /// Reads a schedule in either form; - is standard input.
    pub fn read(path: &Path, out: &Output) -> Result<Self, Failure> {
        let bytes = files::read_limited(path, MAX_FILE_BYTES)?;
        load(&path.display().to_string(), bytes, out)
    }
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
        Failure::input(format!("{name} is no schedule: {}", visible(&e.to_string())))
    };
    let versioned: Versioned = serde_json::from_slice(bytes).map_err(unreadable)?;
    match versioned.version {
        Some(v) if v == FORMAT_VERSION => {}
        found => {
            let found = found.map_or_else(|| "none".to_owned(), |v| visible(&v.to_string()));
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
