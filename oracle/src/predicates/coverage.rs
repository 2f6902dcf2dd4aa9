//! Coverage, as sets: what a step reads is written in that step or was there when it began; outputs are
//! written once; caches get the rows of the step; token ids are there. When the write happens is not
//! looked at: executions show that.

use amk_schedule_ir::{Access, BoundaryOp, Buffer, BufferKind, BufferSync, Program};

use super::{Rect, meet, rect};
use crate::breach::Breaches;
use crate::breach::Invariant::{C, R};

/// One declared access: by whom, and where.
struct By<'a> {
    who: String,
    access: &'a Access,
}

pub(super) fn check(p: &Program, positions: &[u64], out: &mut Breaches) {
    for (i, b) in p.buffers.iter().enumerate() {
        let (reads, writes) = accesses(p, i);
        for &pos in positions_of(b, &reads, &writes, positions) {
            buffer(p, b, pos, &reads, &writes, out);
        }
    }
}

/// Reads and writes of a buffer, by instructions and by the boundary.
fn accesses(p: &Program, buffer: usize) -> (Vec<By<'_>>, Vec<By<'_>>) {
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    let instructions = p.instructions.iter().map(|x| (Some(x.id), &x.reads, &x.writes));
    let all = instructions.chain([(None, &p.boundary.reads, &p.boundary.writes)]);
    for (id, r, w) in all {
        for (list, from) in [(&mut reads, r), (&mut writes, w)] {
            for access in from.iter().filter(|a| a.buffer.index() == buffer) {
                let who = id.map_or_else(|| "the boundary".to_owned(), |id| id.to_string());
                list.push(By { who, access });
            }
        }
    }
    (reads, writes)
}

/// One position will do where nothing follows it.
fn positions_of<'p>(b: &Buffer, reads: &[By], writes: &[By], all: &'p [u64]) -> &'p [u64] {
    let moves = reads
        .iter()
        .chain(writes)
        .any(|a| a.access.region.0.iter().any(|s| s.lo.is_symbolic() || s.hi.is_symbolic()));
    match b.kind {
        BufferKind::Kv | BufferKind::Tokens => all,
        _ if moves => all,
        _ => &all[..all.len().min(1)],
    }
}

fn buffer(p: &Program, b: &Buffer, pos: u64, reads: &[By], writes: &[By], out: &mut Breaches) {
    let packet = b.sync == BufferSync::Packet;
    let written: Vec<(u32, Rect)> = writes
        .iter()
        .filter_map(|w| Some((w.access.phase, rect(&w.access.region, pos)?)))
        .collect();
    let all: Vec<Rect> = written.iter().map(|w| w.1.clone()).collect();
    let here = || format!("{} at position {pos}", b.id);
    if packet {
        // A word has one writer per step and phase.
        for (k, (phase, r)) in written.iter().enumerate() {
            let again = written[..k].iter().any(|(q, s)| q == phase && meet(r, s));
            out.demand(!again, R, "packet-writers", here);
        }
    }
    match b.kind {
        BufferKind::Output => {
            let whole: Rect = b.shape.iter().map(|&n| (0, i128::from(n))).collect();
            out.demand(covered(&whole, &all), C, "output", here);
            for (k, r) in all.iter().enumerate() {
                out.demand(!all[..k].iter().any(|s| meet(r, s)), C, "output-twice", here);
            }
        }
        BufferKind::Kv => {
            let [heads, _, width] = b.shape[..] else { return };
            let rows = (i128::from(pos), i128::from(pos) + i128::from(p.tokens));
            let append = vec![(0, i128::from(heads)), rows, (0, i128::from(width))];
            out.demand(covered(&append, &all), C, "append", here);
        }
        _ => {}
    }
    let mut asked: Vec<(u32, Rect)> = Vec::new();
    for a in reads {
        let Some(r) = rect(&a.access.region, pos) else { continue };
        let key = (a.access.phase, r);
        if asked.contains(&key) {
            continue;
        }
        let there = match b.kind {
            BufferKind::Weight | BufferKind::Constant => true,
            BufferKind::Tokens => tokens(p, b, key.1[0], pos),
            BufferKind::Kv => {
                let mut with_past = all.clone();
                with_past.push(vec![
                    (0, i128::from(b.shape[0])),
                    (0, i128::from(pos)),
                    (0, i128::from(b.shape[2])),
                ]);
                covered(&key.1, &with_past)
            }
            BufferKind::Activation | BufferKind::Output => {
                let of_phase: Vec<Rect> = written
                    .iter()
                    .filter(|w| !packet || w.0 == key.0)
                    .map(|w| w.1.clone())
                    .collect();
                covered(&key.1, &of_phase)
            }
        };
        out.demand(there, C, "unwritten", || format!("{} of {}", b.id, a.who));
        asked.push(key);
    }
}

