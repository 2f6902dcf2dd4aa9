//! One launch: the agents of all SMs and the loop that moves them one micro-step at a time.
//!
//! `consumer.rs` runs the queue, `producer.rs` issues the stream and lands copies, `boundary.rs`
//! ends a step, `report.rs` turns what was found into faults. An agent that cannot move leaves the
//! scheduler and is put back by the event it waits for: a signal, a packet word, a landed chunk, a
//! freed slot, a boundary.

mod boundary;
mod consumer;
mod producer;
mod report;

use std::borrow::Cow;
use std::collections::{HashSet, VecDeque};
use std::rc::Rc;

use amk_schedule_ir::{BufferId, InstrId};

use super::clock::{Clocks, Counter};
use super::data::Data;
use super::fault::VmFault;
use super::memory::{Actor, Memory, NO_INSTRUCTION, Record, Values};
use super::plan::{AccessPlan, Interval, Plan};
use super::ring::Ring;
use super::rng::Rng;
use super::schedule::{CONSUMER, LANDING, PRODUCER, Scheduler};
use super::{Options, StepResult};
use consumer::Consumer;
use producer::Producer;

/// What one launch works on.
pub(super) struct Launch<'a> {
    pub plan: &'a Plan,
    pub memory: &'a mut Memory,
    pub data: Option<&'a dyn Data>,
    pub options: &'a Options,
    /// Position of the first step.
    pub pos0: u64,
    /// Steps at most.
    pub steps: u64,
    /// Steps of earlier launches.
    pub earlier: u64,
    /// Epochs used by earlier launches.
    pub base: u64,
    /// Launches before this one, so that each has its own interleaving.
    pub number: u64,
}

/// What a launch did.
pub(super) struct Done {
    pub steps: Vec<StepResult>,
    pub stopped: bool,
    pub micro_steps: u64,
    pub instructions: u64,
}

/// The state of a launch.
pub(super) struct Machine<'a> {
    plan: &'a Plan,
    memory: &'a mut Memory,
    data: Option<&'a dyn Data>,
    options: &'a Options,
    pos0: u64,
    steps: u64,
    earlier: u64,
    base: u64,
    /// Accesses are cut into as many micro-steps as the semantics allow.
    fine: bool,
    rng: Rng,
    scheduler: Scheduler,
    clocks: Clocks,
    counters: Vec<Counter>,
    rings: Vec<Ring>,
    consumers: Vec<Consumer>,
    producers: Vec<Producer>,
    /// Boundaries passed, and the state of the next one.
    boundaries: u64,
    arrived: usize,
    chain: Vec<u32>,
    token_clock: Rc<[u32]>,
    /// Clocks of the newest boundaries, for gates; the last is that of `boundaries - 1`.
    gate_clocks: VecDeque<Rc<[u32]>>,
    /// The boundary decided to end the launch.
    ended: bool,
    stopped: bool,
    results: Vec<StepResult>,
    instructions: u64,
    faults: Vec<VmFault>,
    seen: HashSet<(usize, Option<InstrId>, Option<InstrId>, usize)>,
    halt: bool,
    woken: Vec<u32>,
}

/// Programs up to this many instructions are run in the finest steps by default.
const FINE_LIMIT: usize = 4096;

