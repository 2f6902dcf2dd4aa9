//! Mutators of **R**: accesses that lose what ordered them.

use amk_schedule_ir::{BufferKind, BufferSync, Program, RunId, Span};

use super::{List, buffer, instruction, site, works};
use crate::fuzz::draw::Draw;
use crate::fuzz::edit;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("wait-dropped", wait_dropped),
    ("threshold-lowered", threshold_lowered),
    ("wait-redirected", wait_redirected),
    ("signal-moved", signal_moved),
    ("signal-redirected", signal_redirected),
    ("buffers-aliased", aliased),
    ("tiles-overlapped", overlapped),
    ("tile-written-by-another", written_by_another),
    ("instruction-moved", moved_to_sm),
    ("packets-made-plain", made_plain),
    ("append-read-back", read_back),
];

fn wait_dropped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| !x.waits.is_empty())?;
    let waits = &mut p.instructions[i].waits;
    if rng.chance(1, 3) {
        waits.clear();
    } else {
        waits.remove(rng.below(waits.len()));
    }
    Some(())
}

fn threshold_lowered(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| x.waits.iter().any(|w| w.threshold > 1))?;
    let w = p.instructions[i].waits.iter_mut().find(|w| w.threshold > 1)?;
    w.threshold = if rng.chance(2, 3) { w.threshold - 1 } else { rng.range(1, w.threshold - 1) };
    Some(())
}

fn wait_redirected(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.counters.len() < 2 {
        return None;
    }
    let i = instruction(p, rng, |x| !x.waits.is_empty())?;
    let at = rng.below(p.instructions[i].waits.len());
    let to = rng.below(p.counters.len());
    let (id, full) = (p.counters[to].id, p.counters[to].per_step);
    let w = &mut p.instructions[i].waits[at];
    if w.counter == id {
        return None;
    }
    w.counter = id;
    w.threshold = w.threshold.min(full);
    Some(())
}

/// Another instruction signals instead.
fn signal_moved(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| !x.signals.is_empty())?;
    let to = instruction(p, rng, works)?;
    if to == i {
        return None;
    }
    let at = rng.below(p.instructions[i].signals.len());
    let s = p.instructions[i].signals.remove(at);
    p.instructions[to].signals.push(s);
    Some(())
}

/// A signal goes to another counter; both still add up.
fn signal_redirected(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.counters.len() < 2 {
        return None;
    }
    let i = instruction(p, rng, |x| !x.signals.is_empty())?;
    let to = rng.below(p.counters.len());
    let s = p.instructions[i].signals.first_mut()?;
    let from = s.counter.index();
    if from == to {
        return None;
    }
    s.counter = p.counters[to].id;
    let amount = s.amount;
    p.counters[to].per_step = p.counters[to].per_step.wrapping_add(amount);
    let c = p.counters.get_mut(from)?;
    c.per_step = c.per_step.saturating_sub(amount);
    Some(())
}

/// Two buffers become one: reuse that nobody ordered, a cache slot used twice.
fn aliased(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let written = [BufferKind::Activation, BufferKind::Kv, BufferKind::Output];
    let a = buffer(p, rng, |b| written.contains(&b.kind))?;
    let twin = |i: usize| {
        let (x, y) = (&p.buffers[a], &p.buffers[i]);
        let same = x.kind == y.kind && x.sync == y.sync && x.dtype == y.dtype && x.shape == y.shape;
        (i != a && same).then_some(i)
    };
    let b = rng.find(p.buffers.len(), twin)?;
    let (from, to) = (p.buffers[a].id, p.buffers[b].id);
    for x in &mut p.instructions {
        for access in edit::accesses_mut(x) {
            if access.buffer == from {
                access.buffer = to;
            }
        }
    }
    for run in p.sms.iter_mut().flat_map(|sm| &mut sm.stream) {
        let id = edit::run_buffer(run);
        if *id == from {
            *id = to;
        }
    }
    Some(())
}

