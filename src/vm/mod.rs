//! The reference VM: executes a schedule, validated or not, on the CPU.
//!
//! It interprets the semantics written in [`amk_schedule_ir`] literally and shares no code with the
//! validator. Every SM has its two agents; a seeded scheduler (`schedule.rs`) moves one of them by
//! one micro-step at a time: a wait, a read, a chunk issued, landed or consumed, half a write, a
//! signal. Values are there only where weights are given ([`Data`]); hazards are always watched:
//!
//! - reads of elements nobody has written, or that an earlier step left, and packets of a wrong epoch;
//! - conflicting accesses that happens-before does not order, found by vector clocks (`clock.rs`)
//!   over the record of accesses (`memory/`), even if this execution happened to order them;
//! - agents that can never move again, each with what it waits for;
//! - accesses outside a buffer, to read-only or foreign elements, outputs left out or written twice.
//!
//! **What one run can miss.** Happens-before is taken from the execution at hand: a wait learns from
//! all signals up to the one that reached its threshold, though another execution may reach it with
//! others. Where every signal of the step is needed (the usual threshold) that is exact; otherwise a
//! race shows only in the seeds that reach the threshold without the signal in question. An
//! interleaving that no seed takes can hide a deadlock that depends on order. A signal takes effect with its
//! instruction, never after a packet written later, as the semantics allow. So: several seeds and
//! policies. There are no false alarms: what is reported is unordered by definition.
//!
//! `plan.rs` prepares a program, `agents/` runs a launch, `ring.rs` is the chunk ring, `op/` the maths,
//! `fault.rs` what may be found, `recipe.rs` fills read-only buffers from a checkpoint, `model.rs`
//! decodes with it, `refute.rs` tries a program in many interleavings.

mod agents;
mod clock;
mod data;
mod fault;
mod memory;
mod model;
pub mod op;
mod plan;
mod recipe;
mod refute;
mod ring;
pub(crate) mod rng;
mod schedule;

use std::sync::Arc;

use amk_models::sampling::Settings;
use amk_schedule_ir::{Buffer, BufferId, BufferKind, Program};

pub use data::{Data, DataError};
pub use fault::{Agent, Blocked, BlockedOn, FaultKind, Place, Site, VmFault};
pub use memory::Values;
pub use model::{Generated, VmError, VmModel};
pub use recipe::RecipeData;
pub use refute::{Effort, Refutation, refute, refute_with};
pub use schedule::Policy;

use agents::{Launch, Machine};
use memory::Memory;
use plan::Plan;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Decides every choice; the same seed and policy give the same run.
    pub seed: u64,
    pub policy: Policy,
    /// Finest micro-steps (half writes, single chunks, any order of writes); `None`: wherever values are
    /// computed, and for programs of some thousand instructions.
    pub fine: Option<bool>,
    /// Stop after this many faults.
    pub max_faults: usize,
    /// Token ids at which the boundary stops the launch.
    pub eos: Vec<u32>,
    /// How tokens are drawn by a program that draws them: what the host puts into its settings buffer.
    pub settings: Settings,
    /// Keep the values of output buffers after every step.
    pub keep_outputs: bool,
    /// Epochs used by launches before the first.
    pub epoch_base: u64,
    /// Epoch whose leftovers every packet word carries at first; `None`: never written.
    pub leftover_epoch: Option<u64>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            seed: 0,
            policy: Policy::Uniform,
            fine: None,
            max_faults: 64,
            eos: Vec::new(),
            settings: Settings::default(),
            keep_outputs: false,
            epoch_base: 0,
            leftover_epoch: None,
        }
    }
}

/// What one step gave.
#[derive(Clone, Debug, PartialEq)]
pub struct StepResult {
    /// First position of the step.
    pub pos: u64,
    /// The id chosen at the boundary, also where a prompt token takes its place; `None` without values.
    pub token: Option<u32>,
    /// Output buffers after the step, if they are kept.
    pub outputs: Option<Vec<(BufferId, Values)>>,
}

