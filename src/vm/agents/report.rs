//! From what the records found to faults, and what is left at the end of a launch.

use amk_schedule_ir::{BufferId, BufferKind, InstrId, SmId};

use super::Machine;
use super::consumer::Stage;
use crate::vm::fault::{Agent, Blocked, BlockedOn, Place, Site, VmFault};
use crate::vm::memory::{Found, NO_INSTRUCTION, Packets, Record, Trouble};
use crate::vm::plan::{AccessPlan, Interval, indices};

impl Machine<'_> {
    /// Keeps a fault, and ends the run where going on would make no sense.
    pub(super) fn fail(&mut self, fault: VmFault) {
        let computing = self.data.is_some() && !fault.is_ordering();
        let fatal = matches!(fault, VmFault::OutOfBounds { .. } | VmFault::Malformed { .. });
        self.faults.push(fault);
        self.halt |= computing || fatal || self.faults.len() >= self.options.max_faults;
    }

    fn site(&self, by: Record, write: bool) -> Site {
        let sm = SmId(self.plan.sm_of.get(by.agent as usize).map_or(0, |&s| s as u32));
        let producer = by.agent as usize >= self.plan.sms.len();
        Site {
            agent: if producer { Agent::Producer(sm) } else { Agent::Consumer(sm) },
            instruction: (by.site != NO_INSTRUCTION).then_some(InstrId(by.site)),
            step: by.step.saturating_sub(self.earlier),
            write,
        }
    }

    fn place(&self, buffer: usize, (lo, hi): Interval) -> Place {
        let b = &self.plan.program.buffers[buffer];
        Place {
            buffer: BufferId(buffer as u32),
            name: b.name.as_str().into(),
            lo,
            hi,
            first: indices(&b.shape, lo).into(),
        }
    }

    /// Is this the first fault of its kind between the two instructions on the buffer?
    fn is_new(&mut self, kind: usize, a: Option<InstrId>, b: Option<InstrId>, buf: usize) -> bool {
        self.seen.insert((kind, a, b, buf))
    }

    /// Trouble with an access by `by`.
    pub(super) fn found(&mut self, buffer: usize, f: Found, by: Record, write: bool) {
        let second = self.site(by, write);
        let first = self.site(f.other, f.trouble != Trouble::RaceWithRead);
        let other = f.other.epoch;
        if !self.is_new(f.trouble as usize, first.instruction, second.instruction, buffer) {
            return;
        }
        let place = self.place(buffer, (f.lo, f.hi));
        let fault = match f.trouble {
            Trouble::RaceWithWrite | Trouble::RaceWithRead => {
                VmFault::Race { place, first, second }
            }
            Trouble::Unwritten => VmFault::Unwritten { site: second, place },
            Trouble::Stale => VmFault::Stale { site: second, place, writer: first },
            Trouble::Again => VmFault::DoubleWrite { place, first, second },
            Trouble::Foreign => VmFault::Shared { place, first, second },
            Trouble::Epoch => {
                let (expected, found) = (by.epoch.unwrap_or(0), other.unwrap_or(0));
                if self.plan.tag(other) == self.plan.tag(by.epoch) {
                    VmFault::WrongEpoch { site: second, place, expected, found }
                } else {
                    VmFault::MissedEpoch { site: second, place, expected, found }
                }
            }
        };
        self.fail(fault);
    }

    /// A reader finds that its epoch is gone.
    pub(super) fn missed(&mut self, buffer: usize, at: Interval, by: Record, newer: u64) {
        let site = self.site(by, false);
        if self.is_new(usize::MAX, site.instruction, None, buffer) {
            let place = self.place(buffer, at);
            let expected = by.epoch.unwrap_or(0);
            self.fail(VmFault::MissedEpoch { site, place, expected, found: newer });
        }
    }

    /// A write to a read-only buffer.
    pub(super) fn read_only(&mut self, write: &AccessPlan, by: Record, pos: u64) {
        let site = self.site(by, true);
        if self.is_new(usize::MAX - 1, site.instruction, None, write.buffer) {
            let shape = &self.plan.program.buffers[write.buffer].shape;
            let spans = write.region.0.iter().zip(shape);
            let at = spans.fold(0, |at, (s, n)| at * n + s.lo.eval(pos).max(0) as u64);
            let place = self.place(write.buffer, (at, at + 1));
            self.fail(VmFault::ReadOnly { site, place });
        }
    }

    /// The fault for a result that is not a number: value `nth` of a write.
    pub(super) fn not_a_number(
        &self,
        sm: usize,
        id: InstrId,
        buffer: usize,
        list: &[Interval],
        nth: usize,
        step: u64,
    ) -> VmFault {
        let mut left = nth as u64;
        let mut at = 0;
        for &(lo, hi) in list {
            at = lo + left;
            match left.checked_sub(hi - lo) {
                Some(rest) => left = rest,
                None => break,
            }
        }
        let program = &self.plan.program;
        let weights = self.weight(sm, id).and_then(|b| program.buffer(b));
        VmFault::NotANumber {
            op: program.instructions[id.index()].op.name(),
            instruction: id,
            weights: weights.map_or(String::new(), |b| b.name.clone()),
            place: self.place(buffer, (at, at + 1)),
            pos: self.pos(step),
        }
    }

    /// Every output element must have been written in the step.
    pub(super) fn check_outputs(&mut self, step: u64) {
        for i in 0..self.plan.buffers.len() {
            if self.plan.buffers[i].kind != BufferKind::Output {
                continue;
            }
            let missing = self.memory.shadows[i].missing(self.earlier + step);
            if missing > 0 && self.is_new(usize::MAX - 2, None, None, i) {
                let buffer = self.plan.program.buffers[i].name.clone();
                self.fail(VmFault::MissingOutput { buffer, step, missing });
            }
        }
    }

    /// Readers that are stuck at a word with a newer epoch than theirs. Before that nothing is certain: the
    /// writer of a later phase may come first.
    fn missed_epochs(&mut self) {
        for sm in 0..self.plan.sms.len() {
            let c = &self.consumers[sm];
            let Stage::Packet { access, at, .. } = c.stage else { continue };
            let id = if c.leading { None } else { self.instruction(sm) };
            let unit = match id {
                Some(id) => &self.plan.instructions[id.index()],
                None => &self.plan.boundary,
            };
            let Some(read) = unit.reads.get(access) else { continue };
            let (epoch, step, buffer) = (self.epoch(c.step, read.phase), c.step, read.buffer);
            let tags = self.plan.program.epochs.tags;
            let word = (at, at + 1);
            if let Packets::Missing { carries: Some(newer), .. } =
                self.memory.shadows[buffer].packets(word, epoch, tags)
                && newer > epoch
            {
                let by = self.record(sm, id, step, Some(epoch));
                self.missed(buffer, word, by, newer);
            }
        }
    }

    /// Nobody moves any more: everybody is done, or they are stuck.
    pub(super) fn check_end(&mut self) {
        self.missed_epochs();
        let mut blocked = Vec::new();
        for sm in 0..self.plan.sms.len() {
            let Some(on) = self.consumer_waits_for(sm) else { continue };
            let starved = matches!(on, BlockedOn::Chunk { issued: false, .. });
            blocked.push(Blocked {
                agent: Agent::Consumer(SmId(sm as u32)),
                step: self.consumers[sm].step,
                instruction: self.instruction(sm),
                on,
            });
            if starved && let Some(on) = self.producer_waits_for(sm) {
                blocked.push(Blocked {
                    agent: Agent::Producer(SmId(sm as u32)),
                    step: self.producers[sm].step,
                    instruction: None,
                    on,
                });
            }
        }
        if !blocked.is_empty() {
            // Those that wait for the others at the boundary are not the cause.
            blocked.sort_by_key(|b| matches!(b.on, BlockedOn::Boundary { .. }));
            return self.fail(VmFault::Stuck { blocked });
        }
        for sm in 0..self.plan.sms.len() {
            let stream = &self.plan.sms[sm];
            let executed = self.boundaries * stream.chunks;
            let left = self.rings[sm].held().map(|h| h.chunk).filter(|&c| c < executed).min();
            let unissued = self.next_chunk(sm).filter(|&c| c < executed);
            if let Some(chunk) = left.or(unissued) {
                let within = chunk % stream.chunks.max(1);
                let run = stream.runs.partition_point(|r| r.first + r.chunks <= within);
                self.fail(VmFault::Unconsumed { sm: SmId(sm as u32), run });
            }
        }
    }

    fn consumer_waits_for(&self, sm: usize) -> Option<BlockedOn> {
        let c = &self.consumers[sm];
        let plan = self.plan;
        match c.stage {
            Stage::Done => None,
            Stage::Wait(n) => {
                let id = self.instruction(sm)?;
                let wait = plan.program.instructions[id.index()].waits.get(n)?;
                let counter = &self.counters[wait.counter.index()];
                Some(BlockedOn::Counter {
                    name: plan.program.counters[wait.counter.index()].name.clone(),
                    value: counter.value,
                    target: counter.target(c.step, wait.threshold),
                })
            }
            Stage::Packet { access, at, .. } => {
                let unit = match c.leading {
                    true => &plan.boundary,
                    false => &plan.instructions[self.instruction(sm)?.index()],
                };
                let read = unit.reads.get(access)?;
                let epoch = self.epoch(c.step, read.phase);
                let tags = plan.program.epochs.tags;
                let word = (at, at + 1);
                let carries = match self.memory.shadows[read.buffer].packets(word, epoch, tags) {
                    Packets::Missing { carries, .. } => carries,
                    Packets::Ready => Some(epoch),
                };
                Some(BlockedOn::Packet {
                    place: self.place(read.buffer, word),
                    expected: plan.tag(Some(epoch)),
                    seen: plan.tag(carries),
                })
            }
            Stage::Chunk { next, .. } => {
                Some(BlockedOn::Chunk { chunk: next, issued: next < self.rings[sm].issued })
            }
            _ => Some(BlockedOn::Boundary { arrived: self.arrived, of: plan.sms.len() }),
        }
    }

    fn producer_waits_for(&self, sm: usize) -> Option<BlockedOn> {
        let chunk = self.next_chunk(sm)?;
        let (p, ring) = (&self.producers[sm], &self.rings[sm]);
        let run = self.plan.sms[sm].runs.get(p.run)?;
        if let Some(kv) = run.kv.as_ref().filter(|_| p.gated) {
            return Some(BlockedOn::Gate { chunk, step: p.step.saturating_sub(kv.gate) });
        }
        match (ring.slot(chunk), ring.holder(chunk)) {
            (None, _) => Some(BlockedOn::Slot { chunk, held_by: None }),
            (_, Some(held)) => Some(BlockedOn::Slot { chunk, held_by: Some(held.chunk) }),
            _ => Some(BlockedOn::Window { chunk, window: run.window }),
        }
    }
}
