//! Embedding rows of the step's tokens into the residual rows an SM owns.

use super::params::{op_params, optional_positive, positive};
use super::{Footprint, OpContext, Operand, Rows};
use crate::limits::MAX_EXTENT;
use crate::program::{Area, BufferKind, DType, Resources};
use crate::region::{Region, Span};
use crate::scalar::Scalar;

op_params! {
    /// `resid[m, r] = factor * table[token[m], r]` for the rows `r` in `rows`.
    pub struct Embed {
        /// Width of the residual.
        pub hidden: u64,
        /// Rows of the table.
        pub vocab: u64,
        /// Residual rows written.
        pub rows: Rows,
        optional
        /// Factor of the embedding; absent: 1.
        pub factor: Option<Scalar>,
    }
}

impl Embed {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("hidden", self.hidden, MAX_EXTENT)?;
        positive("vocab", self.vocab, MAX_EXTENT)?;
        self.rows.check("rows", self.hidden)?;
        optional_positive("factor", self.factor)
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let rows = Span::at(self.rows.lo, self.rows.hi);
        Footprint {
            reads: vec![tokens(cx), table(self.vocab, self.hidden, rows)],
            writes: vec![residual(cx, self.hidden, rows)],
            ..Footprint::default()
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, _: &Resources, _: u64) -> Vec<(Area, u64)> {
        vec![(Area::Local, local_bytes(cx, self.rows))]
    }
}

/// Bytes of the residual rows an SM keeps.
pub(crate) fn local_bytes(cx: OpContext, rows: Rows) -> u64 {
    (rows.hi - rows.lo).saturating_mul(cx.tokens).saturating_mul(4)
}

/// The ids of this step's tokens.
pub(crate) fn tokens(cx: OpContext) -> Operand {
    Operand {
        role: "tokens",
        kinds: &[BufferKind::Tokens],
        dtypes: &[DType::U32],
        shape: vec![None],
        region: Region(vec![Span::pos(0, cx.tokens as i64)]),
    }
}

/// Some columns of the embedding table; which row is data, so all rows are declared.
pub(crate) fn table(vocab: u64, hidden: u64, columns: Span) -> Operand {
    Operand {
        role: "embedding",
        kinds: &[BufferKind::Constant],
        dtypes: &[DType::Bf16, DType::F16, DType::F32],
        shape: vec![Some(vocab), Some(hidden)],
        region: Region(vec![Span::at(0, vocab), columns]),
    }
}

/// Residual rows kept by their owner.
pub(crate) fn residual(cx: OpContext, hidden: u64, rows: Span) -> Operand {
    Operand {
        role: "residual",
        kinds: &[BufferKind::Activation],
        dtypes: &[DType::F32],
        shape: vec![Some(cx.tokens), Some(hidden)],
        region: Region(vec![Span::at(0, cx.tokens), rows]),
    }
}
