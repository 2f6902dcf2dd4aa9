//! `amk doctor`: what of this machine works.

use std::path::PathBuf;

use amk::doctor::{Check, DoctorOptions, Status, diagnose};
use clap::Args;

use super::{Outcome, Verdict};
use crate::output::{Output, Tone};

/// Check compiler, driver, device, Python and cache, and say what to do about each fault.
#[derive(Args)]
#[command(after_help = "\
A GPU, a compiler and Python are each optional: their absence is a warning, and the commands that do
not need them work. What is there must work. Exit code 3 when a check fails.

Examples:
  amk doctor
  amk doctor --require-gpu --json")]
pub struct DoctorArgs {
    /// Treat a missing driver, device or compiler as a failure.
    #[arg(long)]
    require_gpu: bool,
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    nvrtc: Option<PathBuf>,
}

pub fn run(args: DoctorArgs, out: &Output) -> Outcome {
    let options =
        DoctorOptions { require_gpu: args.require_gpu, ..DoctorOptions::from_env(args.nvrtc) };
    let report = diagnose(&options, &mut |check| show(check, out));
    out.document(&report);
    let failed = report.checks.iter().filter(|c| c.status == Status::Fail).count();
    match failed {
        0 => out.line(out.paint(Tone::Good, "everything that is here works")),
        n => out.line(out.paint(Tone::Bad, format!("checks that failed: {n}"))),
    }
    Ok(if report.ok { Verdict::Yes } else { Verdict::Environment })
}

fn show(check: &Check, out: &Output) {
    let (tone, word) = match check.status {
        Status::Ok => (Tone::Good, "ok"),
        Status::Warn => (Tone::Warn, "warn"),
        Status::Fail => (Tone::Bad, "fail"),
    };
    let word = out.paint(tone, format!("{word:<4}"));
    out.line(format!("{word}  {:<14} {}", check.name, check.detail));
    if let Some(fix) = &check.fix {
        out.line(format!("      {:<14} {} {fix}", "", out.paint(Tone::Strong, "fix:")));
    }
}
