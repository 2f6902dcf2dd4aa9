//! **D, deadlock freedom.** Exact statement: in every step of every interleaving every wait is
//! eventually satisfied.
//!
//! *Within a step* all waits are monotone: counters only grow, a packet word once written stays until
//! its readers are done (the last check below), chunks land and slots are released once. So if one
//! execution of the step ends, all do, and if one gets stuck, all do. The check runs one, greedily, with
//! the consumers of all SMs as agents.
//!
//! *The ring.* The consumer of an SM takes its chunks in the order of its queue, whatever the other SMs
//! do, so whether the producer can serve it is a question about that SM alone: a chunk `i` can be consumed
//! iff every chunk up to `i - slots` of the stream was released before. Landing and windows depend on
//! nothing, gates on boundaries of earlier steps. The check is made run by run, which is exact because a
//! run is consumed whole and in order.
//!
//! *Across steps.* A boundary is passed only when every consumer has finished its step, so every step
//! starts with every counter at its base, every chunk of earlier steps released and the same queues: each
//! step is a copy of the one checked. Producers that run ahead only wait for slots of the step before and
//! for gates, both of which that step provides.
//!
//! *Packet readers do not miss their epoch.* A word is rewritten in a later phase only happens-after
//! every reader of the epoch it held; the next step's rewrite comes after the boundary. This part is
//! judged with the races, where happens-before is known, and reported as D.

use std::collections::{HashMap, HashSet};

use amk_schedule_ir::{BufferSync, InstrId};

use crate::fault::{Fault, Faults, Invariant, Place, Witness};
use crate::model::{Model, NONE};

/// One execution of a step.
pub(crate) struct Execution {
    /// Nodes in the order they ran; a linear extension of every order there must be.
    pub order: Vec<u32>,
    /// Did all of them run?
    pub complete: bool,
}

/// What an SM is stuck on.
enum Block {
    Ring,
    Counter { node: u32, counter: u32, threshold: u64 },
    Packet { node: u32, access: usize },
    Arrived,
}

struct Run<'m, 'p> {
    m: &'m Model<'p>,
    /// Next queue entry per SM.
    at: Vec<usize>,
    done: Vec<bool>,
    counters: Vec<u64>,
    /// SMs waiting for a counter.
    counter_waiters: Vec<Vec<(u64, u32)>>,
    /// Per class, writes that have yet to happen.
    unwritten: Vec<u32>,
    /// Per packet class that is read, the classes it waits for that have such writes.
    pending: Vec<u32>,
    packet_waiters: HashMap<u32, Vec<u32>>,
    order: Vec<u32>,
    arrived: usize,
}

/// Judges D within a step and returns the execution.
pub(crate) fn check(m: &Model, faults: &mut Faults) -> Execution {
    let rings = rings(m, faults);
    let sms = m.program.sms.len();
    let mut run = Run {
        m,
        at: vec![0; sms],
        done: vec![false; m.boundary() as usize],
        counters: vec![0; m.program.counters.len()],
        counter_waiters: vec![Vec::new(); m.program.counters.len()],
        unwritten: m.classes.iter().map(|c| c.writes).collect(),
        pending: pending(m),
        packet_waiters: HashMap::new(),
        order: Vec::with_capacity(m.boundary() as usize + 1),
        arrived: 0,
    };
    let mut ready: Vec<u32> = (0..sms as u32).rev().collect();
    while let Some(sm) = ready.pop() {
        run.advance(sm, &rings, &mut ready);
    }
    let complete = run.arrived == sms;
    if complete {
        run.order.push(m.boundary());
    } else {
        run.explain(&rings, faults);
    }
    Execution { order: run.order, complete }
}

/// The number of written packet classes that each read class waits for.
fn pending(m: &Model) -> Vec<u32> {
    let of = |c: u32| {
        let class = m.class(c).filter(|class| class.reads > 0)?;
        (m.sync(c) == Some(BufferSync::Packet)).then_some(class)
    };
    (0..m.classes.len() as u32)
        .map(|c| {
            let Some(class) = of(c) else { return 0 };
            m.overlaps(c)
                .iter()
                .filter_map(|&o| m.class(o))
                .filter(|o| o.writes > 0 && o.phase == class.phase)
                .count() as u32
        })
        .collect()
}

