//! Ids, queues, op parameters, operands, counters and the boundary.

use amk_schedule_ir::limits::{MAX_ELEMENTS, MAX_EXTENT, MAX_RANK, MAX_TOKENS};
use amk_schedule_ir::{
    Access, Bound, BoundaryOp, BufferKind, BufferSync, DType, FORMAT_VERSION, Instruction, Op,
    Program, Region, Source, Span,
};

use super::context;
use crate::breach::Breaches;
use crate::breach::Invariant::{B, D, M, S};

const FLOATS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

pub(super) fn check(p: &Program, out: &mut Breaches) {
    header(p, out);
    buffers(p, out);
    queues(p, out);
    for (i, x) in p.instructions.iter().enumerate() {
        instruction(p, i, x, out);
    }
    boundary(p, out);
    counters(p, out);
    vocabulary(p, out);
}

/// Every id that a head or a draw can choose is a row of each table that ids index.
fn vocabulary(p: &Program, out: &mut Breaches) {
    for (i, x) in p.instructions.iter().enumerate() {
        let ids = match &x.op {
            Op::NormLmHead(op) => op.vocab,
            Op::Sample(op) => op.vocab,
            _ => continue,
        };
        let known = p.instructions.iter().all(|y| match &y.op {
            Op::Embed(op) => op.vocab >= ids,
            Op::NormQkv(op) if op.source == Source::Embedding => op.vocab >= ids,
            _ => true,
        });
        out.demand(known, B, "vocabulary", || format!("instr {i}"));
    }
}

fn header(p: &Program, out: &mut Breaches) {
    let here = || "the program".to_owned();
    out.demand(p.version == FORMAT_VERSION, S, "version", here);
    out.demand((1..=MAX_TOKENS).contains(&p.tokens), S, "tokens", here);
    let bucket = p.bucket.first <= p.bucket.last && p.bucket.last <= MAX_EXTENT;
    out.demand(bucket, S, "bucket", here);
    out.demand(p.max_steps >= 1, S, "steps", here);
    out.demand(p.epochs.per_step >= 1, S, "phases", here);
    out.demand(!p.sms.is_empty(), S, "no-sm", here);
    // Tags are epochs modulo their number.
    out.demand(p.epochs.tags >= 1, crate::Invariant::E, "tags", here);
    // An epoch count that overflows would start over.
    let epochs = u128::from(p.epochs.per_step) * u128::from(p.max_steps);
    out.demand(epochs < 1 << 63, crate::Invariant::E, "epoch-overflow", here);
}

fn buffers(p: &Program, out: &mut Breaches) {
    for (i, b) in p.buffers.iter().enumerate() {
        let here = || format!("buffer {i}");
        out.demand(b.id.index() == i, S, "id", here);
        out.demand((1..=MAX_RANK).contains(&b.shape.len()), S, "buffer-rank", here);
        let volume = b.shape.iter().fold(1u128, |n, &x| n.saturating_mul(u128::from(x)));
        let extents = b.shape.iter().all(|&x| (1..=MAX_EXTENT).contains(&x));
        out.demand(extents && volume <= u128::from(MAX_ELEMENTS), S, "buffer-extent", here);
        let layout = match b.kind {
            BufferKind::Weight => b.shape.len() == 2 && FLOATS.contains(&b.dtype),
            BufferKind::Kv => b.shape.len() == 3 && FLOATS.contains(&b.dtype),
            BufferKind::Tokens => b.shape.len() == 1 && b.dtype == DType::U32,
            _ => true,
        };
        out.demand(layout, S, "buffer-layout", here);
        if b.sync != BufferSync::Plain {
            out.demand(b.kind == BufferKind::Activation, M, "sync-kind", here);
        }
        if b.sync == BufferSync::Packet {
            out.demand(b.dtype.per_word() > 0, M, "packet-type", here);
            // With one tag an old word looks new; the tag field is 32 bits, and 0 is never stored.
            let tags = (2..=u64::from(u32::MAX)).contains(&p.epochs.tags);
            out.demand(tags, crate::Invariant::E, "tags", || "the program".to_owned());
        }
    }
}

fn queues(p: &Program, out: &mut Breaches) {
    let mut queued = vec![0usize; p.instructions.len()];
    for (s, sm) in p.sms.iter().enumerate() {
        let here = || format!("sm {s}");
        out.demand(sm.id.index() == s, S, "id", here);
        for id in &sm.queue {
            match queued.get_mut(id.index()) {
                Some(n) => *n += 1,
                None => out.demand(false, S, "queue-unknown", here),
            }
        }
        let is_boundary = |id: &amk_schedule_ir::InstrId| matches!(p.instruction(*id), Some(x) if matches!(x.op, Op::Boundary(_)));
        let last = sm.queue.last().is_some_and(is_boundary);
        let count = sm.queue.iter().filter(|id| is_boundary(id)).count();
        out.demand(last && count == 1, S, "queue-boundary", here);
    }
    for (i, (x, n)) in p.instructions.iter().zip(&queued).enumerate() {
        out.demand(x.id.index() == i, S, "id", || format!("instr {i}"));
        out.demand(*n == 1, S, "queued-once", || format!("instr {i}"));
    }
}

