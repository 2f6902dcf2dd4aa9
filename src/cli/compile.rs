//! `amk compile`: a model to validated schedules, CUDA text and images, for any number of targets.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Instant;

use amk::generate::{Request, generate};
use amk::image::ImageCache;
use amk::lower::{Knobs, Mode, Shape, bucket_of};
use amk::pipeline::{self, Kernel, PipelineError, Schedule, Seconds};
use amk::report::{self, Files, ModelSummary, Report, RunReport, TargetReport};
use amk::search::stored::{self, choose};
use amk::target::{Target, default_targets, load_target_file, resolve};
use amk::toolchain::{FindOptions, Nvrtc, SpillPolicy, find_nvrtc};
use amk::vm::{Options, VmModel};
use amk_models::{Checkpoint, Reference, shape_only};
use amk_schedule_ir::Bucket;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::device::read_knobs;
use super::generate::{encode, text_of};
use super::{Failure, Outcome, Verdict, files, model};
use crate::output::{self, Output, Tone};

/// Prompt of the embedded model's run.
const DEFAULT_PROMPT: &str = "In the beginning";

/// Compile a model: schedules, proofs, CUDA text, images and a report.
#[derive(Args)]
#[command(after_help = "\
Without --target all six architectures are compiled. Into DIR go model.sched and model.sched.json (the
first target's; the others have their architecture in the name), and per target megakernel.SM.cu and
megakernel.SM.cubin; and report.json and report.html. Each is written whole or not at all.

The embedded model's schedule is also executed by the reference VM on the CPU, and what it says is
printed; --prompt does the same for any model. Without a CUDA compiler the sources are written and no
images; `amk toolchain fetch` gets one.

Examples:
  amk compile
  amk compile path/to/checkpoint --target sm_90a --out build
  amk compile --shape-only config.json --target h200 --position 2000
  amk compile path/to/checkpoint --target sm_90a --prompt \"Once upon a time\" --json")]
pub struct CompileArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// A part to compile for, such as sm_90a or h200; may be given several times.
    #[arg(long, value_name = "T")]
    target: Vec<String>,
    /// A target record to compile for.
    #[arg(long, value_name = "FILE")]
    target_file: Vec<PathBuf>,
    /// The folder to write into.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Compile for the shapes of a config.json, without weights.
    #[arg(long, value_name = "CONFIG.json", conflicts_with_all = ["model", "prompt"])]
    shape_only: Option<PathBuf>,
    /// Type of activations and KV cache; by default bf16 for bf16 weights, else f32.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    /// Compile for the positions around this one.
    #[arg(long, value_name = "P", default_value_t = 0)]
    position: u64,
    /// Schedule parameters, a JSON object; absent ones are chosen by amk.
    #[arg(long, value_name = "FILE")]
    knobs: Option<PathBuf>,
    /// Use the lowering's own choices even where autoresearch has found a better schedule.
    #[arg(long)]
    no_store: bool,
    /// Execute the first target's schedule after this prompt.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Most tokens of that run.
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_tokens: usize,
    /// Execute no schedule.
    #[arg(long, conflicts_with = "prompt")]
    no_run: bool,
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    nvrtc: Option<PathBuf>,
    /// Keep images whose kernel spills registers; by default a spill is an error.
    #[arg(long)]
    allow_spills: bool,
    /// Neither read nor write the cache of images.
    #[arg(long)]
    no_cache: bool,
}

/// Type of activations and KV cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Compute {
    Bf16,
    F32,
}

impl From<Compute> for Mode {
    fn from(compute: Compute) -> Mode {
        match compute {
            Compute::Bf16 => Mode::Bf16,
            Compute::F32 => Mode::F32,
        }
    }
}

#[derive(Serialize)]
struct CompileDocument<'a> {
    ok: bool,
    targets: Vec<TargetDocument<'a>>,
    /// Of the first target, as are the instructions.
    program_hash: &'a str,
    instructions: usize,
    validated: bool,
    compute: Mode,
    out: &'a Path,
    compiler: Option<&'a str>,
    warnings: &'a [String],
    /// Which stored schedules are used or left out, a sentence each.
    stored: &'a [String],
    run: Option<&'a RunReport>,
    seconds: f64,
}

#[derive(Serialize)]
struct TargetDocument<'a> {
    sm: &'a str,
    name: &'a str,
    source: PathBuf,
    cubin: Option<PathBuf>,
    registers: Option<u32>,
    spill_bytes: Option<u64>,
    /// Dynamic and static shared memory of a block.
    shared_bytes: u64,
    seconds: f64,
    schedule: PathBuf,
    schedule_json: PathBuf,
    program_hash: &'a str,
    instructions: usize,
}

