//! Mutators of **O**: blocks and shared memory beyond the part, areas too small for what they hold.

use amk_schedule_ir::op::BoundaryArrive;
use amk_schedule_ir::{Area, InstrId, Instruction, Op, Program, Sm, SmId};

use super::List;
use crate::fuzz::draw::Draw;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("area-too-small", area_small),
    ("area-missing", area_missing),
    ("areas-overlap", areas_overlap),
    ("map-past-block", map_past_block),
    ("block-too-large", block),
    ("grid-too-large", grid),
    ("target-mismatch", target),
    ("ring-past-area", ring_past_area),
];

/// Areas that something needs.
fn needed(area: Area) -> bool {
    area != Area::Control
}

fn area_small(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let shared = &mut p.resources.shared;
    let i =
        rng.find(shared.len(), |i| (needed(shared[i].area) && shared[i].bytes > 0).then_some(i))?;
    shared[i].bytes = if rng.chance(1, 2) { shared[i].bytes - 1 } else { shared[i].bytes / 2 };
    Some(())
}

fn area_missing(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let shared = &mut p.resources.shared;
    let i = rng.find(shared.len(), |i| needed(shared[i].area).then_some(i))?;
    shared.remove(i);
    Some(())
}

/// An area in the place of another, there twice, or off its alignment.
fn areas_overlap(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let shared = &mut p.resources.shared;
    if shared.len() < 2 {
        return None;
    }
    let i = rng.below(shared.len());
    let other = shared[(i + 1) % shared.len()];
    match rng.below(3) {
        0 => shared[i].offset = other.offset,
        1 => shared[i].area = other.area,
        _ => shared[i].offset += 8,
    }
    Some(())
}

fn map_past_block(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let shared = &mut p.resources.shared;
    if shared.is_empty() {
        return None;
    }
    let i = rng.below(shared.len());
    if rng.chance(1, 2) {
        shared[i].offset = 1 << 20;
    } else {
        shared[i].offset = u64::MAX / 16 * 16;
    }
    Some(())
}

fn block(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let r = &mut p.resources;
    match rng.below(5) {
        0 => r.consumer_warps = 0,
        1 => r.consumer_warps = rng.pick(&[32, 1 << 20, u32::MAX]),
        2 => r.registers = rng.pick(&[0, 256, u32::MAX]),
        3 => (r.registers, r.consumer_warps) = (255, 31),
        _ => r.barriers = rng.pick(&[0, 17, u32::MAX]),
    }
    Some(())
}

/// More blocks than the part has multiprocessors; each does nothing but arrive.
fn grid(p: &mut Program, rng: &mut Rng) -> Option<()> {
    for _ in 0..rng.range(3, 5) {
        let id = InstrId(p.instructions.len() as u32);
        let sm = SmId(p.sms.len() as u32);
        p.instructions.push(Instruction {
            id,
            op: Op::Boundary(BoundaryArrive {}),
            reads: Vec::new(),
            writes: Vec::new(),
            waits: Vec::new(),
            signals: Vec::new(),
            run: None,
        });
        p.sms.push(Sm { id: sm, queue: vec![id], stream: Vec::new() });
    }
    Some(())
}

fn target(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let others = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_120", "sm_90", ""];
    let to = rng.find(others.len(), |i| (others[i] != p.sm_arch).then_some(others[i]))?;
    p.sm_arch = to.to_owned();
    Some(())
}

/// A ring with more or larger slots than its area holds.
fn ring_past_area(p: &mut Program, rng: &mut Rng) -> Option<()> {
    if p.sms.iter().all(|sm| sm.stream.is_empty()) {
        return None;
    }
    let r = &mut p.resources;
    match rng.below(3) {
        0 => r.ring_slots += 1,
        1 => r.slot_bytes *= 2,
        _ => r.slot_bytes += 8,
    }
    Some(())
}
