//! Causal attention over the KV cache, with grouped key/value heads.

use super::{PARALLEL_WORK, dot, elements};
use candle_core::{CpuStorage, CustomOp3, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

/// What attention depends on beside its operands.
#[derive(Clone, Copy)]
pub struct Attention {
    /// Width of a head.
    pub head_dim: usize,
    /// Position of the first query.
    pub position: usize,
    /// Factor of the scores.
    pub scale: f32,
    /// Soft cap of the scaled scores.
    pub cap: Option<f32>,
    /// Positions a query sees, its own included; all if none.
    pub window: Option<usize>,
}

/// Attention of queries `[n, heads * head_dim]` over keys and values `[position + n, kv_heads * head_dim]`. Query `i`
/// sees the keys up to its own, within the window. The softmax subtracts the row's maximum.
pub fn attention(q: &Tensor, k: &Tensor, v: &Tensor, how: Attention) -> Result<Tensor> {
    q.apply_op3_no_bwd(k, v, &how)
}

impl CustomOp3 for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn cpu_fwd(
        &self,
        qs: &CpuStorage,
        ql: &Layout,
        ks: &CpuStorage,
        kl: &Layout,
        vs: &CpuStorage,
        vl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (q, k, v) = (elements(qs, ql)?, elements(ks, kl)?, elements(vs, vl)?);
        let (n, q_width) = ql.shape().dims2()?;
        let (_, kv_width) = kl.shape().dims2()?;
        let d = self.head_dim;
        let group = q_width / kv_width;
        let mut out = vec![0f32; n * q_width];
        let one = |(index, o): (usize, &mut [f32])| {
            let (t, head) = (index / (q_width / d), index % (q_width / d));
            let end = self.position + t + 1;
            let first = self.window.map_or(0, |w| end.saturating_sub(w));
            let column = head / group * d;
            let at = |x: &'_ [f32], j: usize| -> std::ops::Range<usize> {
                debug_assert!(j * kv_width + column + d <= x.len());
                j * kv_width + column..j * kv_width + column + d
            };
            let query = &q[index * d..(index + 1) * d];
            let mut scores: Vec<f32> =
                (first..end).map(|j| dot::dot_f32(query, &k[at(k, j)]) * self.scale).collect();
            if let Some(cap) = self.cap {
                for s in &mut scores {
                    *s = (*s / cap).tanh() * cap;
                }
            }
            let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let mut sum = 0f32;
            for s in &mut scores {
                *s = (*s - max).exp();
                sum += *s;
            }
            for (j, s) in (first..end).zip(&scores) {
                let p = s / sum;
                for (o, v) in o.iter_mut().zip(&v[at(v, j)]) {
                    *o += p * v;
                }
            }
        };
        if n * q_width * (self.position + n) < PARALLEL_WORK {
            out.chunks_mut(d).enumerate().for_each(one);
        } else {
            out.par_chunks_mut(d).enumerate().for_each(one);
        }
        Ok((CpuStorage::F32(out), ql.shape().clone()))
    }
}
