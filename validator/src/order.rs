//! Happens-before within a step, as vector clocks: for each instruction, per SM the number of
//! instructions of that SM's queue all of whose accesses happen before its own.
//!
//! Counter edges follow semantics 4. For a signal `s` the check bounds what its counter can reach
//! without `s`: a signal cannot occur before the waits that its own SM has on the same counter, nor after
//! `s` on the SM of `s`. Signals fall into levels by the largest such threshold, their *guard*; a level
//! can occur once the levels before it, without `s` and what follows it, reach its guard. By induction over
//! time the counter stays below the first guard not reached, so `s` precedes every wait for more.

use std::collections::HashMap;

use crate::deadlock::Execution;
use crate::model::{Model, NONE};

/// Level steps of all bounds together; beyond, signals are taken to be able to occur.
const MAX_STEPS: usize = 1 << 26;

/// Happens-before between the nodes of one execution.
pub(crate) struct Order {
    /// Column of each SM in the clocks; [`NONE`] for SMs that signal nothing.
    column: Vec<u32>,
    columns: usize,
    clocks: Vec<u32>,
    /// Clock of each node.
    clock: Vec<u32>,
    sm: Vec<u32>,
    pos: Vec<u32>,
}

/// A signalling instruction of a counter: what it adds and the most the counter can have without it.
#[derive(Clone, Copy)]
pub(crate) struct Signalled {
    pub node: u32,
    pub pos: u32,
    pub amount: u64,
    pub guard: u64,
    pub without: u64,
}

/// Per counter, the signals of each SM in queue order.
pub(crate) type Signals = Vec<Vec<(u32, Vec<Signalled>)>>;

/// All signals with their bounds.
pub(crate) fn signals(m: &Model) -> Signals {
    let mut out: Signals = vec![Vec::new(); m.program.counters.len()];
    let mut guard = vec![0u64; m.program.counters.len()];
    for (s, sm) in m.program.sms.iter().enumerate() {
        let mut touched = Vec::new();
        for (pos, id) in sm.queue.iter().enumerate() {
            let Some(x) = m.program.instruction(*id) else { continue };
            for w in &x.waits {
                if let Some(g) = guard.get_mut(w.counter.index()) {
                    *g = (*g).max(w.threshold);
                    touched.push(w.counter.index());
                }
            }
            for sig in &x.signals {
                let c = sig.counter.index();
                let Some(list) = out.get_mut(c) else { continue };
                if list.last().is_none_or(|(sm, _)| *sm != s as u32) {
                    list.push((s as u32, Vec::new()));
                }
                let Some((_, list)) = list.last_mut() else { continue };
                match list.last_mut() {
                    Some(last) if last.node == id.0 => {
                        last.amount = last.amount.saturating_add(sig.amount);
                    }
                    _ => list.push(Signalled {
                        node: id.0,
                        pos: pos as u32,
                        amount: sig.amount,
                        guard: guard.get(c).copied().unwrap_or(0),
                        without: u64::MAX,
                    }),
                }
            }
        }
        for c in touched {
            if let Some(g) = guard.get_mut(c) {
                *g = 0;
            }
        }
    }
    let mut steps = 0;
    for counter in &mut out {
        bound(counter, &mut steps);
    }
    out
}

/// Fills in `without` for the signals of one counter.
fn bound(counter: &mut [(u32, Vec<Signalled>)], steps: &mut usize) {
    // Levels in ascending order of guard, with the sum of all signals up to each.
    let mut levels: Vec<(u64, u64)> =
        counter.iter().flat_map(|(_, l)| l.iter().map(|s| (s.guard, s.amount))).collect();
    levels.sort_unstable();
    levels.dedup_by(|b, a| {
        let same = a.0 == b.0;
        if same {
            a.1 = a.1.saturating_add(b.1);
        }
        same
    });
    for i in 1..levels.len() {
        levels[i].1 = levels[i].1.saturating_add(levels[i - 1].1);
    }
    for (_, list) in counter {
        let mut sums = vec![0u64];
        for s in list.iter() {
            sums.push(sums.last().copied().unwrap_or(0).saturating_add(s.amount));
        }
        let sum_to = |i: usize| sums.get(i).copied().unwrap_or(0);
        for i in 0..list.len() {
            let mut level = levels.partition_point(|l| l.0 < list[i].guard);
            while let Some(&(guard, sum)) = levels.get(level) {
                // Guards do not decrease along a queue: what follows `s` up to this level is a range.
                let end = list.partition_point(|s| s.guard <= guard);
                let without = sum.saturating_sub(sum_to(end).saturating_sub(sum_to(i)));
                list[i].without = without;
                level += 1;
                *steps += 1;
                if levels.get(level).is_none_or(|l| without < l.0) {
                    break;
                }
                if *steps > MAX_STEPS {
                    list[i].without = levels.last().map_or(u64::MAX, |l| l.1);
                    break;
                }
            }
        }
    }
}

