//! The parts of **R** and **D** that are about packet words: one writer per step and phase (R), and no
//! rewrite before every reader of the epoch a word holds (D).
//!
//! A buffer written in one phase only is rewritten by the next step, after the boundary and so after
//! every reader. For buffers with several phases instructions are visited in the order of one execution:
//!
//! - a write must come happens-after every read, made so far, of another phase of its words;
//! - a read must find its words not yet rewritten by another phase;
//! - of two writes of a word, the earlier must happen before the later, or have been delivered: read by
//!   somebody who happens before the later, or by the later one itself. Then the coherence of the word keeps them
//!   in order (semantics 5).

use std::collections::{HashMap, HashSet};

use amk_schedule_ir::BufferSync;

use crate::deadlock::Execution;
use crate::fault::{Fault, Faults, Invariant};
use crate::geometry;
use crate::model::{Model, NONE};
use crate::order::Order;
use crate::race::Latest;

/// Judges packet buffers.
pub(crate) fn check(m: &Model, run: &Execution, order: &Order, faults: &mut Faults) {
    one_writer(m, faults);
    if m.buffers.iter().any(|b| b.many_phases) {
        rewrites(m, run, order, faults);
    }
}

fn is_packet(m: &Model, class: u32) -> bool {
    m.sync(class) == Some(BufferSync::Packet)
}

fn one_writer(m: &Model, faults: &mut Faults) {
    let written = |c: u32| m.class(c).filter(|x| x.writes > 0);
    let mut clashes: Vec<(u32, u32)> = Vec::new();
    let mut wanted = HashSet::new();
    for c in 0..m.classes.len() as u32 {
        let Some(class) = written(c).filter(|_| is_packet(m, c)) else { continue };
        for &other in m.overlaps(c) {
            let clash = match other == c {
                true => class.writes > 1,
                false => other > c && written(other).is_some_and(|o| o.phase == class.phase),
            };
            if clash {
                clashes.push((c, other));
                wanted.extend([c, other]);
            }
        }
    }
    if clashes.is_empty() {
        return;
    }
    let mut writers: HashMap<u32, Vec<(u32, usize)>> = HashMap::new();
    for node in 0..m.boundary() {
        for (k, acc) in m.accesses(node).iter().enumerate() {
            if acc.write && wanted.contains(&acc.class) {
                writers.entry(acc.class).or_default().push((node, k));
            }
        }
    }
    for (a, b) in clashes {
        let of = |c: u32| writers.get(&c).map_or(&[][..], |w| w);
        let first = of(a).first();
        let second = if a == b { of(b).get(1) } else { of(b).first() };
        if let (Some(&(x, i)), Some(&(y, j))) = (first, second) {
            let class = m.class(a);
            let buffer = class.map_or(0, |c| c.buffer);
            faults.push(
                Fault::new(
                    Invariant::R,
                    m.node_place(y),
                    format!(
                        "{} and {}, but a packet word of {} has one writer in each phase (here {}); split the tiles or use another phase",
                        m.access_name(x, i),
                        m.access_name(y, j),
                        m.buffer_name(buffer),
                        class.map_or(0, |c| c.phase)
                    ),
                )
                .witness(m.range(buffer, m.shared(a, b))),
            );
        }
    }
}

/// Do three classes of one buffer share an element at some position?
fn meet(m: &Model, a: u32, b: u32, c: u32) -> bool {
    (0..m.pieces(a)).any(|p| {
        let both = geometry::intersect(&m.rect(a, p), &m.rect(b, p));
        geometry::overlap(&both, &m.rect(c, p))
    })
}

/// Is what `a` and `b` share covered by `readers`?
fn delivered(m: &Model, a: u32, b: u32, readers: &[u32]) -> bool {
    (0..m.pieces(a)).all(|p| {
        let both = geometry::intersect(&m.rect(a, p), &m.rect(b, p));
        let mut rects: Vec<_> = readers.iter().map(|&r| m.rect(r, p)).collect();
        geometry::uncovered(&both, &mut rects).is_ok_and(|rest| rest.is_empty())
    })
}

