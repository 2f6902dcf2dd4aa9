//! Mutators of **C**: values that are read and were never written, results left out or written twice.

use amk_schedule_ir::{
    Access, Bound, Boundary, BoundaryOp, BufferKind, BufferSync, Op, Program, Region, Span,
};

use super::{List, buffer, is_opaque, site, works};
use crate::fuzz::draw::Draw;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("write-dropped", write_dropped),
    ("write-shrunk", write_shrunk),
    ("read-widened", read_widened),
    ("read-added", read_added),
    ("append-dropped", append_dropped),
    ("output-written-twice", output_twice),
    ("output-left-out", output_left_out),
    ("token-not-fed", token_not_fed),
];

fn write_dropped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |x, _, _, write| write && is_opaque(x))
        .or_else(|| site(p, rng, |_, _, _, write| write))?;
    s.list(p).remove(s.at);
    Some(())
}

/// A tile that writes less than it should.
fn write_shrunk(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let long = |s: &Span| s.constant_len().is_some_and(|n| n > 1);
    let s = site(p, rng, |_, a, _, write| write && a.region.0.iter().any(long))?;
    let word = {
        let buffer = s.access(p).buffer;
        let b = p.buffers.get(buffer.index())?;
        if b.sync == BufferSync::Packet { b.dtype.per_word().max(1) } else { 1 }
    };
    let spans = &mut s.access(p).region.0;
    let d = rng.find(spans.len(), |d| long(&spans[d]).then_some(d))?;
    let by = word.min(spans[d].constant_len()?) as i64;
    if rng.chance(1, 2) {
        spans[d].lo = super::bounds::moved(spans[d].lo, by)?;
    } else {
        spans[d].hi = super::bounds::moved(spans[d].hi, -by)?;
    }
    Some(())
}

/// A read of more than was asked for.
fn read_widened(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, a, b, write| {
        !write && b.kind == BufferKind::Activation && a.region != Region::whole(&b.shape)
    })?;
    let buffer = s.access(p).buffer;
    let shape = p.buffers.get(buffer.index())?.shape.clone();
    s.access(p).region = Region::whole(&shape);
    Some(())
}

/// A read at any time of anything that is computed.
fn read_added(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = super::instruction(p, rng, |x| works(x) && is_opaque(x))?;
    let b = buffer(p, rng, |b| b.kind == BufferKind::Activation)?;
    let region = Region::whole(&p.buffers[b].shape);
    let access = Access { buffer: p.buffers[b].id, region, phase: 0 };
    p.instructions[i].reads.push(access);
    Some(())
}

/// A cache row nobody appends.
fn append_dropped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.kind == BufferKind::Kv)?;
    let x = &mut p.instructions[s.instruction];
    if let Op::Attention(a) = &mut x.op {
        a.append = false;
        x.writes.drain(..2.min(x.writes.len()));
    } else {
        x.writes.remove(s.at);
    }
    Some(())
}

fn output_twice(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.kind == BufferKind::Output)?;
    let access = s.access(p).clone();
    let x = super::instruction(p, rng, |x| works(x) && is_opaque(x)).unwrap_or(s.instruction);
    p.instructions[x].writes.push(access);
    Some(())
}

/// A result nobody writes.
fn output_left_out(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.kind == BufferKind::Output)?;
    if rng.chance(1, 2) {
        s.list(p).remove(s.at);
    } else {
        let span = s.access(p).region.0.last_mut()?;
        span.hi = super::bounds::moved(span.hi, -1)?;
    }
    Some(())
}

/// A next step without its token.
fn token_not_fed(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.boundary.op == BoundaryOp::Plain {
        return None;
    }
    if rng.chance(1, 2) {
        p.boundary = Boundary { op: BoundaryOp::Plain, reads: Vec::new(), writes: Vec::new() };
    } else {
        let span = p.boundary.writes.first_mut()?.region.0.first_mut()?;
        let by = rng.pick(&[-1, 1]);
        for b in [&mut span.lo, &mut span.hi] {
            if let Bound::Pos(o) = b {
                *o += by;
            }
        }
    }
    Some(())
}
