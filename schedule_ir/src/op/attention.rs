//! Attention of a group of query heads of one kv head over one split of the past.

use super::linear::{activation, float_vector};
use super::params::{finite_positive, op_params, optional_positive, positive};
use super::{Footprint, OpContext, Operand, Rows};
use crate::limits::{MAX_EXTENT, MAX_HEAD_DIM, MAX_SPLITS};
use crate::program::{Area, BufferKind, DType, Resources};
use crate::region::{Bound, Region, Span};
use crate::scalar::Scalar;

op_params! {
    /// Softmax attention with RoPE for the query heads `q`, all of kv head `kv_head`.
    ///
    /// Past positions `[0, pos)` are cut into `splits` parts; this unit takes part `split`. The unit of
    /// the last split also attends to the step's own positions, whose keys and values it takes from
    /// `qkv`, never from the cache; with `append` it writes them there. With one split the result is the
    /// attention output; with more it is, per head and token, the unnormalised output, its maximum
    /// (base-2 exponent) and its sum, for the merge.
    pub struct Attention {
        /// Width of a head, even.
        pub head_dim: u64,
        /// Query heads of the model.
        pub heads: u64,
        /// KV heads of the model; divides `heads`.
        pub kv_heads: u64,
        /// The kv head of this unit.
        pub kv_head: u64,
        /// Its query heads.
        pub q: Rows,
        /// Part of the past taken.
        pub split: u64,
        /// Number of parts.
        pub splits: u64,
        /// Does this unit append keys and values to the cache?
        pub append: bool,
        /// Factor of the scores, usually `head_dim^-1/2`.
        pub scale: Scalar,
        /// Positions the cache holds.
        pub capacity: u64,
        /// Rows of the RoPE table.
        pub max_positions: u64,
        optional
        /// Components of a head that are rotated, the first ones, even; absent: all.
        pub rotary: Option<u64>,
        /// Are heads left as they are, not rotated? Then there is no RoPE table.
        pub unrotated: bool,
        /// Positions a position sees, itself among them; absent: all before it. Rows of the cache that it does
        /// not see count as read all the same.
        pub window: Option<u64>,
        /// Epsilon of the norm of each query and key head, before it is rotated; absent: no norm.
        pub head_norm: Option<Scalar>,
        /// Is that norm one over all query heads together and one over all key heads, instead of one of each head?
        /// Then a unit reads all of them.
        pub wide_norm: bool,
        /// Soft cap of the scores: after the scale, `s` becomes `cap * tanh(s / cap)`; absent: none.
        pub cap: Option<Scalar>,
    }
}

