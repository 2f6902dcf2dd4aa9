//! Reference maths, one file per op: plain float32 with float32 sums. An op gets the values of its
//! reads in operand order and returns those of its writes in operand order, row-major by rectangle.

mod attention;
mod check;
mod embed;
mod linear_residual;
mod merge;
mod norm_gate_up;
mod norm_lm_head;
mod norm_qkv;
mod norm_residual;
mod sample;

use std::borrow::Cow;
use std::ops::Range;

use amk_models::sampling::Settings;
use amk_schedule_ir::{BufferId, Instruction, Op, Scalar};

use super::data::Data;
use super::memory::Values;
pub(crate) use check::check;

/// An operand of an op.
pub(crate) enum Input {
    /// Values read from memory.
    Memory(Values),
    /// A read-only buffer, taken row by row.
    Constant(BufferId),
}

/// What an op computes with.
pub(crate) struct Maths<'a> {
    pub data: &'a dyn Data,
    pub inputs: &'a [Input],
    /// The weight matrix of the run.
    pub weight: Option<BufferId>,
    /// First position of the step.
    pub pos: u64,
    /// Positions of the step.
    pub tokens: usize,
    /// How the launch draws tokens, where its program draws.
    pub settings: Settings,
}

/// Why an op could not be computed, as a sentence.
type Outcome = Result<Vec<Values>, String>;

impl Maths<'_> {
    /// The values of real operand `i`.
    fn real(&self, i: usize) -> Result<&[f32], String> {
        match self.inputs.get(i) {
            Some(Input::Memory(Values::Real(v))) => Ok(v),
            _ => Err(format!("read {i} is not a real operand in memory")),
        }
    }

    /// Real operand `i`, which must have `n` values.
    fn real_of(&self, i: usize, n: usize) -> Result<&[f32], String> {
        let v = self.real(i)?;
        if v.len() != n {
            return Err(format!("read {i} has {} values, not {n}", v.len()));
        }
        Ok(v)
    }

    /// The token ids of operand `i`.
    fn ids(&self, i: usize) -> Result<&[u32], String> {
        match self.inputs.get(i) {
            Some(Input::Memory(Values::Ids(v))) => Ok(v),
            _ => Err(format!("read {i} is not token ids")),
        }
    }

    /// Rows of constant operand `i`.
    fn constant(&self, i: usize, rows: Range<u64>) -> Result<Cow<'_, [f32]>, String> {
        match self.inputs.get(i) {
            Some(Input::Constant(buffer)) => {
                self.data.rows(*buffer, rows).map_err(|e| e.to_string())
            }
            _ => Err(format!("read {i} is not a constant")),
        }
    }

    /// Adds constant operand `i`, one number per row in `rows`, to `[tokens, rows]`.
    fn add_bias(&self, out: &mut [f32], i: usize, rows: Range<u64>) -> Result<(), String> {
        let all = self.constant(i, 0..1)?;
        let bias = all.get(rows.start as usize..rows.end as usize).unwrap_or_default();
        if bias.is_empty() {
            return Err(format!("read {i} has {} numbers, not rows {rows:?}", all.len()));
        }
        for row in out.chunks_exact_mut(bias.len()) {
            row.iter_mut().zip(bias).for_each(|(y, b)| *y += b);
        }
        Ok(())
    }

    /// Rows of the weight matrix the instruction streams.
    fn weights(&self, rows: Range<u64>) -> Result<Cow<'_, [f32]>, String> {
        let buffer = self.weight.ok_or("it consumes no weight run")?;
        self.data.rows(buffer, rows).map_err(|e| e.to_string())
    }

    /// Products of the weight rows with `self.tokens` input rows of width `k`: `[tokens, rows]`.
    fn product(&self, rows: Range<u64>, x: &[f32], k: usize) -> Result<Vec<f32>, String> {
        let n = (rows.end - rows.start) as usize;
        let w = self.weights(rows)?;
        if w.len() != n * k {
            return Err(format!("its weights have {} values, not {n} rows of {k}", w.len()));
        }
        let mut out = vec![0.0; x.len() / k * n];
        for (r, row) in w.chunks_exact(k).enumerate() {
            for (m, x) in x.chunks_exact(k).enumerate() {
                out[m * n + r] = dot(row, x);
            }
        }
        Ok(out)
    }
}

/// Sum of products. Sixteen running sums, added at the end: the order is fixed, so the result is too.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let tail: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in a16.zip(b16) {
        for i in 0..16 {
            sums[i] += x[i] * y[i];
        }
    }
    sums.iter().sum::<f32>() + tail
}