/// What is compiled.
struct Input {
    shape: Shape,
    summary: ModelSummary,
    mode: Mode,
    /// None for a config alone.
    checkpoint: Option<Checkpoint>,
}

pub fn run(args: &CompileArgs, out: &Output) -> Outcome {
    let start = Instant::now();
    let targets = targets(args, out)?;
    let knobs = read_knobs(args.knobs.as_deref())?;
    let input = input(args, out)?;
    let positions = input.shape.sizes.max_positions;
    let bucket = bucket_of(positions, u64::from(knobs.tokens), args.position).ok_or_else(|| {
        Failure::input(format!(
            "position {} is outside the model's {positions} positions; give a smaller --position",
            args.position
        ))
    })?;
    if args.prompt.is_some() && bucket.first > 0 {
        return Err(Failure::input(format!(
            "--prompt needs a schedule for position 0, and this one is for positions {} to {}; leave --position out",
            bucket.first, bucket.last
        )));
    }
    let mut warnings = Vec::new();
    let nvrtc = compiler(args, &mut warnings)?;
    let cache = match args.no_cache {
        true => ImageCache::disabled(),
        false => ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled()),
    };
    files::create_folder(&args.out)?;

    let spills = if args.allow_spills { SpillPolicy::Report } else { SpillPolicy::Refuse };
    let store = match args.no_store || args.knobs.is_some() {
        true => None,
        false => stored::store().ok(),
    };
    let mut stored = Vec::new();
    let mut reports = Vec::new();
    let mut first = None;
    let bar = out.bar(targets.len() as u64, "compiling");
    let chosen: Vec<Knobs> = targets
        .iter()
        .map(|target| {
            let best = store.as_ref().map(|s| choose(s, &input.shape, target, input.mode, bucket));
            let best = best.unwrap_or_default();
            if !best.text.is_empty() {
                stored.push(format!("{}: {}", target.sm, best.text));
            }
            best.knobs.unwrap_or_else(|| knobs.clone())
        })
        .collect();
    let make = |(target, knobs): (&Target, &Knobs)| -> Result<Made, PipelineError> {
        let schedule = pipeline::schedule(&input.shape, target, knobs, args.position, input.mode)?;
        let begin = Instant::now();
        let compile = |nvrtc| pipeline::compile(&schedule, target, nvrtc, &cache, spills);
        let kernel = nvrtc.as_ref().map(compile).transpose()?;
        let mut seconds = schedule.seconds;
        seconds.compile = begin.elapsed().as_secs_f64();
        bar.inc(1);
        Ok((schedule, kernel, seconds))
    };
    // As many at a time as there are cores; a failure ends it before the next ones begin.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let all: Vec<(&Target, &Knobs)> = targets.iter().zip(&chosen).collect();
    let mut made = all.chunks(cores).flat_map(|some| in_parallel(some, &make));
    for (index, target) in targets.iter().enumerate() {
        let Some(one) = made.next() else { break };
        let (schedule, kernel, seconds) = one.map_err(|e| failure(e, out))?;
        let files = write(&args.out, index == 0, target, &schedule, kernel.as_ref())?;
        warnings
            .extend(kernel.iter().filter_map(|k| k.image.warning.as_ref()).map(|w| w.to_string()));
        reports.push(TargetReport::new(target, &schedule, kernel.as_ref(), files, seconds));
        first.get_or_insert(schedule);
    }
    drop(made);
    bar.finish_and_clear();

    let run = match (&input.checkpoint, first) {
        (Some(checkpoint), Some(schedule)) => execute(args, checkpoint, &schedule, bucket, out)?,
        _ => None,
    };
    let report = Report {
        format: report::FORMAT,
        amk: env!("CARGO_PKG_VERSION"),
        model: input.summary,
        compute: input.mode,
        bucket,
        compiler: nvrtc.as_ref().map(Nvrtc::identity),
        targets: reports,
        run,
    };
    let page = report::page(&report).map_err(Failure::environment)?;
    let mut json = serde_json::to_vec_pretty(&report).map_err(Failure::environment)?;
    json.push(b'\n');
    files::write(&args.out.join("report.json"), &json)?;
    files::write(&args.out.join("report.html"), page.as_bytes())?;

    show(&report, &args.out, start.elapsed().as_secs_f64(), out);
    for text in &stored {
        out.line(text);
    }
    for warning in &warnings {
        out.warn(warning);
    }
    document(&report, args, (&warnings, &stored), start.elapsed().as_secs_f64(), out);
    Ok(Verdict::Yes)
}

