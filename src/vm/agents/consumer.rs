//! The consumer group: the queue, instruction by instruction, in the order of the semantics.

use amk_schedule_ir::{BufferId, InstrId, Op, RunSource, Signal, Wait};

use super::Machine;
use crate::vm::fault::VmFault;
use crate::vm::memory::{Packets, Values};
use crate::vm::op::{self, Input, Maths};
use crate::vm::plan::{AccessPlan, InstrPlan, Interval};
use crate::vm::ring::Rows;

/// Where a consumer group is within its instruction, or in the boundary's accesses if it leads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    #[default]
    Start,
    /// Before counter wait `n`.
    Wait(usize),
    /// Waiting for the packets of read `access`, up to element `at` of interval `interval`.
    Packet {
        access: usize,
        interval: usize,
        at: u64,
    },
    /// Before read `n`.
    Read(usize),
    /// Before chunk `next` of the run.
    Chunk {
        next: u64,
        end: u64,
    },
    /// Everything is there.
    Compute,
    /// Before write piece `n`.
    Write(usize),
    /// Before signal `n`.
    Signal(usize),
    /// Before the arrival at the boundary.
    Arrive,
    /// Arrived, waiting for the token word.
    Token,
    Done,
}

/// A part of a write that becomes visible at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    access: usize,
    elements: Interval,
    /// Index of its first value.
    from: usize,
}

/// The consumer group of one SM.
#[derive(Default)]
pub(super) struct Consumer {
    pub step: u64,
    /// Index into the queue.
    pub at: usize,
    pub stage: Stage,
    /// Makes the boundary's accesses, as the last to arrive.
    pub leading: bool,
    inputs: Vec<Input>,
    streamed: Vec<Rows>,
    outputs: Vec<Values>,
    pieces: Vec<Piece>,
}

/// What is being executed: an instruction, or the accesses of the boundary.
#[derive(Clone, Copy)]
struct Unit<'a> {
    plan: &'a InstrPlan,
    waits: &'a [Wait],
    signals: &'a [Signal],
    by: Option<InstrId>,
}