/// The last signal of this SM that precedes a wait for `threshold`: `without` does not decrease
/// along a queue.
pub(crate) fn last_before(list: &[Signalled], threshold: u64) -> Option<&Signalled> {
    list.partition_point(|s| s.without < threshold).checked_sub(1).and_then(|i| list.get(i))
}

impl Order {
    /// Clocks of the nodes of an execution.
    pub fn new(m: &Model, run: &Execution) -> Order {
        let signals = signals(m);
        let mut column = vec![NONE; m.program.sms.len()];
        let mut columns = 0;
        for (sm, _) in signals.iter().flatten() {
            if let Some(c) = column.get_mut(*sm as usize).filter(|c| **c == NONE) {
                *c = columns;
                columns += 1;
            }
        }
        let columns = columns as usize;
        let mut o = Order {
            column,
            columns,
            clocks: vec![0; columns],
            clock: vec![0; m.boundary() as usize],
            sm: m.sm.clone(),
            pos: m.pos.clone(),
        };
        // Clock of each SM's last instruction, and of each (counter, threshold) waited for.
        let mut current = vec![0u32; m.program.sms.len()];
        let mut joined: HashMap<(u32, u64), u32> = HashMap::new();
        for &node in &run.order {
            let Some(x) = m.program.instructions.get(node as usize) else { continue };
            let Some(&sm) = m.sm.get(node as usize) else { continue };
            let mut mine = current.get(sm as usize).copied().unwrap_or(0);
            for w in &x.waits {
                let key = (w.counter.0, w.threshold);
                let wait = match joined.get(&key) {
                    Some(&c) => c,
                    None => {
                        let list = signals.get(w.counter.index()).map_or(&[][..], |l| l);
                        let c = o.join_signals(list, w.threshold);
                        joined.insert(key, c);
                        c
                    }
                };
                mine = o.join(mine, wait);
            }
            if let (Some(c), Some(cur)) =
                (o.clock.get_mut(node as usize), current.get_mut(sm as usize))
            {
                (*c, *cur) = (mine, mine);
            }
        }
        o
    }

    fn row(&self, clock: u32) -> &[u32] {
        let at = clock as usize * self.columns;
        self.clocks.get(at..at + self.columns).unwrap_or(&[])
    }

    fn push(&mut self, row: Vec<u32>) -> u32 {
        if self.columns == 0 {
            return 0;
        }
        self.clocks.extend(row);
        (self.clocks.len() / self.columns) as u32 - 1
    }

    fn join_signals(&mut self, counter: &[(u32, Vec<Signalled>)], threshold: u64) -> u32 {
        let mut row = vec![0u32; self.columns];
        for (sm, list) in counter {
            let Some(s) = last_before(list, threshold) else { continue };
            let clock = self.clock.get(s.node as usize).copied().unwrap_or(0);
            for (a, b) in row.iter_mut().zip(self.row(clock)) {
                *a = (*a).max(*b);
            }
            let column = self.column.get(*sm as usize).copied().unwrap_or(NONE);
            if let Some(a) = row.get_mut(column as usize) {
                *a = (*a).max(s.pos + 1);
            }
        }
        self.push(row)
    }

    fn join(&mut self, a: u32, b: u32) -> u32 {
        if a == b {
            return a;
        }
        let (x, y) = (self.row(a), self.row(b));
        if y.iter().zip(x).all(|(y, x)| y <= x) {
            return a;
        }
        if x.iter().zip(y).all(|(x, y)| x <= y) {
            return b;
        }
        let row = x.iter().zip(y).map(|(x, y)| *x.max(y)).collect();
        self.push(row)
    }

    /// Do all accesses of `a` happen before those of `b`?
    pub fn before(&self, a: u32, b: u32) -> bool {
        let (Some(&sa), Some(&pa)) = (self.sm.get(a as usize), self.pos.get(a as usize)) else {
            return false;
        };
        match self.sm.get(b as usize) {
            // The boundary comes after everything.
            None => true,
            Some(_) => self.reaches(sa, pa, b),
        }
    }

    /// Do the accesses of the instruction at `pos` of `sm` happen before those of `b`?
    pub fn reaches(&self, sm: u32, pos: u32, b: u32) -> bool {
        let Some(&sb) = self.sm.get(b as usize) else { return true };
        if sm == sb {
            return self.pos.get(b as usize).is_some_and(|&pb| pos < pb);
        }
        let column = self.column.get(sm as usize).copied().unwrap_or(NONE);
        let clock = self.clock.get(b as usize).copied().unwrap_or(0);
        self.row(clock).get(column as usize).is_some_and(|&n| n > pos)
    }
}