/// What a launch did.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The steps executed.
    pub steps: Vec<StepResult>,
    /// An end-of-sequence token ended the launch.
    pub stopped: bool,
    /// Moves of agents and copies.
    pub micro_steps: u64,
    /// Instructions executed, over all SMs and steps.
    pub instructions: u64,
}

/// A program with its memory, which lasts from launch to launch.
pub struct Vm {
    plan: Plan,
    memory: Memory,
    data: Option<Box<dyn Data>>,
    options: Options,
    /// Steps and epochs of earlier launches.
    steps: u64,
    base: u64,
    launches: u64,
}

impl Vm {
    /// Prepares a program. With `data` the numbers are computed, without only order and hazards are
    /// watched (then any op will do).
    ///
    /// # Errors
    /// The program has no execution, or with `data` an instruction is not what its op computes.
    pub fn new(
        program: Arc<Program>,
        data: Option<Box<dyn Data>>,
        options: Options,
    ) -> Result<Vm, VmFault> {
        if data.is_some() {
            op::check(&program)?;
        }
        let plan = Plan::new(program)?;
        let memory = Memory::new(&plan, data.is_some())?;
        let mut vm =
            Vm { plan, memory, data, options: Options::default(), steps: 0, base: 0, launches: 0 };
        vm.configure(options);
        Ok(vm)
    }

    fn configure(&mut self, options: Options) {
        if let Some(epoch) = options.leftover_epoch {
            self.memory.preset_epochs(&self.plan, epoch);
        }
        (self.steps, self.base, self.launches) = (0, options.epoch_base, 0);
        self.options = options;
    }

    /// Starts over with other options, as a new machine would.
    ///
    /// # Errors
    /// As [`Vm::new`], which has succeeded before.
    pub fn restart(&mut self, options: Options) -> Result<(), VmFault> {
        self.reset()?;
        self.configure(options);
        Ok(())
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.plan.program
    }

    /// Puts prompt tokens at the positions from `pos` on; everything before counts as prompt too.
    pub fn put_tokens(&mut self, pos: u64, tokens: &[u32]) -> Result<(), VmFault> {
        let ids = Values::Ids(tokens.to_vec());
        for i in 0..self.plan.buffers.len() {
            if self.plan.buffers[i].kind == BufferKind::Tokens {
                self.put(BufferId(i as u32), pos, &ids)?;
            }
        }
        self.memory.prompt = self.memory.prompt.max(pos + tokens.len() as u64);
        Ok(())
    }

    /// Puts values into a buffer between launches, as the host, from flattened element `at` on.
    pub fn put(&mut self, buffer: BufferId, at: u64, values: &Values) -> Result<(), VmFault> {
        let wrong = |what: String| VmFault::Launch { what };
        let i = buffer.index();
        let n = match values {
            Values::Real(v) => v.len(),
            Values::Ids(v) => v.len(),
            Values::Keys(v) => v.len(),
        } as u64;
        let Some(plan) = self.plan.buffers.get(i).filter(|b| b.tracked) else {
            return Err(wrong(format!("{buffer} is not one the host fills")));
        };
        let end = at.checked_add(n).filter(|&end| end <= plan.elements);
        let Some(end) = end else {
            let name = &self.plan.program.buffers[i].name;
            return Err(wrong(format!("`{name}` has no room for elements from {at} on")));
        };
        if let Some(array) = &mut self.memory.arrays[i]
            && !array.store((at, end), values, 0)
        {
            return Err(wrong(format!("{buffer} has another type of elements")));
        }
        if n > 0 {
            self.memory.shadows[i].preset((at, end), None);
        }
        Ok(())
    }

    /// Values of the flattened elements `[lo, hi)` of a buffer; `None` without values.
    pub fn get(&self, buffer: BufferId, lo: u64, hi: u64) -> Option<Values> {
        self.memory.arrays.get(buffer.index())?.as_ref().map(|a| a.gather(&[(lo, hi)]))
    }