impl<'a> Machine<'a> {
    pub fn new(launch: Launch<'a>) -> Machine<'a> {
        let Launch { plan, memory, data, options, pos0, steps, earlier, base, number } = launch;
        let sms = plan.sms.len();
        let seed = options.seed.wrapping_add(number.wrapping_mul(0x9e3779b97f4a7c15));
        let slots = plan.program.resources.ring_slots.min(1 << 16) as usize;
        let counters = plan.program.counters.iter().zip(&plan.thresholds);
        let mut scheduler = Scheduler::new(options.policy, seed, sms);
        for sm in 0..sms {
            scheduler.add(3 * sm + CONSUMER);
            scheduler.add(3 * sm + PRODUCER);
        }
        Machine {
            fine: options.fine.unwrap_or(data.is_some() || plan.instructions.len() <= FINE_LIMIT),
            rng: Rng::new(seed, 2),
            scheduler,
            clocks: Clocks::new(plan.agents),
            counters: counters.map(|(c, t)| Counter::new(c.per_step, t.clone())).collect(),
            rings: plan.sms.iter().map(|_| Ring::new(slots)).collect(),
            consumers: (0..sms).map(|_| Consumer::default()).collect(),
            producers: vec![Producer::default(); sms],
            boundaries: 0,
            arrived: 0,
            chain: Vec::new(),
            token_clock: Rc::from([]),
            gate_clocks: VecDeque::new(),
            ended: false,
            stopped: false,
            results: Vec::new(),
            instructions: 0,
            faults: Vec::new(),
            seen: HashSet::new(),
            halt: false,
            woken: Vec::new(),
            plan,
            memory,
            data,
            options,
            pos0,
            steps,
            earlier,
            base,
        }
    }

    /// Moves agents until nobody can.
    pub fn run(mut self) -> Result<Done, Vec<VmFault>> {
        let mut micro_steps = 0;
        while !self.halt {
            let Some(entity) = self.scheduler.pick() else { break };
            micro_steps += 1;
            let sm = entity / 3;
            let goes_on = match entity % 3 {
                CONSUMER => self.consumer_step(sm),
                PRODUCER => self.producer_step(sm),
                _ => self.landing_step(sm),
            };
            if !goes_on {
                self.scheduler.remove(entity);
            }
        }
        if !self.halt {
            self.check_end();
        }
        if !self.faults.is_empty() {
            return Err(self.faults);
        }
        let (steps, stopped, instructions) = (self.results, self.stopped, self.instructions);
        Ok(Done { steps, stopped, micro_steps, instructions })
    }

    /// Position of a step.
    fn pos(&self, step: u64) -> u64 {
        self.pos0 + step * u64::from(self.plan.program.tokens)
    }

    /// Epoch of packets of a step and phase.
    fn epoch(&self, step: u64, phase: u32) -> u64 {
        self.base + step * u64::from(self.plan.program.epochs.per_step) + u64::from(phase)
    }

    fn is_packet(&self, access: &AccessPlan) -> bool {
        self.plan.buffers[access.buffer].sync == amk_schedule_ir::BufferSync::Packet
    }

    /// Elements of an access in a step.
    fn elements(
        &self,
        access: &'a AccessPlan,
        step: u64,
        by: Option<InstrId>,
    ) -> Result<Cow<'a, [Interval]>, VmFault> {
        if let Some(fixed) = &access.fixed {
            return Ok(Cow::Borrowed(fixed));
        }
        let mut list = Vec::new();
        self.plan.elements(access, self.pos(step), by, &mut list)?;
        Ok(Cow::Owned(list))
    }

    /// The record of an access `agent` makes now.
    fn record(&self, agent: usize, by: Option<InstrId>, step: u64, epoch: Option<u64>) -> Record {
        Record {
            agent: agent as u32,
            stamp: self.clocks.now(agent),
            site: by.map_or(NO_INSTRUCTION, |i| i.0),
            step: self.earlier + step,
            epoch,
        }
    }

    /// Records an access to a list of intervals, and whatever is wrong with it.
    fn touch(&mut self, buffer: usize, list: &[Interval], by: Record, write: bool) {
        let mut found = Vec::new();
        let actor = Actor { by, clock: self.clocks.of(by.agent as usize), launch: self.earlier };
        let shadow = &mut self.memory.shadows[buffer];
        for &interval in list {
            match write {
                true => shadow.write(interval, &actor, &self.plan.sm_of, &mut found),
                false => shadow.read(interval, &actor, &self.plan.sm_of, &mut found),
            }
        }
        for f in found {
            self.found(buffer, f, by, write);
        }
    }

    /// Values of a list of intervals, where values are kept.
    fn gather(&self, buffer: usize, list: &[Interval]) -> Option<Values> {
        self.memory.arrays[buffer].as_ref().map(|a| a.gather(list))
    }

    fn wake_consumer(&mut self, sm: usize) {
        self.scheduler.add(3 * sm + CONSUMER);
    }

    fn wake_producer(&mut self, sm: usize) {
        self.scheduler.add(3 * sm + PRODUCER);
    }

    fn wake_landing(&mut self, sm: usize) {
        self.scheduler.add(3 * sm + LANDING);
    }

    /// Values of every output buffer.
    fn outputs(&self) -> Vec<(BufferId, Values)> {
        let buffers = self.plan.program.buffers.iter().zip(&self.memory.arrays);
        buffers
            .filter(|(b, _)| b.kind == amk_schedule_ir::BufferKind::Output)
            .filter_map(|(b, a)| {
                let all = [(0, self.plan.buffers[b.id.index()].elements)];
                a.as_ref().map(|a| (b.id, a.gather(&all)))
            })
            .collect()
    }
}