/// What has not run, for those who wait for it: per counter and per class the first instruction of the program that
/// has yet to signal or write it.
struct Missing {
    signal: Vec<u32>,
    writer: Vec<u32>,
    /// Per reading class that was asked for, the first writer of what it waits for.
    of_reads: HashMap<u32, Option<u32>>,
}

impl Missing {
    fn new(run: &Run) -> Missing {
        let m = run.m;
        let mut signal = vec![NONE; m.program.counters.len()];
        let mut writer = vec![NONE; m.classes.len()];
        let undone = |n: &u32| run.done.get(*n as usize) == Some(&false);
        for n in (0..m.boundary()).filter(undone).rev() {
            for s in m.signals(n) {
                if let Some(first) = signal.get_mut(s.counter.index()) {
                    *first = n;
                }
            }
            for a in m.accesses(n).iter().filter(|a| a.write) {
                if let Some(first) = writer.get_mut(a.class as usize) {
                    *first = n;
                }
            }
        }
        Missing { signal, writer, of_reads: HashMap::new() }
    }
}

impl Run<'_, '_> {
    /// Runs one SM as far as it goes; SMs it wakes become ready.
    fn advance(&mut self, sm: u32, rings: &HashSet<u32>, ready: &mut Vec<u32>) {
        let m = self.m;
        let Some(queue) = m.program.sms.get(sm as usize).map(|s| &s.queue) else { return };
        while let Some(id) = self.at.get(sm as usize).and_then(|&at| queue.get(at)) {
            match self.block(id.0, rings) {
                Some(Block::Counter { counter, threshold, .. }) => {
                    if let Some(w) = self.counter_waiters.get_mut(counter as usize) {
                        w.push((threshold, sm));
                    }
                    return;
                }
                Some(Block::Packet { node, access }) => {
                    if let Some(acc) = m.accesses(node).get(access) {
                        self.packet_waiters.entry(acc.class).or_default().push(sm);
                    }
                    return;
                }
                Some(_) => return,
                None => self.execute(id.0, ready),
            }
            if let Some(at) = self.at.get_mut(sm as usize) {
                *at += 1;
            }
        }
    }

    fn block(&self, node: u32, rings: &HashSet<u32>) -> Option<Block> {
        for w in self.m.waits(node) {
            let value = self.counters.get(w.counter.index()).copied().unwrap_or(0);
            if value < w.threshold {
                return Some(Block::Counter { node, counter: w.counter.0, threshold: w.threshold });
            }
        }
        for (access, acc) in self.m.accesses(node).iter().enumerate() {
            if !acc.write && self.pending.get(acc.class as usize).is_some_and(|&n| n > 0) {
                return Some(Block::Packet { node, access });
            }
        }
        rings.contains(&node).then_some(Block::Ring)
    }

    fn execute(&mut self, node: u32, ready: &mut Vec<u32>) {
        let m = self.m;
        self.order.push(node);
        if let Some(done) = self.done.get_mut(node as usize) {
            *done = true;
        }
        if m.is_arrival(node) {
            self.arrived += 1;
        }
        for acc in m.accesses(node).iter().filter(|a| a.write) {
            let Some(class) = m.class(acc.class).filter(|c| c.sync == BufferSync::Packet) else {
                continue;
            };
            let Some(left) = self.unwritten.get_mut(acc.class as usize) else { continue };
            *left = left.saturating_sub(1);
            if *left > 0 {
                continue;
            }
            for &other in m.overlaps(acc.class) {
                let same = m.class(other).is_some_and(|o| o.reads > 0 && o.phase == class.phase);
                let Some(n) = self.pending.get_mut(other as usize).filter(|n| same && **n > 0)
                else {
                    continue;
                };
                *n -= 1;
                if *n == 0 {
                    ready.extend(self.packet_waiters.remove(&other).unwrap_or_default());
                }
            }
        }
        for s in m.signals(node) {
            let c = s.counter.index();
            if let (Some(value), Some(waiters)) =
                (self.counters.get_mut(c), self.counter_waiters.get_mut(c))
            {
                *value = value.saturating_add(s.amount);
                waiters.retain(|&(threshold, sm)| {
                    let wait = threshold > *value;
                    if !wait {
                        ready.push(sm);
                    }
                    wait
                });
            }
        }
    }

