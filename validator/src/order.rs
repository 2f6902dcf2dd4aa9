//! Happens-before within a step, as vector clocks: for each instruction, per SM the number of
//! instructions of that SM's queue all of whose accesses happen before its own.
//!
//! Counter edges follow semantics 4. For a signal `s` the check bounds what its counter can reach without
//! `s`. A signal cannot occur before the waits on the same counter that must come before it, nor, without
//! `s`, if it must come after `s`. Signals fall into levels by the largest threshold of such waits, their
//! *guard*; a level can occur once the levels before it, without `s` and what follows it, reach its guard. By
//! induction over time the counter stays below the first guard that is not reached, so `s` precedes every
//! wait for more. What must come before is first taken from the queues alone; where that leaves faults, from
//! the order just found. Packets say nothing here either: a signal may take effect after a packet that its SM
//! has written later is read.

use std::collections::HashMap;

use crate::deadlock::Execution;
use crate::model::{Model, NONE};

/// Level steps of all bounds together; beyond, signals are taken to be able to occur.
const MAX_STEPS: usize = 1 << 26;

/// Rounds of refining the bounds; every round can only add order.
const MAX_ROUNDS: usize = 16;

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

/// Per counter and SM, the largest threshold waited for up to a queue position, where it grows.
type Waits = Vec<Vec<(u32, Vec<(u32, u64)>)>>;

/// All signals with their bounds. `known` is an order in which instructions must run; without one
/// only the order of each queue is used.
pub(crate) fn signals(m: &Model, known: Option<&Order>) -> Signals {
    let mut out: Signals = vec![Vec::new(); m.program.counters.len()];
    let mut waits: Waits = vec![Vec::new(); m.program.counters.len()];
    if out.is_empty() {
        return out;
    }
    for (s, sm) in m.program.sms.iter().enumerate() {
        let s = s as u32;
        for (pos, id) in sm.queue.iter().enumerate() {
            for w in m.waits(id.0) {
                let Some(list) = waits.get_mut(w.counter.index()) else { continue };
                let list = of_sm(list, s);
                if list.last().is_none_or(|l| l.1 < w.threshold) {
                    list.push((pos as u32, w.threshold));
                }
            }
            for sig in m.signals(id.0) {
                let c = sig.counter.index();
                let (Some(list), Some(waits)) = (out.get_mut(c), waits.get(c)) else { continue };
                let own = waits.last().filter(|l| l.0 == s).and_then(|l| l.1.last());
                let list = of_sm(list, s);
                match list.last_mut() {
                    Some(last) if last.node == id.0 => {
                        last.amount = last.amount.saturating_add(sig.amount);
                    }
                    _ => list.push(Signalled {
                        node: id.0,
                        pos: pos as u32,
                        amount: sig.amount,
                        guard: own.map_or(0, |w| w.1),
                        without: u64::MAX,
                    }),
                }
            }
        }
    }
    let mut steps = 0;
    for (counter, waits) in out.iter_mut().zip(&waits) {
        if let Some(known) = known {
            for (_, list) in counter.iter_mut() {
                // What is seen of each SM grows along a queue.
                let mut seen = vec![0usize; waits.len()];
                for signal in list {
                    for ((sm, list), at) in waits.iter().zip(&mut seen) {
                        let count = known.count(*sm, signal.node);
                        while let Some(w) = list.get(*at).filter(|w| w.0 < count) {
                            signal.guard = signal.guard.max(w.1);
                            *at += 1;
                        }
                        if let Some(w) = at.checked_sub(1).and_then(|i| list.get(i)) {
                            signal.guard = signal.guard.max(w.1);
                        }
                    }
                }
            }
        }
        bound(counter, known, &mut steps);
    }
    out
}

/// The list of the SM being visited.
fn of_sm<T>(lists: &mut Vec<(u32, Vec<T>)>, sm: u32) -> &mut Vec<T> {
    if lists.last().is_none_or(|l| l.0 != sm) {
        lists.push((sm, Vec::new()));
    }
    let last = lists.len() - 1;
    &mut lists[last].1
}

