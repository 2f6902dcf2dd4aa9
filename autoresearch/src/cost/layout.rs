//! A program as flat arrays, at one position: what the simulation runs over.

use std::collections::HashMap;

use amk_schedule_ir::op::Op;
use amk_schedule_ir::program::{
    BLOCK_BYTES, BoundaryOp, BufferKind, BufferSync, Instruction, Program, Run, RunSource,
    TILE_ROWS, weight_blocks,
};
use amk_schedule_ir::{BufferId, CounterId, Target, tile_group};
use serde::Serialize;

use super::{Calibration, CostError, OpCost, Options};

/// Most chunks of a step that are simulated.
const MAX_CHUNKS: u64 = 20_000_000;

/// What no step can beat, microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Floor {
    /// Reading every weight and cache byte of the step once at the part's bandwidth.
    pub bandwidth_us: f64,
    /// The SM with most to read, reading its own stream as fast as one SM can.
    pub share_us: f64,
    /// Bytes of a step.
    pub bytes: f64,
}

impl Floor {
    /// The higher of the two.
    pub fn us(self) -> f64 {
        self.bandwidth_us.max(self.share_us)
    }
}

/// What is there once `need` was contributed: packets of a region by their writers, or a counter's threshold.
pub(super) struct Latch {
    pub need: u64,
    pub counter: bool,
    pub writers: u32,
    /// (SM, place in its queue).
    pub readers: Vec<(u32, u32)>,
}

/// An instruction in its queue.
pub(super) struct Step {
    pub id: u32,
    /// Latches it waits for.
    pub needs: u32,
    /// (latch, amount) it contributes to when it ends.
    pub feeds: Vec<(u32, u64)>,
    /// Chunks it consumes, and how many of them it takes into registers while it waits.
    pub chunks: u32,
    pub takes: u32,
    /// Published bytes it reads.
    pub input_bytes: f64,
    /// SMs that read the same.
    pub sharers: f64,
    /// Cache bytes it is the first to read.
    pub kv_bytes: f64,
    /// From the input to the first chunk, and from the last product to the end, ns.
    pub before_ns: f64,
    pub after_ns: f64,
    /// Consuming one byte of chunks, ns.
    pub byte_ns: f64,
    pub boundary: bool,
}

/// The chunks that share a window.
#[derive(Clone, Copy)]
pub(super) struct RunPlan {
    pub end: u32,
    pub window: u32,
    /// Boundaries that must have passed: none, or those of all steps but the last `gate - 1`.
    pub gate: Option<u32>,
}

pub(super) struct SmPlan {
    pub queue: Vec<Step>,
    /// Bytes by chunk.
    pub chunks: Vec<u32>,
    pub runs: Vec<RunPlan>,
}

pub(super) struct Layout {
    pub sms: Vec<SmPlan>,
    pub latches: Vec<Latch>,
    pub ring_slots: usize,
    pub floor: Floor,
    /// Bytes the boundary's last arriver reads.
    pub boundary_bytes: f64,
}

/// A rectangle at one position.
type Rect = Vec<(i64, i64)>;

fn rect(region: &amk_schedule_ir::Region, position: u64) -> Rect {
    let clamp = |x: i128| x.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    region.0.iter().map(|s| s.eval(position)).map(|(a, b)| (clamp(a), clamp(b))).collect()
}

fn overlap(a: &Rect, b: &Rect) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(x, y)| x.0.max(y.0) < x.1.min(y.1))
}

fn volume(r: &Rect) -> f64 {
    r.iter().map(|(lo, hi)| (hi - lo).max(0) as f64).product()
}

struct Writer {
    sm: u32,
    place: u32,
    rect: Rect,
}

/// Regions of packets that instructions read: the latch of each, by buffer and phase.
type Wanted = HashMap<(BufferId, u32), Vec<(Rect, u32)>>;

struct Builder<'a> {
    program: &'a Program,
    position: u64,
    taken: u32,
    calibration: &'a Calibration,
    latches: Vec<Latch>,
    wanted: Wanted,
    thresholds: HashMap<CounterId, Vec<(u64, u32)>>,
    writers: HashMap<(BufferId, u32), Vec<Writer>>,
    seen_kv: HashMap<(BufferId, Rect), ()>,
}

