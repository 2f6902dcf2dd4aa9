//! Matrix products over the weight stream. Weights are the A operand of `mma.m16n8k16`, a packed block at a time; the input
//! vector is staged once, and each warp sums a slice of K for every tile.
//!
//! A norm multiplies by its weight on the way in and by `1/rms` on the way out (the sum of squares is
//! taken from the same staged values), so it needs no stage of its own.

use super::embed::{local_bytes, residual, table, tokens};
use super::params::{finite_positive, op_params, optional_positive, positive};
use super::{Activation, Footprint, OpContext, Operand, Rows, Source, WeightUse, linear_shared};
use crate::TILE_ROWS;
use crate::limits::MAX_EXTENT;
use crate::program::{Area, BufferKind, DType, Resources};
use crate::region::{Region, Span};
use crate::scalar::Scalar;

const FLOATS: &[DType] = &[DType::Bf16, DType::F32];
const PARAMS: &[DType] = &[DType::Bf16, DType::F16, DType::F32];
const ACTIVATION: &[BufferKind] = &[BufferKind::Activation];

/// A `[tokens, width]` activation, all rows, some columns.
pub(crate) fn activation(
    role: &'static str,
    dtypes: &'static [DType],
    cx: OpContext,
    width: u64,
    columns: Span,
) -> Operand {
    Operand {
        role,
        kinds: ACTIVATION,
        dtypes,
        shape: vec![Some(cx.tokens), Some(width)],
        region: Region(vec![Span::at(0, cx.tokens), columns]),
    }
}

fn norm_weight(hidden: u64) -> Operand {
    Operand {
        role: "norm",
        kinds: &[BufferKind::Constant],
        dtypes: PARAMS,
        shape: vec![Some(hidden)],
        region: Region::whole(&[hidden]),
    }
}

/// One number per output row, float32.
fn bias(total: u64, rows: Span) -> Operand {
    float_vector("bias", total, rows)
}

/// Some of a constant vector of float32.
pub(crate) fn float_vector(role: &'static str, total: u64, rows: Span) -> Operand {
    Operand {
        role,
        kinds: &[BufferKind::Constant],
        dtypes: &[DType::F32],
        shape: vec![Some(total)],
        region: Region(vec![rows]),
    }
}

/// First output row on a tile boundary.
fn aligned(rows: Rows, unit: u64) -> Result<(), String> {
    if !rows.lo.is_multiple_of(unit) {
        return Err(format!("`rows` starts at {}, which is not a multiple of {unit}", rows.lo));
    }
    Ok(())
}

op_params! {
    /// `qkv[m, r] = sum_k w[r, k] * norm(x[m])[k] + bias[r]` for the rows in `rows`; queries, keys and
    /// values of all heads are the rows of one matrix, in this order.
    pub struct NormQkv {
        /// Width of the residual, K.
        pub hidden: u64,
        /// Rows of the fused matrix.
        pub total: u64,
        /// Output rows.
        pub rows: Rows,
        /// Epsilon of the norm; unused where there is none.
        pub eps: Scalar,
        /// Where the input comes from.
        pub source: Source,
        /// Rows of the embedding table if `source` is `embedding`; 0 otherwise.
        pub vocab: u64,
        optional
        /// Is there a bias?
        pub bias: bool,
        /// Factor of the embedding, where that is the source; absent: 1.
        pub factor: Option<Scalar>,
        /// Is the input taken as it is, without a norm?
        pub plain: bool,
    }
}