/// Multiplies by a factor, if there is one.
fn multiply(x: &mut [f32], factor: Option<Scalar>) {
    if let Some(Scalar(factor)) = factor {
        x.iter_mut().for_each(|v| *v *= factor);
    }
}

/// Soft cap: `cap * tanh(x / cap)`.
fn soft_cap(x: &mut [f32], cap: Option<Scalar>) {
    if let Some(Scalar(cap)) = cap {
        x.iter_mut().for_each(|v| *v = (*v / cap).tanh() * cap);
    }
}

/// `1 / sqrt(mean of squares + eps)` of a row.
fn inverse_rms(row: &[f32], eps: f32) -> f32 {
    (dot(row, row) / row.len() as f32 + eps).sqrt().recip()
}

/// Rows of `x` times the norm weight, and per row `1 / sqrt(mean of squares + eps)`, which the
/// products are multiplied by afterwards.
fn normed(x: &[f32], weight: &[f32], eps: f32) -> (Vec<f32>, Vec<f32>) {
    let k = weight.len();
    let scaled = x.chunks_exact(k).flat_map(|row| row.iter().zip(weight).map(|(a, g)| a * g));
    (scaled.collect(), x.chunks_exact(k).map(|row| inverse_rms(row, eps)).collect())
}

/// Products of normalised rows: `[tokens, rows]`.
fn norm_product(
    cx: &Maths<'_>,
    x: &[f32],
    norm: usize,
    eps: f32,
    rows: Range<u64>,
) -> Result<Vec<f32>, String> {
    let weight = cx.constant(norm, 0..1)?;
    let k = weight.len();
    if k == 0 || !x.len().is_multiple_of(k) {
        return Err(format!("its input has {} values, which are no rows of {k}", x.len()));
    }
    let n = (rows.end - rows.start) as usize;
    let (scaled, inverse) = normed(x, &weight, eps);
    let mut out = cx.product(rows, &scaled, k)?;
    for (row, inverse) in out.chunks_exact_mut(n).zip(&inverse) {
        row.iter_mut().for_each(|y| *y *= inverse);
    }
    Ok(out)
}

/// Products of rows of width `k`, normalised by the weights of an operand with an epsilon, or as they are:
/// `[tokens, rows]`.
fn product(
    cx: &Maths<'_>,
    x: &[f32],
    k: usize,
    norm: Option<(usize, f32)>,
    rows: Range<u64>,
) -> Result<Vec<f32>, String> {
    match norm {
        Some((norm, eps)) => norm_product(cx, x, norm, eps, rows),
        None => cx.product(rows, x, k),
    }
}

/// The (value, id) pair as one number: the largest key is the largest value, the lowest id on ties.
pub fn key(value: f32, id: u32) -> u64 {
    // -0 and +0 are equal values.
    let bits = if value == 0.0 { 0 } else { value.to_bits() };
    let ordered = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ordered) << 32 | u64::from(!id)
}

/// The token id of a key.
pub fn key_id(key: u64) -> u32 {
    !(key as u32)
}

/// Computes an instruction.
pub(crate) fn run(instruction: &Instruction, cx: &Maths<'_>) -> Outcome {
    match &instruction.op {
        Op::Embed(op) => embed::run(op, cx),
        Op::NormQkv(op) => norm_qkv::run(op, cx),
        Op::Attention(op) => attention::run(op, cx),
        Op::AttentionMerge(op) => merge::run(op, cx),
        Op::LinearResidual(op) => linear_residual::run(op, cx),
        Op::NormGateUp(op) => norm_gate_up::run(op, cx),
        Op::NormResidual(op) => norm_residual::run(op, cx),
        Op::NormLmHead(op) => norm_lm_head::run(op, cx),
        Op::Sample(op) => sample::run(op, cx),
        Op::Boundary(_) => Ok(Vec::new()),
        Op::Opaque(_) => Err("its maths is not known; run the program without data".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_by_value_then_by_lowest_id() {
        let order = [
            key(f32::NEG_INFINITY, 0),
            key(-2.0, 7),
            key(-1.0, 7),
            key(-0.0, 3),
            key(0.0, 2),
            key(1e-30, 9),
            key(3.0, 5),
            key(3.0, 4),
        ];
        assert!(order.windows(2).all(|w| w[0] < w[1]), "{order:x?}");
        assert_eq!(key_id(key(-5.0, 123)), 123);
    }

    #[test]
    fn dot_covers_the_tail() {
        let a: Vec<f32> = (0..37).map(|i| i as f32).collect();
        assert_eq!(dot(&a, &vec![2.0; 37]), 36.0 * 37.0);
    }
}
