//! What may be chosen about a schedule and its kernel. Every knob changes the emitted program or the
//! kernel's text; none but `sampled` changes what is computed beyond the order of float32 sums.

use amk_schedule_ir::op::{Attention, Op, Rows};
use amk_schedule_ir::program::{Area, Resources};
use amk_schedule_ir::{Bucket, MOST_TILE_GROUP, OpContext, Scalar, Target};
use serde::{Deserialize, Serialize};

use super::{LowerError, Shape};
use crate::codegen::{Products, RenderOptions, op_variant, op_variants};

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

/// Most row tiles of one instruction, by stage: what an SM has of the stage beyond that becomes further instructions, each
/// with its own input and its own output. Absent: all of it is fused into one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tiles {
    /// Queries, keys and values.
    pub qkv: Option<u32>,
    /// Gate and up projections.
    pub gate_up: Option<u32>,
    /// LM head.
    pub head: Option<u32>,
}

/// Row tiles whose partial sums are added up at once, behind one block barrier, 2 to 16; the kernel's text alone depends on
/// them. Absent: 16. A step of more tokens has room for fewer ([`amk_schedule_ir::tile_group`]) and takes no more than that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Groups {
    /// Products of the layers.
    pub layers: Option<u32>,
    /// LM head.
    pub head: Option<u32>,
}

/// Templates of ops by the names they are registered under; see [`crate::codegen::OP_VARIANTS`]. Absent: the first of
/// each op.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Variants {
    /// How the sums of the warps are added up.
    pub sum: Option<String>,
}

/// The share of a digit `5` of [`Knobs::balance`]; each digit more or less is one more or less, so a fiftieth.
const MIDDLE_WEIGHT: u64 = 50;
/// The digit of it.
const MIDDLE_DIGIT: u64 = 5;

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
    /// Parts the past is cut into for attention. Absent: 1 below position 256, 4 below 1,024, 4 to 8 below 4,096, then 8
    /// to 16, as long as every unit has an SM of its own.
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
    pub tiles: Tiles,
    /// Shares of the rows by SM, a digit each, for all SMs of the grid or more: `5` is the usual share, each digit more or
    /// less is 2% more or less. Absent: all alike.
    pub balance: Option<String>,
    /// Query heads whose splits one instruction merges. Absent: as few as leave every instruction an SM of its own.
    pub merge_heads: Option<u64>,
    /// Positions handled by one step: 1 decodes, up to 16 prefill.
    pub tokens: u32,
    /// Positions the KV cache holds; the same for all programs that share a cache. Absent: 4,096, or
    /// the model's positions if fewer, or what the bucket needs if more.
    pub capacity: Option<u64>,
    /// Most registers of one thread, a multiple of 8; the compiler is held to it. Absent: what the target has for the
    /// block, with a budget of 168 in the program.
    pub registers: Option<u32>,
    /// Weight chunks that warps take into registers while they wait for their input, 0 to 3; the kernel's
    /// text alone depends on it. Absent: 3.
    pub taken: Option<u32>,
    /// Independent sums of a product within a warp, 2 or 4; the kernel's text alone depends on it. Absent: 4.
    pub accumulators: Option<u32>,
    /// Packed blocks of a chunk that a warp multiplies without a branch, 1 to 8; the kernel's text alone depends on it.
    /// Absent: 8.
    pub unroll: Option<u32>,
    /// Most input fragments that a warp keeps in registers from tile to tile, 0 to 16: where a product has more, they are
    /// read again; the kernel's text alone depends on it. Absent: 16.
    pub fragments: Option<u32>,
    pub groups: Groups,
    pub variants: Variants,
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
            tiles: Tiles::default(),
            balance: None,
            merge_heads: None,
            tokens: 1,
            capacity: None,
            registers: None,
            taken: None,
            accumulators: None,
            unroll: None,
            fragments: None,
            groups: Groups::default(),
            variants: Variants::default(),
            sampled: false,
        }
    }
}

