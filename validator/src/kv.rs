//! **K, caches and positions.** Exact statement, at every position of the bucket:
//!
//! - A cache has room for the positions a step appends: its capacity is at least `bucket.last + tokens`.
//! - Instructions write caches only at the rows of the step, `[pos, pos + tokens)`; nobody rewrites the past.
//! - The rows an SM's producer streams are there when it may issue the copy: a kv run reads rows below
//!   `pos - (g - 1) * tokens`, where `g` is its gate or the smallest of the runs before it that have a
//!   chunk at every position (or one more than the smallest such of the whole stream, acquired in the step before); or rows below the first position of
//!   the bucket, which the host has filled. `g - 1` counts as `max_steps - 1` at most. What the ring may
//!   order besides is not counted: a copy reads through the async proxy, and only a gate fences that.
//! - One instruction touches caches of one sequence only.

use amk_schedule_ir::{Bound, BufferKind, Instruction, Program, RunSource, text};

use crate::fault::{Fault, Faults, Invariant, Place, Witness};
use crate::nodes::Nodes;

/// Judges the caches; works on any program.
pub(crate) fn caches(p: &Program, faults: &mut Faults) {
    let tokens = u64::from(p.tokens);
    for (i, b) in p.buffers.iter().enumerate() {
        if b.kind != BufferKind::Kv {
            continue;
        }
        let capacity = b.shape.get(1).copied().unwrap_or(0);
        let end = p.bucket.last.saturating_add(tokens);
        if capacity < end {
            faults.push(
                Fault::new(
                    Invariant::K,
                    Place::Buffer(i),
                    format!("cache {i} holds {capacity} positions, but the bucket appends up to position {}; shrink the bucket or enlarge the cache", end - 1),
                )
                .witness(Witness::Range {
                    buffer: format!("buffer {i} {:?}", b.name),
                    elements: format!("rows {capacity}..{end}"),
                }),
            );
        }
    }
}

/// Judges one instruction; works on any program.
pub(crate) fn instruction(p: &Program, i: usize, x: &Instruction, faults: &mut Faults) {
    let tokens = u64::from(p.tokens);
    for a in &x.writes {
        let Some(b) = p.buffer(a.buffer) else { continue };
        let (Some(rows), BufferKind::Kv) = (a.region.0.get(1), b.kind) else { continue };
        let inside = rows.always_empty(p.bucket)
            || Bound::Pos(0).le(rows.lo, p.bucket)
                && rows.hi.le(Bound::Pos(tokens as i64), p.bucket);
        if !inside {
            faults.push(
                Fault::new(
                    Invariant::K,
                    Place::Instruction(i),
                    format!("instr {i} writes {}, but a step appends rows pos..pos+{tokens} of a cache and leaves the past alone", text::print_access(a)),
                )
                .access(a),
            );
        }
    }
    one_sequence(p, i, x, faults);
}

fn one_sequence(p: &Program, i: usize, x: &Instruction, faults: &mut Faults) {
    let mut first = None;
    for a in x.reads.iter().chain(&x.writes) {
        let Some(b) = p.buffer(a.buffer).filter(|b| b.kind == BufferKind::Kv) else { continue };
        match first {
            None => first = Some(b),
            Some(f) if f.sequence != b.sequence => {
                faults.push(
                    Fault::new(
                        Invariant::K,
                        Place::Instruction(i),
                        format!("instr {i} touches {} of sequence {} and {} of sequence {}; one instruction serves one sequence", f.id, f.sequence, b.id, b.sequence),
                    )
                    .access(a),
                );
                return;
            }
            Some(_) => {}
        }
    }
}

/// The gate of a kv run that has a chunk at every position: a run without chunks acquires nothing.
fn sure_gate(p: &Program, source: &RunSource) -> Option<u64> {
    let RunSource::Kv { region, gate, .. } = source else { return None };
    let some = region.0.iter().all(|span| match span.lo {
        Bound::At(lo) => lo.checked_add(1).is_some_and(|lo| Bound::At(lo).le(span.hi, p.bucket)),
        _ => false,
    });
    some.then(|| u64::from((*gate).max(1)))
}

/// Judges the streams; works on any program.
pub(crate) fn streams(p: &Program, nodes: &Nodes, faults: &mut Faults) {
    let tokens = u64::from(p.tokens);
    for (s, sm) in p.sms.iter().enumerate() {
        if sm.stream.iter().all(|run| matches!(run.source, RunSource::Weight { .. })) {
            continue;
        }
        // The sequences of the direct accesses of each run's consumer.
        let mut consumer = vec![None; sm.stream.len()];
        for id in &sm.queue {
            let run = nodes.run.get(id.index()).copied().flatten();
            if let Some(slot) = run.and_then(|r| consumer.get_mut(r.index())) {
                *slot = Some(*id);
            }
        }
        let gates = sm.stream.iter().filter_map(|run| sure_gate(p, &run.source));
        // The smallest gate the producer has certainly acquired, of this step or the one before.
        let mut acquired = gates.min().unwrap_or(u64::MAX - 1) + 1;
        for (r, run) in sm.stream.iter().enumerate() {
            let Some(b) = p.buffer(run.source.buffer()) else { continue };
            if let RunSource::Kv { region, gate: g, .. } = &run.source {
                let gate = acquired.min(u64::from((*g).max(1)));
                acquired = acquired.min(sure_gate(p, &run.source).unwrap_or(u64::MAX));
                let back = (gate - 1).min(p.max_steps.saturating_sub(1)).saturating_mul(tokens);
                let visible = Bound::Pos(i64::try_from(back).map_or(i64::MIN, |b| -b));
                if let Some(rows) = region.0.get(1)
                    && !rows.always_empty(p.bucket)
                    && !rows.hi.le(visible, p.bucket)
                    && !rows.hi.le(Bound::At(p.bucket.first), p.bucket)
                {
                    let hi = text::print_bound(rows.hi);
                    faults.push(
                        Fault::new(
                            Invariant::K,
                            Place::Run { sm: s, run: r },
                            format!("run {r} of sm {s} streams rows up to {hi} of {} behind gate {gate}, which makes rows below pos-{back} visible; a smaller gate or an earlier end is needed", b.id),
                        )
                        .witness(Witness::Range {
                            buffer: format!("{} {:?}", b.id, b.name),
                            elements: format!("rows pos-{back}..{hi}"),
                        }),
                    );
                }
                if let Some(x) = consumer.get(r).copied().flatten().and_then(|id| p.instruction(id))
                    && let Some(other) = x
                        .reads
                        .iter()
                        .chain(&x.writes)
                        .filter_map(|a| p.buffer(a.buffer))
                        .find(|o| o.kind == BufferKind::Kv && o.sequence != b.sequence)
                {
                    faults.push(Fault::new(
                        Invariant::K,
                        Place::Instruction(x.id.index()),
                        format!("{} streams {} of sequence {} and touches {} of sequence {}; one instruction serves one sequence", x.id, b.id, b.sequence, other.id, other.sequence),
                    ));
                }
            }
        }
    }
}
