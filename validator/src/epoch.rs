//! **E, epochs.** Exact statement: the tag a packet reader waits for differs from every tag the word can
//! hold before its writer of this step and phase has written it, wrap included:
//!
//! - there are 2 to 2^32 - 1 tags (without packets, one at least), and the epochs of one launch are a 64-bit number;
//! - for a read of step `t` and phase `k` and any write of phase `j` to one of its words, the epochs
//!   differ modulo `tags` from what the write stored in step `t` (unless the read happens before the
//!   write) and in step `t - 1` (unless some later write of the step always replaces it); or all writers
//!   of the words in phase `k` happen before the read, so that it cannot see what was there before.
//!
//! Older epochs are gone: packet regions do not follow the position (B), so a word that is read is rewritten in
//! every step, and the boundary orders the steps. The
//! first step of a launch may find what the last step of the launch before it left, which the running
//! `base` makes step `t - 1`, or memory that was cleared: tag 0 is never stored. After an aborted
//! launch, and where launches of other programs have come between, words may be older; the runtime keeps
//! fewer than `tags` epochs between two launches on the same memory, or clears it.

use amk_schedule_ir::{BufferSync, Program};

use crate::deadlock::Execution;
use crate::fault::{Fault, Faults, Invariant, Place};
use crate::geometry;
use crate::model::Model;
use crate::order::Order;

/// Judges the numbers of epochs and tags; works on any program.
pub(crate) fn check_range(p: &Program, faults: &mut Faults) {
    let e = p.epochs;
    if u64::from(e.per_step).checked_mul(p.max_steps).is_none_or(|n| n > u64::MAX / 2) {
        faults.push(Fault::new(
            Invariant::E,
            Place::Program,
            format!(
                "{} steps of {} epochs overflow the 64-bit epoch count; launch fewer steps",
                p.max_steps, e.per_step
            ),
        ));
    }
    // Without packets nothing is told apart by tags, but there is no execution without any either.
    if packets(p) && !in_range(p) || e.tags == 0 {
        faults.push(Fault::new(
            Invariant::E,
            Place::Program,
            format!("there are {} tags, but a packet word has room for 2 to {}, and with fewer than 2 an old word looks new", e.tags, u32::MAX),
        ));
    }
}

fn packets(p: &Program) -> bool {
    p.buffers.iter().any(|b| b.sync == BufferSync::Packet)
}

fn in_range(p: &Program) -> bool {
    (2..=u64::from(u32::MAX)).contains(&p.epochs.tags)
}

/// Judges that no tag repeats too early.
pub(crate) fn check(m: &Model, run: &Execution, order: &Order, faults: &mut Faults) {
    let e = m.program.epochs;
    // Epochs of one step and the step before are less than this apart.
    if packets(m.program) && in_range(m.program) && e.tags < 2 * u64::from(e.per_step) {
        repeats(m, run, order, faults);
    }
}

fn repeats(m: &Model, run: &Execution, order: &Order, faults: &mut Faults) {
    let (per_step, tags) =
        (i128::from(m.program.epochs.per_step), i128::from(m.program.epochs.tags));
    let same = |a: i128, b: i128| (a - b).rem_euclid(tags) == 0;
    let mut writers: Vec<Vec<u32>> = vec![Vec::new(); m.classes.len()];
    for &node in &run.order {
        for acc in m.accesses(node).iter().filter(|a| a.write) {
            if let Some(w) = writers.get_mut(acc.class as usize) {
                w.push(node);
            }
        }
    }
    let mut at = vec![0usize; m.boundary() as usize];
    for (now, &node) in run.order.iter().enumerate() {
        if let Some(t) = at.get_mut(node as usize) {
            *t = now;
        }
    }
    let time = |node: u32| at.get(node as usize).copied().unwrap_or(0);
    // Writers are listed in the order of the execution.
    let last = |c: u32| writers.get(c as usize).and_then(|w| w.last()).map(|&w| time(w));
    let phase = |c: u32| i128::from(m.class(c).map_or(0, |c| c.phase));
    let of = |c: u32| writers.get(c as usize).map_or(&[][..], |w| w);
    for &node in &run.order {
        for (k, acc) in m.accesses(node).iter().enumerate() {
            if acc.write || m.sync(acc.class) != Some(BufferSync::Packet) {
                continue;
            }
            let mine = phase(acc.class);
            // A reader that comes after the writers of its own epoch sees that or a later one.
            let settled = m
                .overlaps(acc.class)
                .iter()
                .all(|&w| phase(w) != mine || of(w).iter().all(|&by| order.before(by, node)));
            if settled {
                continue;
            }
            for &o in m.overlaps(acc.class) {
                // Is the write replaced, in this step, on all the words the read shares with it? The
                // writes of a word come in one order (D), that of this execution.
                let replaced = || {
                    m.overlaps(o).iter().any(|&r| {
                        let covers = || {
                            (0..m.pieces(o)).all(|p| {
                                let both =
                                    geometry::intersect(&m.rect(acc.class, p), &m.rect(o, p));
                                geometry::contains(&m.rect(r, p), &both)
                            })
                        };
                        r != o && last(r) > last(o) && covers()
                    })
                };
                let step = if mine != phase(o)
                    && same(mine, phase(o))
                    && of(o).iter().any(|&w| !order.before(node, w))
                {
                    "this step"
                } else if !of(o).is_empty() && same(mine + per_step, phase(o)) && !replaced() {
                    "the step before"
                } else {
                    continue;
                };
                if faults.full(Invariant::E) {
                    return;
                }
                let buffer = m.class(o).map_or(0, |c| c.buffer);
                faults.push(
                    Fault::new(
                        Invariant::E,
                        m.node_place(node),
                        format!(
                            "{} waits for an epoch that modulo {tags} tags equals the one phase {} of {step} stored there, so it may take an old word for a new one; use more tags",
                            m.access_name(node, k), phase(o)
                        ),
                    )
                    .witness(m.range(buffer, m.shared(acc.class, o))),
                );
            }
        }
    }
}
