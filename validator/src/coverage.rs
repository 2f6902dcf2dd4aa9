//! **C, coverage.** Exact statement, in every step and at every position of the bucket:
//!
//! - Every packet element an instruction reads is written in this step, in the phase it is read in.
//! - Every plain or local activation or output element an instruction or the boundary reads has been
//!   written before in this step. (That the write happens before the read is invariant R's: where the
//!   two race, the race is reported instead.)
//! - Rows of a cache that are read are below `pos`, or have been written before in this step.
//! - Every element of an output is written exactly once.
//! - Every cache gets the rows `[pos, pos + tokens)` of every kv head in every step, so that by induction
//!   the rows below `pos` are there when a step starts.
//! - A token id that is read is the host's, or one the boundary of an earlier step has put there.

use std::collections::HashSet;

use amk_schedule_ir::text::print_access;
use amk_schedule_ir::{Bound, BoundaryOp, BufferKind, BufferSync, Instruction, Program, Region};

use crate::deadlock::Execution;
use crate::fault::{Fault, Faults, Invariant, Place, Witness};
use crate::model::{Model, NONE, appended};

const IRREGULAR: &str =
    "tiles overlap each other too irregularly to be added up; cut the buffer into disjoint tiles";

/// Judges C, but for token ids. `racing` are the (instruction, buffer) pairs of reported races.
pub(crate) fn check(m: &Model, run: &Execution, racing: &HashSet<(u32, u32)>, faults: &mut Faults) {
    for (i, b) in m.buffers.iter().enumerate() {
        if b.undecided {
            faults.push(Fault::new(
                Invariant::C,
                Place::Buffer(i),
                format!("the regions of buffer {i} have too many different bounds that follow the position, or cut the bucket at too many places, to be judged; use fewer different bounds or a smaller bucket"),
            ));
        }
    }
    if m.too_many {
        faults.push(Fault::new(
            Invariant::C,
            Place::Program,
            "too many regions of the program overlap each other to be judged; use disjoint tiles",
        ));
    }
    reads(m, run, racing, faults);
    outputs(m, faults);
    caches(m, faults);
}

/// What is known about a reading class.
#[derive(Clone, Copy)]
enum Known {
    Nothing,
    Covered,
    /// What it lacks is in the list, at this place.
    Lacks(u32),
}

fn reads(m: &Model, run: &Execution, racing: &HashSet<(u32, u32)>, faults: &mut Faults) {
    let mut written = vec![false; m.classes.len()];
    let mut version = vec![0u32; m.buffers.len()];
    let mut known = vec![Known::Nothing; m.classes.len()];
    // Elements lacking, as of so many first writes of classes of the buffer.
    let mut lacking: Vec<(String, u32)> = Vec::new();
    let mut cover = Vec::new();
    for &node in &run.order {
        for (k, acc) in m.accesses(node).iter().enumerate() {
            let Some(class) = m.class(acc.class).filter(|_| !acc.write) else { continue };
            if racing.contains(&(node, class.buffer)) {
                continue;
            }
            let packet = m.sync(acc.class) == Some(BufferSync::Packet);
            let now = version.get(class.buffer as usize).copied().unwrap_or(0);
            let Some(known) = known.get_mut(acc.class as usize) else { continue };
            let fresh = match *known {
                Known::Covered => continue,
                Known::Lacks(i) => packet || lacking.get(i as usize).is_some_and(|l| l.1 == now),
                Known::Nothing => false,
            };
            if !fresh {
                let past = m.buffers.get(class.buffer as usize).map_or(NONE, |b| b.past);
                cover.clear();
                cover.extend(m.overlaps(acc.class).iter().copied().filter(|&o| match packet {
                    true => m.class(o).is_some_and(|o| o.writes > 0 && o.phase == class.phase),
                    false => o == past || written.get(o as usize) == Some(&true),
                }));
                let rest = match m.uncovered(acc.class, &cover) {
                    Ok(rest) => rest,
                    Err(_) => Some(IRREGULAR.to_owned()),
                };
                *known = match (rest, *known) {
                    (None, _) => Known::Covered,
                    (Some(rest), Known::Lacks(i)) => {
                        if let Some(l) = lacking.get_mut(i as usize) {
                            *l = (rest, now);
                        }
                        Known::Lacks(i)
                    }
                    (Some(rest), _) => {
                        lacking.push((rest, now));
                        Known::Lacks(lacking.len() as u32 - 1)
                    }
                };
            }
            if let Known::Lacks(i) = *known
                && let Some((rest, _)) = lacking.get(i as usize)
            {
                if faults.full(Invariant::C) {
                    return;
                }
                let when = match packet {
                    true => format!("nothing writes in phase {} of the step", class.phase),
                    false => "nothing has written in this step before".to_owned(),
                };
                let mut fault = Fault::new(
                    Invariant::C,
                    m.node_place(node),
                    format!(
                        "{}, of which {when}: {rest}; write them first or read less",
                        m.access_name(node, k)
                    ),
                )
                .witness(m.range(class.buffer, rest.clone()));
                if let Some(a) = m.access(node, k) {
                    fault = fault.access(a);
                }
                faults.push(fault);
            }
        }
        for acc in m.accesses(node).iter().filter(|a| a.write) {
            if let Some(w) = written.get_mut(acc.class as usize)
                && !*w
            {
                *w = true;
                if let Some(v) = m.class(acc.class).and_then(|c| version.get_mut(c.buffer as usize))
                {
                    *v += 1;
                }
            }
        }
    }
}

