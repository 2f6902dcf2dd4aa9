//! Mutators of **D**: waits that may never be satisfied.

use amk_schedule_ir::{BufferSync, Counter, CounterId, Program, RunId, Signal, Wait};

use super::{List, instruction, site, works};
use crate::fuzz::draw::Draw;
use crate::fuzz::edit;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("queue-swapped", queue_swapped),
    ("queue-rotated", queue_rotated),
    ("signal-dropped", signal_dropped),
    ("threshold-raised", threshold_raised),
    ("wait-on-later", wait_on_later),
    ("stream-swapped", stream_swapped),
    ("ring-too-small", ring_small),
    ("packet-not-written", packet_dropped),
    ("packet-rewritten-early", packet_early),
    ("packet-read-early", packet_read_early),
];

/// Two entries of one queue change places.
fn queue_swapped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = rng.find(p.sms.len(), |s| (p.sms[s].queue.len() > 2).then_some(s))?;
    let queue = &mut p.sms[s].queue;
    let n = queue.len() - 1;
    let a = rng.below(n - 1);
    let b = if rng.chance(1, 2) { a + 1 } else { a + 1 + rng.below(n - a - 1) };
    queue.swap(a, b);
    Some(())
}

/// An entry moves to another place of its queue.
fn queue_rotated(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = rng.find(p.sms.len(), |s| (p.sms[s].queue.len() > 3).then_some(s))?;
    let queue = &mut p.sms[s].queue;
    let n = queue.len() - 1;
    let (a, b) = (rng.below(n), rng.below(n));
    let moved = queue.remove(a);
    queue.insert(b, moved);
    (a != b).then_some(())
}

/// A signal is left out; the counter may or may not know.
fn signal_dropped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| !x.signals.is_empty())?;
    let at = rng.below(p.instructions[i].signals.len());
    let s = p.instructions[i].signals.remove(at);
    if rng.chance(3, 4) {
        let c = p.counters.get_mut(s.counter.index())?;
        c.per_step = c.per_step.saturating_sub(s.amount);
    }
    Some(())
}

/// A wait for more signals than it had.
fn threshold_raised(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, |x| !x.waits.is_empty())?;
    let at = rng.below(p.instructions[i].waits.len());
    let w = &mut p.instructions[i].waits[at];
    let full = p.counters.get(w.counter.index())?.per_step;
    let more =
        if w.threshold < full && rng.chance(2, 3) { full } else { w.threshold.wrapping_add(1) };
    w.threshold = more;
    Some(())
}

/// A wait for an instruction that may come later, or for one's own signal.
fn wait_on_later(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = instruction(p, rng, works)?;
    let from = instruction(p, rng, works)?;
    let signalled = p.instructions[from].signals.first().copied();
    let (counter, threshold) = match signalled {
        Some(s) if rng.chance(1, 2) => (s.counter, p.counters.get(s.counter.index())?.per_step),
        _ => {
            let counter = CounterId(p.counters.len() as u32);
            p.counters.push(Counter { id: counter, name: "added".into(), init: 0, per_step: 1 });
            p.instructions[from].signals.push(Signal { counter, amount: 1 });
            (counter, 1)
        }
    };
    p.instructions[i].waits.push(Wait { counter, threshold });
    Some(())
}

/// Two runs change places in their stream; their consumers stay where they are.
fn stream_swapped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = rng.find(p.sms.len(), |s| (p.sms[s].stream.len() > 1).then_some(s))?;
    let sm = &mut p.sms[s];
    let n = sm.stream.len();
    let a = rng.below(n - 1);
    let b = if rng.chance(1, 2) { a + 1 } else { a + 1 + rng.below(n - a - 1) };
    sm.stream.swap(a, b);
    for (at, run) in [(a, b), (b, a)] {
        sm.stream[at].id = RunId(at as u32);
        debug_assert_ne!(at, run);
    }
    for id in &sm.queue {
        if let Some(x) = p.instructions.get_mut(id.index())
            && let Some(r) = &mut x.run
        {
            *r = match r.index() {
                i if i == a => RunId(b as u32),
                i if i == b => RunId(a as u32),
                _ => *r,
            };
        }
    }
    Some(())
}

/// A ring with fewer slots, windows cut to it; sometimes with consumers out of order too.
fn ring_small(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.sms.iter().all(|sm| sm.stream.is_empty()) {
        return None;
    }
    let slots = rng.range(0, u64::from(p.resources.ring_slots / 2)) as u32;
    p.resources.ring_slots = slots;
    for run in p.sms.iter_mut().flat_map(|sm| &mut sm.stream) {
        run.window = run.window.min(slots.max(1));
    }
    if rng.chance(1, 2) {
        let _ = stream_swapped(p, rng);
    }
    Some(())
}

/// Packets that are waited for and never come.
fn packet_dropped(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.sync == BufferSync::Packet)?;
    s.list(p).remove(s.at);
    Some(())
}

/// Somebody rewrites packets in the next phase, before or after their readers.
fn packet_early(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write && b.sync == BufferSync::Packet)?;
    let mut access = s.access(p).clone();
    access.phase += 1;
    p.epochs.per_step = p.epochs.per_step.max(access.phase + 1);
    p.epochs.tags = p.epochs.tags.max(2 * u64::from(p.epochs.per_step));
    let by = instruction(p, rng, |x| works(x) && super::is_opaque(x)).unwrap_or(s.instruction);
    p.instructions[by].writes.push(access);
    Some(())
}

/// A reader of packets moves to the front of a queue.
fn packet_read_early(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| !write && b.sync == BufferSync::Packet)?;
    let owner = edit::owners(p)[s.instruction]?;
    let queue = &mut p.sms[owner].queue;
    let at = queue.iter().position(|id| id.index() == s.instruction)?;
    if at == 0 {
        return None;
    }
    let id = queue.remove(at);
    queue.insert(rng.below(at), id);
    Some(())
}
