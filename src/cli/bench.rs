//! `amk bench`: time of a token against the plain read of its bytes and against baselines, in one run.

use std::cell::RefCell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use amk::bench::baseline::{Baseline, Kind, SCRIPT};
use amk::bench::ceiling::all_ways;
use amk::bench::record::{Facts, Row};
use amk::bench::{BenchError, Contender, interleave, system};
use amk::decode::{LaunchOptions, LaunchPlan};
use amk::engine::{Engine, Want};
use amk::image::ImageCache;
use amk::lower::{Mode, bucket_of};
use amk::pipeline::default_mode;
use amk::selftest::Verdict as ImageVerdict;
use amk::watch;
use amk_models::Checkpoint;
use amk_schedule_ir::BufferKind;
use amk_schedule_ir::hash::hex;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::compile::Compute;
use super::device::{CudaArgs, Plan, Ready, engine_failure};
use super::{Failure, Outcome, Verdict, files, model};
use crate::output::{self, Output, Tone};

/// Measure a token on a CUDA device, against a plain read of the same bytes and against PyTorch.
#[derive(Args)]
#[command(after_help = "\
Each round takes one sample of everything, in a turning order, so that drift of clocks reaches all alike;
ratios are those of one round, their intervals bootstrapped over rounds. Each image is tested against the
CPU reference first, and its verdict stands beside its figures. Baselines need Python with PyTorch on this
machine: graph is a CUDA graph of cuBLAS, compile one of torch.compile's output.

Examples:
  amk bench path/to/checkpoint --positions 16,1024 --baseline graph
  amk bench path/to/checkpoint --positions 16 --steps 128 --rounds 20 --save rows.json --json
  amk bench path/to/checkpoint --repeat-check 10000")]
pub struct BenchArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// Positions of the (first) token measured.
    #[arg(long, value_name = "P,...", value_delimiter = ',', default_value = "16")]
    positions: Vec<u64>,
    /// Tokens of one launch.
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps: u64,
    /// Measure a pass over as many positions of a prompt as one step takes, instead of a token.
    #[arg(long, conflicts_with = "steps")]
    prefill: bool,
    /// Rounds; each has one sample of everything.
    #[arg(long, value_name = "N", default_value_t = 30)]
    rounds: usize,
    /// Launches of one sample.
    #[arg(long, value_name = "N", default_value_t = 10)]
    batch: usize,
    /// What to compare with.
    #[arg(long, value_enum, value_name = "B,...", value_delimiter = ',')]
    baseline: Vec<Against>,
    /// The Python that has PyTorch.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Leave the plain read out.
    #[arg(long)]
    no_ceiling: bool,
    /// Type of activations and KV cache; by default bf16 for bf16 weights, else f32.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    /// Write the rows to a file, too.
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The commit the program was built from, to be noted in the rows.
    #[arg(long, value_name = "TEXT", env = "AMK_COMMIT")]
    commit: Option<String>,
    /// Instead of measuring, run one launch N times and compare tokens and logits bit by bit.
    #[arg(long, value_name = "N")]
    repeat_check: Option<u64>,
    #[command(flatten)]
    cuda: CudaArgs,
}

/// A baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Against {
    /// A CUDA graph of PyTorch's kernels.
    Graph,
    /// A CUDA graph of what torch.compile makes.
    Compile,
}

impl Against {
    fn name(self) -> &'static str {
        match self {
            Against::Graph => "graph",
            Against::Compile => "compile",
        }
    }

    /// How long preparing may take.
    fn patience(self) -> Duration {
        match self {
            Against::Graph => Duration::from_secs(240),
            Against::Compile => Duration::from_secs(540),
        }
    }
}

