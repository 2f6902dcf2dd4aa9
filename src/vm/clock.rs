//! Vector clocks, and counters that remember whose signals a wait is owed.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;

/// One vector clock per agent. Component `a` of a clock is the newest release of agent `a` it knows.
pub(crate) struct Clocks {
    agents: usize,
    rows: Vec<u32>,
}

/// Elementwise maximum; an empty `into` is all zeros.
pub(crate) fn join(into: &mut Vec<u32>, from: &[u32]) {
    if into.is_empty() {
        into.extend_from_slice(from);
    } else {
        for (a, b) in into.iter_mut().zip(from) {
            *a = (*a).max(*b);
        }
    }
}

impl Clocks {
    pub fn new(agents: usize) -> Clocks {
        let mut rows = vec![0; agents * agents];
        for a in 0..agents {
            rows[a * agents + a] = 1;
        }
        Clocks { agents, rows }
    }

    /// The clock of an agent.
    pub fn of(&self, agent: usize) -> &[u32] {
        &self.rows[agent * self.agents..(agent + 1) * self.agents]
    }

    /// The agent's own component: the stamp of its accesses now.
    pub fn now(&self, agent: usize) -> u32 {
        self.rows[agent * self.agents + agent]
    }

    /// The agent learns what `from` knows.
    pub fn acquire(&mut self, agent: usize, from: &[u32]) {
        let row = &mut self.rows[agent * self.agents..(agent + 1) * self.agents];
        for (a, b) in row.iter_mut().zip(from) {
            *a = (*a).max(*b);
        }
    }

    /// The agent learns of agent `other` up to `stamp`.
    pub fn acquire_one(&mut self, agent: usize, other: usize, stamp: u32) {
        let cell = &mut self.rows[agent * self.agents + other];
        *cell = (*cell).max(stamp);
    }

    /// After a release: later accesses carry a newer stamp.
    pub fn tick(&mut self, agent: usize) {
        self.rows[agent * self.agents + agent] += 1;
    }
}

/// A counter during one launch.
///
/// A wait acquires the clocks of the signals up to the one that first reached its threshold in this
/// execution, and no later ones: a signal that came after is one without which the threshold was
/// reached, so by the definition it does not precede the wait.
pub(crate) struct Counter {
    pub value: u64,
    per_step: u64,
    clock: Vec<u32>,
    /// Thresholds of the program's waits, ascending.
    thresholds: Vec<u64>,
    /// Per threshold: (value waited for, clock when it was reached), ascending.
    reached: Vec<Vec<(u64, Rc<[u32]>)>>,
    waiters: BinaryHeap<Reverse<(u64, u32)>>,
}

impl Counter {
    pub fn new(per_step: u64, thresholds: Vec<u64>) -> Counter {
        let reached = vec![Vec::new(); thresholds.len()];
        Counter {
            value: 0,
            per_step,
            clock: Vec::new(),
            thresholds,
            reached,
            waiters: BinaryHeap::new(),
        }
    }

    /// The value a wait with this threshold waits for at `step`.
    pub fn target(&self, step: u64, threshold: u64) -> u64 {
        step.saturating_mul(self.per_step).saturating_add(threshold)
    }

    /// Release-add. `step` is the step the launch is in, `last` its last.
    pub fn signal(&mut self, amount: u64, clock: &[u32], step: u64, last: u64) {
        let old = self.value;
        self.value = old.saturating_add(amount);
        join(&mut self.clock, clock);
        let mut snapshot: Option<Rc<[u32]>> = None;
        for (k, &threshold) in self.thresholds.iter().enumerate() {
            let current = step.saturating_mul(self.per_step).saturating_add(threshold);
            self.reached[k].retain(|(target, _)| *target >= current);
            let mut t = match old.checked_sub(threshold) {
                None => 0,
                Some(_) if self.per_step == 0 => continue,
                Some(past) => past / self.per_step + 1,
            };
            loop {
                let target = t.saturating_mul(self.per_step).saturating_add(threshold);
                if t > last || target > self.value || target <= old {
                    break;
                }
                let clock = snapshot.get_or_insert_with(|| Rc::from(self.clock.as_slice()));
                self.reached[k].push((target, clock.clone()));
                if self.per_step == 0 {
                    break;
                }
                t += 1;
            }
        }
    }

    /// The clock a wait for `target` acquires; `None` if it owes nothing to any signal.
    pub fn reached(&self, threshold: u64, target: u64) -> Option<&Rc<[u32]>> {
        let k = self.thresholds.binary_search(&threshold).ok()?;
        self.reached[k].iter().find(|(t, _)| *t == target).map(|(_, clock)| clock)
    }

    /// The SM's consumers wait for `target`.
    pub fn block(&mut self, target: u64, sm: usize) {
        self.waiters.push(Reverse((target, sm as u32)));
    }

    /// An SM whose target is reached, taken off the list.
    pub fn wake(&mut self) -> Option<usize> {
        match self.waiters.peek() {
            Some(Reverse((target, sm))) if *target <= self.value => {
                let sm = *sm as usize;
                self.waiters.pop();
                Some(sm)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_owes_nothing_to_signals_past_its_threshold() {
        let mut c = Counter::new(3, vec![2, 3]);
        c.signal(1, &[1, 0, 0], 0, 4);
        c.signal(1, &[0, 1, 0], 0, 4);
        c.signal(1, &[0, 0, 1], 0, 4);
        assert_eq!(&c.reached(2, c.target(0, 2)).unwrap()[..], &[1, 1, 0]);
        assert_eq!(&c.reached(3, c.target(0, 3)).unwrap()[..], &[1, 1, 1]);
        c.signal(2, &[4, 1, 1], 1, 4);
        assert_eq!(&c.reached(2, c.target(1, 2)).unwrap()[..], &[4, 1, 1]);
        assert!(c.reached(3, c.target(1, 3)).is_none());
    }

    #[test]
    fn a_huge_signal_ends() {
        let mut c = Counter::new(1, vec![0, 1, u64::MAX]);
        c.signal(u64::MAX, &[1], 0, 10);
        c.signal(u64::MAX, &[2], 0, 10);
        assert_eq!(c.value, u64::MAX);
        let mut c = Counter::new(0, vec![0, 1]);
        c.signal(5, &[7], 0, 10);
        assert_eq!(&c.reached(1, c.target(9, 1)).unwrap()[..], &[7]);
    }
}
