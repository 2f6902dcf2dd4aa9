//! `amk check`: checks a schedule against its certificate, without any search.

use std::path::PathBuf;
use std::time::Instant;

use amk_schedule_ir::limits::MAX_FILE_BYTES;
use amk_validator::Certificate;
use amk_validator::checker::check;
use clap::Args;
use serde::Serialize;

use super::place::{printable, visible};
use super::program::{Loaded, TargetArgs};
use super::{Failure, Outcome, Verdict, files};
use crate::output::{self, Output, Tone};

/// Check a schedule against a certificate that `amk validate` wrote.
#[derive(Args)]
#[command(after_help = "\
The checker is much smaller than the validator and searches nothing. Exit code 0 if the certificate proves
the schedule safe, 1 if it does not, 2 if a file cannot be read.

Examples:
  amk check out/model.sched out/model.cert
  amk check out/model.sched out/model.cert --target h200 --json")]
pub struct CheckArgs {
    /// The schedule, in text or JSON form.
    program: PathBuf,
    /// Its certificate.
    certificate: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

#[derive(Serialize)]
struct CheckDocument<'a> {
    ok: bool,
    /// Why the certificate proves nothing.
    refusal: Option<String>,
    instructions: usize,
    seconds: f64,
    target: &'a str,
    program_hash: String,
}

pub fn run(args: &CheckArgs, out: &Output) -> Outcome {
    let loaded = Loaded::read(&args.program, out)?;
    let target = args.target.resolve(&loaded.program)?;
    let bytes = files::read_limited(&args.certificate, MAX_FILE_BYTES)?;
    let certificate: Certificate = serde_json::from_slice(&bytes).map_err(|e| {
        Failure::input(format!(
            "{} is no certificate: {}",
            args.certificate.display(),
            visible(&e.to_string())
        ))
    })?;
    let start = Instant::now();
    let refusal = check(&loaded.program, &target, &certificate).err().map(|r| r.to_string());
    let seconds = start.elapsed().as_secs_f64();
    let took = output::seconds(seconds);
    match &refusal {
        None => out.line(format!(
            "{}: the certificate proves that {} can neither deadlock nor race on {} ({} instructions, {took})",
            out.paint(Tone::Good, "proved"),
            visible(&loaded.program.name),
            target.name,
            loaded.program.instructions.len()
        )),
        Some(refusal) => out.line(format!(
            "{}: {} ({took})",
            out.paint(Tone::Bad, "refused"),
            printable(refusal)
        )),
    }
    let ok = refusal.is_none();
    out.document(&CheckDocument {
        ok,
        instructions: loaded.program.instructions.len(),
        seconds,
        target: &target.name,
        program_hash: amk_schedule_ir::hash::hex(&loaded.program.hash()),
        refusal,
    });
    Ok(Verdict::of(ok))
}
