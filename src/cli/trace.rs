//! `amk trace`: one step of a model on a CUDA device, instruction by instruction.

use std::path::PathBuf;

use amk::codegen::RenderOptions;
use amk::decode::{LaunchOptions, LaunchPlan};
use amk::engine::Want;
use amk::lower::{Mode, bucket_of};
use amk::pipeline::default_mode;
use amk::trace::{Split, Timeline, chrome, page, words_per_sm};
use clap::Args;
use serde::Serialize;

use super::compile::Compute;
use super::device::{CudaArgs, Plan, engine_failure};
use super::{Failure, Outcome, Verdict, files, model};
use crate::output::Output;

/// Launches before the one that is looked at.
const WARMUP: usize = 10;

/// Show where the time of a step goes: a timeline of every SM and instruction.
#[derive(Args)]
#[command(after_help = "\
The kernel is compiled with time stamps and otherwise unchanged. Into DIR go trace.json, for Perfetto
(ui.perfetto.dev) or chrome://tracing, and trace.html, which needs neither; both tell waiting for input,
computing and idle time apart.

Examples:
  amk trace path/to/checkpoint --position 16 --out trace
  amk trace path/to/checkpoint --position 1024 --activations f32 --json")]
pub struct TraceArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// The position of the step.
    #[arg(long, value_name = "P", default_value_t = 16)]
    position: u64,
    /// Type of activations and KV cache; by default bf16 for bf16 weights, else f32.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    /// The folder to write into.
    #[arg(long, value_name = "DIR", default_value = "trace")]
    out: PathBuf,
    #[command(flatten)]
    cuda: CudaArgs,
}

#[derive(Serialize)]
struct TraceDocument<'a> {
    position: u64,
    us: f64,
    /// Mean over the SMs.
    total: Split,
    by_op: std::collections::BTreeMap<&'static str, Split>,
    files: [PathBuf; 2],
    out: &'a std::path::Path,
}

pub fn run(args: &TraceArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let max = checkpoint.config().max_position_embeddings as u64;
    let bucket = bucket_of(max, 1, args.position).ok_or_else(|| {
        Failure::input(format!("position {} is outside the model's {max} positions", args.position))
    })?;
    let mode = args.compute.map_or_else(|| default_mode(&checkpoint), Mode::from);
    let plan = Plan {
        mode,
        want: Want::Decode(vec![bucket]),
        render: RenderOptions { trace: true, ..RenderOptions::default() },
        corrupt: None,
        sampled: false,
    };
    let mut ready = args.cuda.open(&checkpoint, &plan, out)?;
    let engine = &mut ready.opened.engine;
    let program = engine
        .program(0)
        .cloned()
        .ok_or_else(|| Failure::input("there is no program to be traced"))?;
    let words = words_per_sm(&program);
    engine.enable_trace(words).map_err(|e| engine_failure(&e))?;
    engine.put(args.position, &[5]);
    let plan = LaunchPlan { program: 0, position: args.position, steps: 1, tokens: 1 };
    let options = LaunchOptions { prompt_len: args.position + 1, ..LaunchOptions::default() };
    engine.time(&plan, &options, WARMUP).map_err(|e| engine_failure(&e))?;
    let stamps = engine.stamps().map_err(|e| engine_failure(&e))?;
    let timeline = Timeline::new(&program, &stamps, words as usize).map_err(Failure::answer)?;
    let title = format!("{} at position {}", checkpoint.name(), args.position);
    files::create_folder(&args.out)?;
    let paths = [args.out.join("trace.json"), args.out.join("trace.html")];
    let json = serde_json::to_vec(&chrome(&timeline, &title)).map_err(Failure::environment)?;
    files::write(&paths[0], &json)?;
    let html = page(&timeline, &title).map_err(Failure::environment)?;
    files::write(&paths[1], html.as_bytes())?;
    let total = timeline.total();
    out.line(format!(
        "{:.1} us with stamps: {:.1} waiting, {:.1} computing, {:.1} idle (mean of {} SMs)",
        timeline.us, total.waiting, total.computing, total.idle, timeline.sms
    ));
    for (op, s) in timeline.by_op() {
        let n = timeline.sms.max(1) as f64;
        out.line(format!(
            "{op:<18} {:>8.1} waiting {:>8.1} computing, {} instructions",
            s.waiting / n,
            s.computing / n,
            s.events
        ));
    }
    out.line(format!("written to {}", args.out.display()));
    out.document(&TraceDocument {
        position: args.position,
        us: timeline.us,
        total,
        by_op: timeline.by_op(),
        files: paths,
        out: &args.out,
    });
    Ok(Verdict::Yes)
}
