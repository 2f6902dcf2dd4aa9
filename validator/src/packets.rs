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

/// The first two writing accesses of each class: instruction and number of the access.
fn first_writers(m: &Model) -> Vec<[(u32, u32); 2]> {
    let mut writers = vec![[(NONE, 0); 2]; m.classes.len()];
    for node in 0..m.boundary() {
        for (k, acc) in m.accesses(node).iter().enumerate().filter(|(_, a)| a.write) {
            let free = |w: &&mut (u32, u32)| w.0 == NONE;
            let known = writers.get_mut(acc.class as usize);
            if let Some(w) = known.and_then(|w| w.iter_mut().find(free)) {
                *w = (node, k as u32);
            }
        }
    }
    writers
}

fn one_writer(m: &Model, faults: &mut Faults) {
    let written = |c: u32| m.class(c).filter(|x| x.writes > 0);
    // Looked for when there is something to say.
    let mut writers = None;
    for c in 0..m.classes.len() as u32 {
        let Some(class) = written(c).filter(|_| is_packet(m, c)) else { continue };
        for &other in m.overlaps(c) {
            let clash = match other == c {
                true => class.writes > 1,
                false => other > c && written(other).is_some_and(|o| o.phase == class.phase),
            };
            if !clash {
                continue;
            }
            if faults.full(Invariant::R) {
                return;
            }
            let writers = writers.get_or_insert_with(|| first_writers(m));
            let of = |c: u32| writers.get(c as usize).copied().unwrap_or([(NONE, 0); 2]);
            let [(x, i), second] = of(c);
            let (y, j) = if other == c { second } else { of(other)[0] };
            if x == NONE || y == NONE {
                continue;
            }
            faults.push(
                Fault::new(
                    Invariant::R,
                    m.node_place(y),
                    format!(
                        "{} and {}, but a packet word of {} has one writer in each phase (here {}); split the tiles or use another phase",
                        m.access_name(x, i as usize),
                        m.access_name(y, j as usize),
                        m.buffer_name(class.buffer),
                        class.phase
                    ),
                )
                .witness(m.range(class.buffer, m.shared(c, other))),
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
                        if faults.full(Invariant::D) {
                            return;
                        }
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
                            if faults.full(Invariant::D) {
                                return;
                            }
                            faults.push(
                                Fault::new(
                                    Invariant::D,
                                    m.node_place(node),
                                    format!(
                                        "{} in phase {mine} may be overwritten by {} in phase {}, since neither is ordered before the other, and readers of phase {mine} would wait for ever; order the two",
                                        m.access_name(node, k), m.node_name(late), phase(o)
                                    ),
                                )
                                .witness(m.range(m.class(o).map_or(0, |c| c.buffer), m.shared(acc.class, o))),
                            );
                        }
                    }
                }
            } else {
                // The writes it waits for; none is rewritten by what came before all of them.
                let own = m.overlaps(acc.class).iter().copied().filter(|&w| phase(w) == mine);
                let own: Vec<(u32, u32)> = own.filter_map(|w| Some((written(w)?, w))).collect();
                let first = own.iter().map(|w| w.0).min().unwrap_or(NONE);
                for o in others {
                    let Some(then) = written(o).filter(|&then| then >= first) else { continue };
                    let gone = own.iter().any(|&(t, w)| then >= t && meet(m, acc.class, w, o));
                    if gone {
                        if faults.full(Invariant::D) {
                            return;
                        }
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