    /// Forgets values and records, as a fresh allocation would; epochs go on.
    ///
    /// # Errors
    /// As [`Vm::new`], which has succeeded before.
    pub fn reset(&mut self) -> Result<(), VmFault> {
        self.memory = Memory::new(&self.plan, self.data.is_some())?;
        Ok(())
    }

    /// Copies the cache rows of the first `rows` positions of another program's memory, and its tokens:
    /// the prompt, and the one that follows these positions if it is there. `Err` names a buffer the other lacks, or has in another shape.
    pub(crate) fn take_over(&mut self, other: &Vm, rows: u64) -> Result<(), String> {
        let theirs = &other.plan.program.buffers;
        for (i, buffer) in self.plan.program.buffers.clone().iter().enumerate() {
            let cache = buffer.kind == BufferKind::Kv;
            if !cache && buffer.kind != BufferKind::Tokens {
                continue;
            }
            let lost = || buffer.name.clone();
            let same = |b: &&Buffer| b.name == buffer.name && b.dtype == buffer.dtype;
            let from = theirs.iter().find(same).ok_or_else(lost)?;
            let (heads, capacity, width) = match (cache, buffer.shape.as_slice()) {
                (true, [h, c, w]) if from.shape == buffer.shape => (*h, *c, *w),
                (false, [n]) if from.shape.len() == 1 => (1, (*n).min(from.shape[0]), 1),
                _ => return Err(lost()),
            };
            let next = rows < capacity && other.memory.shadows[from.id.index()].is_written(rows);
            let tokens = other.memory.prompt.max(if next { rows + 1 } else { 0 });
            let n = if cache { rows } else { tokens }.min(capacity);
            for h in 0..heads {
                let at = h * capacity * width;
                let values = other.get(from.id, at, at + n * width).ok_or_else(lost)?;
                self.put(BufferId(i as u32), at, &values).map_err(|_| lost())?;
            }
        }
        self.memory.prompt = other.memory.prompt;
        Ok(())
    }

    /// Runs one launch of at most `steps` steps from position `pos0` on. Memory goes on from the
    /// launch before. Without values, tokens and cache rows before `pos0` count as filled.
    ///
    /// # Errors
    /// Every fault found, at most [`Options::max_faults`].
    pub fn run(&mut self, pos0: u64, steps: u64) -> Result<Outcome, Vec<VmFault>> {
        let p = &self.plan.program;
        let last = steps
            .checked_sub(1)
            .and_then(|n| n.checked_mul(u64::from(p.tokens)))
            .and_then(|n| n.checked_add(pos0));
        let inside = last.is_some_and(|last| pos0 >= p.bucket.first && last <= p.bucket.last);
        if !inside || steps > p.max_steps {
            let what = format!(
                "{steps} steps from position {pos0} are not within positions {}..={} and {} steps",
                p.bucket.first, p.bucket.last, p.max_steps
            );
            return Err(vec![VmFault::Launch { what }]);
        }
        if self.data.is_none() {
            self.memory.preset_host(&self.plan, pos0);
        }
        let per_step = u64::from(p.epochs.per_step);
        let launch = Launch {
            plan: &self.plan,
            memory: &mut self.memory,
            data: self.data.as_deref(),
            options: &self.options,
            pos0,
            steps,
            earlier: self.steps,
            base: self.base,
            number: self.launches,
        };
        let result = Machine::new(launch).run();
        self.memory.waiting.iter_mut().for_each(|w| w.clear());
        self.launches += 1;
        self.steps = self.steps.saturating_add(steps);
        self.base = self.base.saturating_add(steps.saturating_mul(per_step));
        let done = result?;
        Ok(Outcome {
            steps: done.steps,
            stopped: done.stopped,
            micro_steps: done.micro_steps,
            instructions: done.instructions,
        })
    }
}