/// What was made for a target.
type Made = (Schedule, Option<Kernel>, Seconds);

/// Applies `make` to each item on a thread of its own and gives the results in order.
fn in_parallel<I: Copy + Send, R: Send>(items: &[I], make: &(impl Fn(I) -> R + Sync)) -> Vec<R> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.iter().map(|&item| scope.spawn(move || make(item))).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, R>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

/// The targets asked for, or all six. Two of one architecture would write the same files.
fn targets(args: &CompileArgs, out: &Output) -> Result<Vec<Target>, Failure> {
    let mut targets = Vec::new();
    for name in &args.target {
        let found = resolve(name).map_err(Failure::input)?;
        if let Some(notice) = found.notice {
            out.note(notice);
        }
        targets.push(found.target);
    }
    for file in &args.target_file {
        targets.push(load_target_file(file).map_err(Failure::input)?);
    }
    if targets.is_empty() {
        targets = default_targets();
    }
    let mut seen = BTreeSet::new();
    for target in &targets {
        if !seen.insert(&target.sm) {
            return Err(Failure::input(format!(
                "two of the targets are {}, so their files would have the same names; compile them into different folders",
                target.sm
            )));
        }
    }
    Ok(targets)
}

fn input(args: &CompileArgs, out: &Output) -> Result<Input, Failure> {
    if let Some(path) = &args.shape_only {
        let config = shape_only(path).map_err(|e| model::failure(&e))?;
        let name = path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        return Ok(Input {
            shape: Shape::of_config(&name, &config),
            summary: ModelSummary::shape_only(&name, &config),
            mode: args.compute.map_or(Mode::Bf16, Mode::from),
            checkpoint: None,
        });
    }
    let checkpoint = model::open(args.model.as_deref(), out)?;
    Ok(Input {
        shape: Shape::of(&checkpoint),
        summary: ModelSummary::of(&checkpoint),
        mode: args.compute.map_or_else(|| pipeline::default_mode(&checkpoint), Mode::from),
        checkpoint: Some(checkpoint),
    })
}

/// The compiler, or a warning that says how to get one. One that was named must work.
fn compiler(args: &CompileArgs, warnings: &mut Vec<String>) -> Result<Option<Nvrtc>, Failure> {
    let options = FindOptions::from_env(args.nvrtc.clone());
    let named = options.explicit.is_some();
    match find_nvrtc(&options) {
        Ok(found) => Ok(Some(found.nvrtc)),
        Err(error) if named => Err(Failure::environment(error)),
        Err(_) => {
            warnings.push(
                "no CUDA compiler (NVRTC) was found, so there are sources and no images; `amk toolchain fetch` gets one"
                    .to_owned(),
            );
            Ok(None)
        }
    }
}

/// Writes the files of one target and gives their names.
fn write(
    folder: &Path,
    first: bool,
    target: &Target,
    schedule: &Schedule,
    kernel: Option<&Kernel>,
) -> Result<Files, Failure> {
    let stem = if first { "model".to_owned() } else { format!("model.{}", target.sm) };
    let names = Files {
        schedule: format!("{stem}.sched"),
        schedule_json: format!("{stem}.sched.json"),
        source: format!("megakernel.{}.cu", target.sm),
        cubin: kernel.map(|_| format!("megakernel.{}.cubin", target.sm)),
    };
    let program = schedule.program.get();
    files::write(&folder.join(&names.schedule), amk_schedule_ir::text::print(program).as_bytes())?;
    let mut json = serde_json::to_vec(program).map_err(Failure::environment)?;
    json.push(b'\n');
    files::write(&folder.join(&names.schedule_json), &json)?;
    let source = kernel.map_or(&schedule.source, |k| &k.source);
    files::write(&folder.join(&names.source), source.text.as_bytes())?;
    if let (Some(name), Some(kernel)) = (&names.cubin, kernel) {
        files::write(&folder.join(name), &kernel.image.compiled.cubin)?;
    }
    Ok(names)
}