impl<'a> Machine<'a> {
    fn unit(&self, sm: usize) -> Unit<'a> {
        let plan = self.plan;
        let c = &self.consumers[sm];
        if c.leading {
            return Unit { plan: &plan.boundary, waits: &[], signals: &[], by: None };
        }
        let id = plan.sms[sm].queue[c.at];
        let instr = &plan.program.instructions[id.index()];
        Unit {
            plan: &plan.instructions[id.index()],
            waits: &instr.waits,
            signals: &instr.signals,
            by: Some(id),
        }
    }

    /// Instruction a consumer group is at.
    pub(super) fn instruction(&self, sm: usize) -> Option<InstrId> {
        self.plan.sms[sm].queue.get(self.consumers[sm].at).copied()
    }

    /// One micro-step; `false` if the agent is blocked or done.
    pub(super) fn consumer_step(&mut self, sm: usize) -> bool {
        loop {
            let stage = self.consumers[sm].stage;
            if matches!(stage, Stage::Done) {
                return false;
            }
            let unit = self.unit(sm);
            let next = match stage {
                Stage::Start => Stage::Wait(0),
                Stage::Wait(n) => match unit.waits.get(n) {
                    Some(wait) => return self.wait(sm, n, wait),
                    None => Stage::Packet { access: 0, interval: 0, at: 0 },
                },
                Stage::Packet { access, interval, at } => match unit.plan.reads.get(access) {
                    Some(read) if self.is_packet(read) => {
                        match self.packets(sm, unit, access, interval, at) {
                            Some(goes_on) => return goes_on,
                            None => Stage::Packet { access: access + 1, interval: 0, at: 0 },
                        }
                    }
                    Some(_) => Stage::Packet { access: access + 1, interval: 0, at: 0 },
                    None => Stage::Read(0),
                },
                Stage::Read(n) => match unit.plan.reads.get(n) {
                    Some(read) => {
                        self.consumers[sm].stage = Stage::Read(n + 1);
                        self.read(sm, unit, read);
                        return true;
                    }
                    None => self.first_chunk(sm, unit),
                },
                Stage::Chunk { next, end } if next < end => return self.chunk(sm, next, end),
                Stage::Chunk { .. } => Stage::Compute,
                Stage::Compute => {
                    if let Err(fault) = self.compute(sm, unit) {
                        self.fail(fault);
                    }
                    Stage::Write(0)
                }
                Stage::Write(n) => match self.consumers[sm].pieces.get(n).copied() {
                    Some(piece) => {
                        self.consumers[sm].stage = Stage::Write(n + 1);
                        self.write(sm, unit, piece);
                        return true;
                    }
                    None => Stage::Signal(0),
                },
                Stage::Signal(n) => match unit.signals.get(n) {
                    Some(signal) => {
                        self.consumers[sm].stage = Stage::Signal(n + 1);
                        self.signal(sm, signal);
                        return true;
                    }
                    None => return self.finish(sm, unit),
                },
                Stage::Arrive => return self.arrive(sm),
                Stage::Token => return self.pass(sm),
                Stage::Done => return false,
            };
            if self.halt {
                return false;
            }
            self.consumers[sm].stage = next;
        }
    }

    fn wait(&mut self, sm: usize, n: usize, wait: &Wait) -> bool {
        let counter = &mut self.counters[wait.counter.index()];
        let target = counter.target(self.consumers[sm].step, wait.threshold);
        if counter.value < target {
            counter.block(target, sm);
            return false;
        }
        if let Some(clock) = counter.reached(wait.threshold, target) {
            self.clocks.acquire(sm, clock);
        }
        self.consumers[sm].stage = Stage::Wait(n + 1);
        true
    }

    /// Follows the words of a packet read as far as they are there. `None`: all of them are.
    fn packets(
        &mut self,
        sm: usize,
        unit: Unit<'a>,
        access: usize,
        interval: usize,
        at: u64,
    ) -> Option<bool> {
        let step = self.consumers[sm].step;
        let read = &unit.plan.reads[access];
        let list = match self.elements(read, step, unit.by) {
            Ok(list) => list,
            Err(fault) => {
                self.fail(fault);
                return Some(false);
            }
        };
        let epoch = self.epoch(step, read.phase);
        let tags = self.plan.program.epochs.tags;
        for (n, &(lo, hi)) in list.iter().enumerate().skip(interval) {
            let lo = if n == interval { lo.max(at) } else { lo };
            let found = self.memory.shadows[read.buffer].packets((lo, hi), epoch, tags);
            if let Packets::Missing { at, .. } = found {
                self.consumers[sm].stage = Stage::Packet { access, interval: n, at };
                self.memory.waiting[read.buffer].entry(at).or_default().push(sm as u32);
                return Some(false);
            }
        }
        None
    }

    fn read(&mut self, sm: usize, unit: Unit<'a>, read: &'a AccessPlan) {
        let step = self.consumers[sm].step;
        let list = match self.elements(read, step, unit.by) {
            Ok(list) => list,
            Err(fault) => return self.fail(fault),
        };
        if self.plan.buffers[read.buffer].tracked {
            let epoch = self.is_packet(read).then(|| self.epoch(step, read.phase));
            let by = self.record(sm, unit.by, step, epoch);
            self.touch(read.buffer, &list, by, false);
        }
        if self.data.is_some() {
            let input = match self.gather(read.buffer, &list) {
                Some(values) => Input::Memory(values),
                None => Input::Constant(BufferId(read.buffer as u32)),
            };
            self.consumers[sm].inputs.push(input);
        }
    }

    fn first_chunk(&self, sm: usize, unit: Unit<'a>) -> Stage {
        let run = unit.by.and_then(|id| self.plan.program.instructions[id.index()].run);
        match run {
            None => Stage::Compute,
            Some(run) => {
                let stream = &self.plan.sms[sm];
                let run = &stream.runs[run.index()];
                let first = self.consumers[sm].step * stream.chunks + run.first;
                Stage::Chunk { next: first, end: first + run.chunks }
            }
        }
    }

    /// Consumes the next chunk and releases its slot; several at once unless steps are fine.
    fn chunk(&mut self, sm: usize, mut next: u64, end: u64) -> bool {
        let producer = self.plan.sms[sm].producer;
        let before = next;
        while next < end && self.rings[sm].has_landed(next) {
            let ring = &mut self.rings[sm];
            let slot = ring.slot(next);
            let held = ring.consume(next);
            if let (Some(p), Some(slot), Some(held)) = (producer, slot, held) {
                self.clocks.acquire_one(sm, p, held.issued_at);
                ring.released[slot] = Some(self.clocks.of(sm).into());
                self.clocks.tick(sm);
                self.consumers[sm].streamed.extend(held.rows);
            }
            next += 1;
            if self.fine {
                break;
            }
        }
        self.consumers[sm].stage = Stage::Chunk { next, end };
        if next == before {
            self.rings[sm].awaited = Some(next);
            return false;
        }
        if std::mem::take(&mut self.rings[sm].producer_waits) {
            self.wake_producer(sm);
        }
        true
    }

    /// Computes the values to write, and cuts the writes into pieces.
    fn compute(&mut self, sm: usize, unit: Unit<'a>) -> Result<(), VmFault> {
        let step = self.consumers[sm].step;
        let mut inputs = std::mem::take(&mut self.consumers[sm].inputs);
        let streamed = std::mem::take(&mut self.consumers[sm].streamed);
        let mut outputs = Vec::new();
        if let Some(data) = self.data {
            self.fill_streamed(unit, step, &mut inputs, &streamed)?;
            outputs = match unit.by {
                None => self.decide(step, &inputs)?,
                Some(id) => {
                    let instr = &self.plan.program.instructions[id.index()];
                    let cx = Maths {
                        data,
                        inputs: &inputs,
                        weight: self.weight(sm, id),
                        pos: self.pos(step),
                        tokens: self.plan.program.tokens as usize,
                        settings: self.options.settings,
                    };
                    let op = instr.op.name();
                    op::run(instr, &cx).map_err(|what| VmFault::Maths {
                        op,
                        instruction: Some(id),
                        what,
                    })?
                }
            };
        }
        let mut pieces = std::mem::take(&mut self.consumers[sm].pieces);
        pieces.clear();
        for (access, write) in unit.plan.writes.iter().enumerate() {
            let list = self.elements(write, step, unit.by)?;
            if !self.plan.buffers[write.buffer].tracked {
                let by = self.record(sm, unit.by, step, None);
                self.read_only(write, by, self.pos(step));
                continue;
            }
            if let (Some(nan), Some(id)) =
                (outputs.get(access).and_then(Values::first_nan), unit.by)
            {
                return Err(self.not_a_number(sm, id, write.buffer, &list, nan, step));
            }
            let per_word = self.plan.buffers[write.buffer].per_word;
            let mut from = 0;
            for &(lo, hi) in list.iter() {
                let middle = lo + (hi - lo) / 2 / per_word * per_word;
                if self.fine && middle > lo {
                    pieces.push(Piece { access, elements: (lo, middle), from });
                    let from = from + (middle - lo) as usize;
                    pieces.push(Piece { access, elements: (middle, hi), from });
                } else {
                    pieces.push(Piece { access, elements: (lo, hi), from });
                }
                from += (hi - lo) as usize;
            }
        }
        if self.fine {
            self.rng.shuffle(&mut pieces);
        }
        let c = &mut self.consumers[sm];
        (c.pieces, c.outputs) = (pieces, outputs);
        inputs.clear();
        c.inputs = inputs;
        Ok(())
    }

    /// Rows that came through the ring replace those read directly.
    fn fill_streamed(
        &self,
        unit: Unit<'a>,
        step: u64,
        inputs: &mut [Input],
        streamed: &[Rows],
    ) -> Result<(), VmFault> {
        for rows in streamed {
            for (read, input) in unit.plan.reads.iter().zip(inputs.iter_mut()) {
                let Input::Memory(Values::Real(to)) = input else { continue };
                if read.buffer != rows.buffer {
                    continue;
                }
                let mut start = 0;
                for &(lo, hi) in self.elements(read, step, unit.by)?.iter() {
                    rows.copy_into((lo, hi), &mut to[start..start + (hi - lo) as usize]);
                    start += (hi - lo) as usize;
                }
            }
        }
        Ok(())
    }

    /// The weight matrix an instruction streams.
    pub(super) fn weight(&self, sm: usize, id: InstrId) -> Option<BufferId> {
        let run = self.plan.program.instructions[id.index()].run?;
        match &self.plan.program.sms[sm].stream.get(run.index())?.source {
            RunSource::Weight { buffer, .. } => Some(*buffer),
            RunSource::Kv { .. } => None,
        }
    }

    fn write(&mut self, sm: usize, unit: Unit<'a>, piece: Piece) {
        let step = self.consumers[sm].step;
        let write = &unit.plan.writes[piece.access];
        let packet = self.is_packet(write);
        let epoch = packet.then(|| self.epoch(step, write.phase));
        let by = self.record(sm, unit.by, step, epoch);
        if let Some(array) = &mut self.memory.arrays[write.buffer] {
            let values = self.consumers[sm].outputs.get(piece.access);
            let stored = values.is_some_and(|v| array.store(piece.elements, v, piece.from));
            if !stored {
                let op = unit
                    .by
                    .map_or("boundary", |id| self.plan.program.instructions[id.index()].op.name());
                let what = format!("write {} has other values than its region takes", piece.access);
                return self.fail(VmFault::Maths { op, instruction: unit.by, what });
            }
        }
        self.touch(write.buffer, &[piece.elements], by, true);
        if packet {
            let mut woken = std::mem::take(&mut self.woken);
            self.memory.wake(write.buffer, piece.elements, &mut woken);
            woken.drain(..).for_each(|sm| self.wake_consumer(sm as usize));
            self.woken = woken;
        }
    }

    fn signal(&mut self, sm: usize, signal: &Signal) {
        let counter = &mut self.counters[signal.counter.index()];
        counter.signal(signal.amount, self.clocks.of(sm), self.boundaries, self.steps);
        self.clocks.tick(sm);
        while let Some(woken) = self.counters[signal.counter.index()].wake() {
            self.wake_consumer(woken);
        }
    }

    /// All signals are done: the boundary if this was its instruction, else the next instruction.
    fn finish(&mut self, sm: usize, unit: Unit<'a>) -> bool {
        let Some(id) = unit.by else { return self.publish(sm) };
        self.instructions += 1;
        let boundary = matches!(self.plan.program.instructions[id.index()].op, Op::Boundary(_));
        let c = &mut self.consumers[sm];
        if boundary {
            c.stage = Stage::Arrive;
        } else {
            c.at += 1;
            c.stage = Stage::Start;
        }
        true
    }
}
