//! Decoding on a device: weights packed and uploaded once, cache and tables allocated once, then
//! launches of one or many steps. No allocation, copy or host wait per token.
//!
//! `contents` fills buffers from a checkpoint, `build` turns a lowered model into an image, and
//! [`Engine`] owns the device memory and the state that lives between launches: positions, epochs, and
//! which program ran last.

mod build;
mod contents;
mod open;
mod source;

use crate::device::{
    Block, Device, DeviceError, HostWords, Launch, LaunchReport, Launchable, Params,
};
use crate::vm::DataError;
use amk_schedule_ir::{Bucket, BufferKind, Run, RunSource};

pub use build::{BuildRequest, Built, build};
pub use contents::constant_bytes;
pub use open::{OpenOptions, build_all, open, target_of};

/// Why a model could not be brought onto the device or run there.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Device(#[from] DeviceError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Pack(#[from] crate::pack::PackError),
    #[error(transparent)]
    Lower(#[from] crate::lower::LowerError),
    #[error(transparent)]
    Codegen(#[from] crate::codegen::CodegenError),
    #[error(transparent)]
    Compile(#[from] crate::image::BuildError),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lint(Vec<crate::lint::LintFault>),
    #[error("the schedule was rejected: {0}")]
    Rejected(String),
    #[error("{0}")]
    Mismatch(String),
    #[error(
        "position {position} with {steps} steps is outside every compiled bucket; the last position is {last}"
    )]
    Position { position: u64, steps: u64, last: u64 },
}

impl EngineError {
    /// Is it the environment (exit code 3) rather than the input (2) or the answer (1)?
    pub fn is_environment(&self) -> bool {
        match self {
            EngineError::Device(DeviceError::Hung(_) | DeviceError::NaN { .. }) => false,
            EngineError::Device(_) | EngineError::Compile(_) => true,
            _ => false,
        }
    }
}

/// What one call of [`Engine::run`] is to do.
#[derive(Clone, Debug, Default)]
pub struct RunOptions<'a> {
    /// Ids that end the launch.
    pub eos: &'a [u32],
    /// Tokens before this position are the host's and are not replaced.
    pub prompt_len: u64,
    /// Write the logits of each step to the output buffer.
    pub logits: bool,
}

/// A model on a device.
pub struct Engine {
    device: Device,
    programs: Vec<(Bucket, Launchable)>,
    weights: Block,
    arena: Block,
    host: HostWords,
    /// Words of `host` for tokens; the progress word comes after them.
    steps_cap: u64,
    epochs_used: u64,
    /// Boundary arrivals since the word was zero.
    arrivals: u64,
    last: Option<usize>,
    vocab: usize,
    /// Clock cycles a wait may take before the launch is given up.
    pub spin_limit: u64,
}

/// Most steps of one launch.
const STEPS_CAP: u64 = 1024;
/// About five seconds at 1.8 GHz.
const SPIN_LIMIT: u64 = 9_000_000_000;

