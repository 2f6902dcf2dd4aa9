//! Combines the partial results of split attention.

use super::attention::partial;
use super::linear::activation;
use super::params::{op_params, positive};
use super::{Footprint, OpContext, Rows};
use crate::limits::{MAX_EXTENT, MAX_HEAD_DIM, MAX_SPLITS};
use crate::program::{Area, DType, Resources};
use crate::region::Span;

op_params! {
    /// `out[h] = sum_s 2^(m_s - m) o_s / sum_s 2^(m_s - m) l_s` with `m = max_s m_s`, for the heads `q`.
    pub struct AttentionMerge {
        pub head_dim: u64,
        pub heads: u64,
        /// Heads merged.
        pub q: Rows,
        pub splits: u64,
    }
}

impl AttentionMerge {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("head_dim", self.head_dim, MAX_HEAD_DIM)?;
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("`head_dim` is {}, but must be even", self.head_dim));
        }
        positive("heads", self.heads, MAX_EXTENT / MAX_HEAD_DIM)?;
        positive("splits", self.splits, MAX_SPLITS)?;
        self.q.check("q", self.heads)
    }

    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let d = self.head_dim;
        let splits = Span::at(0, self.splits);
        Footprint {
            reads: vec![partial(cx, self.heads, self.splits, d, self.q, splits)],
            writes: vec![activation(
                "attention",
                &[DType::Bf16, DType::F32],
                cx,
                self.heads * d,
                Span::at(self.q.lo * d, self.q.hi * d),
            )],
            ..Footprint::default()
        }
    }

    pub(crate) fn shared(&self, _: OpContext, _: &Resources, _: u64) -> Vec<(Area, u64)> {
        Vec::new()
    }
}