/// Parts the past of a bucket is cut into: the least that units are made small for, and the most that is used where
/// SMs are left over. More of either shortens what a unit does and lengthens the merge (figures in benches/README.md).
fn wanted_splits(bucket: Bucket) -> (u64, u64) {
    match bucket.last {
        0..=256 => (1, 1),
        257..=1024 => (4, 4),
        1025..=4096 => (4, 8),
        _ => (8, 16),
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
    pub tiles: Tiles,
    /// Shares of the SMs; empty: all alike.
    pub weights: Vec<u64>,
    pub merge_heads: Option<u64>,
    pub cx: OpContext,
    pub capacity: u64,
    pub registers: u32,
    pub sampled: bool,
}

impl Knobs {
    /// `base`, with what the knobs choose about the text.
    pub fn render_options(&self, base: RenderOptions) -> RenderOptions {
        let usual = Products::default();
        RenderOptions {
            taken: self.taken.unwrap_or(RenderOptions::MOST_TAKEN),
            registers: self.registers,
            products: Products {
                accumulators: self.accumulators.unwrap_or(usual.accumulators),
                unroll: self.unroll.unwrap_or(usual.unroll),
                fragments: self.fragments.unwrap_or(usual.fragments),
                group: self.groups.layers.unwrap_or(usual.group),
                head_group: self.groups.head.unwrap_or(usual.head_group),
                // A name that is none is refused by the lowering.
                sum: self
                    .variants
                    .sum
                    .as_deref()
                    .and_then(|name| op_variant("sum", name))
                    .map_or(usual.sum, |v| v.name),
            },
            ..base
        }
    }

    /// What the choices of the text must be.
    fn check_text(&self) -> Result<(), LowerError> {
        let within = |knob, value: Option<u32>, low: u32, high: u32, step: u32| match value {
            Some(n) if !(low..=high).contains(&n) || n % step != 0 => {
                let expected = match step {
                    1 => format!("{low} to {high}"),
                    _ => format!("a multiple of {step} from {low} to {high}"),
                };
                Err(LowerError::knob(knob, n, expected))
            }
            _ => Ok(()),
        };
        within("taken", self.taken, 0, RenderOptions::MOST_TAKEN, 1)?;
        within("accumulators", self.accumulators, 2, 4, 2)?;
        within("unroll", self.unroll, 1, 8, 1)?;
        within("fragments", self.fragments, 0, 16, 1)?;
        within("groups.layers", self.groups.layers, 2, MOST_TILE_GROUP, 1)?;
        within("groups.head", self.groups.head, 2, MOST_TILE_GROUP, 1)?;
        match &self.variants.sum {
            Some(name) if op_variant("sum", name).is_none() => {
                let known: Vec<&str> = op_variants("sum").map(|v| v.name).collect();
                Err(LowerError::knob("variants.sum", name, format!("one of {}", known.join(", "))))
            }
            _ => Ok(()),
        }
    }

    /// Shares of the SMs of the grid; empty without a choice.
    fn weights(&self, grid: u32) -> Result<Vec<u64>, LowerError> {
        let Some(text) = &self.balance else { return Ok(Vec::new()) };
        let digit = |c: char| Some(MIDDLE_WEIGHT + u64::from(c.to_digit(10)?) - MIDDLE_DIGIT);
        let weights: Option<Vec<u64>> = text.chars().map(digit).collect();
        match weights.filter(|w| w.len() >= grid as usize) {
            Some(mut weights) => {
                weights.truncate(grid as usize);
                Ok(weights)
            }
            None => {
                let expected = format!("a decimal digit for each of the {grid} SMs of the grid");
                Err(LowerError::knob("balance", text, expected))
            }
        }
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
        self.check_text()?;
        for (knob, tiles) in [
            ("tiles.qkv", self.tiles.qkv),
            ("tiles.gate_up", self.tiles.gate_up),
            ("tiles.head", self.tiles.head),
        ] {
            if tiles == Some(0) {
                return Err(LowerError::knob(knob, 0, "at least 1"));
            }
        }
        if let Some(n) = self.merge_heads.filter(|n| !(1..=s.heads).contains(n)) {
            return Err(LowerError::knob("merge_heads", n, format!("1 to {}", s.heads)));
        }
        if self.unit_stride == Some(0) {
            return Err(LowerError::knob("unit_stride", 0, "at least 1"));
        }
        let tokens = u64::from(self.tokens);
        let capacity = self.check_capacity(s.max_positions, bucket)?;
        let cx = OpContext { tokens };
        let (least_splits, most_splits) = wanted_splits(bucket);
        let q_heads_per_unit = match self.q_heads_per_unit {
            Some(n) if n == 0 || n > s.group() => {
                return Err(LowerError::knob("q_heads_per_unit", n, format!("1 to {}", s.group())));
            }
            Some(n) => n,
            None => {
                // As few heads a unit as there are SMs for: short units shorten the dependency chain.
                let least = self.splits.map_or(least_splits, u64::from);
                let spread = (1..s.group())
                    .find(|n| s.kv_heads * s.group().div_ceil(*n) * least <= u64::from(grid))
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
            None => most_splits.min(u64::from(grid) / units).max(1),
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
            tiles: self.tiles,
            weights: self.weights(grid)?,
            merge_heads: self.merge_heads,
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
