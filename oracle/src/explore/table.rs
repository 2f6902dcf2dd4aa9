//! Rectangles with their numbers, and the elements they cut a buffer into.

use amk_schedule_ir::limits::MAX_RANK;
use amk_schedule_ir::{BufferKind, Program, Region, RunSource};

/// Half-open intervals; dimensions a buffer lacks are `[0, 1)`.
pub(super) type Rect = [[i64; 2]; MAX_RANK];

/// Most cells of one buffer.
const MAX_CELLS: usize = 1 << 14;

/// The rectangle at a position; `None` if it is empty.
pub(super) fn rect(region: &Region, pos: u64) -> Option<Rect> {
    let mut out = [[0, 1]; MAX_RANK];
    for (o, s) in out.iter_mut().zip(&region.0) {
        let clamp = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        *o = [clamp(s.lo.eval(pos)), clamp(s.hi.eval(pos))];
        if o[0] >= o[1] {
            return None;
        }
    }
    Some(out)
}

pub(super) fn meet(a: &Rect, b: &Rect) -> bool {
    a.iter().zip(b).all(|(a, b)| a[0].max(b[0]) < a[1].min(b[1]))
}

/// Does anything depend on where the launch starts?
pub(super) fn follows_position(p: &Program) -> bool {
    let moves = |r: &Region| r.0.iter().any(|s| s.lo.is_symbolic() || s.hi.is_symbolic());
    p.buffers.iter().any(|b| matches!(b.kind, BufferKind::Kv | BufferKind::Tokens))
        || p.instructions.iter().any(|x| x.reads.iter().chain(&x.writes).any(|a| moves(&a.region)))
        || p.sms
            .iter()
            .any(|sm| sm.stream.iter().any(|run| matches!(run.source, RunSource::Kv { .. })))
}

/// Cuts the plane along the edges of all rectangles and calls `cell` once for each set of rectangles that some
/// element lies in, with their indices. `false` if there are too many cells.
pub(super) fn cells(rects: &[Rect], mut cell: impl FnMut(&[usize])) -> bool {
    let mut cuts: [Vec<i64>; MAX_RANK] = Default::default();
    for r in rects {
        for (c, s) in cuts.iter_mut().zip(r) {
            c.extend(s);
        }
    }
    let mut total = 1usize;
    for c in &mut cuts {
        c.sort_unstable();
        c.dedup();
        // The last cut only ends things.
        c.pop();
        total = total.saturating_mul(c.len());
    }
    if total > MAX_CELLS {
        return false;
    }
    let mut seen: Vec<Vec<usize>> = Vec::new();
    for k in 0..total {
        let (mut rest, mut at) = (k, [0i64; MAX_RANK]);
        for (a, c) in at.iter_mut().zip(&cuts) {
            *a = c[rest % c.len()];
            rest /= c.len();
        }
        let inside = |r: &Rect| r.iter().zip(&at).all(|(s, &x)| s[0] <= x && x < s[1]);
        let set: Vec<usize> = (0..rects.len()).filter(|&i| inside(&rects[i])).collect();
        if !set.is_empty() && !seen.contains(&set) {
            cell(&set);
            seen.push(set);
        }
    }
    true
}
