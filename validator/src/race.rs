//! **R, race freedom.** Exact statement: any two accesses of different agents to a shared element of a
//! plain buffer, at least one of them a write, are ordered by happens-before, in every step and across
//! steps; and a packet word has one writer per step and phase.
//!
//! *Within a step* instructions are visited in the order of one execution. For each class of regions the
//! latest access of every SM is kept; an access is checked against those of every class it meets. Earlier
//! accesses of the same SM come before its latest one, so nothing is missed, and no pair of instructions
//! is compared twice. Accesses of one SM are ordered by its queue; `local` elements have one SM (B).
//!
//! *Across steps* every access of a consumer, and the boundary's own, happens before every access of a
//! consumer in the next step (semantics 6). By induction over the steps, accesses of different steps
//! are ordered, for append against later reads, feedback of the token, and reuse of any buffer.
//! Producers read weights, which nobody writes, and past cache rows: those were appended before the
//! boundary their gate names (K), rows of the past are not written again (K), and a reader of rows that are
//! appended in the same step reads them as a consumer and is judged here.

use std::collections::{HashMap, HashSet};

use amk_schedule_ir::BufferSync;

use crate::deadlock::Execution;
use crate::fault::{Fault, Faults, Invariant, Witness};
use crate::model::{Model, NONE};
use crate::order::Order;

/// Races whose missing edge is searched for a path that leans on packets.
const EXPLAINED: usize = 16;

/// The latest access of each SM.
#[derive(Default)]
pub(crate) struct Latest(Vec<(u32, u32, u32)>);

impl Latest {
    pub fn set(&mut self, sm: u32, pos: u32, node: u32) {
        match self.0.binary_search_by_key(&sm, |e| e.0) {
            Ok(i) => {
                if let Some(e) = self.0.get_mut(i) {
                    *e = (sm, pos, node);
                }
            }
            Err(i) => self.0.insert(i, (sm, pos, node)),
        }
    }

