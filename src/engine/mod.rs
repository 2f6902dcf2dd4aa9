//! Decoding on a device: weights packed and uploaded once, cache and tables allocated once, then
//! launches of one or many steps. No allocation, copy or host wait per token.
//!
//! `build` turns a lowered model into an image, `open` decides which programs a run needs, `layout` lays their
//! arenas over each other, `contents` fills buffers from a checkpoint, `packed` keeps packed weights on disk, `line` is
//! the host's copy of the tokens, `rotary` keeps rotary tables that depend on the sequence, `run` is the engine as an
//! executor and as a giver of logits. [`Engine`] owns the device memory and the state that
//! lives between launches: epochs, and which program ran last.

mod build;
mod contents;
mod layout;
mod line;
mod open;
mod packed;
mod rotary;
mod run;
mod tamper;

use std::time::{Duration, Instant};

use amk_models::sampling::Settings;
use amk_schedule_ir::{BufferId, BufferKind, Op, Program};

use crate::decode::{LaunchOptions, LaunchPlan, ProgramFacts};
use crate::device::{
    Block, Candidate, Device, DeviceError, Hang, HostWords, Launch, LaunchReport, Launchable, Mark,
    Params,
};
use crate::image::ImageKey;
use crate::vm::DataError;
use crate::watch;
use line::Line;

pub use build::{BuildRequest, Built, build};
pub use contents::{constant_bytes, pack};
pub use layout::{Memory, Overlay, overlay};
pub use open::{
    BuiltAll, OpenOptions, Opened, Range, Want, build_all, check_target, choose, limited_to, open,
    target_of,
};
pub use packed::{PackedCache, PackedError};
pub use tamper::{Change, Tampered, tamper};

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
    Packed(#[from] PackedError),
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
    #[error("no program starts at position {position}; the last position is {last}")]
    Position { position: u64, last: u64 },
}

/// Whose turn it is to act on an [`EngineError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device said no: a hang, NaN.
    Answer,
    /// The model or the wish.
    Input,
    /// The machine.
    Environment,
}

impl EngineError {
    /// Whose turn it is.
    pub fn fault(&self) -> Fault {
        match self {
            EngineError::Device(
                DeviceError::Hung(_) | DeviceError::NaN { .. } | DeviceError::Stalled { .. },
            ) => Fault::Answer,
            EngineError::Device(DeviceError::NotThatPart(_)) => Fault::Input,
            EngineError::Device(_) | EngineError::Compile(_) | EngineError::Packed(_) => {
                Fault::Environment
            }
            _ => Fault::Input,
        }
    }
}

/// Where packed weights are kept, and under what name.
#[derive(Clone, Debug)]
pub struct Keep {
    pub cache: PackedCache,
    pub key: String,
}

/// A program on the device.
struct Loaded {
    facts: ProgramFacts,
    launchable: Launchable,
    /// Where its arena begins.
    shift: u64,
    /// Key of its image.
    key: ImageKey,
    /// The settings of its draws, if it draws tokens.
    settings: Option<BufferId>,
}

/// A model on a device.
pub struct Engine {
    device: Device,
    programs: Vec<Loaded>,
    weights: Block,
    arena: Block,
    host: HostWords,
    line: Line,
    memory: Memory,
    epochs_used: u64,
    /// Boundary arrivals since the word was zero.
    arrivals: u64,
    last: Option<usize>,
    /// The cancel word was set and has to be cleared.
    cancelled: bool,
    vocab: usize,
    /// How programs that draw tokens do it, and whether the device knows.
    settings: Settings,
    settings_there: bool,
    /// Clock cycles a wait may take before the launch is given up.
    pub spin_limit: u64,
    /// Time without a step done after which a launch is abandoned.
    pub patience: Duration,
    /// Where rotary tables depend on the sequence: how they are made.
    rotary: Option<rotary::Rotary>,
    /// Time stamps: a block and its stamps per SM.
    trace: Option<(Block, u32)>,
}

