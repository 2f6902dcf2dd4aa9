//! A model on a CUDA device, for the commands that run one; and the parent that watches them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use amk::codegen::RenderOptions;
use amk::device::{Device as Cuda, DeviceError};
use amk::engine::{
    EngineError, Fault, Memory, OpenOptions, Opened, Want, limited_to, open, target_of,
};
use amk::image::ImageCache;
use amk::lower::{Knobs, Mode};
use amk::search::stored;
use amk::selftest::{Policy, SelfTestError, Verdict as ImageVerdict, VerdictCache, ensure};
use amk::target::{Target, load_target_file, resolve};
use amk::toolchain::{FindOptions, Nvrtc, SpillPolicy, cache_root, find_nvrtc};
use amk::watch::{self, Ended};
use amk_models::Checkpoint;
use clap::{Args, ValueEnum};

use super::{Failure, Verdict, files};
use crate::output::{self, Output};

/// How a model is brought onto a CUDA device.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "CUDA device")]
#[group(skip)]
pub struct CudaArgs {
    /// The device to use, as the driver counts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub ordinal: usize,
    /// Compile for another part, such as sm_80, whose PTX the device runs.
    #[arg(long, value_name = "T", conflicts_with_all = ["target_file", "resources_of"])]
    pub target: Option<String>,
    /// Compile for the part of a target record.
    #[arg(long, value_name = "FILE", conflicts_with = "resources_of")]
    pub target_file: Option<PathBuf>,
    /// Compile for the device, with no more SMs, shared memory and registers than another part has.
    #[arg(long, value_name = "T")]
    pub resources_of: Option<String>,
    /// Schedule parameters, a JSON object; absent ones are chosen by amk.
    #[arg(long, value_name = "FILE")]
    pub knobs: Option<PathBuf>,
    /// Use the lowering's own choices even where autoresearch has found a better schedule.
    #[arg(long)]
    pub no_store: bool,
    /// When to test an image against the CPU reference before it is used.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    pub self_test: SelfTest,
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    pub nvrtc: Option<PathBuf>,
    /// Keep packed weights in amk's cache folder, as many bytes as the model has, and use those that are there.
    #[arg(long)]
    pub keep_weights: bool,
    /// How long the device may do nothing before a launch is given up, seconds; more where a tool slows it down.
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub patience: Option<u64>,
}

/// When images are tested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SelfTest {
    /// Every time.
    Always,
    /// Once for each image, driver and device.
    #[default]
    Cached,
    /// Never.
    Skip,
}

impl From<SelfTest> for Policy {
    fn from(when: SelfTest) -> Policy {
        match when {
            SelfTest::Always => Policy::Always,
            SelfTest::Cached => Policy::Cached,
            SelfTest::Skip => Policy::Skip,
        }
    }
}

/// What a command wants beyond its arguments.
#[derive(Clone, Debug)]
pub struct Plan {
    pub mode: Mode,
    pub want: Want,
    pub render: RenderOptions,
    /// See [`OpenOptions::corrupt`].
    pub corrupt: Option<(String, String)>,
    /// Programs that draw their tokens.
    pub sampled: bool,
}

impl Plan {
    /// A sequence: a prompt, and positions in all.
    pub fn sequence(mode: Mode, prompt: usize, positions: usize) -> Plan {
        let want = Want::Sequence { prompt: prompt as u64, positions: positions as u64 };
        Plan { mode, want, render: RenderOptions::default(), corrupt: None, sampled: false }
    }
}

impl Plan {
    /// Whatever up to that many positions.
    pub fn anything(mode: Mode, positions: usize) -> Plan {
        let want = Want::Anything { positions: positions as u64 };
        Plan { mode, want, render: RenderOptions::default(), corrupt: None, sampled: false }
    }
}

/// A model that passed its self-test, or whose self-test was left out.
pub struct Ready {
    pub opened: Opened,
    /// Of every image that was tested, now or before; empty where the test was left out.
    pub verdicts: Vec<ImageVerdict>,
}

impl CudaArgs {
    /// The compiler.
    pub fn compiler(&self) -> Result<Nvrtc, Failure> {
        let found = find_nvrtc(&FindOptions::from_env(self.nvrtc.clone()));
        found.map(|f| f.nvrtc).map_err(Failure::environment)
    }

    /// Schedule parameters.
    pub fn knobs(&self) -> Result<Knobs, Failure> {
        read_knobs(self.knobs.as_deref())
    }

    fn target(&self, device: &Cuda, nvrtc: &Nvrtc) -> Result<Option<Target>, Failure> {
        if let Some(name) = &self.target {
            return Ok(Some(resolve(name).map_err(Failure::input)?.target));
        }
        if let Some(file) = &self.target_file {
            return load_target_file(file).map(Some).map_err(Failure::input);
        }
        let Some(name) = &self.resources_of else { return Ok(None) };
        let other = resolve(name).map_err(Failure::input)?.target;
        let own = target_of(device.facts(), nvrtc).map_err(|e| engine_failure(&e))?;
        Ok(Some(limited_to(&own, &other)))
    }