/// Runs the schedule on the VM, for the embedded model or after a prompt.
fn execute(
    args: &CompileArgs,
    checkpoint: &Checkpoint,
    schedule: &Schedule,
    bucket: Bucket,
    out: &Output,
) -> Result<Option<RunReport>, Failure> {
    let wanted = args.prompt.is_some() || args.model.is_none() && bucket.first == 0;
    if args.no_run || !wanted {
        return Ok(None);
    }
    let text = args.prompt.as_deref().unwrap_or(DEFAULT_PROMPT);
    let tokenizer = checkpoint.tokenizer().map_err(|e| model::failure(&e))?;
    let prompt = encode(text, false, &checkpoint.name(), tokenizer)?;
    let stop = checkpoint.eos_ids().map_err(|e| model::failure(&e))?;
    let request = Request {
        prompt: &prompt,
        max_tokens: args.max_tokens,
        stop: &stop,
        capacity: usize::try_from(bucket.last + 1).unwrap_or(usize::MAX),
    };
    let start = Instant::now();
    let spinner = out.spinner("executing the schedule");
    let mut vm = VmModel::new(&schedule.lowered(), checkpoint, Options::default())
        .map_err(|e| Failure::input(format!("the schedule cannot be executed: {e}")))?;
    let done = generate(&mut vm, &request, &mut |_| {});
    spinner.finish_and_clear();
    let tokens = done.map_err(Failure::input)?.tokens;
    let seconds = start.elapsed().as_secs_f64();
    let mut reference = Reference::new(checkpoint).map_err(Failure::input)?;
    let expected = generate(&mut reference, &request, &mut |_| {}).map_err(Failure::input)?.tokens;
    Ok(Some(RunReport {
        sm: schedule.source.sm.clone(),
        prompt: Some(text.to_owned()),
        prompt_tokens: prompt.len(),
        text: text_of(tokenizer, &tokens)?,
        agrees_with_reference: tokens.iter().zip(&expected).take_while(|(a, b)| a == b).count(),
        tokens,
        seconds,
    }))
}

fn failure(error: PipelineError, out: &Output) -> Failure {
    if let PipelineError::Rejected { source, .. } = &error {
        for fault in source.faults.iter().take(10) {
            out.note(fault);
        }
    }
    Failure::input(error)
}

fn show(report: &Report, folder: &Path, seconds: f64, out: &Output) {
    for t in &report.targets {
        let image = match &t.image {
            Some(i) => format!(
                "{} registers, {} spilled, {} SASS instructions, cubin {}{}",
                i.registers,
                output::bytes(i.spill_bytes),
                i.sass_instructions,
                output::bytes(i.cubin_bytes as u64),
                if i.cached { " (cached)" } else { "" }
            ),
            None => "source only".to_owned(),
        };
        out.line(format!(
            "{:<8} {}  {} instructions on {} SMs, {image}, {}",
            t.sm,
            out.paint(Tone::Good, "validated"),
            t.instructions,
            t.blocks,
            output::seconds(t.seconds.total())
        ));
    }
    if let Some(run) = &report.run {
        let same = match run.agrees_with_reference == run.tokens.len() {
            true => "as the float32 reference".to_owned(),
            false => format!(
                "the first {} as the float32 reference ({} rounds)",
                run.agrees_with_reference,
                compute_name(report.compute)
            ),
        };
        out.line(format!(
            "the schedule for {} on the VM: {}, {same}, {}",
            run.sm,
            output::count(run.tokens.len(), "token"),
            output::seconds(run.seconds)
        ));
        let prompt = run.prompt.as_deref().unwrap_or_default();
        let text = run.text.clone().unwrap_or_else(|| format!("{:?}", run.tokens));
        out.line(format!("\n{}{text}\n", out.paint(Tone::Strong, prompt)));
    }
    out.line(format!("written to {} in {}", folder.display(), output::seconds(seconds)));
}

fn compute_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Bf16 => "bf16",
        Mode::F32 => "f32",
    }
}

fn document(
    report: &Report,
    args: &CompileArgs,
    (warnings, stored): (&[String], &[String]),
    seconds: f64,
    out: &Output,
) {
    let Some(first) = report.targets.first() else { return };
    let at = |name: &str| args.out.join(name);
    let targets = report
        .targets
        .iter()
        .map(|t| TargetDocument {
            sm: &t.sm,
            name: &t.name,
            source: at(&t.files.source),
            cubin: t.files.cubin.as_deref().map(at),
            registers: t.image.as_ref().map(|i| i.registers),
            spill_bytes: t.image.as_ref().map(|i| i.spill_bytes),
            shared_bytes: t.dynamic_shared_bytes
                + t.image.as_ref().map_or(0, |i| i.static_shared_bytes),
            seconds: t.seconds.total(),
            schedule: at(&t.files.schedule),
            schedule_json: at(&t.files.schedule_json),
            program_hash: &t.program_hash,
            instructions: t.instructions,
        })
        .collect();
    out.document(&CompileDocument {
        ok: true,
        targets,
        program_hash: &first.program_hash,
        instructions: first.instructions,
        validated: report.targets.iter().all(|t| t.validated),
        compute: report.compute,
        out: &args.out,
        compiler: report.compiler.as_deref(),
        warnings,
        stored,
        run: report.run.as_ref(),
        seconds,
    });
}
