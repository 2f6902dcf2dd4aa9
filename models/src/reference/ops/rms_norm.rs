//! Root-mean-square norm.

use super::{dot, elements};
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

struct RmsNorm {
    eps: f32,
}

/// `weight * x / sqrt(mean(x²) + eps)` over each run of as many elements as `weight` has: a row of `x`
/// `[positions, width]`, or each head of it.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f32) -> Result<Tensor> {
    x.contiguous()?.apply_op2_no_bwd(weight, &RmsNorm { eps })
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(
        &self,
        xs: &CpuStorage,
        xl: &Layout,
        ws: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, w) = (elements(xs, xl)?, elements(ws, wl)?);
        let mut out = Vec::with_capacity(x.len());
        for row in x.chunks(w.len().max(1)) {
            let mean = dot::dot_f32(row, row) / row.len() as f32;
            let scale = 1.0 / (mean + self.eps).sqrt();
            out.extend(row.iter().zip(w).map(|(x, w)| w * (x * scale)));
        }
        Ok((CpuStorage::F32(out), xl.shape().clone()))
    }
}