pub fn run(args: &BenchArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let mode = args.compute.map_or_else(|| default_mode(&checkpoint), Mode::from);
    let want = want(args, &checkpoint)?;
    let render = Default::default();
    let plan = Plan { mode, want, render, corrupt: None, sampled: false };
    let mut ready = args.cuda.open(&checkpoint, &plan, out)?;
    if let Some(times) = args.repeat_check {
        return repeat(args, &mut ready.opened.engine, times, out);
    }
    let script = tempfile::tempdir().map_err(Failure::environment)?;
    let mut baseline = None;
    if !args.baseline.is_empty() {
        baseline = Some(RefCell::new(start_baseline(args, &checkpoint, script.path())?));
    }
    let mut rows = Vec::new();
    for &position in &args.positions {
        let row = measure(args, &mut ready, &checkpoint, position, baseline.as_ref(), out)?;
        show(&row, out);
        out.document(&row);
        rows.push(row);
    }
    if let Some(path) = &args.save {
        let mut bytes = serde_json::to_vec_pretty(&rows).map_err(Failure::environment)?;
        bytes.push(b'\n');
        files::write(path, &bytes)?;
    }
    Ok(Verdict::Yes)
}

/// The buckets of all positions, or sequences that prefill.
fn want(args: &BenchArgs, checkpoint: &Checkpoint) -> Result<Want, Failure> {
    let max = checkpoint.config().max_position_embeddings as u64;
    let steps = if args.prefill { 16 } else { args.steps };
    let mut buckets = Vec::new();
    for &position in &args.positions {
        let last = position + steps;
        let bucket = bucket_of(max, 1, position).filter(|_| last <= max).ok_or_else(|| {
            Failure::input(format!(
                "position {position} with {steps} steps is outside the model's {max} positions"
            ))
        })?;
        if !buckets.contains(&bucket) {
            buckets.push(bucket);
        }
    }
    match args.prefill {
        true => {
            let end = args.positions.iter().max().map_or(16, |p| p + 16);
            Ok(Want::Sequence { prompt: end, positions: end })
        }
        false => Ok(Want::Decode(buckets)),
    }
}

fn start_baseline(
    args: &BenchArgs,
    checkpoint: &Checkpoint,
    folder: &std::path::Path,
) -> Result<Baseline, Failure> {
    let script = folder.join("baseline.py");
    std::fs::write(&script, SCRIPT).map_err(|e| Failure::writing(&script, &e))?;
    let files = checkpoint.files();
    let config = files.path("config.json").and_then(|p| p.parent()).ok_or_else(|| {
        Failure::input(
            "the embedded model has no folder for the baselines to read; name a checkpoint folder",
        )
    })?;
    let mut command = Command::new(&args.python);
    // What the child's child would take for its own parent's.
    command.arg(script).arg(config).env_remove(watch::VARIABLE);
    Baseline::start(&mut command).map_err(Failure::environment)
}

/// Launches of the engine, as a contender.
struct Ours<'a> {
    engine: &'a mut Engine,
    plan: LaunchPlan,
    batch: usize,
}

impl Contender for Ours<'_> {
    fn name(&self) -> &str {
        "amk"
    }

    fn sample(&mut self) -> Result<f64, BenchError> {
        let options = LaunchOptions { prompt_len: self.plan.position + 1, ..Default::default() };
        Ok(self.engine.time(&self.plan, &options, self.batch)?)
    }
}

fn plan_at(args: &BenchArgs, engine: &Engine, position: u64) -> Result<LaunchPlan, Failure> {
    let tokens = match args.prefill {
        true => (0..engine.len())
            .filter_map(|i| engine.program(i).map(|p| u64::from(p.tokens)))
            .max()
            .unwrap_or(1),
        false => 1,
    };
    let program = engine.index_for(position, tokens).map_err(|e| engine_failure(&e))?;
    Ok(LaunchPlan { program, position, steps: if args.prefill { 1 } else { args.steps }, tokens })
}

