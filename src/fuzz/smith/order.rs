//! What happens before what, and the counters that make it so.

use amk_schedule_ir::{Counter, CounterId, Program, Signal, Wait};

use crate::fuzz::draw::Draw;
use crate::vm::rng::Rng;

/// Clocks of all instructions so far.
pub(super) struct Order {
    sms: usize,
    /// Per instruction its SM and its place in the queue.
    place: Vec<(usize, u32)>,
    /// Per instruction and SM, how many of that SM's instructions are done before it ends, itself
    /// included.
    clocks: Vec<Vec<u32>>,
    /// The last clock of each SM.
    last: Vec<Vec<u32>>,
    /// Per SM the counter only it signals, with the place of its last signal and the sum so far.
    own: Vec<Option<(CounterId, u32, u64)>>,
    /// Waits that stand for exactly these instructions and may be used again.
    shared: Vec<(Wait, Vec<usize>)>,
}

/// Waits that are remembered for later instructions.
const SHARED: usize = 8;

impl Order {
    pub fn new(sms: usize) -> Order {
        Order {
            sms,
            place: Vec::new(),
            clocks: Vec::new(),
            last: vec![vec![0; sms]; sms],
            own: vec![None; sms],
            shared: Vec::new(),
        }
    }

    /// The next instruction stands at the end of the queue of `sm`.
    pub fn push(&mut self, sm: usize) {
        let at = self.last[sm][sm];
        self.last[sm][sm] = at + 1;
        self.place.push((sm, at));
        self.clocks.push(self.last[sm].clone());
    }

    /// Adds the waits to `id`, the last instruction, that bring `after` before it.
    pub fn bring_before(&mut self, rng: &mut Rng, p: &mut Program, id: usize, after: &[usize]) {
        let mut missing = self.missing(id, after);
        if missing.is_empty() {
            return;
        }
        // A wait that is there already may do.
        if rng.chance(1, 2) {
            let useful =
                self.shared.iter().position(|(_, of)| of.iter().any(|d| missing.contains(d)));
            if let Some(i) = useful {
                let (wait, of) = self.shared[i].clone();
                self.wait(p, id, wait, &of);
                missing = self.missing(id, after);
            }
        }
        // The counter of one SM, by how far it has come.
        let mut rest = Vec::new();
        for &d in &missing {
            let wait = if rng.chance(1, 2) { self.progress(rng, p, d) } else { None };
            match wait {
                Some(wait) => self.wait(p, id, wait, &[d]),
                None => rest.push(d),
            }
        }
        // A counter for all that is left.
        let rest = self.missing(id, &rest);
        if !rest.is_empty() {
            let counter = CounterId(p.counters.len() as u32);
            let mut sum = 0;
            for &d in &rest {
                let amount = rng.range(1, 3);
                sum += amount;
                p.instructions[d].signals.push(Signal { counter, amount });
            }
            p.counters.push(Counter {
                id: counter,
                name: format!("before {id}"),
                init: 0,
                per_step: sum,
            });
            let wait = Wait { counter, threshold: sum };
            self.wait(p, id, wait, &rest);
            if self.shared.len() >= SHARED {
                self.shared.remove(0);
            }
            self.shared.push((wait, rest));
        }
    }

    /// Of each SM the latest instruction of `after` that does not yet happen before `id`.
    fn missing(&self, id: usize, after: &[usize]) -> Vec<usize> {
        let clock = &self.clocks[id];
        let mut latest: Vec<Option<usize>> = vec![None; self.sms];
        for &d in after {
            let (sm, at) = self.place[d];
            if d != id && clock[sm] <= at && latest[sm].is_none_or(|l| self.place[l].1 < at) {
                latest[sm] = Some(d);
            }
        }
        latest.into_iter().flatten().collect()
    }

    /// A wait for instruction `d` on the counter of its SM, which `d` signals if it still can.
    fn progress(&mut self, rng: &mut Rng, p: &mut Program, d: usize) -> Option<Wait> {
        let (sm, at) = self.place[d];
        let (counter, last, sum) = match self.own[sm] {
            Some((_, last, _)) if last > at => return None,
            Some(own) => own,
            None => {
                let counter = CounterId(p.counters.len() as u32);
                p.counters.push(Counter {
                    id: counter,
                    name: format!("sm {sm}"),
                    init: 0,
                    per_step: 0,
                });
                (counter, u32::MAX, 0)
            }
        };
        let sum = if last == at {
            sum
        } else {
            let amount = rng.range(1, 2);
            p.instructions[d].signals.push(Signal { counter, amount });
            p.counters[counter.index()].per_step += amount;
            sum + amount
        };
        self.own[sm] = Some((counter, at, sum));
        Some(Wait { counter, threshold: sum })
    }

    fn wait(&mut self, p: &mut Program, id: usize, wait: Wait, of: &[usize]) {
        p.instructions[id].waits.push(wait);
        let (sm, _) = self.place[id];
        for &d in of {
            for s in 0..self.sms {
                let t = self.clocks[d][s];
                self.clocks[id][s] = self.clocks[id][s].max(t);
            }
        }
        self.last[sm] = self.clocks[id].clone();
    }
}