/// Fills in `without` for the signals of one counter.
fn bound(counter: &mut [(u32, Vec<Signalled>)], known: Option<&Order>, steps: &mut usize) {
    // Levels in ascending order of guard, with the sum of all signals up to each.
    let mut levels: Vec<(u64, u64)> =
        counter.iter().flat_map(|(_, l)| l.iter().map(|s| (s.guard, s.amount))).collect();
    levels.sort_unstable();
    levels.dedup_by(|later, first| {
        let same = later.0 == first.0;
        if same {
            first.1 = first.1.saturating_add(later.1);
        }
        same
    });
    for i in 1..levels.len() {
        levels[i].1 = levels[i].1.saturating_add(levels[i - 1].1);
    }
    // Per SM, guards and running sums; guards do not decrease along a queue.
    let lists: Vec<Vec<(u32, u64, u64)>> = counter
        .iter()
        .map(|(_, list)| {
            let mut sum = 0u64;
            let add = |s: &Signalled| {
                sum = sum.saturating_add(s.amount);
                (s.node, s.guard, sum)
            };
            list.iter().map(add).collect()
        })
        .collect();
    let sum_to = |list: &[(u32, u64, u64)], end: usize| {
        end.checked_sub(1).and_then(|i| list.get(i)).map_or(0, |x| x.2)
    };
    let last = levels.last().map_or(u64::MAX, |l| l.1);
    for (own, (sm, list)) in counter.iter_mut().enumerate() {
        // Where the signals that must follow `s` begin in each list; that moves on along a queue. What
        // follows the accesses of an instruction may still come before its signal, so the next one counts.
        let mut from = vec![0usize; lists.len()];
        let mut tails: Vec<(usize, usize)> = Vec::new();
        for (i, s) in list.iter_mut().enumerate() {
            tails.clear();
            tails.push((own, i));
            if let Some(known) = known {
                for (k, (other, from)) in lists.iter().zip(&mut from).enumerate() {
                    while other.get(*from).is_some_and(|x| known.count(*sm, x.0) <= s.pos + 1) {
                        *from += 1;
                    }
                    if k != own && *from < other.len() {
                        tails.push((k, *from));
                    }
                }
            }
            let mut level = levels.partition_point(|l| l.0 < s.guard);
            while let Some(&(guard, sum)) = levels.get(level) {
                let after = tails.iter().fold(0u64, |after, &(k, from)| {
                    let list = lists.get(k).map_or(&[][..], |l| l);
                    if list.get(from).is_none_or(|x| x.1 > guard) {
                        return after;
                    }
                    let end = list.partition_point(|x| x.1 <= guard);
                    after.saturating_add(sum_to(list, end).saturating_sub(sum_to(list, from)))
                });
                s.without = sum.saturating_sub(after);
                level += 1;
                *steps += tails.len();
                if levels.get(level).is_none_or(|l| s.without < l.0) {
                    break;
                }
                if *steps > MAX_STEPS {
                    s.without = last;
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
    pub fn new(m: &Model, run: &Execution, signals: &Signals) -> Order {
        let mut column = vec![NONE; m.program.sms.len()];
        let mut columns = 0;
        for sm in signals.iter().flatten().map(|(sm, _)| sm) {
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
        // Clock of each SM's last instruction and of each (counter, threshold) waited for.
        let mut current = vec![0u32; m.program.sms.len()];
        let mut joined: HashMap<(u32, u64), u32> = HashMap::new();
        for &node in &run.order {
            let Some(&sm) = m.sm.get(node as usize) else { continue };
            let mut mine = current.get(sm as usize).copied().unwrap_or(0);
            for w in m.waits(node) {
                let key = (w.counter.0, w.threshold);
                let wait = match joined.get(&key) {
                    Some(&c) => c,
                    None => {
                        let lists = signals.get(w.counter.index()).map_or(&[][..], |l| l);
                        let last = lists.iter().filter_map(|(_, l)| last_before(l, w.threshold));
                        let nodes: Vec<(u32, u32)> =
                            last.map(|s| (s.node, o.clock_of(s.node))).collect();
                        let c = o.join_all(&nodes);
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

    fn clock_of(&self, node: u32) -> u32 {
        self.clock.get(node as usize).copied().unwrap_or(0)
    }

    /// The clock of what comes after all of these nodes, each with the clock of what precedes it.
    fn join_all(&mut self, nodes: &[(u32, u32)]) -> u32 {
        let mut row = vec![0u32; self.columns];
        for &(node, clock) in nodes {
            for (a, b) in row.iter_mut().zip(self.row(clock)) {
                *a = (*a).max(*b);
            }
            let sm = self.sm.get(node as usize).copied().unwrap_or(NONE);
            let column = self.column.get(sm as usize).copied().unwrap_or(NONE);
            let pos = self.pos.get(node as usize).copied().unwrap_or(0);
            if let Some(a) = row.get_mut(column as usize) {
                *a = (*a).max(pos + 1);
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
        b as usize >= self.sm.len() || self.count(sm, b) > pos
    }

    /// How many instructions of `sm` come before the instruction `b`.
    pub fn count(&self, sm: u32, b: u32) -> u32 {
        if self.sm.get(b as usize) == Some(&sm) {
            return self.pos.get(b as usize).copied().unwrap_or(0);
        }
        let column = self.column.get(sm as usize).copied().unwrap_or(NONE);
        self.row(self.clock_of(b)).get(column as usize).copied().unwrap_or(0)
    }

    /// Do the two say the same?
    pub fn same(&self, other: &Order) -> bool {
        self.column == other.column
            && (0..self.clock.len())
                .all(|i| self.row(self.clock_of(i as u32)) == other.row(other.clock_of(i as u32)))
    }
}

/// Happens-before of an execution. The bounds of the counters are first taken from the queues alone; while
/// `good` is not content, from the order just found, until nothing new comes of it.
pub(crate) fn happens_before(
    m: &Model,
    run: &Execution,
    mut good: impl FnMut(&Order) -> bool,
) -> (Order, Signals) {
    let mut bounds = signals(m, None);
    let mut order = Order::new(m, run, &bounds);
    for round in 0.. {
        if good(&order) || m.program.counters.is_empty() || round == MAX_ROUNDS {
            break;
        }
        bounds = signals(m, Some(&order));
        let next = Order::new(m, run, &bounds);
        if next.same(&order) {
            break;
        }
        order = next;
    }
    (order, bounds)
}
