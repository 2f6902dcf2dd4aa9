//! Rotary position embedding.

use super::elements;
use crate::config::RopeTable;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

struct RotateHalves<'a> {
    table: &'a RopeTable,
    head_dim: usize,
    position: usize,
}

/// Rotates every head of `x` `[positions, heads * head_dim]`, whose first row is at `position`. Of a head's first
/// `2 n` components, n the number of frequencies, `i` and `i + n` form a pair and turn by `position * inv_freq[i]`;
/// the others stay.
pub fn rope(x: &Tensor, table: &RopeTable, head_dim: usize, position: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&RotateHalves { table, head_dim, position })
}

impl CustomOp1 for RotateHalves<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = elements(storage, layout)?;
        let (rows, width) = layout.shape().dims2()?;
        let half = self.table.inv_freq.len();
        if 2 * half > self.head_dim {
            candle_core::bail!("{half} frequencies for heads of {}", self.head_dim);
        }
        let mut out = x.to_vec();
        for t in 0..rows {
            let (cos, sin) = self.table.cos_sin(self.position + t);
            for o in out[t * width..(t + 1) * width].chunks_mut(self.head_dim) {
                for i in 0..half {
                    let (a, b) = (o[i], o[i + half]);
                    o[i] = a * cos[i] - b * sin[i];
                    o[i + half] = b * cos[i] + a * sin[i];
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}
