//! What may be chosen about a schedule and its kernel. Every knob changes the emitted program or the
//! kernel's text; none but `sampled` changes what is computed beyond the order of float32 sums.

use amk_schedule_ir::op::{Attention, Op, Rows};
use amk_schedule_ir::program::{Area, Resources};
use amk_schedule_ir::{Bucket, OpContext, Scalar, Target};
use serde::{Deserialize, Serialize};

use super::{LowerError, Shape};
use crate::codegen::RenderOptions;

/// Default consumer warps.
const CONSUMER_WARPS: u32 = 8;
/// Default cap on the registers of one thread.
const REGISTERS: u32 = 168;
/// Default cap on ring slots.
const RING_SLOTS: u32 = 64;
/// Default positions of the KV cache, where the model has as many.
const CAPACITY: u64 = 4096;
/// Memory latency the loads in flight must cover while streaming freely, seconds.
const DENSE_LATENCY: f64 = 1.3e-6;
/// The same around the dependency chain, where deep queues delay packets.
const CHAIN_LATENCY: f64 = 0.9e-6;

/// How a tensor gets from the SMs that write it to those that read it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EdgeKind {
    /// Words that carry their epoch: one hop.
    #[default]
    Packet,
    /// Plain memory and one counter that every writer signals: two hops, half the bytes.
    Counter,
}

/// Edge kind by class of tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Edges {
    /// Residual rows, after attention and after the MLP.
    pub hidden: EdgeKind,
    /// Queries, keys and values of the step.
    pub qkv: EdgeKind,
    /// Attention output.
    pub attention: EdgeKind,
    /// Activation of the MLP.
    pub act: EdgeKind,
    /// Partial results of split attention.
    pub partial: EdgeKind,
}

/// Chunks in flight at once, by phase. Absent: from the target's bandwidth per SM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Windows {
    /// Gate/up and down projections.
    pub dense: Option<u32>,
    /// QKV and output projections, around the dependency chain.
    pub chain: Option<u32>,
    /// LM head.
    pub head: Option<u32>,
}

/// The knobs. An absent value is chosen from the target, the model and the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Knobs {
    pub edges: Edges,
    /// Consumer warps, 1 to 31; each sums a slice of K. The block has one warp more.
    pub consumer_warps: u32,
    /// Largest chunk in bytes, a multiple of 512. Absent: 16,384, or less where that leaves fewer
    /// than four ring slots.
    pub slot_bytes: Option<u64>,
    /// Most ring slots, at least 2; there are never more than fit. Absent: 64.
    pub ring_slots: Option<u32>,
    pub windows: Windows,
    /// Parts the past is cut into for attention. Absent: 1 up to position 256, 4 up to 1,024, then 16,
    /// as long as every unit has an SM of its own.
    pub splits: Option<u32>,
    /// Query heads of one attention unit. Absent: as few as leave every unit an SM of its own, at most
    /// as many as have scratch in a fifth of the shared memory.
    pub q_heads_per_unit: Option<u64>,
    /// SMs by which each matrix stage shifts its row tiles against the one before, so that remainders
    /// do not always fall on the same SMs. The residual's owners never shift.
    pub rotation: u32,
    /// SMs from one attention unit to the next. Absent: as far apart as they go.
    pub unit_stride: Option<u32>,
    /// Blocks of the grid. Absent: one per SM of the target.
    pub grid: Option<u32>,
    /// Positions handled by one step: 1 decodes, up to 16 prefill.
    pub tokens: u32,
    /// Positions the KV cache holds; the same for all programs that share a cache. Absent: 4,096, or
    /// the model's positions if fewer, or what the bucket needs if more.
    pub capacity: Option<u64>,
    /// Registers of one thread, a multiple of 8. Absent: 168, or what the target has for the block.
    pub registers: Option<u32>,
    /// Weight chunks that warps take into registers while they wait for their input, 0 to 3; the kernel's
    /// text alone depends on it. Absent: 3.
    pub taken: Option<u32>,
    /// Is the next token drawn by settings that a launch brings, instead of being the largest logit? No choice of
    /// the search: it changes what is computed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub sampled: bool,
}

impl Default for Knobs {
    fn default() -> Self {
        Knobs {
            edges: Edges::default(),
            consumer_warps: CONSUMER_WARPS,
            slot_bytes: None,
            ring_slots: None,
            windows: Windows::default(),
            splits: None,
            q_heads_per_unit: None,
            rotation: 1,
            unit_stride: None,
            grid: None,
            tokens: 1,
            capacity: None,
            registers: None,
            taken: None,
            sampled: false,
        }
    }
}

