//! The end of a step: arrivals, the last arriver's accesses, the token word.

use amk_schedule_ir::BoundaryOp;

use super::Machine;
use super::consumer::Stage;
use crate::vm::StepResult;
use crate::vm::clock::join;
use crate::vm::fault::VmFault;
use crate::vm::memory::Values;
use crate::vm::op::{Input, key_id};

impl Machine<'_> {
    /// The SM arrives; the last one goes on to the boundary's accesses.
    pub(super) fn arrive(&mut self, sm: usize) -> bool {
        join(&mut self.chain, self.clocks.of(sm));
        self.clocks.tick(sm);
        self.arrived += 1;
        let last = self.arrived == self.plan.sms.len();
        let c = &mut self.consumers[sm];
        if last {
            self.clocks.acquire(sm, &self.chain);
            c.leading = true;
            c.stage = Stage::Start;
        } else {
            c.stage = Stage::Token;
        }
        last
    }

    /// What the boundary writes, and whether it stops the launch.
    pub(super) fn decide(&mut self, step: u64, inputs: &[Input]) -> Result<Vec<Values>, VmFault> {
        let wrong = |what: &str| VmFault::Maths {
            op: "boundary",
            instruction: None,
            what: what.to_owned(),
        };
        let plan = self.plan;
        let boundary = &plan.program.boundary;
        match (boundary.op, inputs, plan.boundary.writes.as_slice()) {
            (BoundaryOp::Plain, _, []) => Ok(Vec::new()),
            (BoundaryOp::Argmax, [Input::Memory(Values::Keys(keys))], [write]) => {
                let best = keys.iter().max().ok_or_else(|| wrong("there are no keys"))?;
                let mut token = key_id(*best);
                let list = self.elements(write, step, None)?;
                let at = list.first().map_or(0, |&(lo, _)| lo);
                let result = StepResult { pos: self.pos(step), token: Some(token), outputs: None };
                self.results.push(result);
                if at < self.memory.prompt {
                    match self.gather(write.buffer, &list) {
                        Some(Values::Ids(ids)) => token = ids.first().copied().unwrap_or(token),
                        _ => return Err(wrong("it does not write token ids")),
                    }
                } else if self.options.eos.contains(&token) {
                    self.stopped = true;
                }
                Ok(vec![Values::Ids(vec![token])])
            }
            _ => Err(wrong("its reads and writes are not those of its op")),
        }
    }

    /// The leader stores the token word.
    pub(super) fn publish(&mut self, sm: usize) -> bool {
        let step = self.boundaries;
        self.token_clock = self.clocks.of(sm).into();
        self.clocks.tick(sm);
        if self.results.len() as u64 <= step {
            self.results.push(StepResult { pos: self.pos(step), token: None, outputs: None });
        }
        if self.options.keep_outputs {
            let outputs = self.outputs();
            if let Some(result) = self.results.last_mut() {
                result.outputs = Some(outputs);
            }
        }
        self.check_outputs(step);
        self.boundaries += 1;
        self.arrived = 0;
        self.chain.clear();
        self.ended = self.stopped || self.boundaries == self.steps;
        if self.plan.agents > self.plan.sms.len() {
            self.gate_clocks.push_back(self.token_clock.clone());
            // A producer is at most one step behind.
            if self.gate_clocks.len() as u64 > self.plan.max_gate.saturating_add(2) {
                self.gate_clocks.pop_front();
            }
        }
        for other in 0..self.plan.sms.len() {
            if other != sm && self.consumers[other].stage == Stage::Token {
                self.wake_consumer(other);
            }
            if std::mem::take(&mut self.producers[other].gated) {
                self.wake_producer(other);
            }
        }
        self.consumers[sm].leading = false;
        self.next_step(sm)
    }

    /// An SM sees the token word.
    pub(super) fn pass(&mut self, sm: usize) -> bool {
        let clock = self.token_clock.clone();
        self.clocks.acquire(sm, &clock);
        self.next_step(sm)
    }

    fn next_step(&mut self, sm: usize) -> bool {
        let c = &mut self.consumers[sm];
        c.at = 0;
        c.step += 1;
        c.stage = if self.ended { Stage::Done } else { Stage::Start };
        !self.ended
    }
}