/// Most steps of one launch.
const STEPS_CAP: u64 = 1024;
/// About three seconds at 1.8 GHz.
const SPIN_LIMIT: u64 = 5_400_000_000;
/// Longer than the device's own limit.
const PATIENCE: Duration = Duration::from_secs(8);
/// What the driver keeps for itself.
const RESERVE: u64 = 256 << 20;

/// A launch under way.
struct Flight {
    program: usize,
    steps: u64,
    end: Mark,
}

impl Flight {
    /// Is the kernel still running though the launch has failed?
    fn outlived(&self, _: &DeviceError) -> bool {
        !self.end.reached().unwrap_or(true)
    }
}

impl Engine {
    /// Uploads a model. All programs share weights, constants and cache; packed weights are kept where `keep` says. `say` gets what the model needs before
    /// anything is uploaded.
    ///
    /// # Errors
    /// Too little memory, said before anything is uploaded; anything the device refuses.
    pub fn new(
        device: &Device,
        built: Vec<Built>,
        data: &dyn crate::vm::Data,
        keep: Option<&Keep>,
        say: &mut dyn FnMut(&Memory, u64),
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Engine, EngineError> {
        let programs: Vec<&Program> = built.iter().map(|b| b.program.get()).collect();
        let plan = overlay(&programs)?;
        let Some(first) = built.first() else {
            return Err(EngineError::Mismatch("no program was given".to_owned()));
        };
        let tables = built.iter().map(|b| b.tables.bytes.len() as u64).sum();
        let memory = Memory::of(&programs, &plan, tables, first.tables.weight_bytes);
        let free = device.free_memory()?;
        say(&memory, free);
        memory.check(free, RESERVE)?;
        let mut weights = Block::zeros(device, first.tables.weight_bytes)?;
        let mut arena = Block::zeros(device, plan.bytes)?;
        let into = (&mut arena, plan.shifts[0]);
        contents::upload(device, first, data, &mut weights, into, keep, progress)?;
        let output = first.program.buffers.iter().find(|b| b.kind == BufferKind::Output);
        let vocab = output.and_then(|b| b.shape.first().copied()).unwrap_or(0) as usize;
        let mut loaded = Vec::new();
        for (b, shift) in built.into_iter().zip(plan.shifts) {
            let facts = facts_of(&b.program);
            let settings = settings_of(&b.program);
            let image = b.image_for(device.facts().capability)?;
            let candidate = Candidate {
                source: &b.source,
                tables: &b.tables,
                image: &image,
                compiler: b.compiler,
            };
            let launchable = Launchable::new(device, b.program, &candidate)?;
            loaded.push(Loaded { facts, launchable, shift, key: b.key, settings });
        }
        device.synchronize()?;
        Ok(Engine {
            device: device.clone(),
            programs: loaded,
            weights,
            arena,
            host: HostWords::new(device, STEPS_CAP as usize + 1)?,
            line: Line::default(),
            memory,
            epochs_used: 0,
            arrivals: 0,
            last: None,
            cancelled: false,
            vocab,
            settings: Settings::default(),
            settings_there: false,
            spin_limit: SPIN_LIMIT,
            patience: PATIENCE,
            rotary: None,
            trace: None,
        })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Device memory in use.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Device address of the packed weights, for a plain read of the same bytes.
    pub fn weights(&self) -> &Block {
        &self.weights
    }

    /// Number of programs.
    pub fn len(&self) -> usize {
        self.programs.len()
    }

    /// Never true: an engine has a program.
    pub fn is_empty(&self) -> bool {
        self.programs.is_empty()
    }

    /// A program by index.
    pub fn program(&self, index: usize) -> Option<&Program> {
        self.programs.get(index).map(|l| l.launchable.program())
    }

    /// Key of a program's image.
    pub fn image_key(&self, index: usize) -> Option<&ImageKey> {
        self.programs.get(index).map(|l| &l.key)
    }

    /// The launchable of a program.
    pub fn launchable_mut(&mut self, index: usize) -> Option<&mut Launchable> {
        self.programs.get_mut(index).map(|l| &mut l.launchable)
    }

    /// Whether a program draws its tokens by [`Engine::draw_by`].
    pub fn draws(&self, index: usize) -> bool {
        self.programs.get(index).is_some_and(|l| l.settings.is_some())
    }

    /// How tokens are drawn from now on, by programs that draw them; at first the best is taken. The penalty sees every
    /// token put or said at the positions before.
    pub fn draw_by(&mut self, settings: Settings) {
        self.settings_there &= self.settings == settings;
        self.settings = settings;
    }

    /// Sets how long the device may do nothing, on the host's clock and, for a single wait, on the device's: a wait is
    /// given up first, so that it can be named.
    pub fn be_patient(&mut self, patience: Duration) {
        let longer = patience.as_secs_f64() / PATIENCE.as_secs_f64();
        self.spin_limit = (SPIN_LIMIT as f64 * longer) as u64;
        self.patience = patience;
    }

    /// Turns on time stamps of `per_sm` 64-bit words for each SM; programs must have been rendered with them.
    pub fn enable_trace(&mut self, per_sm: u32) -> Result<(), EngineError> {
        let sms = self.programs.iter().map(|l| l.launchable.program().sms.len()).max();
        let words = sms.unwrap_or(0) as u64 * u64::from(per_sm);
        self.trace = Some((Block::zeros(&self.device, words * 8)?, per_sm));
        Ok(())
    }

    /// The stamps of the last launch, SM by SM.
    pub fn stamps(&self) -> Result<Vec<u64>, EngineError> {
        let Some((block, _)) = &self.trace else { return Ok(Vec::new()) };
        let mut bytes = vec![0; block.len() as usize];
        block.read(0, &mut bytes)?;
        let word = |b: &[u8]| b.try_into().map_or(0, u64::from_le_bytes);
        Ok(bytes.chunks_exact(8).map(word).collect())
    }

    /// Where a buffer of a program lies in the engine's memory.
    fn place(&self, program: usize, kind: BufferKind) -> u64 {
        let Some(l) = self.programs.get(program) else { return 0 };
        let buffer = l.launchable.program().buffers.iter().find(|b| b.kind == kind);
        buffer.map_or(0, |b| l.shift + l.launchable.arena().offset(b.id))
    }

    /// Fills `rows` positions of a layer's keys and values; `[kv head][position][element]` each, rounded to the
    /// cache's type by the caller.
    pub fn fill_cache(
        &mut self,
        layer: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), EngineError> {
        let Some(l) = self.programs.first() else { return Ok(()) };
        let caches = l.launchable.program().buffers.iter().filter(|b| b.kind == BufferKind::Kv);
        let mut writes = Vec::new();
        for (buffer, data) in caches.skip(layer * 2).take(2).zip([keys, values]) {
            let &[heads, capacity, width] = buffer.shape.as_slice() else { continue };
            let at = l.shift + l.launchable.arena().offset(buffer.id);
            let part = rows * width as usize;
            for (head, data) in data.chunks_exact(part).take(heads as usize).enumerate() {
                let row = head as u64 * capacity * width * buffer.dtype.bytes();
                writes.push((at + row, constant_bytes(data, buffer.dtype)));
            }
        }
        for (at, bytes) in writes {
            self.arena.write(at, &bytes)?;
        }
        if let Some(rotary) = &mut self.rotary {
            rotary.sequence.given();
        }
        self.device.synchronize()?;
        Ok(())
    }

    /// Logits of the last step run with `logits`.
    pub fn logits(&self) -> Result<Vec<f32>, EngineError> {
        let mut bytes = vec![0; self.vocab * 4];
        self.arena.read(self.place(0, BufferKind::Output), &mut bytes)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// The program that starts at a position with steps of `tokens` positions.
    pub fn index_for(&self, position: u64, tokens: u64) -> Result<usize, EngineError> {
        let covers = |l: &Loaded| {
            let b = l.facts.bucket;
            l.facts.tokens == tokens && b.first <= position && position <= b.last
        };
        self.programs.iter().position(covers).ok_or_else(|| EngineError::Position {
            position,
            last: self.programs.iter().map(|l| l.facts.bucket.last).max().unwrap_or(0),
        })
    }

    /// Submits a launch without waiting. Tokens up to its first position are in place.
    fn submit(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
    ) -> Result<Flight, EngineError> {
        self.make_tables(options.pass_len())?;
        let Some(loaded) = self.programs.get(plan.program) else {
            return Err(EngineError::Mismatch(format!("there is no program {}", plan.program)));
        };
        let program = loaded.launchable.program();
        let arena = loaded.launchable.arena();
        let (shift, epochs) = (loaded.shift, program.epochs);
        let sms = program.sms.len() as u64;
        let draws = loaded.settings.is_some();
        if let Some(at) =
            loaded.settings.map(|id| shift + arena.offset(id)).filter(|_| !self.settings_there)
        {
            let bytes: Vec<u8> =
                self.settings.words().iter().flat_map(|w| w.to_le_bytes()).collect();
            self.arena.write(at, &bytes)?;
            self.settings_there = true;
        }
        if self.last != Some(plan.program) {
            // Another program's leftovers must not look like this one's packets.
            self.arena.clear(shift + arena.zero_from, arena.bytes - arena.zero_from)?;
            self.last = Some(plan.program);
            self.arrivals = 0;
            self.cancelled = false;
        } else if !program.counters.is_empty() || self.arrivals > u64::from(u32::MAX / 2) {
            // Thresholds count from the launch's first step, and arrivals must not wrap.
            let at = shift + arena.counters;
            self.arena.clear(at, arena.token_word - arena.counters)?;
            self.arrivals = 0;
        }
        if self.cancelled {
            self.arena.clear(shift + arena.cancel, 4)?;
            self.cancelled = false;
        }
        let tokens_at = self.place(plan.program, BufferKind::Tokens);
        // Who draws looks at all tokens.
        let from = if draws { 0 } else { plan.position };
        if let Some((at, ids)) = self.line.pending(tokens_at, from) {
            let bytes: Vec<u8> = ids.iter().flat_map(|t| t.to_le_bytes()).collect();
            self.arena.write(tokens_at + at * 4, &bytes)?;
        }
        self.host.store(STEPS_CAP as usize, 0)?;
        self.arrivals += plan.steps * sms;
        let base = self.arena.address_mut() + shift;
        let mut params = Params {
            weights: self.weights.address(),
            arena: base,
            host_tokens: self.host.address()?,
            host_progress: self.host.address()? + STEPS_CAP * 4,
            spin_limit: self.spin_limit,
            pos0: plan.position as u32,
            steps: plan.steps as u32,
            epoch_base: (self.epochs_used % epochs.tags.max(1)) as u32,
            prompt_len: options.prompt_len as u32,
            flags: u32::from(options.logits || draws),
            eos_count: options.stop.len().min(8) as u32,
            ..Params::default()
        };
        for (slot, id) in params.eos.iter_mut().zip(options.stop) {
            *slot = *id;
        }
        if let Some((block, per_sm)) = &mut self.trace {
            params.trace = block.address_mut();
            params.trace_stride = *per_sm;
        }
        self.epochs_used += plan.steps * u64::from(epochs.per_step);
        self.programs[plan.program].launchable.launch(&Launch { params })?;
        let end = self.device.record()?;
        Ok(Flight { program: plan.program, steps: plan.steps, end })
    }

    /// Waits for a launch; `each` sees tokens as they come and may end it.
    fn finish(
        &mut self,
        flight: &Flight,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, EngineError> {
        let (mut seen, mut wanted) = (0u32, true);
        let mut since = Instant::now();
        let mut looks = 0u32;
        loop {
            let over = flight.end.reached()?;
            let done = self.host.load(STEPS_CAP as usize)?.min(flight.steps as u32);
            while seen < done {
                let token = self.host.load(seen as usize)?;
                seen += 1;
                since = Instant::now();
                if wanted && !each(token) {
                    wanted = false;
                    if !over {
                        self.cancel(flight.program)?;
                    }
                }
            }
            if over {
                break;
            }
            if since.elapsed() > self.patience {
                return Err(self.stalled(flight, since.elapsed()));
            }
            looks += 1;
            match looks {
                // Most launches of one step end within this many looks.
                0..20_000 => std::hint::spin_loop(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
        }
        self.check_report(flight.program, false)?;
        Ok(u64::from(seen))
    }

    /// Waits for a mark without asking the driver to block; the parent process watches the time.
    fn wait_for(&self, mark: &Mark) -> Result<(), EngineError> {
        while !mark.reached()? {
            std::thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }

    /// Sets the cancel word of a running program.
    fn cancel(&mut self, program: usize) -> Result<(), EngineError> {
        let at = self.programs[program].shift + self.programs[program].launchable.arena().cancel;
        self.arena.write_beside(at, &1u32.to_le_bytes())?;
        self.cancelled = true;
        Ok(())
    }

    fn check_report(&mut self, program: usize, beside: bool) -> Result<(), EngineError> {
        let loaded = &self.programs[program];
        let at = loaded.shift + loaded.launchable.arena().report;
        let mut bytes = [0; LaunchReport::BYTES];
        match beside {
            true => self.arena.read_beside(at, &mut bytes)?,
            false => self.arena.read(at, &mut bytes)?,
        }
        let report = LaunchReport::read(&bytes);
        if report.given_up == 0 {
            return Ok(());
        }
        let mut error = report.into_error();
        if let DeviceError::Hung(hang) = &mut error {
            hang.instruction = instruction_at(loaded.launchable.program(), hang);
        }
        // The next launch starts from a clean slate.
        self.last = None;
        Err(error.into())
    }

    /// The error of a launch that shows no life: what the kernel's own report says, or that there is none.
    fn stalled(&mut self, flight: &Flight, waited: Duration) -> EngineError {
        watch::begin("reading the report of a stalled launch", Duration::from_secs(3));
        let phase = format!("a launch of {} steps", flight.steps);
        let error = match self.check_report(flight.program, true) {
            Err(error) => error,
            Ok(()) => DeviceError::Stalled { phase, seconds: waited.as_secs() }.into(),
        };
        // Freeing its memory waits for the kernel, so this process may not come back.
        watch::lost(&error.to_string());
        error
    }
}

/// The buffer that holds the settings of a program's draws, if it draws tokens.
pub fn settings_of(program: &Program) -> Option<BufferId> {
    let mut draws = program.instructions.iter().filter(|i| matches!(i.op, Op::Sample(_)));
    draws.next().and_then(|i| i.reads.get(2)).map(|a| a.buffer)
}

/// What planning needs of a program.
pub fn facts_of(program: &Program) -> ProgramFacts {
    ProgramFacts {
        bucket: program.bucket,
        tokens: u64::from(program.tokens).max(1),
        max_steps: program.max_steps.max(1),
    }
}

/// The instruction a report speaks of, with what it waits for.
fn instruction_at(program: &Program, hang: &Hang) -> Option<String> {
    let id = *program.sms.get(hang.sm as usize)?.queue.get(hang.queue_index as usize)?;
    let i = program.instruction(id)?;
    let reads: Vec<&str> =
        i.reads.iter().filter_map(|a| program.buffer(a.buffer)).map(|b| b.name.as_str()).collect();
    let from = match (hang.edge, reads.is_empty()) {
        (1, false) => format!(" reading {}", reads.join(", ")),
        (2, _) => {
            let waits = i.waits.iter().filter_map(|w| program.counters.get(w.counter.index()));
            let names: Vec<&str> = waits.map(|c| c.name.as_str()).collect();
            format!(" waiting for counter {}", names.join(", "))
        }
        _ => String::new(),
    };
    Some(format!("{id} {}{from}", i.op.name()))
}
