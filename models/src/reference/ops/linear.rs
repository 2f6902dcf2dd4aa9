//! Matrix product with a weight that stays in its stored type.

use super::{PARALLEL_WORK, dot, elements};
use crate::weights::{DType, WeightTensor};
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use half::f16;
use half::slice::HalfFloatSliceExt;
use rayon::prelude::*;

/// A weight matrix `[out_features, in_features]`, where it is mapped, and its bias.
pub struct Linear {
    weight: WeightTensor,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Takes a matrix; it is copied only if its elements are not aligned in the file.
    pub fn new(weight: &WeightTensor) -> Self {
        Self { weight: weight.aligned(), bias: None }
    }

    /// The same with a bias, `[out_features]`.
    pub fn with_bias(self, bias: Option<&WeightTensor>) -> Self {
        Self { bias: bias.map(WeightTensor::to_f32), ..self }
    }

    pub fn rows(&self) -> usize {
        self.weight.rows()
    }

    pub fn cols(&self) -> usize {
        self.weight.cols()
    }

    /// One row, widened; empty if there is no such row.
    pub fn row_f32(&self, row: usize) -> Vec<f32> {
        self.weight.rows_f32(row..row.saturating_add(1))
    }
}

/// `x · weightᵀ + bias`: `[positions, in] -> [positions, out]`, sums in float32.
pub fn linear(x: &Tensor, weight: &Linear) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(weight)
}

/// A weight's elements.
enum Elements<'a> {
    Bf16(&'a [u16]),
    F16(&'a [u16]),
    F32(&'a [f32]),
}

impl Elements<'_> {
    /// Rows `first..first + out.len()` times one vector.
    fn times_one(&self, first: usize, x: &[f32], out: &mut [f32]) {
        let range = first * x.len()..(first + out.len()) * x.len();
        match self {
            Elements::Bf16(w) => dot::rows_bf16(&w[range], x, out),
            Elements::F32(w) => dot::rows_f32(&w[range], x, out),
            Elements::F16(_) => {
                let mut row = vec![0f32; x.len()];
                for (r, o) in out.iter_mut().enumerate() {
                    self.widen(first + r, &mut row);
                    *o = dot::dot_f32(&row, x);
                }
            }
        }
    }

    /// One row, widened.
    fn widen(&self, row: usize, out: &mut [f32]) {
        let range = row * out.len()..(row + 1) * out.len();
        match self {
            Elements::Bf16(w) => dot::widen_bf16(&w[range], out),
            Elements::F32(w) => out.copy_from_slice(&w[range]),
            Elements::F16(w) => {
                let mut block = [f16::ZERO; 128];
                for (o, w) in out.chunks_mut(128).zip(w[range].chunks(128)) {
                    for (h, w) in block.iter_mut().zip(w) {
                        *h = f16::from_bits(*w);
                    }
                    block[..o.len()].convert_to_f32_slice(o);
                }
            }
        }
    }

    /// One row times every row of `x`; `put(t, value)` takes the results.
    fn times_many(
        &self,
        row: usize,
        x: &[f32],
        scratch: &mut [f32],
        mut put: impl FnMut(usize, f32),
    ) {
        self.widen(row, scratch);
        let cols = scratch.len();
        let mut t = 0;
        for two in x.chunks(2 * cols) {
            if let Some((a, b)) = two.split_at_checked(cols).filter(|(_, b)| b.len() == cols) {
                let (a, b) = dot::pair(scratch, a, b);
                put(t, a);
                put(t + 1, b);
            } else {
                put(t, dot::dot_f32(scratch, two));
            }
            t += 2;
        }
    }
}

impl CustomOp1 for Linear {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = elements(storage, layout)?;
        let (n, cols) = layout.shape().dims2()?;
        let rows = self.rows();
        if cols != self.cols() {
            candle_core::bail!("{} takes {} inputs, given {cols}", self.weight.name(), self.cols());
        }
        let w = match (self.weight.dtype(), self.weight.words16(), self.weight.words32()) {
            (DType::Bf16, Some(w), _) => Elements::Bf16(w),
            (DType::F16, Some(w), _) => Elements::F16(w),
            (DType::F32, _, Some(w)) => Elements::F32(w),
            _ => candle_core::bail!("{} is not in a supported type", self.weight.name()),
        };
        // Several blocks per thread, so that a thread that starts late is made up for.
        let block = rows.div_ceil(4 * rayon::current_num_threads()).max(1);
        let parallel = n * rows * cols >= PARALLEL_WORK;
        let mut out = vec![0f32; n * rows];
        if n == 1 {
            let one = |(i, o): (usize, &mut [f32])| w.times_one(i * block, x, o);
            if parallel {
                out.par_chunks_mut(block).enumerate().for_each(one);
            } else {
                out.chunks_mut(block).enumerate().for_each(one);
            }
        } else {
            // Computed row of the weight by row, so that each is widened once; turned round afterwards.
            let mut turned = vec![0f32; n * rows];
            let many = |(i, o): (usize, &mut [f32])| {
                let mut scratch = vec![0f32; cols];
                for (r, o) in o.chunks_mut(n).enumerate() {
                    w.times_many(i * block + r, x, &mut scratch, |t, value| o[t] = value);
                }
            };
            if parallel {
                turned.par_chunks_mut(block * n).enumerate().for_each(many);
            } else {
                turned.chunks_mut(block * n).enumerate().for_each(many);
            }
            for (r, values) in turned.chunks(n).enumerate() {
                for (t, value) in values.iter().enumerate() {
                    out[t * rows + r] = *value;
                }
            }
        }
        if let Some(bias) = &self.bias {
            for row in out.chunks_mut(rows) {
                row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
            }
        }
        Ok((CpuStorage::F32(out), Shape::from((n, rows))))
    }
}