impl NormQkv {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("hidden", self.hidden, MAX_EXTENT)?;
        positive("total", self.total, MAX_EXTENT)?;
        self.rows.check("rows", self.total)?;
        aligned(self.rows, TILE_ROWS)?;
        finite_positive("eps", self.eps)?;
        optional_positive("factor", self.factor)?;
        match self.source {
            Source::Hidden if self.factor.is_some() => {
                Err("`factor` is the embedding's, but the input is hidden".to_owned())
            }
            Source::Hidden if self.vocab != 0 => {
                Err(format!("`vocab` is {}, but must be 0 where the input is hidden", self.vocab))
            }
            Source::Hidden => Ok(()),
            Source::Embedding => positive("vocab", self.vocab, MAX_EXTENT),
        }
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let all = Span::at(0, self.hidden);
        let mut reads = match self.source {
            Source::Hidden => vec![activation("hidden", FLOATS, cx, self.hidden, all)],
            Source::Embedding => vec![tokens(cx), table(self.vocab, self.hidden, all)],
        };
        if !self.plain {
            reads.push(norm_weight(self.hidden));
        }
        let rows = Span::at(self.rows.lo, self.rows.hi);
        if self.bias {
            reads.push(bias(self.total, rows));
        }
        Footprint {
            reads,
            writes: vec![activation("qkv", &[DType::F32], cx, self.total, rows)],
            weight: Some(WeightUse {
                shape: [self.total, self.hidden],
                lo: self.rows.lo,
                hi: self.rows.hi,
            }),
            kv: false,
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, r: &Resources, terms: u64) -> Vec<(Area, u64)> {
        linear_shared(cx, r, terms, self.hidden)
    }
}

op_params! {
    /// `act[m, r] = activation(gate[m, r]) * up[m, r]`, where row `2r` of the weight matrix is gate row `r`
    /// and row `2r+1` is up row `r`.
    pub struct NormGateUp {
        /// Width of the residual, K.
        pub hidden: u64,
        /// Width of the activation.
        pub inner: u64,
        /// Activation rows written; the first is a multiple of 4.
        pub rows: Rows,
        /// Epsilon of the norm; unused where there is none.
        pub eps: Scalar,
        optional
        /// Is there a bias, row by row as the matrix has them?
        pub bias: bool,
        /// Is the input taken as it is, without a norm?
        pub plain: bool,
        /// What the gate goes through; absent: SiLU.
        pub activation: Activation,
    }
}

impl NormGateUp {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("hidden", self.hidden, MAX_EXTENT)?;
        positive("inner", self.inner, MAX_EXTENT)?;
        self.rows.check("rows", self.inner)?;
        aligned(self.rows, TILE_ROWS / 2)?;
        finite_positive("eps", self.eps)
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let rows = Span::at(self.rows.lo, self.rows.hi);
        let mut reads =
            vec![activation("hidden", FLOATS, cx, self.hidden, Span::at(0, self.hidden))];
        if !self.plain {
            reads.push(norm_weight(self.hidden));
        }
        if self.bias {
            reads.push(bias(2 * self.inner, Span::at(2 * self.rows.lo, 2 * self.rows.hi)));
        }
        Footprint {
            reads,
            writes: vec![activation("act", FLOATS, cx, self.inner, rows)],
            weight: Some(WeightUse {
                shape: [2 * self.inner, self.hidden],
                lo: 2 * self.rows.lo,
                hi: 2 * self.rows.hi,
            }),
            kv: false,
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, r: &Resources, terms: u64) -> Vec<(Area, u64)> {
        linear_shared(cx, r, terms, self.hidden)
    }
}

op_params! {
    /// `resid[m, r] += factor * (sum_k w[r, k] * x[m, k] + bias[r])`, then the rows are published as the next hidden state.
    /// With `raw`, `sum_k w[r, k] * x[m, k] + bias[r]` itself is published, for a `norm_residual` to add.
    pub struct LinearResidual {
        /// Width of the input, K.
        pub inner: u64,
        /// Width of the residual.
        pub hidden: u64,
        /// Residual rows updated.
        pub rows: Rows,
        optional
        /// Is there a bias?
        pub bias: bool,
        /// Factor of what is added; absent: 1.
        pub factor: Option<Scalar>,
        /// Is the product published in float32, and nothing added to the residual?
        pub raw: bool,
    }
}

