//! The producer, and the copies it has issued.

use super::Machine;
use crate::vm::fault::VmFault;
use crate::vm::plan::{KvPlan, intervals, out_of_bounds};
use crate::vm::ring::{Held, Rows};

/// The producer of one SM.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Producer {
    pub step: u64,
    pub run: usize,
    /// Next chunk of the run.
    pub chunk: u64,
    /// The gate of this run's chunks has been acquired.
    acquired: bool,
    /// Waits for a boundary.
    pub gated: bool,
}

impl Machine<'_> {
    /// Number of the chunk a producer issues next; `None` when it has issued all of this launch.
    pub(super) fn next_chunk(&self, sm: usize) -> Option<u64> {
        let (p, stream) = (&self.producers[sm], &self.plan.sms[sm]);
        let steps = if self.ended { self.boundaries } else { self.steps };
        let run = stream.runs.get(p.run).filter(|_| stream.chunks > 0 && p.step < steps)?;
        Some(p.step * stream.chunks + run.first + p.chunk)
    }

    /// Issues the next chunk, or as many as possible unless steps are fine.
    pub(super) fn producer_step(&mut self, sm: usize) -> bool {
        let mut moved = false;
        while let Some(chunk) = self.next_chunk(sm) {
            let p = self.producers[sm];
            let stream = &self.plan.sms[sm];
            let run = &stream.runs[p.run];
            if p.chunk >= run.chunks {
                self.advance(sm);
                continue;
            }
            if let Some(kv) = run.kv.as_ref().filter(|_| !p.acquired) {
                if !self.open_gate(sm, kv, p.step) {
                    self.producers[sm].gated = true;
                    return false;
                }
                self.producers[sm].acquired = true;
            }
            let ring = &mut self.rings[sm];
            let free = ring.slot(chunk).is_some() && ring.holder(chunk).is_none();
            if !free || ring.in_flight.len() >= run.window as usize {
                ring.producer_waits = true;
                return false;
            }
            let mut issued_at = 0;
            if let Some(agent) = stream.producer {
                let released = ring.slot(chunk).and_then(|s| ring.released[s].clone());
                if let Some(clock) = released {
                    self.clocks.acquire(agent, &clock);
                }
                if let Some(kv) = &run.kv
                    && let Err(fault) = self.stream_read(agent, kv, p.chunk, p.step)
                {
                    self.fail(fault);
                    return false;
                }
                issued_at = self.clocks.now(agent);
                self.clocks.tick(agent);
            }
            self.rings[sm].issue(Held { chunk, landed: false, issued_at, rows: None });
            self.producers[sm].chunk += 1;
            moved = true;
            if self.fine {
                self.wake_landing(sm);
                break;
            }
            // Landing depends on nothing, and what the copy reads is recorded at issue.
            self.landing_step(sm);
            if self.halt {
                break;
            }
        }
        moved
    }

    fn advance(&mut self, sm: usize) {
        let runs = self.plan.sms[sm].runs.len();
        let p = &mut self.producers[sm];
        (p.chunk, p.acquired) = (0, false);
        p.run += 1;
        if p.run == runs {
            p.run = 0;
            p.step += 1;
        }
    }

    /// Acquires the boundary that ends step `step - gate`, if it has happened.
    fn open_gate(&mut self, sm: usize, kv: &KvPlan, step: u64) -> bool {
        let Some(ends) = step.checked_sub(kv.gate) else { return true };
        if self.boundaries <= ends {
            return false;
        }
        let behind = (self.boundaries - 1 - ends) as usize;
        let kept = self.gate_clocks.len();
        let clock = self.gate_clocks.get(kept.saturating_sub(1 + behind)).cloned();
        if let (Some(agent), Some(clock)) = (self.plan.sms[sm].producer, clock) {
            self.clocks.acquire(agent, &clock);
        }
        true
    }

    /// The copy of a kv chunk reads its rows from issue to landing.
    fn stream_read(
        &mut self,
        agent: usize,
        kv: &KvPlan,
        index: u64,
        step: u64,
    ) -> Result<(), VmFault> {
        let rows = self.rows(kv, index, step)?;
        let by = self.record(agent, None, step, None);
        self.touch(kv.buffer, &rows.elements, by, false);
        Ok(())
    }

    fn rows(&self, kv: &KvPlan, index: u64, step: u64) -> Result<Rows, VmFault> {
        let pos = self.pos(step);
        let buffer = &self.plan.program.buffers[kv.buffer];
        let region = self.plan.chunk_region(kv, index, pos);
        let mut elements = Vec::new();
        intervals(&buffer.shape, &region, pos, &mut elements)
            .map_err(|e| out_of_bounds(buffer, e, None))?;
        Ok(Rows { buffer: kv.buffer, elements, values: None })
    }

    /// A copy that was issued arrives, any of them.
    pub(super) fn landing_step(&mut self, sm: usize) -> bool {
        if !self.rings[sm].in_flight.is_empty() {
            let i = self.rng.below(self.rings[sm].in_flight.len());
            let chunk = self.rings[sm].in_flight[i];
            let rows = self.landing_rows(sm, chunk);
            if let Some(held) = self.rings[sm].land(i) {
                held.rows = rows;
            }
            if self.rings[sm].awaited == Some(chunk) {
                self.rings[sm].awaited = None;
                self.wake_consumer(sm);
            }
        }
        if std::mem::take(&mut self.rings[sm].producer_waits) {
            self.wake_producer(sm);
        }
        !self.rings[sm].in_flight.is_empty()
    }

    /// The rows a kv chunk brings, where values are kept.
    fn landing_rows(&self, sm: usize, chunk: u64) -> Option<Rows> {
        let stream = &self.plan.sms[sm];
        if self.data.is_none() || stream.producer.is_none() {
            return None;
        }
        let (step, within) = (chunk / stream.chunks, chunk % stream.chunks);
        let run = stream.runs.partition_point(|r| r.first + r.chunks <= within);
        let run = stream.runs.get(run)?;
        let kv = run.kv.as_ref()?;
        let mut rows = self.rows(kv, within - run.first, step).ok()?;
        rows.values = self.gather(kv.buffer, &rows.elements);
        Some(rows)
    }
}
