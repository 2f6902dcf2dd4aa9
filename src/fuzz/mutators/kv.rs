//! Mutators of **K**: caches that are too small, rewritten, read too early, or mixed up.

use amk_schedule_ir::{Bound, BufferKind, Op, Program, RunSource, Span};

use super::{List, buffer, run, site};
use crate::fuzz::draw::Draw;
use crate::fuzz::edit;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("capacity-too-small", capacity),
    ("bucket-past-cache", bucket),
    ("past-rewritten", past_rewritten),
    ("gate-too-late", gate),
    ("stream-past-gate", stream_rows),
    ("sequences-mixed", sequences),
    ("slot-shared", slot_shared),
];

/// A cache with less room than the bucket takes, with its readers told so.
fn capacity(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.kind == BufferKind::Kv && b.shape.len() == 3 && b.shape[1] > 1)?;
    let end = p.bucket.last.saturating_add(u64::from(p.tokens));
    let to = end.min(p.buffers[i].shape[1]).saturating_sub(rng.range(1, 2)).max(1);
    if rng.chance(1, 2) {
        p.buffers[i].shape[1] = to;
        return Some(());
    }
    // Consistently, so that nothing but the room is wrong.
    for b in &mut p.buffers {
        if b.kind == BufferKind::Kv && b.shape.len() == 3 {
            b.shape[1] = to;
        }
    }
    for x in &mut p.instructions {
        if let Op::Attention(a) = &mut x.op {
            a.capacity = to;
        }
    }
    Some(())
}

/// Positions that the caches have no room for.
fn bucket(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.kind == BufferKind::Kv && b.shape.len() == 3)?;
    let capacity = p.buffers[i].shape[1];
    let last = capacity.saturating_sub(u64::from(p.tokens)) + rng.range(1, 3);
    (last > p.bucket.last).then(|| p.bucket.last = last)
}

/// An append that goes to a row before this step's, or after it.
fn past_rewritten(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s =
        site(p, rng, |_, a, b, write| write && b.kind == BufferKind::Kv && a.region.0.len() == 3)?;
    let tokens = i64::from(p.tokens);
    let rows = match rng.below(3) {
        0 => Span::pos(-1, tokens - 1),
        1 => Span { lo: Bound::At(0), hi: Bound::Pos(tokens) },
        _ => Span::pos(1, tokens + 1),
    };
    s.access(p).region.0[1] = rows;
    Some(())
}

fn gate(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let (s, r) = run(p, rng, |x| matches!(x.source, RunSource::Kv { .. }))?;
    // All runs of the stream, or the others' gates would make the rows visible.
    let by = rng.range(1, 3) as u32;
    let all = rng.chance(3, 4);
    for (i, run) in p.sms[s].stream.iter_mut().enumerate() {
        if let RunSource::Kv { gate, .. } = &mut run.source
            && (all || i == r)
        {
            *gate = if rng.chance(1, 10) { 0 } else { gate.saturating_add(by + u32::from(all)) };
        }
    }
    Some(())
}

/// A stream that reads rows no boundary has made visible.
fn stream_rows(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let (s, r) = run(p, rng, |x| matches!(x.source, RunSource::Kv { .. }))?;
    let tokens = i64::from(p.tokens);
    if let RunSource::Kv { region, .. } = &mut p.sms[s].stream[r].source {
        region.0.get_mut(1)?.hi = Bound::Pos(tokens);
    }
    Some(())
}

/// An instruction that serves two sequences.
fn sequences(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.kind == BufferKind::Kv)?;
    p.buffers[i].sequence += 1;
    let id = p.buffers[i].id;
    let other = p.buffers.iter().find(|b| b.kind == BufferKind::Kv && b.id != id).cloned();
    // Where nobody touches two caches, make somebody.
    if let Some(other) = other
        && rng.chance(1, 2)
    {
        let mine = |x: &amk_schedule_ir::Instruction| {
            super::is_opaque(x) && edit::accesses(x).any(|a| a.buffer == id)
        };
        if let Some(x) = super::instruction(p, rng, mine) {
            let region =
                amk_schedule_ir::Region(other.shape.iter().map(|_| Span::at(0, 0)).collect());
            let access = amk_schedule_ir::Access { buffer: other.id, region, phase: 0 };
            p.instructions[x].reads.push(access);
        }
    }
    Some(())
}

/// Two caches, or two heads of one, in one place.
fn slot_shared(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.kind == BufferKind::Kv)?;
    let mine = s.access(p).clone();
    let shape = p.buffers.get(mine.buffer.index())?.shape.clone();
    let other = site(p, rng, |_, a, b, write| {
        write && b.kind == BufferKind::Kv && b.shape == shape && *a != mine
    })?;
    *s.access(p) = other.access(p).clone();
    Some(())
}