fn instruction(p: &Program, i: usize, x: &Instruction, out: &mut Breaches) {
    let here = || format!("instr {i}");
    for a in x.reads.iter().chain(&x.writes) {
        access(p, a, &here, out);
    }
    let sane = x.op.check().is_ok();
    out.demand(sane, S, "op-parameter", here);
    if !sane || matches!(x.op, Op::Opaque(_)) {
        return;
    }
    let f = x.op.footprint(context(p));
    for (declared, wanted) in [(&x.reads, &f.reads), (&x.writes, &f.writes)] {
        out.demand(declared.len() == wanted.len(), S, "operand-count", here);
        for (a, o) in declared.iter().zip(wanted) {
            let Some(b) = p.buffer(a.buffer) else { continue };
            let fits = o.kinds.contains(&b.kind)
                && o.dtypes.contains(&b.dtype)
                && b.shape.len() == o.shape.len()
                && b.shape.iter().zip(&o.shape).all(|(n, want)| want.is_none_or(|w| w == *n));
            out.demand(fits, S, "operand", || format!("`{}` of instr {i}", o.role));
            out.demand(a.region == o.region, crate::Invariant::B, "footprint", || {
                format!("`{}` of instr {i}", o.role)
            });
        }
    }
}

/// The access can be resolved: buffer, rank, bounds, phase.
fn access(p: &Program, a: &Access, here: &dyn Fn() -> String, out: &mut Breaches) {
    let Some(b) = p.buffer(a.buffer) else {
        out.demand(false, S, "access-buffer", here);
        return;
    };
    out.demand(a.region.rank() == b.shape.len(), S, "access-rank", here);
    for s in &a.region.0 {
        out.demand(bound(s.lo) && bound(s.hi), S, "access-bound", here);
    }
    match b.sync {
        BufferSync::Packet => out.demand(a.phase < p.epochs.per_step, S, "access-phase", here),
        _ => out.demand(a.phase == 0, M, "access-phase", here),
    }
}

/// Is the bound one the IR can mean?
pub(super) fn bound(b: Bound) -> bool {
    match b {
        Bound::At(x) | Bound::Clip(x) => x <= MAX_EXTENT,
        Bound::Pos(o) => o.unsigned_abs() <= MAX_EXTENT,
        Bound::Split { part, parts } => parts > 0 && part <= parts,
    }
}

fn boundary(p: &Program, out: &mut Breaches) {
    let here = || "the boundary".to_owned();
    let b = &p.boundary;
    for a in b.reads.iter().chain(&b.writes) {
        access(p, a, &here, out);
        let packet = p.buffer(a.buffer).is_some_and(|b| b.sync == BufferSync::Packet);
        out.demand(!packet, M, "boundary-packet", here);
    }
    if b.op == BoundaryOp::Argmax {
        let kind = |a: &Access| p.buffer(a.buffer).map(|x| (x.kind, x.dtype));
        let next = i64::from(p.tokens);
        // Somebody has to be chosen.
        let any = |a: &Access| {
            let known =
                |s: &Span| matches!((s.lo, s.hi), (Bound::At(lo), Bound::At(hi)) if lo < hi);
            a.region.0.iter().all(known)
        };
        let read = b.reads.len() == 1
            && any(&b.reads[0])
            && kind(&b.reads[0]) == Some((BufferKind::Activation, DType::Key));
        let write = b.writes.len() == 1
            && kind(&b.writes[0]).is_some_and(|k| k.0 == BufferKind::Tokens)
            && b.writes[0].region == Region(vec![Span::pos(next, next + 1)]);
        out.demand(read && write, S, "boundary-argmax", here);
    }
}

fn counters(p: &Program, out: &mut Breaches) {
    let mut sums = vec![0u128; p.counters.len()];
    for (i, x) in p.instructions.iter().enumerate() {
        for s in &x.signals {
            match sums.get_mut(s.counter.index()) {
                Some(sum) => *sum += u128::from(s.amount),
                None => out.demand(false, S, "signal-counter", || format!("instr {i}")),
            }
        }
        for w in &x.waits {
            match p.counters.get(w.counter.index()) {
                // A step starts from the base and adds `per_step`: more is not reached in the step.
                Some(c) => {
                    let reached = w.threshold <= c.per_step;
                    out.demand(reached, D, "threshold", || format!("instr {i}"));
                }
                None => out.demand(false, S, "wait-counter", || format!("instr {i}")),
            }
        }
    }
    for (i, (c, sum)) in p.counters.iter().zip(&sums).enumerate() {
        let here = || format!("counter {i}");
        out.demand(c.id.index() == i, S, "id", here);
        out.demand(c.init == 0, S, "counter-start", here);
        out.demand(*sum == u128::from(c.per_step), S, "counter-sum", here);
        // A counter is a 32-bit word.
        let top = u128::from(c.per_step).saturating_mul(u128::from(p.max_steps));
        out.demand(top < 1 << 32, S, "counter-width", here);
    }
}
