//! What a stage has computed, normalised and added to the residual rows an SM owns.

use super::embed::{local_bytes, residual};
use super::linear::{activation, float_vector};
use super::params::{finite_positive, op_params, optional_positive, positive};
use super::{Footprint, OpContext, Rows};
use crate::limits::MAX_EXTENT;
use crate::program::{Area, DType, Resources};
use crate::region::Span;
use crate::scalar::Scalar;

op_params! {
    /// `resid[m, r] += factor * norm(x[m])[r]`, then the rows are published as the next hidden state. The norm
    /// is over the whole of `x`, so every owner reads all of it.
    pub struct NormResidual {
        /// Width of the residual.
        pub hidden: u64,
        /// Residual rows updated.
        pub rows: Rows,
        /// Epsilon of the norm.
        pub eps: Scalar,
        optional
        /// Factor of what is added; absent: 1.
        pub factor: Option<Scalar>,
    }
}

impl NormResidual {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("hidden", self.hidden, MAX_EXTENT)?;
        self.rows.check("rows", self.hidden)?;
        finite_positive("eps", self.eps)?;
        optional_positive("factor", self.factor)
    }

    /// Reads: the output of the stage, its norm, the residual. Writes: the residual, the hidden state.
    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let rows = Span::at(self.rows.lo, self.rows.hi);
        Footprint {
            reads: vec![
                activation("output", &[DType::F32], cx, self.hidden, Span::at(0, self.hidden)),
                float_vector("norm", self.hidden, rows),
                residual(cx, self.hidden, rows),
            ],
            writes: vec![
                residual(cx, self.hidden, rows),
                activation("hidden", &[DType::Bf16, DType::F32], cx, self.hidden, rows),
            ],
            ..Footprint::default()
        }
    }

    pub(crate) fn shared(&self, cx: OpContext, _: &Resources, _: u64) -> Vec<(Area, u64)> {
        vec![(Area::Local, local_bytes(cx, self.rows))]
    }
}
