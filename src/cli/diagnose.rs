//! `amk diagnose`: faults planted on purpose, to see on a device that each is caught and named.

use std::time::{Duration, Instant};

use amk::codegen::RenderOptions;
use amk::decode::{LaunchOptions, LaunchPlan};
use amk::device::{Candidate, Device as Cuda, DeviceError, Image, Launchable};
use amk::engine::{
    BuildRequest, Built, EngineError, Tampered, Want, build, check_target, tamper, target_of,
};
use amk::image::ImageCache;
use amk::lower::{EdgeKind, Edges, Knobs, Shape, bucket_of, lower};
use amk::pipeline::default_mode;
use amk::target::{Target, resolve};
use amk::toolchain::{Nvrtc, SpillPolicy};
use amk_models::Checkpoint;
use amk_schedule_ir::Bucket;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::json;

use super::device::{CudaArgs, Plan, SelfTest, device_failure, engine_failure};
use super::{Failure, Outcome, Verdict, model};
use crate::output::{Output, Tone};

/// Plant a fault on a CUDA device and see that it is caught: hangs, refusals, corrupted kernels.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk diagnose hang --fault signal
  amk diagnose refusals
  amk diagnose corrupt --replace 1.5f=1.25f")]
pub struct DiagnoseArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    Hang(HangArgs),
    Refusals(RefusalArgs),
    Corrupt(CorruptArgs),
}

/// Take a signal, a packet or an arrival out of tables that were already checked and uploaded, and launch.
///
/// The launch must end within seconds, and the report name what waited. Exit code 1, as of any hang; 0 would mean that
/// it went unnoticed.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk diagnose hang --fault packet --json
  amk diagnose hang path/to/checkpoint --fault boundary")]
struct HangArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// What to take away: the signals of an instruction, an instruction whose packets others wait for, or one SM's
    /// arrival at the step boundary, after which that SM never ends and its process has to be.
    #[arg(long, value_enum, default_value_t = FaultKind::Signal)]
    fault: FaultKind,
    #[command(flatten)]
    cuda: CudaArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FaultKind {
    Signal,
    Packet,
    Boundary,
}

/// Bring up launches that must be refused: too many SMs claimed, grid or shared memory too large, wrong program, wrong
/// architecture, driver too old.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk diagnose refusals --json")]
struct RefusalArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    #[command(flatten)]
    cuda: CudaArgs,
}

/// Corrupt a constant of the kernel's text and see that the self-test refuses the image.
///
/// Exit code 0 when it is refused, 1 when it is not.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk diagnose corrupt
  amk diagnose corrupt path/to/checkpoint --replace 1.5f=1.25f --json")]
struct CorruptArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// A text of the kernel and what to put in its place; by default a constant of the norm's square root.
    #[arg(long, value_name = "OLD=NEW", default_value = "1.5f=1.25f")]
    replace: String,
    #[command(flatten)]
    cuda: CudaArgs,
}

pub fn run(args: &DiagnoseArgs, out: &Output) -> Outcome {
    match &args.what {
        What::Hang(args) => hang(args, out),
        What::Refusals(args) => refusals(args, out),
        What::Corrupt(args) => corrupt(args, out),
    }
}

/// The first positions of a model, as a bucket.
fn first_bucket(checkpoint: &Checkpoint) -> Result<Bucket, Failure> {
    let max = checkpoint.config().max_position_embeddings as u64;
    bucket_of(max, 1, 0).ok_or_else(|| Failure::input("the model has no positions"))
}