    /// Opens the device and brings the model onto it.
    pub fn open(
        &self,
        checkpoint: &Checkpoint,
        plan: &Plan,
        out: &Output,
    ) -> Result<Ready, Failure> {
        watch::begin("opening the device", Duration::from_secs(60));
        let device = Cuda::open(self.ordinal).map_err(|e| device_failure(&e))?;
        watch::end();
        let nvrtc = self.compiler()?;
        let cache = ImageCache::from_env().unwrap_or_else(|_| ImageCache::disabled());
        let options = OpenOptions {
            mode: plan.mode,
            knobs: match (self.knobs()?, plan.sampled) {
                (knobs, false) => knobs,
                (knobs, true) => Knobs { sampled: true, ..knobs },
            },
            want: plan.want.clone(),
            target: self.target(&device, &nvrtc)?,
            nvrtc: &nvrtc,
            cache: &cache,
            render: plan.render,
            spills: SpillPolicy::Report,
            keep: match self.keep_weights {
                true => Some(cache_root().map_err(Failure::environment)?.join("packed")),
                false => None,
            },
            corrupt: plan.corrupt.clone(),
            stored: match self.no_store || self.knobs.is_some() {
                true => None,
                false => stored::store().ok(),
            },
        };
        let bar = out.bar(0, "compiling");
        let say = |m: &Memory, free: u64| {
            out.note(format!(
                "{} of device memory: weights {}, KV cache {}, constants {}, activations {}, tables {}; {} are free",
                output::bytes(m.total()),
                output::bytes(m.weights),
                output::bytes(m.kv),
                output::bytes(m.constants),
                output::bytes(m.activations),
                output::bytes(m.tables),
                output::bytes(free)
            ));
            bar.set_length(m.weights);
            bar.set_message("uploading");
        };
        let opened = open(&device, checkpoint, &options, &mut { say }, &mut |done, _| {
            bar.set_position(done)
        });
        bar.finish_and_clear();
        let mut opened = opened.map_err(|e| engine_failure(&e))?;
        for text in &opened.stored {
            out.note(text);
        }
        if opened.from_ptx {
            out.note(format!(
                "the images for {} run from their PTX, which the driver compiles for {}",
                opened.target.sm,
                device.facts().name
            ));
        }
        if let Some(seconds) = self.patience {
            opened.engine.be_patient(Duration::from_secs(seconds));
        }
        let spinner = out.spinner("testing the image");
        let verdicts = test(&mut opened, checkpoint, self.self_test.into());
        spinner.finish_and_clear();
        Ok(Ready { verdicts: verdicts?, opened })
    }
}

/// Schedule parameters from a file.
pub fn read_knobs(path: Option<&std::path::Path>) -> Result<Knobs, Failure> {
    /// A file of a few numbers.
    const LIMIT: u64 = 1 << 20;
    let Some(path) = path else { return Ok(Knobs::default()) };
    let bytes = files::read_limited(path, LIMIT)?;
    serde_json::from_slice(&bytes).map_err(|e| {
        Failure::input(format!("{} is no object of schedule parameters: {e}", path.display()))
    })
}

fn test(
    opened: &mut Opened,
    checkpoint: &Checkpoint,
    policy: Policy,
) -> Result<Vec<ImageVerdict>, Failure> {
    let cache = VerdictCache::from_env().unwrap_or_else(|_| VerdictCache::disabled());
    ensure(&mut opened.engine, checkpoint, opened.mode, policy, &cache).map_err(|e| match &e {
        SelfTestError::Failed(_) => Failure::answer(&e),
        SelfTestError::Engine(inner) => engine_failure(inner),
        SelfTestError::Subject(inner) => source_failure(inner.as_ref(), &e.to_string()),
        SelfTestError::Reference(_) => Failure::input(&e),
    })
}

/// The failure of a device.
pub fn device_failure(error: &DeviceError) -> Failure {
    let failure = Failure::environment(error);
    match error {
        DeviceError::NoDriver | DeviceError::NoDevice { .. } => {
            failure.help(
                "`amk doctor` says what this machine has; generate and verify run without with --device cpu",
            )
        }
        _ => failure,
    }
}

/// The failure of an engine: an answer, the user's, or the machine's.
pub fn engine_failure(error: &EngineError) -> Failure {
    match error.fault() {
        Fault::Answer => Failure::answer(error),
        Fault::Input => Failure::input(error),
        Fault::Environment => Failure::environment(error),
    }
}

/// The failure of an executor that may be an engine; `message` is the whole sentence.
pub fn source_failure(error: &(dyn std::error::Error + 'static), message: &str) -> Failure {
    let mut failure = match error.downcast_ref::<EngineError>() {
        Some(error) => engine_failure(error),
        None => Failure::input(error),
    };
    failure.message = message.to_owned();
    failure
}

/// Is there a driver that a device could be behind? Asks nothing of it.
pub fn driver_is_there() -> bool {
    amk::doctor::driver::library_is_there()
}

/// Runs this very command again as a child and watches it: whatever the device does, the terminal comes back. None
/// where this process is that child already.
pub fn watched(out: &Output) -> Option<Result<u8, Failure>> {
    if watch::is_child() {
        return None;
    }
    // The child ends on the user's interrupt; this process waits for it.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Default::default());
    let program = match watch::own_program() {
        Ok(program) => program,
        Err(e) => {
            return Some(Err(Failure::environment(format!("cannot start a child process: {e}"))));
        }
    };
    let mut command = Command::new(program);
    command.args(std::env::args_os().skip(1));
    Some(match watch::supervise(&mut command) {
        Err(e) => Err(Failure::environment(format!("cannot start a child process: {e}"))),
        Ok(Ended::Itself(status)) => match status.code() {
            Some(code) => Ok(u8::try_from(code).unwrap_or(1)),
            None => Err(Failure::answer(format!(
                "the process that used the device ended with {status}"
            ))),
        },
        Ok(Ended::Killed { phase, message }) => {
            let failure = Failure::answer(message.unwrap_or_else(|| {
                format!("{phase} did not end in time, and the process was ended")
            }));
            failure.report(out);
            Ok(Verdict::No as u8)
        }
    })
}
