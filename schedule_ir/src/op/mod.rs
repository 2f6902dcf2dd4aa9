//! Operations. One file per op: its parameters and its *footprint*, the one function that says which
//! rectangles the op reads and writes. The lowering builds accesses from it, the validator compares
//! declared accesses with it, the VM and the kernel templates implement it.

mod attention;
mod boundary;
mod embed;
mod linear;
mod merge;
mod norm_residual;
mod opaque;
mod params;
mod sample;

use serde::{Deserialize, Serialize};

pub use attention::Attention;
pub use boundary::BoundaryArrive;
pub use embed::Embed;
pub use linear::{LinearResidual, NormGateUp, NormLmHead, NormQkv};
pub use merge::AttentionMerge;
pub use norm_residual::NormResidual;
pub use opaque::Opaque;
pub use params::{Activation, Param, ParamError, Rows, Source};
pub use sample::{SETTINGS_WORDS, Sample};

use crate::program::{Area, BufferKind, DType, Resources};
use crate::region::Region;

/// What a program fixes for all of its ops.
#[derive(Clone, Copy, Debug)]
pub struct OpContext {
    /// Positions per step.
    pub tokens: u64,
}

/// What an op expects of one operand.
#[derive(Clone, Debug)]
pub struct Operand {
    /// Name of the operand, for messages.
    pub role: &'static str,
    /// Kinds of buffer it may be.
    pub kinds: &'static [BufferKind],
    /// Element types it may have.
    pub dtypes: &'static [DType],
    /// Required extents; `None` = any.
    pub shape: Vec<Option<u64>>,
    /// The rectangle touched.
    pub region: Region,
}

/// Reads and writes of an instruction, in operand order.
#[derive(Clone, Debug, Default)]
pub struct Footprint {
    pub reads: Vec<Operand>,
    pub writes: Vec<Operand>,
    /// Rows of the weight matrix `[rows, k]` the op consumes from its stream, with the shape.
    pub weight: Option<WeightUse>,
    /// The op may consume a kv run covering this rectangle of its `kv` operands.
    pub kv: bool,
}

/// The part of a weight matrix an op consumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightUse {
    /// Extents of the whole matrix.
    pub shape: [u64; 2],
    /// Rows consumed.
    pub lo: u64,
    pub hi: u64,
}

macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident($ty:ident) = $name:literal),* $(,)?) => {
        /// An operation with its parameters.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Op {
            $($(#[$doc])* $variant($ty)),*
        }

        impl Op {
            /// Every op name, in declaration order.
            pub const NAMES: &'static [&'static str] = &[$($name),*];

            /// Name in text, JSON and templates.
            pub fn name(&self) -> &'static str {
                match self { $(Op::$variant(_) => $name),* }
            }

            /// Parameters as text, in declaration order.
            pub fn params(&self) -> Vec<(&'static str, String)> {
                match self { $(Op::$variant(op) => op.write_params()),* }
            }

            /// The op `name` with parameters read from `get`, which must be asked for each key once.
            pub fn from_params(
                name: &str,
                get: &mut dyn FnMut(&'static str) -> Option<String>,
            ) -> Result<Op, ParamError> {
                match name {
                    $($name => Ok(Op::$variant($ty::read_params(get)?)),)*
                    _ => Err(ParamError::UnknownOp(name.to_owned())),
                }
            }

            /// Parameters in range (sizes positive, ranges ordered, constants finite)?
            /// `Err` is a sentence that names the parameter.
            pub fn check(&self) -> Result<(), String> {
                match self { $(Op::$variant(op) => op.check()),* }
            }

            /// What the op touches. Call only after [`Op::check`] has passed.
            pub fn footprint(&self, cx: OpContext) -> Footprint {
                match self { $(Op::$variant(op) => op.footprint(cx)),* }
            }

            /// Shared memory the op needs, by area, in bytes. Call only after [`Op::check`] has passed.
            pub fn shared(&self, cx: OpContext, resources: &Resources, terms: u64) -> Vec<(Area, u64)> {
                match self { $(Op::$variant(op) => op.shared(cx, resources, terms)),* }
            }
        }
    };
}

ops! {
    /// Token ids to residual rows.
    Embed(Embed) = "embed",
    /// RMSNorm and the fused query, key and value projection.
    NormQkv(NormQkv) = "norm_qkv",
    /// RoPE, KV append and attention of some query heads of one kv head over one split.
    Attention(Attention) = "attention",
    /// Combines the splits of some heads.
    AttentionMerge(AttentionMerge) = "attention_merge",
    /// Matrix product added to the residual rows.
    LinearResidual(LinearResidual) = "linear_residual",
    /// RMSNorm of a stage's output, added to the residual rows.
    NormResidual(NormResidual) = "norm_residual",
    /// RMSNorm, gate and up projections, activation and product.
    NormGateUp(NormGateUp) = "norm_gate_up",
    /// RMSNorm, LM head, logits and the argmax of these rows.
    NormLmHead(NormLmHead) = "norm_lm_head",
    /// The next token, drawn from the logits.
    Sample(Sample) = "sample",
    /// This SM's arrival at the step boundary.
    Boundary(BoundaryArrive) = "boundary",
    /// An op of unknown maths that touches what it declares; judged, never compiled.
    Opaque(Opaque) = "opaque",
}

/// Shared memory of a matrix product with input width `k` and `tiles` output tiles at once.
///
/// Input: `tokens` rows times `terms` bf16 terms, each padded to whole K blocks plus 16 bytes against
/// bank conflicts. Partial: two alternating sets of one float32 per output row of a tile group, token and warp.
pub(crate) fn linear_shared(
    cx: OpContext,
    resources: &Resources,
    terms: u64,
    k: u64,
) -> Vec<(Area, u64)> {
    let rows = cx.tokens.saturating_mul(terms);
    let row_bytes = input_row_bytes(k);
    let group = u64::from(crate::tile_group(cx.tokens));
    vec![
        (Area::Input, rows.saturating_mul(row_bytes)),
        (
            Area::Partial,
            2u64.saturating_mul(group)
                .saturating_mul(crate::TILE_ROWS)
                .saturating_mul(cx.tokens)
                .saturating_mul(u64::from(resources.consumer_warps))
                .saturating_mul(4),
        ),
    ]
}

/// Bytes of one staged input row of width `k`.
pub fn input_row_bytes(k: u64) -> u64 {
    k.div_ceil(crate::BLOCK_K).saturating_mul(crate::BLOCK_K * 2).saturating_add(16)
}
