//! Buffers of smith programs, cut into tiles, with who touched each tile last.

use amk_schedule_ir::{
    Access, Bound, Buffer, BufferId, BufferKind, BufferSync, DType, Region, Span,
};

use super::Smith;
use crate::fuzz::draw::Draw;

/// What a pool is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolKind {
    /// Plain activations, rewritten as often as one likes.
    Plain,
    /// Plain activations whose tiles are parts of the past positions.
    Past,
    /// Packets, each tile once per phase.
    Packet,
    /// Memory of one SM per tile.
    Local,
    /// Results, each tile once.
    Output,
    /// The keys of the boundary.
    Keys,
    /// The rows of this step of a cache, one tile per head.
    Append,
    /// Token ids.
    Tokens,
    /// Read alone.
    Constant,
    /// Streamed alone.
    Weight,
}

/// A buffer in tiles along its last dimension (heads for caches).
pub(super) struct Pool {
    pub kind: PoolKind,
    pub buffer: BufferId,
    /// Width of a tile.
    pub width: u64,
    pub tiles: Vec<Tile>,
    pub sequence: u32,
}

/// Who touched a tile.
#[derive(Clone, Default)]
pub(super) struct Tile {
    pub writer: Option<usize>,
    pub readers: Vec<usize>,
    pub phase: u32,
    /// The SM of a local tile.
    pub sm: usize,
}

