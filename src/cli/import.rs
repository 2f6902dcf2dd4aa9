//! `amk import`: a peer's program as a schedule of ours.

use std::path::PathBuf;

use amk::import::{Open, import};
use amk::target::resolve;
use amk_schedule_ir::limits::MAX_FILE_BYTES;
use amk_schedule_ir::{hash, text};
use clap::Args;
use serde::Serialize;

use super::place::visible;
use super::{Failure, Outcome, Verdict, files};
use crate::output::Output;

/// Express a peer's program JSON (IR 0.2.0) as a schedule, to be judged by `amk validate`.
#[derive(Args)]
#[command(after_help = "\
Tasks become opaque instructions with the accesses that their tile parameters declare; what cannot be
expressed is refused. Exit code 0 if a schedule was written, 2 if it could not be; safe or not is for
`amk validate` to say.

Examples:
  amk import peer.json --out peer.sched
  amk import peer.json --out peer.sched --target h100 --sms 16")]
pub struct ImportArgs {
    /// The peer's program; - for standard input.
    file: PathBuf,
    /// The schedule to write.
    #[arg(long, value_name = "OUT")]
    out: PathBuf,
    /// The part to judge for; by default the one the program names.
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// SMs that tasks without one are dealt to; by default as many as the tasks name.
    #[arg(long, value_name = "N")]
    sms: Option<u32>,
}

#[derive(Serialize)]
struct ImportDocument<'a> {
    ok: bool,
    instructions: usize,
    sms: usize,
    out: &'a std::path::Path,
    program_hash: String,
}

pub fn run(args: &ImportArgs, out: &Output) -> Outcome {
    let bytes = files::read_limited(&args.file, MAX_FILE_BYTES)?;
    let sm_arch = match &args.target {
        Some(name) => Some(resolve(name).map_err(Failure::input)?.target.sm),
        None => None,
    };
    let name = args.file.file_stem().map_or_else(|| "peer".into(), |n| n.to_string_lossy());
    let open = Open { sm_arch, sms: args.sms };
    let mut program = import(&name, &bytes, &open)
        .map_err(|e| Failure::input(visible(&format!("{}: {e}", args.file.display()))))?;
    // As the part spells it, where it is known; an unknown one is for `validate` to name.
    if let Ok(resolved) = resolve(&program.sm_arch) {
        program.sm_arch = resolved.target.sm;
    }
    if program.sm_arch.is_empty() {
        return Err(Failure::input("the program names no target").help("give one with --target"));
    }
    files::write(&args.out, text::print(&program).as_bytes())?;
    out.line(format!(
        "{}: {} instructions on {} SMs",
        args.out.display(),
        program.instructions.len(),
        program.sms.len()
    ));
    out.document(&ImportDocument {
        ok: true,
        instructions: program.instructions.len(),
        sms: program.sms.len(),
        out: &args.out,
        program_hash: hash::hex(&program.hash()),
    });
    Ok(Verdict::Yes)
}