/// Are the ids of rows `[lo, hi)` there in every step at `pos`? The host has put those of the first
/// step's positions; the boundary of each step puts the one after its own.
fn tokens(p: &Program, b: &Buffer, (lo, hi): (i128, i128), pos: u64) -> bool {
    let fed =
        p.boundary.op == BoundaryOp::Argmax && p.boundary.writes.iter().any(|w| w.buffer == b.id);
    let n = i128::from(p.tokens);
    let (pos, first) = (i128::from(pos), i128::from(p.bucket.first));
    // Step t of a launch from pos0 is at pos0 + t * tokens; the longest launch has the shortest prompt.
    let t = (i128::from(p.max_steps) - 1).min((pos - first) / n);
    let pos0 = pos - t * n;
    // Rows past the prompt: the boundary has put pos0 + n, pos0 + 2n and so on, up to pos.
    let start = lo.max(pos0 + n);
    let single = n == 1 || hi - start == 1 && (start - pos0) % n == 0;
    start >= hi || fed && hi - 1 <= pos && single
}

/// Is `r` inside the union of `cover`? What is left over is cut up until nothing is.
pub(super) fn covered(r: &Rect, cover: &[Rect]) -> bool {
    rest(r, cover).is_empty()
}

/// Elements of the union.
pub(super) fn volume(rects: &[Rect]) -> u128 {
    let size = |r: &Rect| r.iter().map(|s| (s.1 - s.0) as u128).product::<u128>();
    rects.iter().enumerate().map(|(i, r)| rest(r, &rects[..i]).iter().map(size).sum::<u128>()).sum()
}

/// The parts of `r` that no rectangle of `cover` touches.
fn rest(r: &Rect, cover: &[Rect]) -> Vec<Rect> {
    let mut open = vec![r.clone()];
    for c in cover.iter().filter(|c| meet(r, c)) {
        let mut next = Vec::new();
        for mut piece in open {
            if !meet(&piece, c) {
                next.push(piece);
                continue;
            }
            for d in 0..piece.len() {
                if piece[d].0 < c[d].0 {
                    let mut part = piece.clone();
                    part[d].1 = c[d].0;
                    next.push(part);
                    piece[d].0 = c[d].0;
                }
                if c[d].1 < piece[d].1 {
                    let mut part = piece.clone();
                    part[d].0 = c[d].1;
                    next.push(part);
                    piece[d].1 = c[d].1;
                }
            }
        }
        open = next;
    }
    open
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_are_exact() {
        let whole: Rect = vec![(0, 4), (0, 10)];
        let mut tiles: Vec<Rect> = (0..10).map(|i| vec![(0, 4), (i, i + 1)]).collect();
        assert!(covered(&whole, &tiles));
        tiles.remove(3);
        assert!(!covered(&whole, &tiles));
        assert_eq!(volume(&tiles), 36);
        assert_eq!(volume(&[whole.clone(), whole, vec![(3, 5), (0, 2)]]), 42);
    }
}
