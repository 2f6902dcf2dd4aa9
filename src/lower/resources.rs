//! The last step of a lowering: chunk geometry and windows of every run, the shared-memory map, the
//! register budget, and the program around them.

use std::collections::BTreeMap;

use amk_schedule_ir::program::*;
use amk_schedule_ir::{Bucket, Target, tile_group};

use super::build::{Build, Phase};
use super::knobs::Plan;
use super::{Knobs, LowerError, Mode, Shape};
use crate::lowered::Lowered;

/// Bytes of step state and prefetched instructions.
const CONTROL_BYTES: u64 = 4096;
/// Bytes of the two mbarriers of a slot.
const MBARRIER_BYTES: u64 = 16;
/// Alignment of every area.
const ALIGN: u64 = 128;
/// Fewest slots that let a copy and a consumer overlap.
const MIN_SLOTS: u64 = 2;
/// Slots below which smaller slots are tried.
const FEW_SLOTS: u64 = 4;
/// Slot sizes tried in turn, bytes.
const SLOT_BYTES: [u64; 5] = [16384, 8192, 4096, 2048, 1024];
/// Barrier 0 for the block, one for the consumers.
const BARRIERS: u32 = 2;
/// Tags of packet epochs: all 32-bit values but 0.
const TAGS: u64 = u32::MAX as u64;
/// Most steps of one launch, so that 32-bit counters never come near their end.
const MOST_STEPS: u64 = 1 << 16;

/// How a run is cut into chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chunking {
    pub tiles: u32,
    pub blocks: u32,
}

impl Chunking {
    /// Chunks of at most `slot_bytes` for `tiles` tiles of `k_blocks` packed blocks: whole tiles where
    /// one fits, at most a tile group of `tokens` tokens, otherwise parts of K. Parts are as equal as they can be.
    pub fn new(tiles: u64, k_blocks: u64, slot_bytes: u64, tokens: u64) -> Chunking {
        let fit = (slot_bytes / BLOCK_BYTES).max(1);
        if k_blocks <= fit {
            let most = (fit / k_blocks).min(u64::from(tile_group(tokens)));
            let chunks = tiles.div_ceil(most);
            Chunking { tiles: tiles.div_ceil(chunks) as u32, blocks: k_blocks as u32 }
        } else {
            let chunks = k_blocks.div_ceil(fit);
            Chunking { tiles: 1, blocks: k_blocks.div_ceil(chunks) as u32 }
        }
    }

    fn bytes(self) -> u64 {
        u64::from(self.tiles) * u64::from(self.blocks) * BLOCK_BYTES
    }
}

/// Slots and their size, as far as they are decided.
#[derive(Clone, Copy, Debug)]
struct Ring {
    slots: u64,
    slot_bytes: u64,
}

pub(super) fn finish(
    mut build: Build,
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    plan: &Plan,
    bucket: Bucket,
    mode: Mode,
) -> Result<Lowered, LowerError> {
    let mut resources = Resources {
        consumer_warps: plan.consumer_warps,
        ring_slots: 0,
        slot_bytes: 0,
        registers: plan.registers,
        barriers: BARRIERS,
        shared: Vec::new(),
    };
    let areas = areas(&build, &resources, mode);
    let staging: u64 = areas.values().map(|bytes| bytes.next_multiple_of(ALIGN)).sum();
    let asked = plan.slot_bytes.map_or(SLOT_BYTES.to_vec(), |bytes| vec![bytes]);
    // The first size with enough slots, or else the one with most.
    let mut best: Option<(u64, Ring)> = None;
    for &bytes in &asked {
        let ring = ring(&build, plan, target, staging, bytes);
        if best.is_none_or(|(_, b)| ring.slots > b.slots) {
            best = Some((bytes, ring));
        }
        if ring.slots >= FEW_SLOTS.min(u64::from(plan.ring_slots)) {
            break;
        }
    }
    let Some((slot_bytes, ring)) = best.filter(|(_, r)| r.slots >= MIN_SLOTS) else {
        let slot_bytes = asked.last().copied().unwrap_or(BLOCK_BYTES);
        return Err(LowerError::SharedMemory {
            target: target.name.clone(),
            available: target.shared_per_block,
            staging,
            slots: MIN_SLOTS,
            slot_bytes,
            ring: MIN_SLOTS * slot_bytes + ALIGN,
        });
    };
    resources.ring_slots = ring.slots as u32;
    resources.slot_bytes = ring.slot_bytes;
    let windows = plan.windows_for(target, ring.slot_bytes, resources.ring_slots);
    for (sm, phases) in build.sms.iter_mut().zip(&build.phases) {
        for (run, phase) in sm.stream.iter_mut().zip(phases) {
            run.window = match phase {
                Phase::Dense => windows.0,
                Phase::Chain => windows.1,
                Phase::Head => windows.2,
            };
            if let RunSource::Weight { buffer, lo, hi, tiles, blocks } = &mut run.source {
                let k_blocks = k_blocks(&build.buffers[buffer.index()]);
                let chunking = Chunking::new(
                    (*hi - *lo).div_ceil(TILE_ROWS),
                    k_blocks,
                    slot_bytes,
                    plan.cx.tokens,
                );
                (*tiles, *blocks) = (chunking.tiles, chunking.blocks);
            }
        }
    }
    resources.shared = map(areas, ring);
    let program = Program {
        version: FORMAT_VERSION,
        name: shape.name.clone(),
        sm_arch: target.sm.clone(),
        bucket,
        tokens: plan.cx.tokens as u32,
        max_steps: max_steps(bucket, plan.cx.tokens),
        epochs: Epochs { per_step: 1, tags: TAGS },
        meta: meta(shape, target, knobs, mode),
        resources,
        buffers: build.buffers,
        counters: build.counters,
        boundary: build.boundary,
        sms: build.sms,
        instructions: build.instructions,
    };
    Ok(Lowered { program, recipes: build.recipes })
}