fn rewrites(m: &Model, run: &Execution, order: &Order, faults: &mut Faults) {
    let mut reads: Vec<Latest> = m.classes.iter().map(|_| Latest::default()).collect();
    let mut writes: Vec<Latest> = m.classes.iter().map(|_| Latest::default()).collect();
    let mut time = vec![NONE; m.classes.len()];
    // Reading classes that meet a written one, also where both are of other phases.
    let phase = |c: u32| m.class(c).map_or(NONE, |c| c.phase);
    let many = |c: u32| {
        m.class(c).and_then(|c| m.buffers.get(c.buffer as usize)).is_some_and(|b| b.many_phases)
    };
    for (now, &node) in run.order.iter().enumerate() {
        let (Some(&sm), Some(&pos)) = (m.sm.get(node as usize), m.pos.get(node as usize)) else {
            continue;
        };
        for (k, acc) in m.accesses(node).iter().enumerate() {
            if !is_packet(m, acc.class) || !many(acc.class) {
                continue;
            }
            let mine = phase(acc.class);
            let others = m.overlaps(acc.class).iter().copied().filter(|&o| phase(o) != mine);
            let written = |o: u32| time.get(o as usize).copied().filter(|&t| t != NONE);
            if acc.write {
                for o in others {
                    let of_others = reads.get(o as usize).into_iter();
                    for reader in
                        of_others.flat_map(|l| l.unordered(order, node)).filter(|&r| r != node)
                    {
                        faults.push(
                            Fault::new(
                                Invariant::D,
                                m.node_place(node),
                                format!(
                                    "{} may rewrite words before {} has seen their epoch of phase {}, and would wait for ever; let the writer happen after the reader, or use another buffer",
                                    m.access_name(node, k), m.node_name(reader), phase(o)
                                ),
                            )
                            .witness(m.range(m.class(o).map_or(0, |c| c.buffer), m.shared(acc.class, o))),
                        );
                    }
                    if written(o).is_none() {
                        continue;
                    }
                    let late = writes.get(o as usize).and_then(|l| l.unordered(order, node).next());
                    if let Some(late) = late {
                        let readers: Vec<u32> = m
                            .overlaps(o)
                            .iter()
                            .copied()
                            .filter(|&r| {
                                phase(r) == phase(o)
                                    && reads.get(r as usize).is_some_and(|l| !l.is_empty())
                            })
                            .collect();
                        if !delivered(m, acc.class, o, &readers) {
                            faults.push(
                                Fault::new(
                                    Invariant::D,
                                    m.node_place(node),
                                    format!(
                                        "{} in phase {mine} may be overwritten by {} in phase {}, which is not ordered before it, and readers of phase {mine} would wait for ever; order the two",
                                        m.access_name(node, k), m.node_name(late), phase(o)
                                    ),
                                )
                                .witness(m.range(m.class(o).map_or(0, |c| c.buffer), m.shared(acc.class, o))),
                            );
                        }
                    }
                }
            } else {
                for o in others.filter(|&o| written(o).is_some()) {
                    let gone = m.overlaps(acc.class).iter().any(|&w| {
                        phase(w) == mine
                            && written(w).is_some_and(|t| written(o).is_some_and(|u| u >= t))
                            && meet(m, acc.class, w, o)
                    });
                    if gone {
                        faults.push(
                            Fault::new(
                                Invariant::D,
                                m.node_place(node),
                                format!(
                                    "{} of phase {mine} after phase {} may have rewritten the words, and would wait for ever; let the reader happen before that write, or use another buffer",
                                    m.access_name(node, k), phase(o)
                                ),
                            )
                            .witness(m.range(m.class(o).map_or(0, |c| c.buffer), m.shared(acc.class, o))),
                        );
                    }
                }
            }
            // At once: of one instruction's accesses, reads come first and writes in the order given.
            let list = if acc.write { &mut writes } else { &mut reads };
            if let Some(latest) = list.get_mut(acc.class as usize) {
                latest.set(sm, pos, node);
            }
            if acc.write
                && let Some(t) = time.get_mut(acc.class as usize)
            {
                *t = now as u32;
            }
        }
    }
}