/// A written tile reaches into the one beside it.
fn overlapped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let inner = |s: &Span, n: u64| {
        s.constant_len().is_some() && (s.lo.eval(0) > 1 || s.hi.eval(0) + 2 <= i128::from(n))
    };
    let s = site(p, rng, |_, a, b, write| {
        write
            && b.kind != BufferKind::Kv
            && a.region.0.last().zip(b.shape.last()).is_some_and(|(s, &n)| inner(s, n))
    })?;
    let buffer = s.access(p).buffer;
    let n = *p.buffers.get(buffer.index())?.shape.last()?;
    let span = s.access(p).region.0.last_mut()?;
    if span.lo.eval(0) > 1 && (rng.chance(1, 2) || span.hi.eval(0) + 2 > i128::from(n)) {
        span.lo = super::bounds::moved(span.lo, -2)?;
    } else {
        span.hi = super::bounds::moved(span.hi, 2)?;
    }
    Some(())
}

/// Somebody else writes a tile as well.
fn written_by_another(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| {
        write && b.sync == BufferSync::Plain && b.kind == BufferKind::Activation
    })?;
    let access = s.access(p).clone();
    let i = instruction(p, rng, |x| works(x) && super::is_opaque(x))?;
    if i == s.instruction {
        return None;
    }
    p.instructions[i].writes.push(access);
    Some(())
}

/// An instruction moves to another SM, with its run.
fn moved_to_sm(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.sms.len() < 2 {
        return None;
    }
    let i = instruction(p, rng, works)?;
    let from = edit::owners(p)[i]?;
    let to = rng.below(p.sms.len());
    if to == from {
        return None;
    }
    let id = p.instructions[i].id;
    p.sms[from].queue.retain(|x| *x != id);
    let at = rng.below(p.sms[to].queue.len());
    p.sms[to].queue.insert(at, id);
    let Some(run) = p.instructions[i].run else { return Some(()) };
    if run.index() >= p.sms[from].stream.len() {
        return Some(());
    }
    // The run goes where the instruction stands among the consumers of the new stream.
    let mut moved = p.sms[from].stream.remove(run.index());
    let before = p.sms[to].queue[..at].iter();
    let slot = before
        .filter(|x| p.instructions.get(x.index()).is_some_and(|x| x.run.is_some()))
        .count()
        .min(p.sms[to].stream.len());
    for (sm, edge, up) in [(from, run.index(), false), (to, slot, true)] {
        for x in &p.sms[sm].queue {
            if let Some(x) = p.instructions.get_mut(x.index())
                && x.id != id
                && let Some(r) = &mut x.run
            {
                match up {
                    true if r.index() >= edge => r.0 += 1,
                    false if r.index() > edge => r.0 -= 1,
                    _ => {}
                }
            }
        }
    }
    moved.id = RunId(slot as u32);
    p.sms[to].stream.insert(slot, moved);
    p.instructions[i].run = Some(RunId(slot as u32));
    for sm in [from, to] {
        for (r, run) in p.sms[sm].stream.iter_mut().enumerate() {
            run.id = RunId(r as u32);
        }
    }
    Some(())
}

/// Packets lose their epochs, and with them what their readers waited for.
fn made_plain(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.sync == BufferSync::Packet)?;
    p.buffers[i].sync = BufferSync::Plain;
    let id = p.buffers[i].id;
    for x in &mut p.instructions {
        for a in edit::accesses_mut(x) {
            if a.buffer == id {
                a.phase = 0;
            }
        }
    }
    Some(())
}

/// A reader of the past takes the rows of this step as well.
fn read_back(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s =
        site(p, rng, |_, a, b, write| !write && b.kind == BufferKind::Kv && a.region.0.len() == 3)?;
    let tokens = i64::from(p.tokens);
    let rows = &mut s.access(p).region.0[1];
    rows.hi = Span::pos(0, tokens).hi;
    Some(())
}
