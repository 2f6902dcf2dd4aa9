//! Rotary position embedding.

use super::elements;
use crate::config::{ModelConfig, Rope};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

/// The model's inverse frequencies.
pub struct RopeTable {
    inv_freq: Vec<f32>,
}

impl RopeTable {
    pub fn new(config: &ModelConfig) -> Self {
        Self { inv_freq: config.rope.inv_freq(config.head_dim) }
    }
}

struct RotateHalves<'a> {
    table: &'a RopeTable,
    position: usize,
}

/// Rotates every head of `x` `[positions, heads * head_dim]`, whose first row is at `position`: components `i` and
/// `i + head_dim/2` form a pair and turn by `position * inv_freq[i]`.
pub fn rope(x: &Tensor, table: &RopeTable, position: usize) -> Result<Tensor> {
    x.apply_op1_no_bwd(&RotateHalves { table, position })
}

impl CustomOp1 for RotateHalves<'_> {
    fn name(&self) -> &'static str {
        "rope"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = elements(storage, layout)?;
        let (rows, width) = layout.shape().dims2()?;
        let half = self.table.inv_freq.len();
        let mut out = vec![0f32; x.len()];
        for t in 0..rows {
            let (cos, sin) = Rope::cos_sin(&self.table.inv_freq, self.position + t);
            let row = t * width..(t + 1) * width;
            for (o, h) in out[row.clone()].chunks_mut(2 * half).zip(x[row].chunks(2 * half)) {
                for i in 0..half {
                    let (a, b) = (h[i], h[i + half]);
                    o[i] = a * cos[i] - b * sin[i];
                    o[i + half] = b * cos[i] + a * sin[i];
                }
            }
        }
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}
