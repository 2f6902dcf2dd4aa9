//! Plain predicates for what interleavings cannot show. Each is the sentence of the IR's page, or of the
//! target record, turned into the shortest loop that decides it; nothing here is clever or fast.
//!
//! - `structure` ids, queues, op parameters, operands, counters, the boundary;
//! - `streams` runs, chunks, windows, gates;
//! - `regions` bounds, read-only buffers, packet words, footprints, private elements, caches;
//! - `coverage` what is read is written somewhere in the step, outputs once, caches appended;
//! - `resources` threads, registers, barriers, shared memory.
//!
//! **Positions.** Rectangles are looked at with their numbers, position by position: at every position of a
//! bucket of up to 64, otherwise at its ends and around every power of two and every cut of a bound in between.
//! Bounds do not decrease with the position, so that bounds checks lose nothing by it.

mod coverage;
mod regions;
mod resources;
mod streams;
mod structure;

use amk_schedule_ir::{Bound, Buffer, OpContext, Program, Region, Target};

use crate::breach::{Breach, Breaches};

/// Every predicate that does not hold, in no particular order. Empty does not mean safe:
/// [`crate::explore`] judges what depends on order.
pub fn predicates(program: &Program, target: &Target) -> Vec<Breach> {
    let mut out = Breaches::default();
    structure::check(program, &mut out);
    streams::check(program, &mut out);
    resources::check(program, target, &mut out);
    let positions = positions(program);
    regions::check(program, &positions, &mut out);
    // Rectangles can be laid over each other only where they have the buffer's rank and numbers of sane size.
    if out.0.is_empty() {
        coverage::check(program, &positions, &mut out);
    }
    out.0
}

/// Positions looked at; see the page.
fn positions(p: &Program) -> Vec<u64> {
    let (first, last) = (p.bucket.first, p.bucket.last);
    if first > last {
        return Vec::new();
    }
    if !symbolic(p) {
        return vec![first];
    }
    if last - first < 64 {
        return (first..=last).collect();
    }
    let mut at = vec![first, last, first + (last - first) / 2, first + (last - first) / 3];
    at.extend((0..63).map(|k| 1u64 << k));
    for a in accesses(p) {
        for b in a.0.iter().flat_map(|s| [s.lo, s.hi]) {
            match b {
                Bound::At(x) | Bound::Clip(x) => at.push(x),
                Bound::Split { part, parts } => at.extend([u64::from(part), u64::from(parts)]),
                Bound::Pos(_) => {}
            }
        }
        if at.len() > 4096 {
            at.sort_unstable();
            at.dedup();
            at.truncate(4096);
        }
    }
    let mut all: Vec<u64> = at
        .into_iter()
        .flat_map(|x| [x.saturating_sub(1), x, x.saturating_add(1)])
        .filter(|x| (first..=last).contains(x))
        .collect();
    all.sort_unstable();
    all.dedup();
    // Far more than any schedule of one shape has cuts.
    if all.len() > 256 {
        let step = all.len().div_ceil(255);
        let end = all[all.len() - 1];
        all = all.into_iter().step_by(step).collect();
        all.push(end);
        all.dedup();
    }
    all
}

/// Every region of the program.
fn accesses(p: &Program) -> impl Iterator<Item = &Region> {
    let direct = p.instructions.iter().flat_map(|x| x.reads.iter().chain(&x.writes));
    let boundary = p.boundary.reads.iter().chain(&p.boundary.writes);
    direct.chain(boundary).map(|a| &a.region)
}

/// Does anything follow the position? Caches do without any access.
fn symbolic(p: &Program) -> bool {
    p.buffers.iter().any(|b| b.kind == amk_schedule_ir::BufferKind::Kv)
        || accesses(p).any(|r| r.0.iter().any(|s| s.lo.is_symbolic() || s.hi.is_symbolic()))
}

/// Half-open intervals, one per dimension.
type Rect = Vec<(i128, i128)>;

/// The rectangle at a position; `None` if it is empty.
fn rect(region: &Region, pos: u64) -> Option<Rect> {
    let r: Rect = region.0.iter().map(|s| (s.lo.eval(pos), s.hi.eval(pos))).collect();
    r.iter().all(|(lo, hi)| lo < hi).then_some(r)
}

/// Do two rectangles share an element?
fn meet(a: &Rect, b: &Rect) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.0.max(b.0) < a.1.min(b.1))
}

/// Is `r` inside the buffer?
fn inside(r: &Rect, buffer: &Buffer) -> bool {
    r.len() == buffer.shape.len()
        && r.iter().zip(&buffer.shape).all(|(s, &n)| 0 <= s.0 && s.1 <= i128::from(n))
}

fn context(p: &Program) -> OpContext {
    OpContext { tokens: u64::from(p.tokens) }
}