impl Attention {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("head_dim", self.head_dim, MAX_HEAD_DIM)?;
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("`head_dim` is {}, but must be even", self.head_dim));
        }
        positive("heads", self.heads, MAX_EXTENT / MAX_HEAD_DIM)?;
        positive("kv_heads", self.kv_heads, self.heads)?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(format!(
                "`kv_heads` is {}, which does not divide `heads` {}",
                self.kv_heads, self.heads
            ));
        }
        if self.kv_head >= self.kv_heads {
            return Err(format!("`kv_head` is {} of {}", self.kv_head, self.kv_heads));
        }
        self.q.check("q", self.heads)?;
        let group = self.heads / self.kv_heads;
        if self.q.lo / group != self.kv_head || (self.q.hi - 1) / group != self.kv_head {
            return Err(format!(
                "`q` {}..{} are not heads of kv head {}",
                self.q.lo, self.q.hi, self.kv_head
            ));
        }
        positive("splits", self.splits, MAX_SPLITS)?;
        if self.split >= self.splits {
            return Err(format!("`split` is {} of {}", self.split, self.splits));
        }
        if self.append && !self.is_last() {
            return Err("only the unit of the last split can append".to_owned());
        }
        finite_positive("scale", self.scale)?;
        positive("capacity", self.capacity, MAX_EXTENT)?;
        optional_positive("head_norm", self.head_norm)?;
        if self.wide_norm && self.head_norm.is_none() {
            return Err("`wide_norm` is given for heads that have no norm".to_owned());
        }
        optional_positive("cap", self.cap)?;
        if let Some(window) = self.window {
            positive("window", window, MAX_EXTENT)?;
        }
        if let Some(rotary) = self.rotary {
            positive("rotary", rotary, self.head_dim)?;
            if !rotary.is_multiple_of(2) {
                return Err(format!("`rotary` is {rotary}, but must be even"));
            }
            if self.unrotated {
                return Err("`rotary` is given for heads that are not rotated".to_owned());
            }
        }
        positive("max_positions", self.max_positions, MAX_EXTENT)
    }

    /// Components of a head that are rotated.
    pub fn rotary(&self) -> u64 {
        if self.unrotated { 0 } else { self.rotary.unwrap_or(self.head_dim) }
    }

    /// Reads before the RoPE table: q, and k and v where the unit takes the step's own positions.
    pub fn fresh_reads(&self) -> usize {
        if self.is_last() { 3 } else { 1 }
    }

    /// Reads before the past keys.
    pub fn reads_before_past(&self) -> usize {
        let norms = if self.head_norm.is_some() { 2 } else { 0 };
        self.fresh_reads() + usize::from(!self.unrotated) + norms
    }

    /// Does this unit take the step's own positions?
    pub fn is_last(&self) -> bool {
        self.split + 1 == self.splits
    }

    /// Rows of the fused query, key and value matrix.
    pub fn qkv_width(&self) -> u64 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Past positions this unit reads.
    pub fn past(&self) -> Span {
        let cut = |part: u64| match part {
            0 => Bound::At(0),
            p if p == self.splits => Bound::Pos(0),
            p => Bound::Split { part: p as u32, parts: self.splits as u32 },
        };
        Span { lo: cut(self.split), hi: cut(self.split + 1) }
    }

    fn cache(&self, role: &'static str, rows: Span) -> Operand {
        Operand {
            role,
            kinds: &[BufferKind::Kv],
            dtypes: &[DType::Bf16, DType::F32],
            shape: vec![Some(self.kv_heads), Some(self.capacity), Some(self.head_dim)],
            region: Region(vec![
                Span::at(self.kv_head, self.kv_head + 1),
                rows,
                Span::at(0, self.head_dim),
            ]),
        }
    }

    /// Reads: q, then (last split only) k and v of the step, the RoPE rows (if heads are rotated), the
    /// norms of query and key heads (if they have any), past keys, past values.
    /// Writes: (with `append`) keys, values; then the output or the partial result.
    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let d = self.head_dim;
        let head = |role, lo: u64, hi: u64| {
            activation(role, &[DType::F32], cx, self.qkv_width(), Span::at(lo * d, hi * d))
        };
        // A norm over all heads needs all of them.
        let (q, k) = match self.wide_norm {
            true => ((0, self.heads), (self.heads, self.heads + self.kv_heads)),
            false => {
                let k = self.heads + self.kv_head;
                ((self.q.lo, self.q.hi), (k, k + 1))
            }
        };
        let mut reads = vec![head("q", q.0, q.1)];
        if self.is_last() {
            let v = self.heads + self.kv_heads + self.kv_head;
            reads.extend([head("k", k.0, k.1), head("v", v, v + 1)]);
        }
        let step = Span::pos(0, cx.tokens as i64);
        if !self.unrotated {
            let width = self.rotary();
            reads.push(Operand {
                role: "rope",
                kinds: &[BufferKind::Constant],
                dtypes: &[DType::F32],
                shape: vec![Some(self.max_positions), Some(width)],
                region: Region(vec![step, Span::at(0, width)]),
            });
        }
        if self.head_norm.is_some() {
            // Of the heads a norm is over, and those whose weights the unit takes.
            let norm = |role, of: u64, lo: u64, hi: u64| match self.wide_norm {
                true => float_vector(role, of * d, Span::at(lo * d, hi * d)),
                false => float_vector(role, d, Span::at(0, d)),
            };
            reads.extend([
                norm("query norm", self.heads, self.q.lo, self.q.hi),
                norm("key norm", self.kv_heads, self.kv_head, self.kv_head + 1),
            ]);
        }
        reads
            .extend([self.cache("past keys", self.past()), self.cache("past values", self.past())]);
        let mut writes = Vec::new();
        if self.append {
            writes.extend([self.cache("keys", step), self.cache("values", step)]);
        }
        writes.push(if self.splits == 1 {
            activation(
                "attention",
                &[DType::Bf16, DType::F32],
                cx,
                self.heads * d,
                Span::at(self.q.lo * d, self.q.hi * d),
            )
        } else {
            partial(cx, self.heads, self.splits, d, self.q, Span::at(self.split, self.split + 1))
        });
        Footprint { reads, writes, weight: None, kv: true }
    }

    /// Scratch: queries of the group, key and value of the step, and per warp and head one partial result; where a
    /// norm is over all heads, then per warp and token a sum of squares of queries and one of keys.
    pub(crate) fn shared(&self, cx: OpContext, r: &Resources, _: u64) -> Vec<(Area, u64)> {
        let (d, group) = (self.head_dim, self.q.hi - self.q.lo);
        let inputs = (group + 2).saturating_mul(d).saturating_mul(cx.tokens);
        let partials = u64::from(r.consumer_warps).saturating_mul(group).saturating_mul(d + 2);
        let rope = d.saturating_mul(cx.tokens);
        let squares = match self.wide_norm {
            true => cx.tokens.saturating_mul(2).saturating_mul(u64::from(r.consumer_warps)),
            false => 0,
        };
        let floats = inputs.saturating_add(partials).saturating_add(rope).saturating_add(squares);
        vec![(Area::Scratch, floats.saturating_mul(4))]
    }
}

/// Partial results `[heads, splits, tokens, head_dim + 2]`: output, maximum, sum.
pub(crate) fn partial(
    cx: OpContext,
    heads: u64,
    splits: u64,
    head_dim: u64,
    q: Rows,
    split: Span,
) -> Operand {
    Operand {
        role: "partial",
        kinds: &[BufferKind::Activation],
        dtypes: &[DType::F32],
        shape: vec![Some(heads), Some(splits), Some(cx.tokens), Some(head_dim + 2)],
        region: Region(vec![
            Span::at(q.lo, q.hi),
            split,
            Span::at(0, cx.tokens),
            Span::at(0, head_dim + 2),
        ]),
    }
}
