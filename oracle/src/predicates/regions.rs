//! Bounds at every position looked at, read-only buffers, packet words, private elements, caches.

use amk_schedule_ir::{Access, Bound, Buffer, BufferKind, BufferSync, Program, Region, RunSource};

use super::{inside, meet, rect};
use crate::breach::Breaches;
use crate::breach::Invariant::{B, K, O};

pub(super) fn check(p: &Program, positions: &[u64], out: &mut Breaches) {
    for (i, x) in p.instructions.iter().enumerate() {
        let here = || format!("instr {i}");
        for (write, a) in both(&x.reads, &x.writes) {
            let Some(b) = p.buffer(a.buffer) else { continue };
            let kept = matches!(b.kind, BufferKind::Weight | BufferKind::Constant)
                || b.kind == BufferKind::Tokens;
            out.demand(!(write && kept), B, "read-only", here);
            access(a, b, positions, &here, out);
            if write && b.kind == BufferKind::Kv {
                out.demand(appends(p, &a.region, positions), K, "past-rows", here);
            }
        }
        let mut sequences: Vec<u32> = both(&x.reads, &x.writes)
            .filter_map(|(_, a)| p.buffer(a.buffer))
            .filter(|b| b.kind == BufferKind::Kv)
            .map(|b| b.sequence)
            .collect();
        sequences.dedup();
        out.demand(sequences.len() <= 1, K, "sequence", here);
    }
    for (write, a) in both(&p.boundary.reads, &p.boundary.writes) {
        let here = || "the boundary".to_owned();
        let Some(b) = p.buffer(a.buffer) else { continue };
        let kept = matches!(b.kind, BufferKind::Weight | BufferKind::Constant);
        out.demand(!(write && kept), B, "read-only", here);
        out.demand(b.sync != BufferSync::Local, B, "local", here);
        access(a, b, positions, &here, out);
    }
    for (s, sm) in p.sms.iter().enumerate() {
        for (r, run) in sm.stream.iter().enumerate() {
            if let RunSource::Kv { buffer, region, .. } = &run.source
                && let Some(b) = p.buffer(*buffer)
            {
                bounds(region, b, positions, &|| format!("run {r} of sm {s}"), out);
            }
        }
    }
    for (i, b) in p.buffers.iter().enumerate() {
        if b.kind == BufferKind::Kv {
            let rows = b.shape.get(1).copied().unwrap_or(0);
            let end = u128::from(p.bucket.last) + u128::from(p.tokens);
            out.demand(u128::from(rows) >= end, K, "capacity", || format!("buffer {i}"));
        }
    }
    local(p, positions, out);
}

fn both<'a>(reads: &'a [Access], writes: &'a [Access]) -> impl Iterator<Item = (bool, &'a Access)> {
    reads.iter().map(|a| (false, a)).chain(writes.iter().map(|a| (true, a)))
}

fn access(
    a: &Access,
    b: &Buffer,
    positions: &[u64],
    here: &dyn Fn() -> String,
    out: &mut Breaches,
) {
    bounds(&a.region, b, positions, here, out);
    if b.sync == BufferSync::Packet {
        let fixed = |x: Bound| matches!(x, Bound::At(_));
        let all = a.region.0.iter().all(|s| fixed(s.lo) && fixed(s.hi));
        out.demand(all, B, "packet-moves", here);
    }
    let per = i128::from(b.dtype.per_word());
    if b.sync != BufferSync::Packet || per <= 1 {
        return;
    }
    let (Some(span), Some(&end)) = (a.region.0.last(), b.shape.last()) else { return };
    let whole = |x: i128| x % per == 0 || x == i128::from(end);
    let ok = positions.iter().all(|&pos| {
        rect(&a.region, pos).is_none() || whole(span.lo.eval(pos)) && whole(span.hi.eval(pos))
    });
    out.demand(ok, B, "packet-word", here);
}

fn bounds(
    region: &Region,
    b: &Buffer,
    positions: &[u64],
    here: &dyn Fn() -> String,
    out: &mut Breaches,
) {
    let ok = positions.iter().all(|&pos| rect(region, pos).is_none_or(|r| inside(&r, b)));
    out.demand(ok, B, "bounds", here);
}

/// Are the rows written those of the step?
fn appends(p: &Program, region: &Region, positions: &[u64]) -> bool {
    positions.iter().all(|&pos| {
        let (pos_, end) = (i128::from(pos), i128::from(pos) + i128::from(p.tokens));
        rect(region, pos)
            .is_none_or(|r| r.get(1).is_some_and(|rows| pos_ <= rows.0 && rows.1 <= end))
    })
}

/// A `local` element is touched by one SM, and the area of each SM holds what it touches.
fn local(p: &Program, positions: &[u64], out: &mut Breaches) {
    let private = |b: &Buffer| b.sync == BufferSync::Local;
    if !p.buffers.iter().any(private) {
        return;
    }
    let room: u128 = p
        .resources
        .shared
        .iter()
        .filter(|a| a.area == amk_schedule_ir::Area::Local)
        .map(|a| u128::from(a.bytes))
        .sum();
    let mut need = vec![0u128; p.sms.len()];
    for b in p.buffers.iter().filter(|b| private(b)) {
        // (SM, region) of every access of the buffer.
        let mut touched: Vec<(usize, &Region)> = Vec::new();
        for (s, sm) in p.sms.iter().enumerate() {
            for x in sm.queue.iter().filter_map(|id| p.instruction(*id)) {
                let mine = both(&x.reads, &x.writes).filter(|(_, a)| a.buffer == b.id);
                touched.extend(mine.map(|(_, a)| (s, &a.region)));
            }
        }
        touched.sort_by_key(|t| t.0);
        touched.dedup();
        let mut most = vec![0u128; p.sms.len()];
        for &pos in positions {
            let rects: Vec<(usize, super::Rect)> =
                touched.iter().filter_map(|(s, r)| Some((*s, rect(r, pos)?))).collect();
            for (k, (s, r)) in rects.iter().enumerate() {
                let shared = rects[..k].iter().any(|(t, q)| s != t && meet(r, q));
                out.demand(!shared, B, "local", || format!("{} of sm {s}", b.id));
            }
            for (s, most) in most.iter_mut().enumerate() {
                let mine: Vec<super::Rect> =
                    rects.iter().filter(|(t, _)| *t == s).map(|(_, r)| r.clone()).collect();
                *most = (*most).max(super::coverage::volume(&mine));
            }
        }
        let each = u128::from(b.dtype.bytes()).max(4);
        need.iter_mut().zip(&most).for_each(|(n, m)| *n += each * m);
    }
    for (s, need) in need.iter().enumerate() {
        out.demand(*need <= room, O, "local-area", || format!("sm {s}"));
    }
}
