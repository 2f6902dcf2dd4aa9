//! Mutators of **E**: epochs that repeat, or are not those that are written.

use amk_schedule_ir::{BufferSync, Program};

use super::{List, site};
use crate::fuzz::draw::Draw;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("tags-too-few", tags),
    ("phases-folded", folded),
    ("phase-of-write-wrong", write_phase),
    ("phase-of-read-wrong", read_phase),
    ("epochs-overflow", overflow),
];

fn packets(p: &Program) -> bool {
    p.buffers.iter().any(|b| b.sync == BufferSync::Packet)
}

/// So few tags that an old word may look new.
fn tags(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if !packets(p) {
        return None;
    }
    let enough = 2 * u64::from(p.epochs.per_step);
    p.epochs.tags = rng.range(0, enough.saturating_sub(1));
    Some(())
}

/// As many tags as phases, so that a phase of this step looks like that of the last.
fn folded(p: &mut Program, _: &mut Rng) -> Option<()> {
    if !packets(p) {
        return None;
    }
    p.epochs.per_step = p.epochs.per_step.max(2);
    p.epochs.tags = u64::from(p.epochs.per_step);
    Some(())
}

fn wrong(p: &mut Program, rng: &mut Rng, writes: bool) -> Option<()> {
    let s = site(p, rng, |_, _, b, write| write == writes && b.sync == BufferSync::Packet)?;
    let phase = s.access(p).phase;
    let other = if phase > 0 && rng.chance(1, 2) { phase - 1 } else { phase + 1 };
    s.access(p).phase = other;
    if rng.chance(3, 4) {
        p.epochs.per_step = p.epochs.per_step.max(other + 1);
        p.epochs.tags = p.epochs.tags.max(2 * u64::from(p.epochs.per_step));
    }
    Some(())
}

fn write_phase(p: &mut Program, rng: &mut Rng) -> Option<()> {
    wrong(p, rng, true)
}

fn read_phase(p: &mut Program, rng: &mut Rng) -> Option<()> {
    wrong(p, rng, false)
}

/// More epochs in a launch than a 64-bit count holds.
fn overflow(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if !packets(p) {
        return None;
    }
    if rng.chance(1, 2) {
        p.max_steps = u64::MAX / rng.range(1, 2);
    } else {
        p.epochs.tags = rng.pick(&[1 << 32, u64::MAX]);
    }
    Some(())
}