impl Engine {
    /// Uploads a model. All programs share weights and cache, so their streams must be equal.
    ///
    /// # Errors
    /// Too little memory, said before anything is uploaded; anything the device refuses.
    pub fn new(
        device: &Device,
        built: Vec<Built>,
        data: &dyn crate::vm::Data,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let mut built = built.into_iter();
        let Some(first) = built.next() else {
            return Err(EngineError::Mismatch("no program was given".to_owned()));
        };
        let mut arena_bytes = crate::codegen::Arena::new(&first.program).bytes;
        let rest: Vec<Built> = built.collect();
        for other in &rest {
            arena_bytes = arena_bytes.max(crate::codegen::Arena::new(&other.program).bytes);
            // Packed bytes depend on which rows an SM streams, not on how they are cut into chunks.
            let streams = |b: &Built| {
                let rows = |r: &Run| match &r.source {
                    RunSource::Weight { buffer, lo, hi, .. } => {
                        b.program.buffer(*buffer).map(|x| (x.name.clone(), *lo, *hi))
                    }
                    RunSource::Kv { .. } => None,
                };
                let sms = b.program.sms.iter();
                sms.map(|s| s.stream.iter().map(rows).collect::<Vec<_>>()).collect::<Vec<_>>()
            };
            let fixed = |b: &Built| {
                let arena = crate::codegen::Arena::new(&b.program);
                let kept = b.program.buffers.iter().filter(|x| x.kind != BufferKind::Activation);
                kept.map(|x| (x.name.clone(), arena.offset(x.id))).collect::<Vec<_>>()
            };
            if streams(other) != streams(&first) || fixed(other) != fixed(&first) {
                return Err(EngineError::Mismatch(
                    "the programs of the position buckets place weights or cache differently; use the same knobs for all".to_owned(),
                ));
            }
        }
        let total = first.tables.weight_bytes + arena_bytes;
        let free = device.free_memory()?;
        if total > free {
            return Err(DeviceError::Memory { needed: total, free }.into());
        }
        let mut weights = Block::zeros(device, first.tables.weight_bytes)?;
        let mut arena = Block::zeros(device, arena_bytes)?;
        contents::upload(&first, data, &mut weights, &mut arena, progress)?;
        let vocab = first
            .program
            .buffers
            .iter()
            .find(|b| b.kind == BufferKind::Output)
            .and_then(|b| b.shape.first().copied())
            .unwrap_or(0) as usize;
        let mut programs = Vec::new();
        for b in std::iter::once(first).chain(rest) {
            let bucket = b.program.bucket;
            programs.push((
                bucket,
                Launchable::new(device, b.program, &b.source, &b.tables, &b.cubin)?,
            ));
        }
        device.synchronize()?;
        Ok(Engine {
            device: device.clone(),
            programs,
            weights,
            arena,
            host: HostWords::new(device, STEPS_CAP as usize + 1)?,
            steps_cap: STEPS_CAP,
            epochs_used: 0,
            arrivals: 0,
            last: None,
            vocab,
            spin_limit: SPIN_LIMIT,
        })
    }

    /// Length of a logit vector.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// Bytes of packed weights a step streams.
    pub fn weight_bytes(&self) -> u64 {
        self.weights.len()
    }

    /// Device address of the packed weights, for a plain read of the same bytes.
    pub fn weights(&self) -> &Block {
        &self.weights
    }

    /// The launchable of the bucket that holds `position`.
    pub fn launchable_mut(&mut self, position: u64) -> Option<&mut Launchable> {
        self.programs
            .iter_mut()
            .find(|(b, _)| b.first <= position && position <= b.last)
            .map(|(_, l)| l)
    }

    /// Puts token ids at positions `at..`.
    pub fn set_tokens(&mut self, at: u64, tokens: &[u32]) -> Result<(), EngineError> {
        let (_, launchable) = &self.programs[0];
        let program = launchable.program();
        let buffer = program.buffers.iter().find(|b| b.kind == BufferKind::Tokens);
        let offset = buffer.map_or(0, |b| launchable.arena().offset(b.id));
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        Ok(self.arena.write(offset + at * 4, &bytes)?)
    }