impl Layout {
    pub fn new(
        program: &Program,
        target: &Target,
        calibration: &Calibration,
        options: Options,
    ) -> Result<Layout, CostError> {
        let position = options.position;
        let mut b = Builder {
            program,
            position,
            taken: options.taken,
            calibration,
            latches: Vec::new(),
            wanted: HashMap::new(),
            thresholds: HashMap::new(),
            writers: HashMap::new(),
            seen_kv: HashMap::new(),
        };
        let mut sms = Vec::with_capacity(program.sms.len());
        let mut total = 0;
        for s in 0..program.sms.len() {
            let sm = b.sm(s, &mut total)?;
            sms.push(sm);
        }
        b.connect(&mut sms);
        for latch in &b.latches {
            let sharers = latch.readers.len() as f64;
            for &(s, place) in &latch.readers {
                let step = &mut sms[s as usize].queue[place as usize];
                step.sharers = step.sharers.max(sharers);
            }
        }
        let streamed = |sm: &SmPlan| sm.chunks.iter().map(|&c| f64::from(c)).sum::<f64>();
        let kv: f64 = sms.iter().flat_map(|s| &s.queue).map(|s| s.kv_bytes).sum();
        let bytes = sms.iter().map(streamed).sum::<f64>() + kv;
        let most = sms.iter().map(streamed).fold(0.0, f64::max);
        let boundary_bytes = match program.boundary.op {
            BoundaryOp::Plain => 0.0,
            BoundaryOp::Argmax => program
                .boundary
                .reads
                .iter()
                .map(|a| b.bytes(a.buffer, &rect(&a.region, position)))
                .sum(),
        };
        Ok(Layout {
            sms,
            latches: b.latches,
            ring_slots: program.resources.ring_slots.max(1) as usize,
            floor: Floor {
                bandwidth_us: bytes / target.bandwidth() * 1e6,
                share_us: most / (calibration.sm_gbps * 1e3),
                bytes,
            },
            boundary_bytes,
        })
    }
}