fn measure(
    args: &BenchArgs,
    ready: &mut Ready,
    checkpoint: &Checkpoint,
    position: u64,
    baseline: Option<&RefCell<Baseline>>,
    out: &Output,
) -> Result<Row, Failure> {
    let Ready { opened, verdicts } = ready;
    let engine = &mut opened.engine;
    let nvrtc = args.cuda.compiler()?;
    let cache = ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled());
    let plan = plan_at(args, engine, position)?;
    let ids: Vec<u32> = (0..plan.tokens).map(|i| 5 + i as u32).collect();
    engine.put(position, &ids);
    let (weight_bytes, kv_bytes) = bytes_of(engine, &plan);
    let device = engine.device().clone();
    let mut about = Vec::new();
    let mut kinds = Vec::new();
    for against in &args.baseline {
        let Some(child) = baseline else { continue };
        let spinner = out.spinner(&format!("preparing {}", against.name()));
        let told = child.borrow_mut().prepare(against.name(), position, against.patience());
        spinner.finish_and_clear();
        match told {
            Ok(told) => {
                about.push((against.name().to_owned(), told));
                kinds.push(Kind {
                    name: against.name().to_owned(),
                    what: against.name().to_owned(),
                    count: args.batch,
                    child,
                });
            }
            // One baseline less is no reason to measure nothing.
            Err(error) => out.warn(format!("{} at position {position}: {error}", against.name())),
        }
    }
    let mut reads = match args.no_ceiling {
        true => Vec::new(),
        false => all_ways(&device, weight_bytes + kv_bytes, args.batch, &nvrtc, &cache)
            .map_err(failure)?,
    };
    let verdict = verdict_of(engine, &plan, verdicts);
    let hash = engine.program(plan.program).map(|p| hex(&p.hash())).unwrap_or_default();
    let bar = out.bar(args.rounds as u64 + 3, "measuring");
    let mut ours = Ours { engine, plan, batch: args.batch };
    let mut contenders: Vec<&mut dyn Contender> = vec![&mut ours];
    contenders.extend(reads.iter_mut().map(|r| r as &mut dyn Contender));
    contenders.extend(kinds.iter_mut().map(|k| k as &mut dyn Contender));
    let samples =
        interleave(&mut contenders, args.rounds.max(1), 3, &mut |n| bar.set_position(n as u64));
    bar.finish_and_clear();
    let samples = samples.map_err(failure)?;
    let clocks = system::look(args.cuda.ordinal);
    let version = device.driver_version();
    Ok(Row::new(
        Facts {
            model: checkpoint.name(),
            mode: match opened.mode {
                Mode::Bf16 => "bf16",
                Mode::F32 => "f32",
            },
            position,
            steps: plan.steps,
            tokens: plan.tokens,
            device: device.facts().name.clone(),
            driver: match &clocks {
                Some(look) => look.driver.clone(),
                None => format!("CUDA {}.{}", version / 1000, version % 1000 / 10),
            },
            commit: args.commit.clone(),
            compiler: nvrtc.identity(),
            program_hash: hash,
            weight_bytes,
            kv_bytes,
            verdict,
            stored: opened.stored.clone(),
            batch: args.batch,
            clocks,
            about,
        },
        &samples,
    ))
}

/// Bytes a step must read: packed weights once, and keys and values of the past. Of several steps, the mean.
fn bytes_of(engine: &Engine, plan: &LaunchPlan) -> (u64, u64) {
    let caches = engine.program(plan.program).map_or(0, |p| {
        let rows = p.buffers.iter().filter(|b| b.kind == BufferKind::Kv);
        rows.map(|b| b.shape[0] * b.shape.get(2).copied().unwrap_or(0) * b.dtype.bytes()).sum()
    });
    let past = plan.position + (plan.steps - 1) * plan.tokens / 2;
    (engine.memory().weights, caches * past)
}

fn verdict_of(
    engine: &Engine,
    plan: &LaunchPlan,
    verdicts: &[ImageVerdict],
) -> Option<ImageVerdict> {
    let facts = engine.device().facts();
    let key = amk::selftest::VerdictKey::new(
        engine.image_key(plan.program)?,
        engine.device().driver_version(),
        facts,
    );
    verdicts.iter().find(|v| key.is(&v.key)).cloned()
}

