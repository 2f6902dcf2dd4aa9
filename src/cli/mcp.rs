//! `amk mcp`: the search as an MCP server.

use std::num::NonZero;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use amk::mcp::{ServeError, Session, Setup, serve};
use amk::search::child::Program;
use amk::search::request::{Part, Request, Task};
use amk::search::{self, Patience, Subject, SubjectError, device_of};
use amk::target::resolve;
use clap::Args;

use super::compile::Compute;
use super::{Failure, Outcome, Verdict, model};
use crate::output::Output;

/// Serve the search to an agent over MCP, on standard input and output.
#[derive(Args)]
#[command(after_help = "\
Tools: doctor, space, propose, validate, evaluate, journal, best, trace_summary. What an agent proposes goes the one path
of every candidate and into the journal; a journal that is there is gone on with. The server ends when its client leaves.

Examples:
  amk mcp
  amk mcp path/to/checkpoint --journal agent.jsonl
  amk mcp --shape-only config.json --target h200")]
pub struct McpArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// Where everything is written down.
    #[arg(long, value_name = "FILE", default_value = "autoresearch.jsonl")]
    journal: PathBuf,
    /// Search for the positions around this one, and time a token at it.
    #[arg(long, value_name = "P", default_value_t = search::request::POSITION)]
    position: u64,
    /// Type of activations and KV cache; by default bf16 for bf16 weights, else f32.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    /// The part to predict for; then no device is used.
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// Search for the shapes of a config.json, without weights; everything is predicted.
    #[arg(long, value_name = "CONFIG.json", conflicts_with = "model")]
    shape_only: Option<PathBuf>,
    /// Without a device: compile nothing; with one everything is compiled.
    #[arg(long)]
    no_compile: bool,
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    nvrtc: Option<PathBuf>,
    /// The device to use, as the driver counts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: usize,
}

pub fn run(args: &McpArgs, out: &Output) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second time it ends the process at once.
        let _ = signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop));
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let program = Program::own().map_err(Failure::environment)?;
    let patience = Patience::default();
    let base = Request {
        model: args.model.clone(),
        shape_only: args.shape_only.clone(),
        position: args.position,
        nvrtc: args.nvrtc.clone(),
        ordinal: args.ordinal,
        compile: !args.no_compile,
        ..Request::new(Task::Device)
    };
    let predicted = args.target.is_some() || args.shape_only.is_some();
    let device = match !predicted && super::device::driver_is_there() {
        false => None,
        true => device_of(&program, &base, patience, &stop).map_err(|refusal| {
            let reason = amk_autoresearch::Verdict::from(refusal).reason();
            Failure::environment(format!("the device cannot be used: {reason}"))
                .help("--target NAME predicts without it")
        })?,
    };
    let target = match &device {
        Some(device) => device.target.clone(),
        None => {
            let name = args.target.as_deref().unwrap_or(search::evaluate::TARGET);
            resolve(name).map_err(Failure::input)?.target
        }
    };
    let mode = args.compute.map(Into::into);
    let subject = match &args.shape_only {
        Some(path) => Subject::of_config(path, target, mode, args.position),
        None => {
            let checkpoint = model::open(args.model.as_deref(), out)?;
            Subject::of(checkpoint, args.model.as_deref(), target, mode, args.position)
        }
    };
    let subject = subject.map_err(|e| match e {
        SubjectError::Checkpoint(e) => model::failure(&e),
        e => Failure::input(e),
    })?;
    let base = Request {
        target: Some(Part::Record(Box::new(subject.target.clone()))),
        mode: Some(subject.mode),
        ..base
    };
    let device = device.map(|d| d.fingerprint);
    let mut header =
        search::evaluate::header(&subject, device.clone(), search::cost_model().name());
    "mcp".clone_into(&mut header.proposer);
    let session = Session::begin(Setup {
        subject,
        base,
        program,
        device,
        patience,
        header,
        journal: args.journal.clone(),
        jobs: std::thread::available_parallelism().map_or(1, NonZero::get),
        stop,
    })
    .map_err(Failure::environment)?;
    let served = serve(&session);
    let ended = session.end();
    served.map_err(|e| match e {
        ServeError::Start(_) => Failure::environment(e),
        ServeError::Protocol(_) => Failure::input(e)
            .help("an MCP client starts `amk mcp` itself and speaks over its pipes"),
    })?;
    ended.map_err(Failure::input)?;
    Ok(Verdict::Yes)
}