fn hang(args: &HangArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let fault = match args.fault {
        FaultKind::Signal => Tampered::Signal,
        FaultKind::Packet => Tampered::Packet,
        FaultKind::Boundary => Tampered::Boundary,
    };
    let mut cuda = args.cuda.clone();
    // Signals are there where edges are counters.
    let file = tempfile::NamedTempFile::new().map_err(Failure::environment)?;
    if fault == Tampered::Signal && cuda.knobs.is_none() {
        let c = EdgeKind::Counter;
        let edges = Edges { hidden: c, qkv: c, attention: c, act: c, partial: c };
        let knobs = Knobs { edges, ..Knobs::default() };
        serde_json::to_writer(file.as_file(), &knobs).map_err(Failure::environment)?;
        cuda.knobs = Some(file.path().to_owned());
    }
    let plan = Plan {
        mode: default_mode(&checkpoint),
        want: Want::Decode(vec![first_bucket(&checkpoint)?]),
        render: RenderOptions::default(),
        corrupt: None,
        sampled: false,
    };
    let mut ready = cuda.open(&checkpoint, &plan, out)?;
    let engine = &mut ready.opened.engine;
    // Some tokens before, so that the tables are known to have worked.
    let position = 5;
    let plan = LaunchPlan { program: 0, position, steps: 2, tokens: 1 };
    let options = LaunchOptions { prompt_len: position + 1, ..LaunchOptions::default() };
    engine.put(position, &[5]);
    engine.run(&plan, &options, &mut |_| true).map_err(|e| engine_failure(&e))?;
    let program = engine.program(0).cloned();
    let (Some(program), Some(launchable)) = (program, engine.launchable_mut(0)) else {
        return Err(Failure::input("there is no program to tamper with"));
    };
    let tables = launchable.tables_mut();
    let mut bytes = vec![0; tables.len() as usize];
    tables.read(0, &mut bytes).map_err(|e| device_failure(&e))?;
    let change = tamper(&program, &bytes, fault)
        .ok_or_else(|| Failure::input("the program has nothing of the kind to take away"))?;
    let word = change.word.to_le_bytes();
    tables.write(change.at as u64, &word).map_err(|e| device_failure(&e))?;
    out.note(format!("taken away: {}", change.what));
    // About a second.
    engine.spin_limit = 1_800_000_000;
    engine.patience = Duration::from_secs(4);
    engine.put(position, &[5]);
    let start = Instant::now();
    let error = match engine.run(&plan, &options, &mut |_| true) {
        Ok(_) => {
            out.line(out.paint(Tone::Bad, "the launch ended as if nothing were missing"));
            out.document(&json!({ "ok": false, "taken_away": change.what, "noticed": false }));
            return Ok(Verdict::Yes);
        }
        Err(error) => error,
    };
    let hang = match &error {
        EngineError::Device(DeviceError::Hung(hang)) => Some(hang.clone()),
        _ => None,
    };
    let seconds = start.elapsed().as_secs_f64();
    out.document(&json!({
        "ok": false, "noticed": true, "taken_away": change.what, "hang": hang,
        "message": error.to_string(), "seconds": seconds,
    }));
    out.line(format!("taken away: {}", change.what));
    out.line(format!("after {seconds:.2} s: {error}"));
    // A kernel that never ends holds its process: the parent ends it, with the message above.
    Ok(Verdict::No)
}

#[derive(Serialize)]
struct Refusal {
    what: &'static str,
    ok: bool,
    /// What was said, or none where it was not refused.
    message: Option<String>,
}

/// Builds the first program of a model.
struct Workbench<'a> {
    checkpoint: &'a Checkpoint,
    nvrtc: &'a Nvrtc,
    cache: &'a ImageCache,
    bucket: Bucket,
}

impl Workbench<'_> {
    fn build(&self, target: &Target, rotation: u32) -> Result<Built, Failure> {
        let shape = Shape::of(self.checkpoint);
        let knobs = Knobs { rotation, ..Knobs::default() };
        let mode = default_mode(self.checkpoint);
        let low = lower(&shape, target, &knobs, self.bucket, mode).map_err(Failure::input)?;
        let request = BuildRequest {
            target,
            nvrtc: self.nvrtc,
            cache: self.cache,
            options: RenderOptions::default(),
            spills: SpillPolicy::Report,
            corrupt: None,
        };
        build(low.program, &request).map_err(|e| engine_failure(&e))
    }
}

/// A launchable of what was built, with `image` and `compiler` in place of its own.
fn launchable(
    device: &Cuda,
    built: Built,
    image: Option<Image>,
    compiler: Option<(u32, u32)>,
) -> Result<(), DeviceError> {
    let image = image.unwrap_or_else(|| Image::Cubin(built.cubin.clone()));
    let candidate = Candidate {
        source: &built.source,
        tables: &built.tables,
        image: &image,
        compiler: compiler.unwrap_or(built.compiler),
    };
    Launchable::new(device, built.program, &candidate).map(drop)
}