/// A decoding launch may walk through the bucket. A prefill step is a launch of its own: of the tokens
/// it would hand to the next step it makes only the first.
fn max_steps(bucket: Bucket, tokens: u64) -> u64 {
    if tokens > 1 { 1 } else { (bucket.last - bucket.first + 1).min(MOST_STEPS) }
}

fn k_blocks(buffer: &Buffer) -> u64 {
    weight_blocks(buffer).unwrap_or(1).max(1)
}

/// Every area but the ring and its barriers, as large as the instruction that needs most of it.
fn areas(build: &Build, resources: &Resources, mode: Mode) -> BTreeMap<Area, u64> {
    let mut areas = BTreeMap::from([(Area::Control, CONTROL_BYTES)]);
    for i in &build.instructions {
        // A product stages its first float input as the terms of the mode, and never fewer than the
        // input's own type has.
        let read = i.reads.iter().map(|a| build.buffers[a.buffer.index()].dtype);
        let input = read.filter(|d| *d != DType::U32).map(DType::terms).next().unwrap_or(1);
        for (area, bytes) in i.op.shared(build.cx, resources, mode.terms().max(input)) {
            let most = areas.entry(area).or_insert(0);
            *most = bytes.max(*most);
        }
    }
    areas.retain(|_, bytes| *bytes > 0);
    areas
}

/// The ring that fits beside `staging` bytes with chunks of at most `slot_bytes`.
fn ring(build: &Build, plan: &Plan, target: &Target, staging: u64, slot_bytes: u64) -> Ring {
    let mut largest = BLOCK_BYTES;
    for run in build.sms.iter().flat_map(|sm| &sm.stream) {
        if let RunSource::Weight { buffer, lo, hi, .. } = run.source {
            let k_blocks = k_blocks(&build.buffers[buffer.index()]);
            let tiles = (hi - lo).div_ceil(TILE_ROWS);
            largest =
                largest.max(Chunking::new(tiles, k_blocks, slot_bytes, plan.cx.tokens).bytes());
        }
    }
    let room = target.shared_per_block.saturating_sub(staging);
    let mut slots = (room / (largest + MBARRIER_BYTES)).min(u64::from(plan.ring_slots));
    while slots > 0 && (slots * MBARRIER_BYTES).next_multiple_of(ALIGN) + slots * largest > room {
        slots -= 1;
    }
    Ring { slots, slot_bytes: largest }
}

/// The map: the ring first, then its barriers, then the areas in their own order.
fn map(areas: BTreeMap<Area, u64>, ring: Ring) -> Vec<SharedArea> {
    let first =
        [(Area::Ring, ring.slots * ring.slot_bytes), (Area::Mbarrier, ring.slots * MBARRIER_BYTES)];
    let mut offset = 0u64;
    first
        .into_iter()
        .chain(areas)
        .map(|(area, bytes)| {
            let at = offset;
            offset = (at + bytes).next_multiple_of(ALIGN);
            SharedArea { area, offset: at, bytes }
        })
        .collect()
}

/// Provenance: what the program was made from.
fn meta(shape: &Shape, target: &Target, knobs: &Knobs, mode: Mode) -> BTreeMap<String, String> {
    // Plain structs of numbers: their JSON cannot fail.
    let json = |value: serde_json::Result<String>| value.unwrap_or_default();
    BTreeMap::from([
        ("sizes".to_owned(), json(serde_json::to_string(&shape.sizes))),
        ("target".to_owned(), target.name.clone()),
        ("knobs".to_owned(), json(serde_json::to_string(knobs))),
        ("mode".to_owned(), json(serde_json::to_string(&mode)).trim_matches('"').to_owned()),
    ])
}