/// Parts the past of a bucket is cut into when there are SMs enough.
fn wanted_splits(bucket: Bucket) -> u64 {
    match bucket.last {
        0..=256 => 1,
        257..=1024 => 4,
        1025..=4096 => 8,
        _ => 16,
    }
}

/// Knobs with every choice made but those that depend on the shared memory left over.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub edges: Edges,
    pub consumer_warps: u32,
    pub slot_bytes: Option<u64>,
    pub ring_slots: u32,
    pub windows: Windows,
    pub splits: u64,
    pub q_heads_per_unit: u64,
    pub rotation: u64,
    pub unit_stride: Option<u64>,
    pub grid: u64,
    pub cx: OpContext,
    pub capacity: u64,
    pub registers: u32,
    pub sampled: bool,
}

impl Knobs {
    /// `base`, with what the knobs choose about the text.
    pub fn render_options(&self, base: RenderOptions) -> RenderOptions {
        RenderOptions { taken: self.taken.unwrap_or(RenderOptions::MOST_TAKEN), ..base }
    }

    pub(super) fn plan(
        &self,
        shape: &Shape,
        target: &Target,
        bucket: Bucket,
    ) -> Result<Plan, LowerError> {
        let s = &shape.sizes;
        if !(1..=31).contains(&self.consumer_warps)
            || (self.consumer_warps + 1) * 32 > target.threads_per_block
        {
            let most = (target.threads_per_block / 32).saturating_sub(1).min(31);
            return Err(LowerError::knob(
                "consumer_warps",
                self.consumer_warps,
                format!("1 to {most}"),
            ));
        }
        if let Some(bytes) = self.slot_bytes
            && (bytes == 0 || !bytes.is_multiple_of(512) || bytes > target.shared_per_block)
        {
            let most = target.shared_per_block;
            return Err(LowerError::knob(
                "slot_bytes",
                bytes,
                format!("a multiple of 512, at most {most}"),
            ));
        }
        if let Some(slots) = self.ring_slots.filter(|&n| n < 2) {
            return Err(LowerError::knob("ring_slots", slots, "at least 2"));
        }
        for (knob, window) in [
            ("windows.dense", self.windows.dense),
            ("windows.chain", self.windows.chain),
            ("windows.head", self.windows.head),
        ] {
            if window == Some(0) {
                return Err(LowerError::knob(knob, 0, "at least 1"));
            }
        }
        let grid = self.grid.unwrap_or(target.sm_count);
        if grid == 0 || grid > target.sm_count {
            let expected = format!("1 to the {} SMs of {}", target.sm_count, target.name);
            return Err(LowerError::knob("grid", grid, expected));
        }
        if !(1..=16).contains(&self.tokens) {
            return Err(LowerError::knob("tokens", self.tokens, "1 to 16"));
        }
        if let Some(n) = self.taken.filter(|&n| n > RenderOptions::MOST_TAKEN) {
            let expected = format!("0 to {}", RenderOptions::MOST_TAKEN);
            return Err(LowerError::knob("taken", n, expected));
        }
        if self.unit_stride == Some(0) {
            return Err(LowerError::knob("unit_stride", 0, "at least 1"));
        }
        let tokens = u64::from(self.tokens);
        let capacity = self.check_capacity(s.max_positions, bucket)?;
        let cx = OpContext { tokens };
        let q_heads_per_unit = match self.q_heads_per_unit {
            Some(n) if n == 0 || n > s.group() => {
                return Err(LowerError::knob("q_heads_per_unit", n, format!("1 to {}", s.group())));
            }
            Some(n) => n,
            None => {
                // As few heads a unit as there are SMs for: short units shorten the dependency chain.
                let wanted = self.splits.map_or(wanted_splits(bucket), u64::from);
                let spread = (1..s.group())
                    .find(|n| s.kv_heads * s.group().div_ceil(*n) * wanted <= u64::from(grid))
                    .unwrap_or(s.group());
                spread.min(self.default_q_heads(shape, target, cx))
            }
        };
        let units = s.kv_heads * s.group().div_ceil(q_heads_per_unit);
        let splits = match self.splits {
            Some(n) if n == 0 || n > 1 << 16 => {
                return Err(LowerError::knob("splits", n, "1 to 65536"));
            }
            Some(n) => u64::from(n),
            None => wanted_splits(bucket).min(u64::from(grid) / units).max(1),
        };
        let threads = (self.consumer_warps + 1) * 32;
        let most = (target.registers_per_sm / threads).min(target.registers_per_thread).min(255);
        let registers = match self.registers {
            Some(n) if n < 24 || n > most || !n.is_multiple_of(8) => {
                let expected = format!("a multiple of 8 from 24 to {most}");
                return Err(LowerError::knob("registers", n, expected));
            }
            Some(n) => n,
            None => REGISTERS.min(most) & !7,
        };
        Ok(Plan {
            edges: self.edges,
            consumer_warps: self.consumer_warps,
            slot_bytes: self.slot_bytes,
            ring_slots: self.ring_slots.unwrap_or(RING_SLOTS),
            windows: self.windows,
            splits,
            q_heads_per_unit,
            rotation: u64::from(self.rotation),
            unit_stride: self.unit_stride.map(u64::from),
            grid: u64::from(grid),
            cx,
            capacity,
            registers,
            sampled: self.sampled,
        })
    }