impl LinearResidual {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("inner", self.inner, MAX_EXTENT)?;
        positive("hidden", self.hidden, MAX_EXTENT)?;
        self.rows.check("rows", self.hidden)?;
        optional_positive("factor", self.factor)?;
        if self.raw && self.factor.is_some() {
            return Err("`factor` is of what is added, but with `raw` nothing is".to_owned());
        }
        aligned(self.rows, TILE_ROWS)
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let rows = Span::at(self.rows.lo, self.rows.hi);
        let mut reads = vec![activation("input", FLOATS, cx, self.inner, Span::at(0, self.inner))];
        let mut writes = Vec::new();
        if self.raw {
            writes.push(activation("output", &[DType::F32], cx, self.hidden, rows));
        } else {
            reads.push(residual(cx, self.hidden, rows));
            writes.push(residual(cx, self.hidden, rows));
            writes.push(activation("hidden", FLOATS, cx, self.hidden, rows));
        }
        if self.bias {
            reads.push(bias(self.hidden, rows));
        }
        Footprint {
            reads,
            writes,
            weight: Some(WeightUse {
                shape: [self.hidden, self.inner],
                lo: self.rows.lo,
                hi: self.rows.hi,
            }),
            kv: false,
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, r: &Resources, terms: u64) -> Vec<(Area, u64)> {
        let mut areas = linear_shared(cx, r, terms, self.inner);
        if !self.raw {
            areas.push((Area::Local, local_bytes(cx, self.rows)));
        }
        areas
    }
}

op_params! {
    /// `logits[r] = factor * sum_k w[r, k] * norm(x[last])[k]` for the last token of the step, and the
    /// largest of them with its id as one key.
    pub struct NormLmHead {
        /// Width of the residual, K.
        pub hidden: u64,
        /// Rows of the head.
        pub vocab: u64,
        /// Rows computed.
        pub rows: Rows,
        /// Epsilon of the norm.
        pub eps: Scalar,
        /// Entry of the key buffer written.
        pub slot: u64,
        /// Entries of the key buffer.
        pub slots: u64,
        optional
        /// Factor of the logits; absent: 1.
        pub factor: Option<Scalar>,
        /// Soft cap: after the factor, `x` becomes `cap * tanh(x / cap)`; absent: none.
        pub cap: Option<Scalar>,
    }
}

impl NormLmHead {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("hidden", self.hidden, MAX_EXTENT)?;
        positive("vocab", self.vocab, u64::from(u32::MAX))?;
        self.rows.check("rows", self.vocab)?;
        aligned(self.rows, TILE_ROWS)?;
        finite_positive("eps", self.eps)?;
        optional_positive("factor", self.factor)?;
        optional_positive("cap", self.cap)?;
        positive("slots", self.slots, MAX_EXTENT)?;
        if self.slot >= self.slots {
            return Err(format!("`slot` is {}, but there are {}", self.slot, self.slots));
        }
        Ok(())
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let rows = Span::at(self.rows.lo, self.rows.hi);
        Footprint {
            reads: vec![
                activation("hidden", FLOATS, cx, self.hidden, Span::at(0, self.hidden)),
                norm_weight(self.hidden),
            ],
            writes: vec![
                Operand {
                    role: "logits",
                    kinds: &[BufferKind::Output],
                    dtypes: &[DType::F32],
                    shape: vec![Some(self.vocab)],
                    region: Region(vec![rows]),
                },
                Operand {
                    role: "best",
                    kinds: ACTIVATION,
                    dtypes: &[DType::Key],
                    shape: vec![Some(self.slots)],
                    region: Region(vec![Span::at(self.slot, self.slot + 1)]),
                },
            ],
            weight: Some(WeightUse {
                shape: [self.vocab, self.hidden],
                lo: self.rows.lo,
                hi: self.rows.hi,
            }),
            kv: false,
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, r: &Resources, terms: u64) -> Vec<(Area, u64)> {
        linear_shared(cx, r, terms, self.hidden)
    }
}
