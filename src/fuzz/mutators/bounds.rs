//! Mutators of **B**: regions that leave their buffers, and accesses to what is not theirs.

use amk_schedule_ir::{Bound, BufferKind, BufferSync, Op, Program, Source, Span};

use super::{List, buffer, is_opaque, site, works};
use crate::fuzz::draw::Draw;
use crate::fuzz::edit;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("region-shifted", shifted),
    ("region-grown", grown),
    ("read-only-written", read_only),
    ("packet-word-cut", word_cut),
    ("local-shared", local_shared),
    ("buffer-shrunk", buffer_shrunk),
    ("footprint-smaller", footprint),
    ("packet-moves", packet_moves),
    ("head-past-table", head_past_table),
];

/// Moves a bound by `by`, if it is of a kind that can be.
pub(super) fn moved(b: Bound, by: i64) -> Option<Bound> {
    Some(match b {
        Bound::At(x) => Bound::At(x.checked_add_signed(by)?),
        Bound::Pos(o) => Bound::Pos(o.checked_add(by)?),
        Bound::Clip(x) => Bound::Clip(x.checked_add_signed(by)?),
        Bound::Split { .. } => return None,
    })
}

/// A region moved along one dimension, out of its buffer more often than not.
fn shifted(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, a, _, _| !a.region.0.is_empty())?;
    let b = p.instructions[s.instruction].clone();
    let a = if s.write { &b.writes[s.at] } else { &b.reads[s.at] };
    let d = rng.below(a.region.0.len());
    let extent = *p.buffers.get(a.buffer.index())?.shape.get(d)? as i64;
    let Span { lo, hi } = a.region.0[d];
    let by = rng.pick(&[1, 2, 8, extent, -1, extent / 2 + 1]);
    let span = Span { lo: moved(lo, by)?, hi: moved(hi, by)? };
    s.access(p).region.0[d] = span;
    Some(())
}

/// A region that ends past its buffer.
fn grown(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, a, _, _| !a.region.0.is_empty())?;
    let buffer = s.access(p).buffer;
    let shape = p.buffers.get(buffer.index())?.shape.clone();
    let d = rng.below(shape.len());
    let past = Bound::At(shape.get(d)?.wrapping_add(rng.pick(&[1, 2, 64])));
    s.access(p).region.0.get_mut(d)?.hi = past;
    Some(())
}

/// A write to weights, constants or token ids.
fn read_only(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let kinds = [BufferKind::Weight, BufferKind::Constant, BufferKind::Tokens];
    let target = buffer(p, rng, |b| kinds.contains(&b.kind))?;
    let i = super::instruction(p, rng, works)?;
    let access = amk_schedule_ir::Access {
        buffer: p.buffers[target].id,
        region: amk_schedule_ir::Region(
            p.buffers[target].shape.iter().map(|_| Span::at(0, 1)).collect(),
        ),
        phase: 0,
    };
    p.instructions[i].writes.push(access);
    Some(())
}

/// A packet region that follows the position.
fn packet_moves(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, a, b, _| b.sync == BufferSync::Packet && !a.region.0.is_empty())?;
    let a = s.access(p);
    let d = rng.below(a.region.0.len());
    let by = rng.below(3) as i64;
    a.region.0[d] = if rng.chance(1, 2) {
        Span { lo: Bound::Pos(by), hi: Bound::Pos(by + 1) }
    } else {
        Span { lo: a.region.0[d].lo, hi: Bound::Pos(by + 1) }
    };
    Some(())
}

/// An embedding table with fewer rows than the head has ids.
fn head_past_table(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let head = super::instruction(p, rng, |x| matches!(x.op, Op::NormLmHead(_)))?;
    let Op::NormLmHead(op) = &p.instructions[head].op else { return None };
    let less = op.vocab.checked_sub(1 + rng.below(8) as u64).filter(|n| *n > 0)?;
    let mut tables = Vec::new();
    for x in &mut p.instructions {
        let at = match &mut x.op {
            Op::Embed(op) => &mut op.vocab,
            Op::NormQkv(op) if op.source == Source::Embedding => &mut op.vocab,
            _ => continue,
        };
        *at = less;
        let table = x.reads.get_mut(1)?;
        table.region.0.first_mut()?.hi = Bound::At(less);
        tables.push(table.buffer);
    }
    for id in tables {
        *p.buffers.get_mut(id.index())?.shape.first_mut()? = less;
    }
    Some(())
}

/// Half a packet word.
fn word_cut(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, a, b, _| {
        b.sync == BufferSync::Packet && b.dtype.per_word() > 1 && a.region.0.last().is_some()
    })?;
    let low = rng.chance(1, 2);
    let span = s.access(p).region.0.last_mut()?;
    if low {
        span.lo = moved(span.lo, 1)?;
    } else {
        span.hi = moved(span.hi, -1)?;
    }
    Some(())
}

/// Private memory of one SM touched by another.
fn local_shared(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, _| b.sync == BufferSync::Local)?;
    let access = s.access(p).clone();
    let owner = edit::owners(p);
    let mine = owner[s.instruction];
    let other = rng.find(p.instructions.len(), |i| {
        (owner[i] != mine && works(&p.instructions[i]) && is_opaque(&p.instructions[i]))
            .then_some(i)
    });
    match other {
        Some(i) => p.instructions[i].reads.push(access),
        // Ops with fixed operands: the rows of another SM.
        None => {
            let foreign = site(p, rng, |x, a, b, _| {
                b.sync == BufferSync::Local
                    && a.buffer == access.buffer
                    && a.region != access.region
                    && owner.get(x.id.index()).copied().flatten() != mine
            })?;
            let region = foreign.access(p).region.clone();
            s.access(p).region = region;
        }
    }
    Some(())
}

fn buffer_shrunk(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.shape.iter().any(|&n| n > 1))?;
    let shape = &mut p.buffers[i].shape;
    let d = rng.find(shape.len(), |d| (shape[d] > 1).then_some(d))?;
    shape[d] -= if rng.chance(1, 2) { 1 } else { shape[d] / 2 };
    Some(())
}

/// An op that declares less than it touches.
fn footprint(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let long = |s: &Span| s.constant_len().is_some_and(|n| n > 1);
    let s = site(p, rng, |x, a, _, _| !is_opaque(x) && a.region.0.iter().any(long))?;
    let spans = &mut s.access(p).region.0;
    let d = rng.find(spans.len(), |d| long(&spans[d]).then_some(d))?;
    if rng.chance(1, 2) {
        spans[d].lo = moved(spans[d].lo, 1)?;
    } else {
        spans[d].hi = moved(spans[d].hi, -1)?;
    }
    Some(())
}