fn refusals(args: &RefusalArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let device = Cuda::open(args.cuda.ordinal).map_err(|e| device_failure(&e))?;
    let nvrtc = args.cuda.compiler()?;
    let cache = ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled());
    let own = target_of(device.facts(), &nvrtc).map_err(|e| engine_failure(&e))?;
    let bucket = first_bucket(&checkpoint)?;
    let bench = Workbench { checkpoint: &checkpoint, nvrtc: &nvrtc, cache: &cache, bucket };
    let mut found = Vec::new();
    let mut note = |what, result: Result<(), DeviceError>, right: fn(&DeviceError) -> bool| {
        let message = result.as_ref().err().map(ToString::to_string);
        let ok = result.is_err_and(|e| right(&e));
        found.push(Refusal { what, ok, message });
    };

    let claims = Target { sm_count: 200, ..own.clone() };
    note("a target record that claims 200 SMs", check_target(&claims, device.facts()), |e| {
        matches!(e, DeviceError::NotThatPart(_))
    });
    // Past the check of the record, the compiled function is asked how much fits.
    let many = Target { sm_count: own.sm_count * 16 + 1, ..own.clone() };
    let result = launchable(&device, bench.build(&many, 1)?, None, None);
    note("a grid larger than is on the device at once", result, |e| {
        matches!(e, DeviceError::GridTooLarge { .. })
    });
    let mut built = bench.build(&own, 1)?;
    built.source.shared_bytes = device.facts().shared_per_block + 1;
    note("shared memory over the limit", launchable(&device, built, None, None), |e| {
        matches!(e, DeviceError::SharedMemory { .. })
    });
    let result = launchable(&device, bench.build(&own, 1)?, None, Some((99, 0)));
    note("a driver older than the image", result, |e| matches!(e, DeviceError::DriverOlder { .. }));
    let other = Image::Cubin(bench.build(&own, 2)?.cubin);
    let result = launchable(&device, bench.build(&own, 1)?, Some(other), None);
    note("the image of another program", result, |e| matches!(e, DeviceError::WrongProgram { .. }));
    let foreign = resolve(if own.sm == "sm_100a" { "sm_90a" } else { "sm_100a" });
    let built = bench.build(&foreign.map_err(Failure::input)?.target, 1)?;
    note("an image for another architecture", launchable(&device, built, None, None), |e| {
        matches!(e, DeviceError::WrongArchitecture { .. })
    });

    let ok = found.iter().all(|r| r.ok);
    for r in &found {
        let word = match r.ok {
            true => out.paint(Tone::Good, "refused"),
            false => out.paint(Tone::Bad, "not refused"),
        };
        out.line(format!("{word}  {}", r.what));
        out.line(format!("         {}", r.message.as_deref().unwrap_or("it was taken")));
    }
    out.document(&json!({ "ok": ok, "refusals": found }));
    Ok(Verdict::of(ok))
}

fn corrupt(args: &CorruptArgs, out: &Output) -> Outcome {
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let (old, new) = args
        .replace
        .split_once('=')
        .filter(|(old, new)| !old.is_empty() && old != new)
        .ok_or_else(|| Failure::input("--replace takes OLD=NEW, two different texts"))?;
    let cuda = CudaArgs { self_test: SelfTest::Always, ..args.cuda.clone() };
    let plan = |corrupt| {
        Ok(Plan {
            mode: default_mode(&checkpoint),
            want: Want::Decode(vec![first_bucket(&checkpoint)?]),
            render: RenderOptions::default(),
            corrupt,
            sampled: false,
        })
    };
    // As it is it must pass, or the refusal would say nothing.
    let sound = cuda.open(&checkpoint, &plan(None)?, out)?;
    let before = sound.verdicts.first().map(|v| v.findings.difference);
    drop(sound);
    let changed = Some((old.to_owned(), new.to_owned()));
    let failure = match cuda.open(&checkpoint, &plan(changed)?, out) {
        Ok(_) => None,
        Err(f) if f.message.contains("self-test") || f.message.contains("NaN") => Some(f.message),
        Err(other) => return Err(other),
    };
    let caught = failure.is_some();
    out.document(&json!({
        "ok": caught, "replaced": old, "by": new, "difference_as_it_is": before,
        "message": failure,
    }));
    match failure {
        Some(message) => out.line(format!("{}  {message}", out.paint(Tone::Good, "caught"))),
        None => out.line(out.paint(Tone::Bad, "the corrupted image passed its self-test")),
    }
    Ok(Verdict::of(caught))
}
