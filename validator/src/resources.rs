//! **O, static resources.** Exact statement, against the target record:
//!
//! - The program is for the target's architecture and has at most one SM per multiprocessor.
//! - A block has at least one consumer warp, and its threads, registers (rounded up to the allocation
//!   unit of 8) and named barriers (at least barrier 0) are within the limits of a thread, a block and a multiprocessor.
//! - The areas of the shared-memory map start on multiples of 16, are disjoint, are there once each, and
//!   end within a block's limit, with what the system reserves within the multiprocessor's.
//! - The ring area holds all slots and the mbarrier area two 8-byte words per slot, if the program streams
//!   anything. Every area holds what each op needs of it; the local area holds, for each SM, one float32
//!   for every `local` element the SM touches: every element of a buffer it touches whose regions follow the position.

use std::collections::BTreeMap;

use amk_schedule_ir::{Area, BufferSync, Footprint, Instruction, OpContext, Program, Target};

use crate::fault::{Fault, Faults, Invariant, Place};
use crate::geometry::{self, Rect};
use crate::model::Model;

/// Registers are given to a thread in units of this.
const REGISTER_UNIT: u64 = 8;
/// Alignment of areas and slots: one bulk copy.
const ALIGN: u64 = 16;

fn fault(faults: &mut Faults, place: Place, message: String) {
    faults.push(Fault::new(Invariant::O, place, message));
}

/// Bytes the map gives to each area.
pub(crate) struct Areas(BTreeMap<Area, u64>);

impl Areas {
    pub fn new(p: &Program) -> Areas {
        let mut sizes = BTreeMap::new();
        for a in &p.resources.shared {
            let size = sizes.entry(a.area).or_insert(0u64);
            *size = size.saturating_add(a.bytes);
        }
        Areas(sizes)
    }

    /// Bytes of an area; 0 if the map has none.
    pub fn get(&self, area: Area) -> u64 {
        self.0.get(&area).copied().unwrap_or(0)
    }
}

/// Judges the program as a whole, but for the local area; works on any program.
pub(crate) fn check(p: &Program, areas: &Areas, target: &Target, faults: &mut Faults) {
    let r = &p.resources;
    let place = Place::Resources;
    if p.sm_arch != target.sm {
        fault(
            faults,
            Place::Program,
            format!(
                "the program is for {}, but target {} is {}; lower it for that target",
                p.sm_arch, target.name, target.sm
            ),
        );
    }
    if p.sms.len() as u64 > u64::from(target.sm_count) {
        fault(
            faults,
            Place::Program,
            format!(
                "the grid has {} blocks, but {} has {} multiprocessors and all blocks must be resident",
                p.sms.len(),
                target.name,
                target.sm_count
            ),
        );
    }
    if r.consumer_warps == 0 {
        fault(faults, place, "a block has 0 consumer warps, but needs at least 1".into());
    }
    if r.threads() > u64::from(target.threads_per_block) {
        fault(
            faults,
            place,
            format!(
                "a block has {} threads ({} consumer warps and the producer), but {} allows {}",
                r.threads(),
                r.consumer_warps,
                target.name,
                target.threads_per_block
            ),
        );
    }
    if r.registers == 0 || r.registers > target.registers_per_thread {
        fault(
            faults,
            place,
            format!(
                "a thread has {} registers, but {} allows 1 to {}",
                r.registers, target.name, target.registers_per_thread
            ),
        );
    }
    let registers =
        u64::from(r.registers).next_multiple_of(REGISTER_UNIT).saturating_mul(r.threads());
    if registers > u64::from(target.registers_per_sm) {
        fault(
            faults,
            place,
            format!(
                "a block takes {registers} registers, but a multiprocessor of {} has {}",
                target.name, target.registers_per_sm
            ),
        );
    }
    if r.barriers == 0 || r.barriers > target.barriers {
        fault(
            faults,
            place,
            format!(
                "a block uses {} named barriers, barrier 0 included, but {} allows 1 to {}",
                r.barriers, target.name, target.barriers
            ),
        );
    }
    map(p, target, faults);
    ring(p, areas, faults);
}

fn map(p: &Program, target: &Target, faults: &mut Faults) {
    let place = Place::Resources;
    let mut areas = p.resources.shared.clone();
    areas.sort_by_key(|a| (a.offset, a.bytes));
    let mut seen = BTreeMap::new();
    let (mut end, mut last) = (0u64, None);
    for a in &areas {
        if !a.offset.is_multiple_of(ALIGN) {
            fault(
                faults,
                place,
                format!(
                    "shared area {:?} starts at {}, which is not a multiple of {ALIGN}",
                    a.area, a.offset
                ),
            );
        }
        if seen.insert(a.area, a).is_some() {
            fault(faults, place, format!("shared area {:?} is there twice; merge the two", a.area));
        }
        if a.bytes > 0 {
            if let Some(before) = last
                && a.offset < end
            {
                fault(
                    faults,
                    place,
                    format!(
                        "shared area {:?} starts at {}, inside area {before:?}, which ends at {end}",
                        a.area, a.offset
                    ),
                );
            }
            end = end.max(a.offset.saturating_add(a.bytes));
            last = Some(a.area);
        }
    }
    if end > target.shared_per_block {
        fault(
            faults,
            place,
            format!(
                "the shared-memory map ends at {end}, but a block of {} has {} bytes",
                target.name, target.shared_per_block
            ),
        );
    }
    let with_reserved = end.saturating_add(target.reserved_shared);
    if with_reserved > target.shared_per_sm {
        fault(
            faults,
            place,
            format!(
                "a block takes {with_reserved} bytes of shared memory, {} of them reserved by the system, but a multiprocessor of {} has {}",
                target.reserved_shared, target.name, target.shared_per_sm
            ),
        );
    }
}

