//! Self-test and timing on a CUDA device: two engines in one process, one for the candidate and one for the incumbent.

use std::path::Path;
use std::time::Duration;

use amk_autoresearch::{Evidence, Job, Point, Refusal, Stage};
use amk_models::Checkpoint;
use amk_schedule_ir::hash::hex;

use super::Subject;
use super::request::DeviceReply;
use super::subject::cache_bytes;
use super::time::{Stopwatch, Timed, Who, rounds};
use crate::bench::ceiling::{PlainRead, all_ways};
use crate::bench::{BenchError, Contender};
use crate::decode::{LaunchOptions, LaunchPlan};
use crate::device::{Device, DeviceError};
use crate::engine::{Engine, EngineError, OpenOptions, Opened, Want, open, target_of};
use crate::image::{BuildError, ImageCache};
use crate::selftest::{Policy, SelfTestError, Verdict, VerdictCache, ensure};
use crate::toolchain::{CompileError, FindOptions, Nvrtc, SpillPolicy, find_nvrtc};
use crate::watch;

/// Time one sample should take, microseconds: long enough for events to be exact.
const SAMPLE_US: f64 = 5000.0;
/// Launches of a sample.
const BATCH: (f64, f64) = (4.0, 64.0);
/// How long bringing a model onto the device may take, and testing it.
const LOADING: Duration = Duration::from_secs(300);
const TESTING: Duration = Duration::from_secs(300);

fn rejected(stage: Stage) -> impl Fn(String) -> Refusal {
    move |reason| Refusal::Rejected { stage, reason }
}

/// The compiler.
pub(super) fn compiler(nvrtc: Option<&Path>) -> Result<Nvrtc, Refusal> {
    let found = find_nvrtc(&FindOptions::from_env(nvrtc.map(Path::to_owned)));
    found.map(|f| f.nvrtc).map_err(|e| rejected(Stage::Compile)(e.to_string()))
}

/// What identifies a device and its driver in a journal.
pub fn fingerprint(device: &Device) -> String {
    let facts = device.facts();
    let (major, minor) = facts.capability;
    format!(
        "{}, compute capability {major}.{minor}, {} SMs, driver {}",
        facts.name,
        facts.sm_count,
        device.driver_version()
    )
}

/// The device that is there, if one is.
pub(super) fn device(ordinal: usize, nvrtc: Option<&Path>) -> Result<Option<DeviceReply>, Refusal> {
    watch::begin("opening the device", Duration::from_secs(60));
    let device = match Device::open(ordinal) {
        Ok(device) => device,
        Err(DeviceError::NoDriver | DeviceError::NoDevice { found: 0, .. }) => return Ok(None),
        Err(e) => return Err(rejected(Stage::Load)(e.to_string())),
    };
    watch::end();
    let nvrtc = compiler(nvrtc)?;
    let target = target_of(device.facts(), &nvrtc).map_err(|e| refusal(Stage::Load, &e))?;
    Ok(Some(DeviceReply { fingerprint: fingerprint(&device), target }))
}

/// What an engine's refusal says of its candidate.
pub(super) fn refusal(stage: Stage, error: &EngineError) -> Refusal {
    let reason = error.to_string();
    let stage = match error {
        EngineError::Lower(_) => Stage::Lower,
        EngineError::Rejected(_) => Stage::Validate,
        EngineError::Codegen(_) => Stage::Render,
        EngineError::Compile(BuildError::Compile(CompileError::Spills { .. })) => Stage::Spills,
        EngineError::Compile(_) | EngineError::Lint(_) => Stage::Compile,
        _ => stage,
    };
    match error {
        EngineError::Device(
            DeviceError::Hung(_)
            | DeviceError::Stalled { .. }
            | DeviceError::Memory { .. }
            | DeviceError::Driver { .. },
        ) => Refusal::Crashed { stage, reason },
        _ => Refusal::Rejected { stage, reason },
    }
}