    /// The first of them that does not happen before `node`.
    pub fn unordered(&self, order: &Order, node: u32) -> impl Iterator<Item = u32> {
        self.0.iter().filter(move |e| !order.reaches(e.0, e.1, node)).map(|e| e.2)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Judges plain buffers. Returns the (instruction, buffer) pairs that take part in a race.
pub(crate) fn check(
    m: &Model,
    run: &Execution,
    order: &Order,
    faults: &mut Faults,
) -> HashSet<(u32, u32)> {
    let mut racing = HashSet::new();
    // Kept for classes of plain buffers alone, which are counted here.
    let (mut kept, mut places) = (0u32, vec![NONE; m.classes.len()]);
    for (place, c) in places.iter_mut().zip(&m.classes) {
        if c.sync == BufferSync::Plain {
            *place = kept;
            kept += 1;
        }
    }
    let place = |c: u32| places.get(c as usize).map_or(NONE, |&at| at) as usize;
    let mut reads: Vec<Latest> = (0..kept).map(|_| Latest::default()).collect();
    let mut writes: Vec<Latest> = (0..kept).map(|_| Latest::default()).collect();
    let mut explained = 0;
    for &node in &run.order {
        let (Some(&sm), Some(&pos)) = (m.sm.get(node as usize), m.pos.get(node as usize)) else {
            continue;
        };
        for (k, acc) in m.accesses(node).iter().enumerate() {
            if m.sync(acc.class) != Some(BufferSync::Plain) {
                continue;
            }
            for &other in m.overlaps(acc.class) {
                let lists = [writes.get(place(other)), reads.get(place(other))];
                let (lists, kinds) = if acc.write {
                    (&lists[..], &[true, false][..])
                } else {
                    (&lists[..1], &[true][..])
                };
                for (list, &first_writes) in lists.iter().zip(kinds) {
                    for first in list.iter().flat_map(|l| l.unordered(order, node)) {
                        let buffer = m.class(other).map_or(0, |c| c.buffer);
                        racing.extend([(first, buffer), (node, buffer)]);
                        if faults.full(Invariant::R) {
                            continue;
                        }
                        explained += 1;
                        let leans = explained <= EXPLAINED && leans_on_packets(m, first, node);
                        report(m, first, other, first_writes, node, k, leans, faults);
                    }
                }
            }
        }
        for acc in m.accesses(node) {
            let list = if acc.write { &mut writes } else { &mut reads };
            if m.sync(acc.class) == Some(BufferSync::Plain)
                && let Some(latest) = list.get_mut(place(acc.class))
            {
                latest.set(sm, pos, node);
            }
        }
    }
    racing
}

#[allow(clippy::too_many_arguments)]
fn report(
    m: &Model,
    first: u32,
    class: u32,
    first_writes: bool,
    node: u32,
    k: usize,
    leans: bool,
    faults: &mut Faults,
) {
    let at = m
        .accesses(first)
        .iter()
        .position(|a| a.class == class && a.write == first_writes)
        .unwrap_or(0);
    let (one, two) = (m.access_name(first, at), m.access_name(node, k));
    let buffer = m.class(class).map_or(0, |c| c.buffer);
    let mine = m.accesses(node).get(k).map_or(NONE, |a| a.class);
    let shared = m.shared(class, mine);
    let why = if leans {
        "neither is ordered before the other, as only packets lead from one to the other, and a packet delivers its own word and orders nothing else"
    } else {
        "neither is ordered before the other"
    };
    let mut fault = Fault::new(
        Invariant::R,
        m.node_place(node),
        format!(
            "{two} while {one}, which share {shared} of {}: {why}; let {} signal a counter that {} waits for, or the other way round, or reuse the buffer later",
            m.buffer_name(buffer),
            m.node_name(first),
            m.node_name(node)
        ),
    )
    .witness(Witness::Race {
        first: one,
        second: two,
        missing: format!(
            "{} before {}, or the other way round",
            m.node_name(first),
            m.node_name(node)
        ),
    });
    if let Some(a) = m.access(node, k) {
        fault = fault.access(a);
    }
    faults.push(fault);
}

/// Must `first` run before `second`, if packets counted as order?
fn leans_on_packets(m: &Model, first: u32, second: u32) -> bool {
    // Per SM, how many queue entries are known to run before `second`.
    let mut known: HashMap<u32, u32> = HashMap::new();
    let mut writers: HashMap<u32, Vec<u32>> = HashMap::new();
    for node in 0..m.boundary() {
        for acc in m.accesses(node) {
            if acc.write && m.sync(acc.class) == Some(BufferSync::Packet) {
                writers.entry(acc.class).or_default().push(node);
            }
        }
    }
    let place = |n: u32| Some((*m.sm.get(n as usize)?, *m.pos.get(n as usize)?));
    let Some((sm, pos)) = place(first) else { return false };
    // Readers of one class wait for the same writers.
    let mut read = HashSet::new();
    let mut work = vec![second];
    while let Some(node) = work.pop() {
        let Some((s, p)) = place(node) else { continue };
        let from = known.get(&s).copied().unwrap_or(0);
        let queue = m.program.sms.get(s as usize).map_or(&[][..], |x| &x.queue);
        for id in queue.get(from as usize..p as usize + 1).unwrap_or(&[]) {
            for acc in m.accesses(id.0).iter().filter(|a| !a.write) {
                if m.sync(acc.class) != Some(BufferSync::Packet) || !read.insert(acc.class) {
                    continue;
                }
                let phase = m.class(acc.class).map(|c| c.phase);
                for other in m.overlaps(acc.class) {
                    if m.class(*other).map(|c| c.phase) == phase {
                        work.extend(writers.remove(other).into_iter().flatten());
                    }
                }
            }
        }
        let entry = known.entry(s).or_insert(0);
        *entry = (*entry).max(p + 1);
        if known.get(&sm).is_some_and(|&n| n > pos) {
            return true;
        }
    }
    false
}