impl Builder<'_> {
    fn bytes(&self, buffer: BufferId, r: &Rect) -> f64 {
        self.program.buffer(buffer).map_or(0.0, |b| volume(r) * b.dtype.bytes() as f64)
    }

    fn sm(&mut self, s: usize, total: &mut u64) -> Result<SmPlan, CostError> {
        let program = self.program;
        let sm = &program.sms[s];
        let (mut chunks, mut runs) = (Vec::new(), Vec::with_capacity(sm.stream.len()));
        let mut counts = Vec::with_capacity(sm.stream.len());
        for run in &sm.stream {
            let before = chunks.len();
            let gate = self.chunks(&run.source, total, &mut chunks).ok_or_else(|| {
                if *total > MAX_CHUNKS {
                    return CostError::TooLarge { chunks: *total, limit: MAX_CHUNKS };
                }
                CostError::Malformed { what: format!("{} of SM {s} has no chunks", run.id) }
            })?;
            counts.push((chunks.len() - before) as u32);
            runs.push(RunPlan { end: chunks.len() as u32, window: run.window.max(1), gate });
        }
        let mut queue = Vec::with_capacity(sm.queue.len());
        for (place, id) in sm.queue.iter().enumerate() {
            let i = program.instruction(*id).ok_or_else(|| CostError::Malformed {
                what: format!("SM {s} queues {id}, which does not exist"),
            })?;
            let chunks = match i.run {
                Some(run) => *counts.get(run.index()).ok_or_else(|| CostError::Malformed {
                    what: format!("{id} consumes {run} of SM {s}, which does not exist"),
                })?,
                None => 0,
            };
            queue.push(self.step(s as u32, place as u32, i, chunks));
        }
        Ok(SmPlan { queue, chunks, runs })
    }

    /// Whether chunks of an instruction can be taken into registers: each is a part of a tile, the same for every warp and
    /// small (`Geometry` of the kernel's template of matrix products).
    fn takes(&self, run: Option<&Run>) -> bool {
        let Some(RunSource::Weight { buffer, blocks, .. }) = run.map(|r| &r.source) else {
            return false;
        };
        let total = self.program.buffer(*buffer).and_then(weight_blocks).unwrap_or(0);
        let (blocks, warps) =
            (u64::from(*blocks), u64::from(self.program.resources.consumer_warps));
        blocks < total
            && warps > 0
            && total.is_multiple_of(blocks.max(1))
            && blocks.is_multiple_of(warps)
            && blocks / warps <= 4
            && self.program.tokens <= 8
    }

    /// Appends the bytes of a run's chunks; returns its gate. `None`: it has none, or there are too many.
    fn chunks(
        &self,
        source: &RunSource,
        total: &mut u64,
        out: &mut Vec<u32>,
    ) -> Option<Option<u32>> {
        let buffer = self.program.buffer(source.buffer())?;
        let n = source.chunks(buffer)?;
        *total = total.saturating_add(n);
        if *total > MAX_CHUNKS {
            return None;
        }
        match source {
            RunSource::Weight { lo, hi, tiles, blocks, .. } => {
                let k = weight_blocks(buffer)?;
                let rows = (hi - lo).div_ceil(TILE_ROWS);
                let (tiles, blocks) = (u64::from(*tiles), u64::from(*blocks));
                let each = k.div_ceil(blocks).max(1);
                for c in 0..n {
                    let whole = tiles.min(rows - (c / each) * tiles);
                    let part = blocks.min(k - (c % each) * blocks);
                    out.push(u32::try_from(whole * part * BLOCK_BYTES).ok()?);
                }
                Some(None)
            }
            RunSource::Kv { region, rows, gate, .. } => {
                // Rows that exist at the position; chunks past them are issued empty.
                let r = rect(region, self.position);
                let span = r.get(1)?;
                let width = (r.get(2)?.1 - r.get(2)?.0).max(0) as u64 * buffer.dtype.bytes();
                let there = (span.1 - span.0).max(0) as u64;
                for c in 0..n {
                    let left = there.saturating_sub(c * u64::from(*rows)).min(u64::from(*rows));
                    out.push(u32::try_from(left.checked_mul(width)?).ok()?);
                }
                Some(Some(*gate))
            }
        }
    }

    fn latch(&mut self, counter: bool, need: u64) -> u32 {
        self.latches.push(Latch { need, counter, writers: 0, readers: Vec::new() });
        self.latches.len() as u32 - 1
    }

    fn step(&mut self, sm: u32, place: u32, i: &Instruction, chunks: u32) -> Step {
        let program = self.program;
        let run = i.run.and_then(|run| program.sms[sm as usize].stream.get(run.index()));
        let mut needs = Vec::new();
        let (mut input_bytes, mut kv_bytes) = (0.0, 0.0);
        for a in &i.reads {
            let Some(buffer) = program.buffer(a.buffer) else { continue };
            let r = rect(&a.region, self.position);
            match (buffer.kind, buffer.sync) {
                (_, BufferSync::Local) | (BufferKind::Weight | BufferKind::Constant, _) => {}
                (BufferKind::Kv, _) => {
                    let streamed = run.is_some_and(|r| r.source.buffer() == a.buffer);
                    if !streamed {
                        let bytes = self.bytes(a.buffer, &r);
                        // Units that share a kv head find in the cache what another has read.
                        if self.seen_kv.insert((a.buffer, r), ()).is_none() {
                            kv_bytes += bytes;
                        }
                    }
                }
                (_, BufferSync::Packet) => {
                    let per_word = buffer.dtype.per_word().max(1) as f64;
                    input_bytes += volume(&r) / per_word * 8.0;
                    let known = self.wanted.entry((a.buffer, a.phase)).or_default();
                    let found = known.iter().find(|(k, _)| *k == r).map(|(_, latch)| *latch);
                    let latch = found.unwrap_or_else(|| {
                        let latch = self.latch(false, 0);
                        self.wanted.entry((a.buffer, a.phase)).or_default().push((r, latch));
                        latch
                    });
                    needs.push(latch);
                }
                (_, BufferSync::Plain) => input_bytes += self.bytes(a.buffer, &r),
            }
        }
        for w in &i.waits {
            let known = self.thresholds.entry(w.counter).or_default();
            let found = known.iter().find(|(t, _)| *t == w.threshold).map(|(_, latch)| *latch);
            let latch = found.unwrap_or_else(|| {
                let latch = self.latch(true, w.threshold);
                self.thresholds.entry(w.counter).or_default().push((w.threshold, latch));
                latch
            });
            needs.push(latch);
        }
        needs.sort_unstable();
        needs.dedup();
        for &latch in &needs {
            self.latches[latch as usize].readers.push((sm, place));
        }
        for a in &i.writes {
            let packets = program.buffer(a.buffer).is_some_and(|b| b.sync == BufferSync::Packet);
            if packets {
                let rect = rect(&a.region, self.position);
                let writer = Writer { sm, place, rect };
                self.writers.entry((a.buffer, a.phase)).or_default().push(writer);
            }
        }
        let (before_ns, after_ns, byte_ns) = self.costs(&i.op, chunks);
        Step {
            id: i.id.0,
            needs: needs.len() as u32,
            feeds: Vec::new(),
            chunks,
            takes: if self.takes(run) { self.taken.min(chunks) } else { 0 },
            input_bytes,
            sharers: 1.0,
            kv_bytes,
            before_ns,
            after_ns,
            byte_ns,
            boundary: matches!(i.op, Op::Boundary(_)),
        }
    }

    /// Time of an instruction beside its waits and its input: before its chunks, after them, and per byte of them, ns.
    fn costs(&self, op: &Op, chunks: u32) -> (f64, f64, f64) {
        let ns = self.calibration.cycle_ns();
        let cost = self.calibration.ops.get(op.name()).copied().unwrap_or_default();
        let warps = f64::from(self.program.resources.consumer_warps.max(1));
        let fixed = cost.fixed + cost.per_warp * warps;
        let byte = (cost.per_kb + cost.per_kb_warp / warps) / 1024.0;
        let groups = |lo: u64, hi: u64| {
            let tiles = (hi - lo.min(hi)).div_ceil(TILE_ROWS);
            tiles.div_ceil(u64::from(tile_group(self.program.tokens.into()))).max(1) as f64
        };
        let after = match op {
            Op::NormQkv(o) => cost.group * groups(o.rows.lo, o.rows.hi),
            Op::NormGateUp(o) => cost.group * groups(2 * o.rows.lo, 2 * o.rows.hi),
            Op::LinearResidual(o) => cost.group * groups(o.rows.lo, o.rows.hi),
            Op::NormLmHead(o) => cost.group * groups(o.rows.lo, o.rows.hi),
            _ => cost.group,
        };
        let more = match op {
            Op::Attention(o) => {
                let (lo, hi) = o.past().eval(self.position);
                self.attention(&cost, (hi - lo) as f64, (o.q.hi - o.q.lo.min(o.q.hi)) as f64)
            }
            Op::AttentionMerge(o) => {
                cost.per_split * o.splits as f64 * (o.q.hi - o.q.lo.min(o.q.hi)) as f64
            }
            _ => 0.0,
        };
        match chunks {
            // Without chunks there is one piece of work.
            0 => (0.0, (fixed + more + after) * ns, 0.0),
            _ => ((fixed + more) * ns, after * ns, byte * ns),
        }
    }

    /// Cycles of attention over `past` positions.
    fn attention(&self, cost: &OpCost, past: f64, heads: f64) -> f64 {
        let warps = f64::from(self.program.resources.consumer_warps.max(1));
        let tokens = f64::from(self.program.tokens.max(1));
        let each = cost.per_position + cost.per_position_head * (heads - 1.0).max(0.0);
        past * tokens * each / warps
    }

    /// Says which instructions contribute to which latches.
    fn connect(&mut self, sms: &mut [SmPlan]) {
        for (key, wanted) in &self.wanted {
            for w in self.writers.get(key).map_or(&[][..], Vec::as_slice) {
                for (region, latch) in wanted {
                    if overlap(region, &w.rect) {
                        let step = &mut sms[w.sm as usize].queue[w.place as usize];
                        step.feeds.push((*latch, 1));
                        let latch = &mut self.latches[*latch as usize];
                        latch.need += 1;
                        latch.writers += 1;
                    }
                }
            }
        }
        for (s, sm) in self.program.sms.iter().enumerate() {
            for (place, id) in sm.queue.iter().enumerate() {
                let Some(i) = self.program.instruction(*id) else { continue };
                for signal in &i.signals {
                    for (_, latch) in self.thresholds.get(&signal.counter).into_iter().flatten() {
                        sms[s].queue[place].feeds.push((*latch, signal.amount));
                        self.latches[*latch as usize].writers += 1;
                    }
                }
            }
        }
        for sm in sms.iter_mut() {
            for step in &mut sm.queue {
                step.feeds.sort_unstable();
            }
        }
    }
}