impl Smith<'_> {
    /// Makes the buffers.
    pub(super) fn furnish(&mut self, instructions: usize, argmax: bool) {
        let scale = match instructions {
            0..=8 => 1,
            9..=200 => 2,
            _ => 2 + (instructions as f64).sqrt() as usize / 8,
        };
        let tiles = |s: &mut Smith<'_>| 1 + s.rng.below(if instructions > 8 { 6 } else { 3 });
        for _ in 0..=self.rng.below(2 * scale) {
            let n = tiles(self);
            self.pool(PoolKind::Plain, n);
        }
        for _ in 0..self.rng.below(2 * scale + 1) {
            let n = tiles(self);
            self.pool(PoolKind::Packet, n);
        }
        for _ in 0..self.rng.below(scale + 1) {
            let n = tiles(self);
            self.pool(PoolKind::Local, n);
        }
        if self.rng.chance(1, 4) {
            let n = tiles(self);
            self.pool(PoolKind::Past, n);
        }
        for _ in 0..self.rng.below(scale) {
            let n = tiles(self);
            self.pool(PoolKind::Output, n);
        }
        for _ in 0..self.rng.below(scale + 1) {
            let n = 1 + self.rng.below(2);
            self.pool(PoolKind::Append, n);
        }
        for _ in 0..self.rng.below(3) {
            self.pool(PoolKind::Constant, 1);
        }
        for _ in 0..self.rng.below(3) {
            self.pool(PoolKind::Weight, 1);
        }
        // Ids of later steps come from the boundary, one a step.
        if argmax {
            let n = tiles(self);
            self.pool(PoolKind::Keys, n);
            self.pool(PoolKind::Tokens, 1);
        } else if self.p.max_steps == 1 {
            self.pool(PoolKind::Tokens, 1);
        }
    }

    fn pool(&mut self, kind: PoolKind, tiles: usize) {
        use BufferKind as K;
        use BufferSync::{Local, Packet, Plain};
        let float = self.rng.pick(&[DType::Bf16, DType::F16, DType::F32]);
        let any = self.rng.pick(&[DType::Bf16, DType::F32, DType::U32]);
        let (n, end) = (tiles as u64, self.p.bucket.last + u64::from(self.p.tokens));
        let mut width = 2 * self.rng.range(1, 4);
        let lead: Vec<u64> = (0..self.rng.below(3)).map(|_| self.rng.range(1, 3)).collect();
        let tail = |width: u64| [lead.clone(), vec![n * width]].concat();
        let sequence = if kind == PoolKind::Append { self.rng.below(2) as u32 } else { 0 };
        let (buffer_kind, sync, dtype, shape) = match kind {
            PoolKind::Plain => (K::Activation, Plain, any, tail(width)),
            PoolKind::Past => (K::Activation, Plain, any, vec![end + 2]),
            PoolKind::Packet => (K::Activation, Packet, any, tail(width)),
            PoolKind::Local => (K::Activation, Local, DType::F32, tail(width)),
            PoolKind::Output => (K::Output, Plain, any, tail(width)),
            PoolKind::Keys => {
                width = 1;
                (K::Activation, Plain, DType::Key, vec![n])
            }
            PoolKind::Append => {
                let spare = self.rng.range(0, 9);
                width = 1;
                (K::Kv, Plain, float, vec![n, end + spare, 8 * self.rng.range(1, 2)])
            }
            PoolKind::Tokens => (K::Tokens, Plain, DType::U32, vec![end + 1]),
            PoolKind::Constant => (K::Constant, Plain, float, tail(width)),
            PoolKind::Weight => {
                let (rows, k) = (self.rng.range(8, 64), self.rng.range(16, 96));
                (K::Weight, Plain, float, vec![rows, k])
            }
        };
        let buffer = BufferId(self.p.buffers.len() as u32);
        let name = format!("{kind:?} {}", buffer.0).to_lowercase();
        let sms = self.p.sms.len();
        let tiles =
            (0..tiles).map(|_| Tile { sm: self.rng.below(sms), ..Tile::default() }).collect();
        self.p.buffers.push(Buffer {
            id: buffer,
            name,
            kind: buffer_kind,
            sync,
            dtype,
            shape,
            sequence,
        });
        self.pools.push(Pool { kind, buffer, width, tiles, sequence });
    }

    /// Tiles `[from, to)` of a pool as an access.
    fn access(&self, pool: usize, from: usize, to: usize, phase: u32) -> Access {
        let pool = &self.pools[pool];
        let shape = &self.p.buffers[pool.buffer.index()].shape;
        let mut region = Region::whole(shape);
        let (lo, hi) = (from as u64, to as u64);
        match pool.kind {
            PoolKind::Append => {
                region.0[0] = Span::at(lo, hi);
                region.0[1] = Span::pos(0, i64::from(self.p.tokens));
            }
            PoolKind::Past => {
                let parts = pool.tiles.len() as u32;
                let cut = |i: usize| match i {
                    0 => Bound::At(0),
                    i if i == pool.tiles.len() => Bound::Pos(0),
                    i => Bound::Split { part: i as u32, parts },
                };
                region.0[0] = Span { lo: cut(from), hi: cut(to) };
            }
            _ => {
                let last = region.0.len() - 1;
                region.0[last] = Span::at(lo * pool.width, hi * pool.width);
            }
        }
        Access { buffer: pool.buffer, region, phase }
    }

    /// Reads something that is there.
    pub(super) fn read(&mut self) {
        if self.pools.is_empty() {
            return;
        }
        let pool = self.rng.below(self.pools.len());
        match self.pools[pool].kind {
            PoolKind::Weight => {}
            PoolKind::Constant => {
                let a = self.part_of(self.pools[pool].buffer);
                self.now.reads.push(a);
            }
            PoolKind::Tokens => {
                // Within one step the host's ids are all there; later steps have one new id each.
                if self.p.tokens == 1 || self.p.max_steps == 1 {
                    let region = Region(vec![Span::pos(0, i64::from(self.p.tokens))]);
                    let buffer = self.pools[pool].buffer;
                    self.now.reads.push(Access { buffer, region, phase: 0 });
                }
            }
            PoolKind::Append if self.rng.chance(2, 3) => self.read_past(pool),
            PoolKind::Output => {}
            kind => {
                let Some((from, to)) = self.run_of_tiles(pool, |s, t, first| {
                    t.writer.is_some()
                        && (kind != PoolKind::Packet || first.phase == t.phase)
                        && (kind != PoolKind::Local || t.sm == s.now.sm)
                }) else {
                    return;
                };
                if kind == PoolKind::Append && !self.one_sequence(pool) {
                    return;
                }
                let mut phase = 0;
                let id = self.p.instructions.len();
                for tile in &mut self.pools[pool].tiles[from..to] {
                    if kind == PoolKind::Packet {
                        phase = tile.phase;
                    } else {
                        self.now.after.extend(tile.writer);
                    }
                    tile.readers.push(id);
                }
                let a = self.access(pool, from, to, phase);
                self.now.reads.push(a);
            }
        }
    }

    /// Tiles in a row that qualify, each compared with the first too.
    fn run_of_tiles(
        &mut self,
        pool: usize,
        fits: impl Fn(&Self, &Tile, &Tile) -> bool,
    ) -> Option<(usize, usize)> {
        let n = self.pools[pool].tiles.len();
        let from = self.rng.below(n);
        let tiles = &self.pools[pool].tiles;
        let long = tiles[from..].iter().take_while(|t| fits(self, t, &tiles[from])).count();
        (long > 0).then(|| (from, from + 1 + self.rng.below(long)))
    }

    /// May the draft touch this cache?
    fn one_sequence(&mut self, pool: usize) -> bool {
        let mine = self.pools[pool].sequence;
        *self.now.sequence.get_or_insert(mine) == mine
    }

    /// The sequence of the draft allows this one.
    pub(super) fn takes_sequence(&mut self, sequence: u32) -> bool {
        *self.now.sequence.get_or_insert(sequence) == sequence
    }

    /// Rows of the past of a cache.
    fn read_past(&mut self, pool: usize) {
        if !self.one_sequence(pool) {
            return;
        }
        let heads = self.pools[pool].tiles.len() as u64;
        let head = self.rng.range(0, heads - 1);
        let rows = self.past_rows();
        let buffer = self.pools[pool].buffer;
        let width = self.p.buffers[buffer.index()].shape[2];
        let region = Region(vec![Span::at(head, head + 1), rows, Span::at(0, width)]);
        self.now.reads.push(Access { buffer, region, phase: 0 });
    }

    /// Rows below `pos`.
    pub(super) fn past_rows(&mut self) -> Span {
        let parts = self.rng.range(1, 4) as u32;
        let part = self.rng.below(parts as usize) as u32;
        let cut = |i: u32| match i {
            0 => Bound::At(0),
            i if i == parts => Bound::Pos(0),
            i => Bound::Split { part: i, parts },
        };
        match self.rng.below(4) {
            0 => Span { lo: Bound::At(0), hi: Bound::Clip(self.rng.range(0, self.p.bucket.last)) },
            1 => Span::at(0, self.rng.range(0, self.p.bucket.first)),
            _ => Span { lo: cut(part), hi: cut(part + 1) },
        }
    }

    /// A rectangle somewhere in a buffer.
    fn part_of(&mut self, buffer: BufferId) -> Access {
        let shape = self.p.buffers[buffer.index()].shape.clone();
        let spans = shape.iter().map(|&n| {
            let lo = self.rng.range(0, n - 1);
            Span::at(lo, self.rng.range(lo + 1, n))
        });
        Access { buffer, region: Region(spans.collect()), phase: 0 }
    }

    /// Writes something that may be written.
    pub(super) fn write(&mut self) {
        if self.pools.is_empty() {
            return;
        }
        let pool = self.rng.below(self.pools.len());
        if self.now.written.contains(&pool) {
            return;
        }
        let phases = self.p.epochs.per_step;
        let tiles = match self.pools[pool].kind {
            PoolKind::Tokens | PoolKind::Constant | PoolKind::Weight => None,
            PoolKind::Plain | PoolKind::Past => self.run_of_tiles(pool, |_, _, _| true),
            PoolKind::Local => self.run_of_tiles(pool, |s, t, _| t.sm == s.now.sm),
            PoolKind::Output | PoolKind::Append | PoolKind::Keys => {
                self.run_of_tiles(pool, |_, t, _| t.writer.is_none())
            }
            PoolKind::Packet => self.run_of_tiles(pool, |_, t, first| {
                t.writer.is_some() == first.writer.is_some()
                    && t.phase == first.phase
                    && (t.writer.is_none() || t.phase + 1 < phases)
            }),
        };
        if self.pools[pool].kind == PoolKind::Append && !self.one_sequence(pool) {
            return;
        }
        if let Some((from, to)) = tiles {
            self.write_tiles(pool, from, to);
        }
    }

    /// Writes these tiles, after everybody who touched them.
    pub(super) fn write_tiles(&mut self, pool: usize, from: usize, to: usize) {
        let id = self.p.instructions.len();
        let packet = self.pools[pool].kind == PoolKind::Packet;
        let phases = self.p.epochs.per_step;
        let first = &self.pools[pool].tiles[from];
        let phase = match (packet, first.writer) {
            (false, _) => 0,
            (true, Some(_)) => first.phase + 1,
            (true, None) => self.rng.below(phases as usize) as u32,
        };
        let a = self.access(pool, from, to, phase);
        for tile in &mut self.pools[pool].tiles[from..to] {
            self.now.after.extend(tile.writer);
            self.now.after.append(&mut tile.readers);
            (tile.writer, tile.phase) = (Some(id), phase);
        }
        self.now.after.retain(|&d| d != id);
        self.now.writes.push(a);
        self.now.written.push(pool);
    }
}