/// Self-tests the candidate of a job and times it against the incumbent.
pub(super) fn measure(
    subject: &Subject,
    job: &Job,
    ordinal: usize,
    nvrtc: Option<&Path>,
) -> Result<Evidence, Refusal> {
    let Some(checkpoint) = &subject.checkpoint else {
        let reason = "a config without weights cannot be measured; name a checkpoint".to_owned();
        return Err(rejected(Stage::Load)(reason));
    };
    watch::begin("opening the device", Duration::from_secs(60));
    let device = Device::open(ordinal).map_err(|e| refusal(Stage::Load, &e.into()))?;
    let nvrtc = compiler(nvrtc)?;
    let cache = ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled());
    watch::begin("bringing two schedules onto the device", LOADING);
    let load = |point: &Point| load(subject, checkpoint, point, &device, &nvrtc, &cache);
    let (mut candidate, mut incumbent) = (load(&job.candidate)?, load(&job.incumbent)?);
    watch::begin("testing the candidate", TESTING);
    let verdict = test(&mut candidate, checkpoint, Policy::Always)?;
    test(&mut incumbent, checkpoint, Policy::Cached)?;
    watch::end();

    let (candidate_program, candidate_image) = identity(&candidate.engine)?;
    let (incumbent_program, incumbent_image) = identity(&incumbent.engine)?;
    let past = candidate.engine.program(0).map_or(0, |p| cache_bytes(p, subject.position));
    let bytes = candidate.engine.memory().weights + past;
    let timing = |e: &BenchError| match e {
        BenchError::Engine(e) => refusal(Stage::Time, e),
        e => rejected(Stage::Time)(e.to_string()),
    };
    let reads = all_ways(&device, bytes, 1, &nvrtc, &cache).map_err(|e| timing(&e))?;
    let mut pair = Pair {
        candidate: Contest::new(candidate.engine, subject.position)?,
        incumbent: Contest::new(incumbent.engine, subject.position)?,
        reads,
    };
    let Timed { samples, read_us } = rounds(&mut pair, job).map_err(|e| timing(&e))?;
    Ok(Evidence {
        candidate_program,
        incumbent_program,
        candidate_image,
        incumbent_image,
        device: fingerprint(&device),
        tested_positions: verdict.findings.positions.clone(),
        difference: verdict.findings.difference,
        bytes,
        read_us,
        samples,
    })
}

fn load(
    subject: &Subject,
    checkpoint: &Checkpoint,
    point: &Point,
    device: &Device,
    nvrtc: &Nvrtc,
    cache: &ImageCache,
) -> Result<Opened, Refusal> {
    let options = OpenOptions {
        mode: subject.mode,
        knobs: subject.knobs(point).map_err(rejected(Stage::Proposal))?,
        want: Want::Decode(vec![subject.bucket]),
        target: Some(subject.target.clone()),
        nvrtc,
        cache,
        render: Default::default(),
        spills: SpillPolicy::Refuse,
        keep: None,
        corrupt: None,
        stored: None,
    };
    open(device, checkpoint, &options, &mut |_, _| {}, &mut |_, _| {})
        .map_err(|e| refusal(Stage::Load, &e))
}

/// The verdict on the one image of an engine.
fn test(opened: &mut Opened, checkpoint: &Checkpoint, policy: Policy) -> Result<Verdict, Refusal> {
    let cache = VerdictCache::from_env().unwrap_or_else(|_| VerdictCache::disabled());
    let verdicts = ensure(&mut opened.engine, checkpoint, opened.mode, policy, &cache).map_err(
        |e| match &e {
            SelfTestError::Engine(inner) => refusal(Stage::SelfTest, inner),
            _ => rejected(Stage::SelfTest)(e.to_string()),
        },
    )?;
    let none = || rejected(Stage::SelfTest)("the image was not tested".to_owned());
    verdicts.into_iter().next().ok_or_else(none)
}

fn identity(engine: &Engine) -> Result<(String, String), Refusal> {
    let (program, key) = (engine.program(0), engine.image_key(0));
    match program.zip(key) {
        Some((program, key)) => Ok((hex(&program.hash()), key.to_string())),
        None => Err(rejected(Stage::Load)("the engine has no program".to_owned())),
    }
}

/// One of the two.
struct Contest {
    engine: Engine,
    plan: LaunchPlan,
    /// Launches of a sample, found by the first one.
    batch: usize,
}

impl Contest {
    fn new(mut engine: Engine, position: u64) -> Result<Contest, Refusal> {
        let program = engine.index_for(position, 1).map_err(|e| refusal(Stage::Time, &e))?;
        // Tokens up to the position, so that every launch decodes the same.
        engine.put(position, &[5]);
        let plan = LaunchPlan { program, position, steps: 1, tokens: 1 };
        Ok(Contest { engine, plan, batch: 0 })
    }

    fn sample(&mut self) -> Result<f64, BenchError> {
        let options =
            LaunchOptions { prompt_len: self.plan.position + 1, ..LaunchOptions::default() };
        if self.batch == 0 {
            let us = self.engine.time(&self.plan, &options, 4)?;
            self.batch = (SAMPLE_US / us.max(1.0)).clamp(BATCH.0, BATCH.1) as usize;
        }
        Ok(self.engine.time(&self.plan, &options, self.batch)?)
    }
}

struct Pair {
    candidate: Contest,
    incumbent: Contest,
    reads: Vec<PlainRead>,
}

impl Stopwatch for Pair {
    type Error = BenchError;

    fn sample(&mut self, who: Who) -> Result<f64, BenchError> {
        match who {
            Who::Candidate => self.candidate.sample(),
            Who::Incumbent => self.incumbent.sample(),
        }
    }

    fn read(&mut self) -> Result<f64, BenchError> {
        let mut best = f64::INFINITY;
        for way in &mut self.reads {
            best = best.min(way.sample()?);
        }
        Ok(best)
    }
}
