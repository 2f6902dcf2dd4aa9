//! Runs of smith programs, and the shared memory that everything takes.

use amk_schedule_ir::{
    Area, BLOCK_BYTES, Bound, BufferSync, Region, Run, RunId, RunSource, SharedArea, Span,
    TILE_ROWS, weight_blocks,
};

use super::Smith;
use super::pools::PoolKind;
use crate::fuzz::draw::Draw;

impl Smith<'_> {
    /// One more run in the stream of the draft's SM, for the draft.
    pub(super) fn run(&mut self) -> Option<RunId> {
        let streamed = |k| matches!(k, PoolKind::Weight | PoolKind::Append);
        let n = self.pools.len();
        let pools = &self.pools;
        let pool = self.rng.find(n, |i| streamed(pools[i].kind).then_some(i))?;
        let source = match self.pools[pool].kind {
            PoolKind::Weight => self.weight_run(pool),
            _ => self.kv_run(pool),
        }?;
        let stream = &mut self.p.sms[self.now.sm].stream;
        let id = RunId(stream.len() as u32);
        let window = 1 + self.rng.below(self.p.resources.ring_slots as usize) as u32;
        stream.push(Run { id, source, window });
        Some(id)
    }

    fn weight_run(&mut self, pool: usize) -> Option<RunSource> {
        let buffer = &self.p.buffers[self.pools[pool].buffer.index()];
        let k_blocks = weight_blocks(buffer)?;
        let tiles_of = buffer.shape[0].div_ceil(TILE_ROWS);
        let (id, rows) = (buffer.id, buffer.shape[0]);
        let first = self.rng.range(0, tiles_of - 1);
        let end = self.rng.range(first + 1, tiles_of.min(first + 4));
        let fit = self.p.resources.slot_bytes / BLOCK_BYTES;
        let (tiles, blocks) = if k_blocks <= fit && self.rng.chance(1, 2) {
            (self.rng.range(1, fit / k_blocks), k_blocks)
        } else {
            (1, self.rng.range(1, k_blocks.min(fit)))
        };
        Some(RunSource::Weight {
            buffer: id,
            lo: first * TILE_ROWS,
            hi: (end * TILE_ROWS).min(rows),
            tiles: tiles as u32,
            blocks: blocks as u32,
        })
    }

    /// Past rows behind gate 1, or fewer of them behind a later gate.
    fn kv_run(&mut self, pool: usize) -> Option<RunSource> {
        let sequence = self.pools[pool].sequence;
        if !self.takes_sequence(sequence) {
            return None;
        }
        let heads = self.pools[pool].tiles.len() as u64;
        let buffer = &self.p.buffers[self.pools[pool].buffer.index()];
        let (id, width, bytes) = (buffer.id, buffer.shape[2], buffer.dtype.bytes());
        let tokens = u64::from(self.p.tokens);
        let mut gate = 1;
        let mut span = self.past_rows();
        let late = self.rng.range(2, 3);
        if self.rng.chance(1, 4) && self.p.bucket.first >= (late - 1) * tokens {
            gate = late as u32;
            let back = ((late - 1) * tokens) as i64;
            span = Span { lo: Bound::At(0), hi: Bound::Pos(-back) };
        }
        let head = self.rng.range(0, heads - 1);
        let fit = self.p.resources.slot_bytes / (width * bytes);
        let rows = self.rng.range(fit.min(4), fit.min(32)) as u32;
        let region = Region(vec![Span::at(head, head + 1), span, Span::at(0, width)]);
        Some(RunSource::Kv { buffer: id, region, rows, gate })
    }

    /// The shared-memory map.
    pub(super) fn resources(&mut self) {
        let local: u64 = self
            .p
            .buffers
            .iter()
            .filter(|b| b.sync == BufferSync::Local)
            .map(|b| 4 * b.shape.iter().product::<u64>())
            .sum();
        let r = &mut self.p.resources;
        let slots = u64::from(r.ring_slots);
        let mut offset = 0;
        let mut areas = vec![(Area::Local, local), (Area::Control, 64)];
        if self.p.sms.iter().any(|sm| !sm.stream.is_empty()) {
            areas.extend([(Area::Ring, slots * r.slot_bytes), (Area::Mbarrier, slots * 16)]);
        }
        self.rng.shuffle(&mut areas);
        for (area, bytes) in areas.into_iter().filter(|a| a.1 > 0) {
            r.shared.push(SharedArea { area, offset, bytes });
            offset = (offset + bytes).next_multiple_of(16);
        }
    }
}