fn ring(p: &Program, areas: &Areas, faults: &mut Faults) {
    let r = &p.resources;
    if p.sms.iter().any(|sm| !sm.stream.is_empty()) {
        let slots = u64::from(r.ring_slots);
        if !r.slot_bytes.is_multiple_of(ALIGN) {
            fault(
                faults,
                Place::Resources,
                format!(
                    "a ring slot has {} bytes, which is not a multiple of {ALIGN}",
                    r.slot_bytes
                ),
            );
        }
        for (area, need) in [
            (Area::Ring, slots.saturating_mul(r.slot_bytes)),
            (Area::Mbarrier, slots.saturating_mul(16)),
        ] {
            if areas.get(area) < need {
                fault(
                    faults,
                    Place::Resources,
                    format!(
                        "{slots} ring slots of {} bytes need {need} bytes of shared area {area:?}, which has {}",
                        r.slot_bytes,
                        areas.get(area)
                    ),
                );
            }
        }
    }
}

/// Judges what one instruction needs of the areas.
pub(crate) fn instruction(
    p: &Program,
    areas: &Areas,
    i: usize,
    x: &Instruction,
    footprint: Option<&Footprint>,
    faults: &mut Faults,
) {
    let Some(f) = footprint else { return };
    // The staged input decides how many bf16 terms a row takes.
    let staged = f.reads.iter().position(|o| matches!(o.role, "hidden" | "input" | "embedding"));
    let input = staged.and_then(|at| p.buffer(x.reads.get(at)?.buffer));
    let terms = input.map_or(1, |b| b.dtype.terms());
    let cx = OpContext { tokens: u64::from(p.tokens) };
    for (area, need) in x.op.shared(cx, &p.resources, terms) {
        let has = areas.get(area);
        if has < need {
            fault(
                faults,
                Place::Instruction(i),
                format!(
                    "instr {i} ({}) needs {need} bytes of shared area {area:?}, which has {has}",
                    x.op.name()
                ),
            );
        }
    }
}

/// Judges the local area.
pub(crate) fn check_local(m: &Model, areas: &Areas, faults: &mut Faults) {
    let mut touched: BTreeMap<(u32, u32), Vec<u32>> = BTreeMap::new();
    for node in 0..m.boundary() {
        let sm = m.sm.get(node as usize).copied().unwrap_or(0);
        for acc in m.accesses(node) {
            if m.sync(acc.class) == Some(BufferSync::Local) {
                let buffer = m.class(acc.class).map_or(0, |c| c.buffer);
                let classes = touched.entry((sm, buffer)).or_default();
                if classes.last() != Some(&acc.class) {
                    classes.push(acc.class);
                }
            }
        }
    }
    let mut need: BTreeMap<u32, u128> = BTreeMap::new();
    for ((sm, buffer), mut classes) in touched {
        classes.sort_unstable();
        classes.dedup();
        // What is empty at every position is no element.
        classes.retain(|&c| (0..m.pieces(c)).any(|p| !geometry::is_empty(&m.rect(c, p))));
        if classes.is_empty() {
            continue;
        }
        // A symbolic buffer is counted whole: its ranks have no sizes.
        let constant = m
            .buffers
            .get(buffer as usize)
            .is_some_and(|b| b.pieces.iter().all(|p| !p.is_symbolic()));
        let whole = || {
            m.program
                .buffers
                .get(buffer as usize)
                .map_or(0, |b| b.shape.iter().fold(1u128, |n, &x| n.saturating_mul(u128::from(x))))
        };
        let rects: Vec<Rect> = classes.iter().map(|&c| m.rect(c, 0)).collect();
        let elements = if constant {
            geometry::union_volume(&rects).unwrap_or_else(|_| whole())
        } else {
            whole()
        };
        let sum = need.entry(sm).or_default();
        // The kernel keeps four bytes an element, whatever narrower type the buffer names.
        let bytes = m.program.buffers.get(buffer as usize).map_or(4, |b| b.dtype.bytes().max(4));
        *sum = sum.saturating_add(elements.saturating_mul(u128::from(bytes)));
    }
    let has = u128::from(areas.get(Area::Local));
    for (sm, need) in need {
        if need > has {
            fault(
                faults,
                Place::Sm(sm as usize),
                format!(
                    "sm {sm} keeps {need} bytes of local elements, but shared area Local has {has}"
                ),
            );
        }
    }
}