    /// The instruction to come on an SM that stands first in the program among those which `meets`.
    fn own(&self, sm: u32, meets: impl Fn(u32) -> bool) -> Option<u32> {
        let at = self.at.get(sm as usize).copied().unwrap_or(0);
        let queue = self.m.program.sms.get(sm as usize).map_or(&[][..], |s| &s.queue);
        queue.get(at..).unwrap_or(&[]).iter().map(|id| id.0).filter(|&n| meets(n)).min()
    }

    /// The first instruction that has not run and writes what a packet class waits for.
    fn writer(&self, missing: &mut Missing, read: u32) -> Option<u32> {
        let m = self.m;
        let phase = m.class(read).map(|c| c.phase);
        let first = |c: &u32| missing.writer.get(*c as usize).copied().filter(|&n| n != NONE);
        let meeting = m.overlaps(read).iter().filter(|&&c| m.class(c).map(|c| c.phase) == phase);
        *missing.of_reads.entry(read).or_insert_with(|| meeting.filter_map(first).min())
    }

    /// The SM that a stuck SM waits for, with the reason; `None` if it waits for nobody. An own later signal or
    /// write shows the shorter cycle.
    fn blocker(
        &self,
        sm: u32,
        rings: &HashSet<u32>,
        missing: &mut Missing,
    ) -> (String, Option<u32>) {
        let m = self.m;
        let head = m
            .program
            .sms
            .get(sm as usize)
            .and_then(|s| s.queue.get(self.at.get(sm as usize).copied().unwrap_or(0)));
        let block =
            head.map_or(Block::Arrived, |id| self.block(id.0, rings).unwrap_or(Block::Arrived));
        let sm_of = |n: u32| m.sm.get(n as usize).copied();
        match block {
            Block::Ring => ("the ring cannot hold its run".to_owned(), None),
            Block::Counter { node, counter, threshold } => {
                let has = self.counters.get(counter as usize).copied().unwrap_or(0);
                let signals = |n: u32| m.signals(n).iter().any(|s| s.counter.0 == counter);
                let any = missing.signal.get(counter as usize).copied().filter(|&n| n != NONE);
                let who = m.node_name(node);
                match self.own(sm, signals).or(any) {
                    Some(by) => (
                        format!(
                            "{who} waits for counter {counter} >= {threshold} (it has {has}), which {} would signal",
                            m.node_name(by)
                        ),
                        sm_of(by),
                    ),
                    None => (
                        format!(
                            "{who} waits for counter {counter} >= {threshold}, which stays at {has}: nothing else signals it"
                        ),
                        None,
                    ),
                }
            }
            Block::Packet { node, access } => {
                let read = m.accesses(node).get(access).map_or(NONE, |a| a.class);
                let phase = m.class(read).map(|c| c.phase);
                let met: HashSet<u32> = m.overlaps(read).iter().copied().collect();
                let meets = |n: u32| {
                    m.accesses(n).iter().any(|a| {
                        a.write
                            && m.class(a.class).map(|c| c.phase) == phase
                            && met.contains(&a.class)
                    })
                };
                let who = m.access_name(node, access);
                match self.own(sm, meets).or_else(|| self.writer(missing, read)) {
                    Some(by) => (
                        format!(
                            "{who} before the packets are there, which {} would write",
                            m.node_name(by)
                        ),
                        sm_of(by),
                    ),
                    None => (format!("{who}, packets that nothing writes"), None),
                }
            }
            Block::Arrived => (format!("sm {sm} waits at the boundary"), None),
        }
    }

