//! Model to schedule. [`lower`] walks the model graph stage by stage and deals each stage's work out
//! to the SMs:
//!
//! - matrix stages in tiles of 8 output rows, SM `s` of `n` taking tiles `T*s/n .. T*(s+1)/n`;
//! - attention in units of (kv head, some of its query heads, split), spread over the SMs, with a
//!   merge stage when there is more than one split;
//! - the residual stays with the SM that owns its rows (embed, output and down projections cut the
//!   rows alike) and is published once after each update.
//!
//! Every tensor of every layer has a buffer of its own, so that nothing is reused within a step and
//! one boundary per step orders all reuse. Accesses are taken from [`Op::footprint`], never written by
//! hand. The same inputs give the same program, byte for byte.
//!
//! `shape.rs` is the model as seen from here, `config.rs` makes it from a checkpoint or a config, `knobs.rs` what may be chosen, `partition.rs` who does
//! what, `build.rs` the program under construction, `stages.rs` one function per stage, `resources.rs`
//! chunk geometry, windows, shared memory and registers.
//!
//! [`Op::footprint`]: amk_schedule_ir::Op::footprint

mod bucket;
mod build;
mod config;
mod error;
mod knobs;
mod partition;
mod resources;
mod shape;
mod stages;

use amk_schedule_ir::{Bucket, DType, Target};
use serde::{Deserialize, Serialize};

pub use bucket::{bucket_of, buckets};
pub use config::FEATURES;
pub use error::LowerError;
pub use knobs::{EdgeKind, Edges, Groups, Knobs, Tiles, Variants, Windows};
pub use shape::{Caps, Factors, LayerExtras, LayerTensors, Shape, Sizes, TensorInfo, widest};

use crate::graph::ModelGraph;
use crate::lowered::Lowered;

/// In what type activations and the KV cache are kept between stages. Sums are float32 in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// bf16; activations are float32 where the MLP width is odd and travels in packets of two.
    Bf16,
    /// float32, entering products as three bf16 terms.
    F32,
}

impl Mode {
    /// Element type of activations and of the cache.
    pub fn dtype(self) -> DType {
        match self {
            Mode::Bf16 => DType::Bf16,
            Mode::F32 => DType::F32,
        }
    }

    /// bf16 terms an activation enters a product as.
    pub fn terms(self) -> u64 {
        self.dtype().terms()
    }
}

/// Lowers a model for one target and one bucket of positions.
///
/// # Errors
/// [`LowerError`]: the model, the bucket or a knob cannot be scheduled on this target.
pub fn lower(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    bucket: Bucket,
    mode: Mode,
) -> Result<Lowered, LowerError> {
    shape.check()?;
    let plan = knobs.plan(shape, target, bucket)?;
    let model = ModelGraph::new(shape);
    let build = stages::emit(shape, &plan, &model, mode)?;
    resources::finish(build, shape, target, knobs, &plan, bucket, mode)
}

/// Lowers a model for the bucket of [`buckets`] that `position` falls into.
///
/// # Errors
/// As [`lower`]; also where no step of this many positions fits at `position`.
pub fn lower_for(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    position: u64,
    mode: Mode,
) -> Result<Lowered, LowerError> {
    let max = shape.sizes.max_positions;
    let tokens = u64::from(knobs.tokens);
    let bucket = bucket_of(max, tokens, position).ok_or(LowerError::Bucket {
        first: position,
        last: position,
        tokens,
        end: position.saturating_add(tokens),
        what: "the model has",
        limit: max,
    })?;
    lower(shape, target, knobs, bucket, mode)
}

/// Ring bytes with which a prefill kernel still streams weights at about the speed of memory: of the 1B shape on an H200,
/// a pass of 8 positions took 892 us with 64 KB and 1,578 us with 20 KB.
const PREFILL_RING: u64 = 64 << 10;

/// The most positions per step, at most 16, that a prefill kernel of this model can take at `position`:
/// their bf16 terms are rows of one 16-row product, and beside their staging there is room for a ring of
/// 64 KB, or half of the one a single position has where that is less.
pub fn most_tokens(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    position: u64,
    mode: Mode,
) -> u32 {
    // Resources are those of the largest stage, which one layer already has.
    let layers = shape.layers.iter().take(1).cloned().collect();
    let sizes = Sizes { layers: 1, ..shape.sizes };
    let one = Shape { sizes, layers, ..shape.clone() };
    let ring = |tokens: u32| {
        let knobs = Knobs { tokens, ..knobs.clone() };
        let lowered = lower_for(&one, target, &knobs, position, mode).ok()?;
        let r = &lowered.program.resources;
        Some(u64::from(r.ring_slots) * r.slot_bytes)
    };
    let wanted = ring(1).map_or(PREFILL_RING, |bytes| PREFILL_RING.min(bytes / 2));
    let streams = |tokens: &u32| ring(*tokens).is_some_and(|bytes| bytes >= wanted);
    (2..=16 / mode.terms() as u32).rev().find(streams).unwrap_or(1)
}