    /// Logits of the last step run with `logits`.
    pub fn logits(&self) -> Result<Vec<f32>, EngineError> {
        let (_, launchable) = &self.programs[0];
        let program = launchable.program();
        let buffer = program.buffers.iter().find(|b| b.kind == BufferKind::Output);
        let offset = buffer.map_or(0, |b| launchable.arena().offset(b.id));
        let mut bytes = vec![0; self.vocab * 4];
        self.arena.read(offset, &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// Submits up to `steps` steps from `pos0` on, as many as one launch and its bucket allow; gives
    /// their number. [`Engine::finish`] waits.
    ///
    /// # Errors
    /// The position is outside every bucket, or the driver refuses.
    pub fn submit(
        &mut self,
        pos0: u64,
        steps: u64,
        options: &RunOptions<'_>,
    ) -> Result<u64, EngineError> {
        let index = self.programs.iter().position(|(b, _)| b.first <= pos0 && pos0 <= b.last);
        let Some(index) = index else {
            let last = self.programs.iter().map(|(b, _)| b.last).max().unwrap_or(0);
            return Err(EngineError::Position { position: pos0, steps, last });
        };
        let (bucket, launchable) = &self.programs[index];
        let program = launchable.program();
        let tokens = u64::from(program.tokens);
        let room = (bucket.last - pos0) / tokens + 1;
        let steps = steps.min(room).min(self.steps_cap).min(program.max_steps);
        let arena = launchable.arena().clone();
        if self.last != Some(index) {
            // Another program's leftovers must not look like this one's packets.
            let from = arena.zero_from;
            self.arena.clear(from, self.arena.len() - from)?;
            self.last = Some(index);
            self.arrivals = 0;
        } else if !program.counters.is_empty() || self.arrivals > u64::from(u32::MAX / 2) {
            // Thresholds count from the launch's first step, and arrivals must not wrap.
            self.arena.clear(arena.counters, arena.token_word - arena.counters)?;
            self.arrivals = 0;
        }
        self.arrivals += steps * program.sms.len() as u64;
        let epochs = u64::from(program.epochs.per_step);
        let mut params = Params {
            weights: self.weights.address(),
            arena: self.arena.address_mut(),
            host_tokens: self.host.address()?,
            host_progress: self.host.address()? + self.steps_cap * 4,
            spin_limit: self.spin_limit,
            pos0: pos0 as u32,
            steps: steps as u32,
            epoch_base: (self.epochs_used % program.epochs.tags) as u32,
            prompt_len: options.prompt_len as u32,
            flags: u32::from(options.logits),
            eos_count: options.eos.len().min(8) as u32,
            ..Params::default()
        };
        for (slot, id) in params.eos.iter_mut().zip(options.eos) {
            *slot = *id;
        }
        self.epochs_used += steps * epochs;
        launchable.launch(&Launch { params })?;
        Ok(steps)
    }

    /// Waits for the launch and reads its report.
    ///
    /// # Errors
    /// A wait was given up (with the place), or logits were NaN.
    pub fn finish(&mut self) -> Result<(), EngineError> {
        self.device.synchronize()?;
        let Some(index) = self.last else { return Ok(()) };
        let arena = self.programs[index].1.arena();
        let mut bytes = [0; LaunchReport::BYTES];
        self.arena.read(arena.report, &mut bytes)?;
        let report = LaunchReport::read(&bytes);
        if report.given_up != 0 {
            // The next launch starts from a clean slate.
            self.last = None;
            return Err(report.into_error().into());
        }
        Ok(())
    }

    /// Decodes: the tokens at positions `pos0 + 1 ..`, at most `steps` of them, in as many launches as it
    /// takes; fewer after an end-of-sequence id. Tokens at positions up to `pos0` have been set.
    ///
    /// # Errors
    /// As [`Engine::submit`] and [`Engine::finish`].
    pub fn run(
        &mut self,
        pos0: u64,
        steps: u64,
        options: &RunOptions<'_>,
    ) -> Result<Vec<u32>, EngineError> {
        let mut out = Vec::new();
        while (out.len() as u64) < steps {
            let at = pos0 + out.len() as u64;
            self.host.store(self.steps_cap as usize, 0)?;
            self.submit(at, steps - out.len() as u64, options)?;
            self.finish()?;
            let done = self.host.load(self.steps_cap as usize)?;
            for i in 0..done as usize {
                out.push(self.host.load(i)?);
            }
            let generated = at + u64::from(done) >= options.prompt_len;
            let ended = generated && out.last().is_some_and(|t| options.eos.contains(t));
            if done == 0 || ended {
                break;
            }
        }
        Ok(out)
    }

    /// Steps of a running launch that are done, and the token of step `index`.
    pub fn progress(&self, index: usize) -> Result<(u32, u32), EngineError> {
        Ok((self.host.load(self.steps_cap as usize)?, self.host.load(index)?))
    }
}