    /// Finds every cycle of SMs that wait for each other.
    fn explain(&self, rings: &HashSet<u32>, faults: &mut Faults) {
        let sms = self.m.program.sms.len();
        let mut missing = Missing::new(self);
        let stuck = |sm: usize| {
            let queue = self.m.program.sms.get(sm).map_or(0, |s| s.queue.len());
            self.at.get(sm).is_some_and(|&at| at < queue)
        };
        // 0 = new, otherwise the number of the walk that came by.
        let mut seen = vec![0u32; sms];
        for start in 0..sms {
            let (mut sm, mut path) = (start, Vec::new());
            let walk = start as u32 + 1;
            while stuck(sm) && seen.get(sm) == Some(&0) {
                if let Some(s) = seen.get_mut(sm) {
                    *s = walk;
                }
                let (why, next) = self.blocker(sm as u32, rings, &mut missing);
                let head = self
                    .m
                    .program
                    .sms
                    .get(sm)
                    .and_then(|s| s.queue.get(self.at.get(sm).copied().unwrap_or(0)))
                    .map_or(0, |id| id.index());
                path.push((sm, head, why));
                match next {
                    Some(n) => sm = n as usize,
                    None => {
                        // Rings are reported where they are found.
                        if let Some((_, head, why)) = path.last()
                            && !rings.contains(&(*head as u32))
                        {
                            faults.push(
                                Fault::new(
                                    Invariant::D,
                                    Place::Instruction(*head),
                                    format!("the step never ends: {why}"),
                                )
                                .witness(Witness::Cycle { nodes: vec![why.clone()] }),
                            );
                        }
                        break;
                    }
                }
            }
            if seen.get(sm) == Some(&walk)
                && let Some(at) = path.iter().position(|(s, _, _)| *s == sm)
                && let Some(cycle) = path.get(at..)
                && let Some((_, head, why)) = cycle.first()
                && (cycle.len() > 1
                    || self.blocker(sm as u32, rings, &mut missing).1 == Some(sm as u32))
            {
                faults.push(
                    Fault::new(
                        Invariant::D,
                        Place::Instruction(*head),
                        format!(
                            "the step never ends: {why}, and that one waits in turn; put the queues or the waits in one order"
                        ),
                    )
                    .witness(Witness::Cycle {
                        nodes: cycle.iter().map(|(_, _, why)| why.clone()).collect(),
                    }),
                );
            }
        }
    }
}

/// Instructions whose run the ring cannot serve.
fn rings(m: &Model, faults: &mut Faults) -> HashSet<u32> {
    let mut found = HashSet::new();
    let slots = u128::from(m.program.resources.ring_slots);
    for (s, sm) in m.program.sms.iter().enumerate() {
        let mut offset = vec![0u128];
        for run in &sm.stream {
            let last = offset.last().copied().unwrap_or(0);
            offset.push(last + u128::from(m.chunks(&run.source)));
        }
        let at = |run: usize| offset.get(run).copied().unwrap_or(0);
        let mut consumed: Vec<bool> =
            (0..sm.stream.len()).map(|run| at(run + 1) == at(run)).collect();
        let mut lowest = consumed.iter().take_while(|c| **c).count();
        // Who consumes the run named in the last fault.
        let mut owner = (NONE as usize, String::new());
        for id in &sm.queue {
            let Some(run) = m.run(id.0).map(|r| r.index()) else { continue };
            // A run without chunks waits for nothing and holds nothing.
            if run > lowest && at(run + 1) > at(run) && at(run + 1) > at(lowest) + slots {
                found.insert(id.0);
                // The SM gets no further than its first, so the rest is for the list alone.
                if faults.full(Invariant::D) {
                    break;
                }
                if owner.0 != lowest {
                    let whose = |q: &&InstrId| m.run(q.0).map(|r| r.index()) == Some(lowest);
                    let named = sm.queue.iter().find(whose);
                    owner = (lowest, named.map_or_else(String::new, |q| m.node_name(q.0)));
                }
                let cycle = vec![
                    format!(
                        "{} waits for chunk {} of run {run}",
                        m.node_name(id.0),
                        (at(run + 1) - at(run)).saturating_sub(1)
                    ),
                    format!(
                        "the producer of sm {s} can issue it only after a slot of run {lowest}, loaded earlier, is released ({slots} slots)"
                    ),
                    format!("{} would release it, but stands later in the queue", owner.1),
                ];
                faults.push(
                    Fault::new(
                        Invariant::D,
                        Place::Instruction(id.index()),
                        format!(
                            "{} consumes run {run} of sm {s} while run {lowest}, loaded earlier, still holds the ring of {slots} slots; consume runs in stream order or enlarge the ring",
                            m.node_name(id.0)
                        ),
                    )
                    .witness(Witness::Cycle { nodes: cycle }),
                );
            }
            if let Some(c) = consumed.get_mut(run) {
                *c = true;
            }
            while consumed.get(lowest) == Some(&true) {
                lowest += 1;
            }
        }
    }
    found
}
