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
/// The most positions of a step.
const MOST_TOKENS: u64 = 16;

/// Show where the time of a step goes: a timeline of every SM and instruction.
#[derive(Args)]
#[command(after_help = "\
The kernel is compiled with time stamps and otherwise unchanged. Into DIR go trace.json, for Perfetto
(ui.perfetto.dev) or chrome://tracing, and trace.html, which needs neither; both tell waiting for input,
computing and idle time apart.

Examples:
  amk trace path/to/checkpoint --position 16 --out trace
  amk trace path/to/checkpoint --position 1024 --activations f32 --json
  amk trace path/to/checkpoint --prefill --out trace")]
pub struct TraceArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// The position of the step.
    #[arg(long, value_name = "P", default_value_t = 16)]
    position: u64,
    /// Trace a pass over as many positions of a prompt as one step takes, instead of a token.
    #[arg(long)]
    prefill: bool,
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
    /// Positions of the step.
    tokens: u64,
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
    let want = match args.prefill {
        true if args.position + MOST_TOKENS > max => {
            return Err(Failure::input(format!(
                "a pass over up to {MOST_TOKENS} positions from {} on is outside the model's {max} positions",
                args.position
            )));
        }
        true => {
            let end = args.position + MOST_TOKENS;
            Want::Sequence { prompt: end, positions: end }
        }
        false => Want::Decode(vec![bucket]),
    };
    let mode = args.compute.map_or_else(|| default_mode(&checkpoint), Mode::from);
    let plan = Plan {
        mode,
        want,
        render: RenderOptions { trace: true, ..RenderOptions::default() },
        corrupt: None,
        sampled: false,
    };
    let mut ready = args.cuda.open(&checkpoint, &plan, out)?;
    let engine = &mut ready.opened.engine;
    let tokens_of = |i| engine.program(i).map_or(1, |p| u64::from(p.tokens));
    let tokens = if args.prefill { (0..engine.len()).map(tokens_of).max().unwrap_or(1) } else { 1 };
    let index = engine.index_for(args.position, tokens).map_err(|e| engine_failure(&e))?;
    let program = engine
        .program(index)
        .cloned()
        .ok_or_else(|| Failure::input("there is no program to be traced"))?;
    let words = words_per_sm(&program);
    engine.enable_trace(words).map_err(|e| engine_failure(&e))?;
    engine.put(args.position, &vec![5; tokens as usize]);
    let plan = LaunchPlan { program: index, position: args.position, steps: 1, tokens };
    let options = LaunchOptions { prompt_len: args.position + 1, ..LaunchOptions::default() };
    engine.time(&plan, &options, WARMUP).map_err(|e| engine_failure(&e))?;
    let stamps = engine.stamps().map_err(|e| engine_failure(&e))?;
    let timeline = Timeline::new(&program, &stamps, words as usize).map_err(Failure::answer)?;
    let title = match tokens {
        1 => format!("{} at position {}", checkpoint.name(), args.position),
        n => format!(
            "{} at positions {} to {}",
            checkpoint.name(),
            args.position,
            args.position + n - 1
        ),
    };
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
        tokens,
        us: timeline.us,
        total,
        by_op: timeline.by_op(),
        files: paths,
        out: &args.out,
    });
    Ok(Verdict::Yes)
}
