//! Runs: one consumer each, chunks that fit a slot, windows within the ring, gates, sources.

use amk_schedule_ir::{
    Buffer, BufferKind, Instruction, Op, Program, Run, RunSource, Span, TILE_ROWS, weight_blocks,
};

use super::context;
use super::structure::bound;
use crate::breach::Breaches;
use crate::breach::Invariant::{K, S};

pub(super) fn check(p: &Program, out: &mut Breaches) {
    for (s, sm) in p.sms.iter().enumerate() {
        let mut users: Vec<Vec<&Instruction>> = vec![Vec::new(); sm.stream.len()];
        for x in sm.queue.iter().filter_map(|id| p.instruction(*id)) {
            if let Some(run) = x.run {
                match users.get_mut(run.index()) {
                    Some(list) => list.push(x),
                    None => out.demand(false, S, "run-unknown", || format!("{}", x.id)),
                }
            } else if x.op.check().is_ok() && x.op.footprint(context(p)).weight.is_some() {
                out.demand(false, S, "run-missing", || format!("{}", x.id));
            }
        }
        for (r, run) in sm.stream.iter().enumerate() {
            let here = || format!("run {r} of sm {s}");
            out.demand(run.id.index() == r, S, "id", here);
            out.demand(users[r].len() == 1, S, "run-consumer", here);
            let ring = 1..=p.resources.ring_slots;
            out.demand(ring.contains(&run.window), S, "run-window", here);
            let Some(buffer) = p.buffer(run.source.buffer()) else {
                out.demand(false, S, "run-buffer", here);
                continue;
            };
            source(run, buffer, &here, out);
            let bytes = run.source.chunk_bytes(buffer);
            let fits = bytes.is_some_and(|b| b <= p.resources.slot_bytes);
            out.demand(fits && run.source.chunks(buffer).is_some(), S, "run-slot", here);
            for x in &users[r] {
                consumer(p, run, buffer, x, out);
            }
        }
    }
}

fn source(run: &Run, b: &Buffer, here: &dyn Fn() -> String, out: &mut Breaches) {
    match &run.source {
        RunSource::Weight { lo, hi, tiles, blocks, .. } => {
            let all = weight_blocks(b).unwrap_or(0);
            out.demand(b.kind == BufferKind::Weight, S, "run-kind", here);
            let rows = lo < hi && lo % TILE_ROWS == 0 && b.shape.first().is_some_and(|n| hi <= n);
            out.demand(rows, S, "run-rows", here);
            let whole = (1..=all).contains(&u64::from(*blocks))
                && (*tiles == 1 || *tiles > 1 && u64::from(*blocks) == all);
            out.demand(whole, S, "run-chunk", here);
        }
        RunSource::Kv { region, rows, gate, .. } => {
            out.demand(b.kind == BufferKind::Kv, S, "run-kind", here);
            out.demand(*rows > 0, S, "run-chunk", here);
            out.demand(*gate >= 1, S, "run-gate", here);
            let bounds = region.0.iter().all(|s| bound(s.lo) && bound(s.hi));
            out.demand(bounds && region.rank() == b.shape.len(), S, "run-region", here);
            if let [heads, _, width] = region.0.as_slice() {
                let head = heads.constant_len() == Some(1);
                let dim = b.shape.get(2).copied().unwrap_or(0);
                out.demand(head && *width == Span::at(0, dim), S, "run-head", here);
            }
        }
    }
}

/// The run is what the op of its consumer takes.
fn consumer(p: &Program, run: &Run, b: &Buffer, x: &Instruction, out: &mut Breaches) {
    let here = || format!("{}", x.id);
    if let RunSource::Kv { .. } = run.source {
        let other = x.reads.iter().chain(&x.writes).filter_map(|a| p.buffer(a.buffer));
        let same = other.filter(|o| o.kind == BufferKind::Kv).all(|o| o.sequence == b.sequence);
        out.demand(same, K, "sequence", here);
    }
    if matches!(x.op, Op::Opaque(_)) || x.op.check().is_err() {
        return;
    }
    let f = x.op.footprint(context(p));
    let fits = match (&run.source, f.weight) {
        (RunSource::Weight { lo, hi, .. }, Some(w)) => {
            b.shape == w.shape && *lo == w.lo && *hi == w.hi
        }
        (RunSource::Kv { buffer, region, .. }, None) => {
            f.kv && x.reads.iter().any(|a| a.buffer == *buffer && a.region == *region)
        }
        _ => false,
    };
    out.demand(fits, S, "run-op", here);
}