fn failure(error: BenchError) -> Failure {
    match &error {
        BenchError::Engine(e) => engine_failure(e),
        _ => Failure::environment(error),
    }
}

fn show(row: &Row, out: &Output) {
    let verdict = match row.correct {
        Some(true) => out.paint(Tone::Good, "correct"),
        Some(false) => out.paint(Tone::Bad, "wrong"),
        None => out.paint(Tone::Warn, "untested"),
    };
    out.line(format!(
        "{verdict}  {}: {:.1} us a token ({:.1} to {:.1}), {:.0} tokens/s",
        row.work, row.us_median, row.us_p10, row.us_p90, row.tokens_per_second
    ));
    out.line(format!(
        "         {} of weights and {} of cache read; a plain read takes {:.1} us: {:.1}% of the ceiling, {:.0} GB/s",
        output::bytes(row.weight_bytes),
        output::bytes(row.kv_bytes),
        row.ceiling_us,
        row.percent_of_ceiling,
        row.gb_per_second
    ));
    for b in &row.baselines {
        let ratio = b.ratio.map_or_else(String::new, |r| {
            format!(", {:.3} times ours ({:.3} to {:.3})", r.median, r.low, r.high)
        });
        out.line(format!("         {}: {:.1} us{ratio}", b.name, b.summary.median));
    }
    if let Some(c) = &row.clocks {
        let number = |v: Option<f64>| v.map_or_else(|| "-".to_owned(), |v| format!("{v:.0}"));
        out.detail(format!(
            "         {}, driver {}, SM {} MHz, memory {} MHz, {} C, {} W",
            c.name,
            c.driver,
            number(c.sm_mhz),
            number(c.memory_mhz),
            number(c.temperature),
            number(c.power)
        ));
    }
}

/// Runs one launch again and again; every run must say the same, bit for bit.
fn repeat(args: &BenchArgs, engine: &mut Engine, times: u64, out: &Output) -> Outcome {
    let position = args.positions.first().copied().unwrap_or(16);
    let plan = plan_at(args, engine, position)?;
    let ids: Vec<u32> = (0..plan.tokens).map(|i| 5 + i as u32).collect();
    let prompt_len = position + plan.tokens;
    let options = LaunchOptions { prompt_len, logits: true, ..LaunchOptions::default() };
    let mut first: Option<(Vec<u32>, blake3::Hash)> = None;
    let mut different = 0u64;
    let bar = out.bar(times, "repeating");
    let start = std::time::Instant::now();
    for i in 0..times {
        let mut said = Vec::new();
        engine.put(position, &ids);
        engine
            .run(&plan, &options, &mut |t| {
                said.push(t);
                true
            })
            .map_err(|e| engine_failure(&e))?;
        let logits = engine.logits().map_err(|e| engine_failure(&e))?;
        let bytes: Vec<u8> = logits.iter().flat_map(|v| v.to_bits().to_le_bytes()).collect();
        let this = (said, blake3::hash(&bytes));
        match &first {
            None => first = Some(this),
            Some(first) => different += u64::from(*first != this),
        }
        if i % 100 == 0 {
            bar.set_position(i);
        }
    }
    bar.finish_and_clear();
    let tokens = first.map(|f| f.0).unwrap_or_default();
    let seconds = start.elapsed().as_secs_f64();
    let document: Value = json!({
        "ok": different == 0, "launches": times, "different": different, "tokens": tokens,
        "position": position, "steps": plan.steps, "seconds": seconds,
    });
    out.document(&document);
    out.line(match different {
        0 => out.paint(Tone::Good, format!("{times} launches said the same, bit for bit")),
        n => out.paint(Tone::Bad, format!("{n} of {times} launches said something else")),
    });
    Ok(Verdict::of(different == 0))
}