    fn check_capacity(&self, max_positions: u64, bucket: Bucket) -> Result<u64, LowerError> {
        let tokens = u64::from(self.tokens);
        let Some(end) = bucket.last.checked_add(tokens).filter(|_| bucket.first <= bucket.last)
        else {
            return Err(LowerError::shape(
                "last position of the bucket",
                bucket.last,
                format!("at least its first, {}", bucket.first),
            ));
        };
        let too_far = |what, limit| LowerError::Bucket {
            first: bucket.first,
            last: bucket.last,
            tokens,
            end,
            what,
            limit,
        };
        if end > max_positions {
            return Err(too_far("the model has", max_positions));
        }
        match self.capacity {
            Some(n) if n > max_positions => {
                let expected = format!("at most the model's {max_positions} positions");
                Err(LowerError::knob("capacity", n, expected))
            }
            Some(n) if n < end => Err(too_far("the KV cache holds", n)),
            Some(n) => Ok(n),
            None => Ok(CAPACITY.min(max_positions).max(end)),
        }
    }

    /// The most query heads, in equal parts of the group, whose scratch leaves room for the ring.
    fn default_q_heads(&self, shape: &Shape, target: &Target, cx: OpContext) -> u64 {
        let s = &shape.sizes;
        let resources = Resources {
            consumer_warps: self.consumer_warps,
            ring_slots: 0,
            slot_bytes: 0,
            registers: 0,
            barriers: 0,
            shared: Vec::new(),
        };
        let scratch = |heads: u64| -> u64 {
            let op = Op::Attention(Attention {
                head_dim: s.head_dim,
                heads: s.heads,
                kv_heads: s.kv_heads,
                kv_head: 0,
                q: Rows { lo: 0, hi: heads },
                split: 0,
                splits: 1,
                append: true,
                scale: Scalar(s.scale),
                capacity: s.max_positions,
                max_positions: s.max_positions,
                rotary: shape.rotary,
                unrotated: false,
                window: None,
                head_norm: None,
                wide_norm: false,
                cap: None,
            });
            op.shared(cx, &resources, 1)
                .into_iter()
                .filter(|(area, _)| *area == Area::Scratch)
                .map(|(_, bytes)| bytes)
                .sum()
        };
        let group = s.group();
        // Scratch grows with the heads, so the parts can be counted up.
        (1..=group)
            .map(|parts| group.div_ceil(parts))
            .find(|&heads| scratch(heads) <= target.shared_per_block / 5)
            .unwrap_or(1)
    }
}

impl Plan {
    /// Windows in chunks of `slot_bytes`, within the ring: (dense, chain, head).
    pub(super) fn windows_for(
        &self,
        target: &Target,
        slot_bytes: u64,
        ring_slots: u32,
    ) -> (u32, u32, u32) {
        let per_sm = target.bandwidth() / f64::from(target.sm_count);
        let cover = |latency: f64| {
            let chunks = (per_sm * latency / slot_bytes as f64).ceil();
            if chunks.is_finite() { chunks.clamp(2.0, 1024.0) as u32 } else { 2 }
        };
        let dense = self.windows.dense.unwrap_or_else(|| cover(DENSE_LATENCY));
        let chain = self.windows.chain.unwrap_or_else(|| cover(CHAIN_LATENCY));
        let head = self.windows.head.unwrap_or_else(|| cover(DENSE_LATENCY));
        (dense.min(ring_slots), chain.min(ring_slots), head.min(ring_slots))
    }
}