/// Classes of a buffer that are written.
fn written(m: &Model, buffer: usize) -> Vec<u32> {
    let all = m.buffers.get(buffer).map_or(&[][..], |b| &b.classes);
    all.iter().copied().filter(|&c| m.class(c).is_some_and(|c| c.writes > 0)).collect()
}

fn whole(m: &Model, i: usize, region: &Region, what: &str, faults: &mut Faults) {
    let (lacks, irregular) = match m.uncovered_region(i as u32, region, &written(m, i)) {
        Ok(lacks) => (lacks, false),
        Err(_) => (Some(IRREGULAR.to_owned()), true),
    };
    if let Some(rest) = lacks {
        let message = if irregular {
            format!("{}: {IRREGULAR}", m.buffer_name(i as u32))
        } else {
            format!("{what} of {}, but no instruction writes {rest}", m.buffer_name(i as u32))
        };
        faults.push(
            Fault::new(Invariant::C, Place::Buffer(i), message).witness(m.range(i as u32, rest)),
        );
    }
}

fn outputs(m: &Model, faults: &mut Faults) {
    for (i, b) in m.program.buffers.iter().enumerate() {
        if b.kind != BufferKind::Output {
            continue;
        }
        whole(m, i, &Region::whole(&b.shape), "a step writes every element", faults);
        for c in written(m, i) {
            let Some(class) = m.class(c) else { continue };
            for &other in m.overlaps(c) {
                let twice = match other == c {
                    true => class.writes > 1,
                    false => other > c && m.class(other).is_some_and(|o| o.writes > 0),
                };
                if twice {
                    if faults.full(Invariant::C) {
                        return;
                    }
                    let by = m.class(other).map_or(NONE, |o| o.writer);
                    faults.push(
                        Fault::new(
                            Invariant::C,
                            m.node_place(by),
                            format!(
                                "{} writes {} of {} again in the same step; every element of an output is written once",
                                m.node_name(by), m.shared(c, other), m.buffer_name(i as u32)
                            ),
                        )
                        .witness(m.range(i as u32, m.shared(c, other))),
                    );
                }
            }
        }
    }
}

fn caches(m: &Model, faults: &mut Faults) {
    for (i, b) in m.program.buffers.iter().enumerate() {
        if b.kind == BufferKind::Kv {
            let region = appended(&b.shape, m.program.tokens);
            whole(m, i, &region, "a step appends its rows to every kv head", faults);
        }
    }
}

/// Judges the reads of token ids of one instruction; works on any program.
pub(crate) fn tokens(p: &Program, i: usize, x: &Instruction, faults: &mut Faults) {
    for a in &x.reads {
        let Some(b) = p.buffer(a.buffer).filter(|b| b.kind == BufferKind::Tokens) else {
            continue;
        };
        let (bucket, tokens) = (p.bucket, i64::from(p.tokens));
        let Some(rows) = a.region.0.first() else { continue };
        let fed = p.boundary.op == BoundaryOp::Argmax
            && p.boundary.writes.iter().any(|w| w.buffer == a.buffer);
        let below = |end: Bound| rows.hi.le(end, bucket);
        // The host puts ids up to pos0 + tokens - 1; each boundary adds the one at pos + tokens,
        // which is the next step's first.
        let there = rows.always_empty(bucket)
            || below(Bound::At(bucket.first.saturating_add(u64::from(p.tokens))))
            || p.max_steps == 1 && below(Bound::Pos(tokens))
            || fed && below(Bound::Pos(1)) && (tokens == 1 || Bound::Pos(0).le(rows.lo, bucket));
        if !there {
            let need = match fed {
                true => "only the ids of the prompt and one id per earlier step are there",
                false => {
                    "only the ids of the prompt are there, for the first step; let an `argmax` boundary write the next, or launch one step"
                }
            };
            faults.push(
                Fault::new(
                    Invariant::C,
                    Place::Instruction(i),
                    format!("instr {i} reads {}, but {need}", print_access(a)),
                )
                .access(a)
                .witness(Witness::Range {
                    buffer: format!("{} {:?}", b.id, b.name),
                    elements: print_access(a),
                }),
            );
        }
    }
}
