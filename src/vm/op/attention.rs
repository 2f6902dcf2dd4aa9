//! RoPE, append and softmax attention of some query heads over one split of the past.

use std::borrow::Cow;
use std::ops::Range;

use amk_schedule_ir::Scalar;
use amk_schedule_ir::op::Attention;

use super::{Maths, Outcome, dot, inverse_rms};
use crate::vm::memory::Values;

/// Rotates the halves of `x` against each other; `table` is the position's cosines, then its sines.
fn rope(x: &mut [f32], table: &[f32]) {
    let half = x.len() / 2;
    let (cos, sin) = table.split_at(half);
    let (low, high) = x.split_at_mut(half);
    for i in 0..half {
        let (a, b) = (low[i], high[i]);
        low[i] = a * cos[i] - b * sin[i];
        high[i] = b * cos[i] + a * sin[i];
    }
}

/// How fresh heads are made ready: normalised, then turned.
struct Heads<'a> {
    /// Width of a head.
    d: usize,
    /// Components turned, the first ones.
    rotary: usize,
    /// Per token the cosines and sines of these components.
    table: &'a [f32],
    eps: Option<f32>,
    /// Is a norm over all heads of a token together?
    wide: bool,
}

impl Heads<'_> {
    /// The `taken` of the `heads` heads of `[tokens, heads, d]`; `norm` is the weight of the norm, if there is one.
    fn ready(
        &self,
        x: &[f32],
        heads: usize,
        taken: Range<usize>,
        norm: Option<&[f32]>,
    ) -> Vec<f32> {
        let (d, width) = (self.d, self.rotary);
        let mut out = Vec::with_capacity(x.len() / heads * taken.len());
        for (m, token) in x.chunks_exact(heads * d).enumerate() {
            for h in taken.clone() {
                let first = out.len();
                out.extend_from_slice(&token[h * d..(h + 1) * d]);
                let head = &mut out[first..];
                if let (Some(eps), Some(norm)) = (self.eps, norm) {
                    let (inverse, norm) = match self.wide {
                        true => (inverse_rms(token, eps), &norm[h * d..(h + 1) * d]),
                        false => (inverse_rms(head, eps), norm),
                    };
                    head.iter_mut().zip(norm).for_each(|(v, w)| *v = *v * inverse * w);
                }
                if width > 0 {
                    rope(&mut head[..width], &self.table[m * width..(m + 1) * width]);
                }
            }
        }
        out
    }
}

/// Unnormalised output, maximum (base-2 exponent) and sum over a list of keys and values. `score` makes a score
/// of a product, base 2.
fn softmax_sum(
    q: &[f32],
    keys: &[&[f32]],
    values: &[&[f32]],
    score: impl Fn(f32) -> f32,
) -> Vec<f32> {
    let scores: Vec<f32> = keys.iter().map(|k| score(dot(q, k))).collect();
    let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut out = vec![0.0; q.len()];
    let mut sum = 0.0;
    for (score, value) in scores.iter().zip(values) {
        let weight = (score - largest).exp2();
        sum += weight;
        out.iter_mut().zip(*value).for_each(|(o, v)| *o += weight * v);
    }
    out.extend([largest, sum]);
    out
}

pub(super) fn run(op: &Attention, cx: &Maths<'_>) -> Outcome {
    let (d, tokens) = (op.head_dim as usize, cx.tokens);
    let heads = (op.q.hi - op.q.lo) as usize;
    let (rope, past) = (op.fresh_reads(), op.reads_before_past());
    let rotary = op.rotary() as usize;
    let table = match rotary {
        0 => Cow::Borrowed(&[][..]),
        _ => cx.constant(rope, cx.pos..cx.pos + tokens as u64)?,
    };
    if table.len() != tokens * rotary {
        let (found, wanted) = (table.len(), tokens * rotary);
        return Err(format!("the RoPE rows have {found} values, not {wanted}"));
    }
    // Heads in the operands, and those of them that are taken.
    let (first, kv) = (op.q.lo as usize, op.kv_head as usize);
    let ((all_q, own_q), (all_k, own_k)) = match op.wide_norm {
        true => {
            let (all_q, all_k) = (op.heads as usize, op.kv_heads as usize);
            ((all_q, first..first + heads), (all_k, kv..kv + 1))
        }
        false => ((heads, 0..heads), (1, 0..1)),
    };
    let norm = |at: usize, of: usize| match op.head_norm {
        None => Ok(None),
        Some(_) => match (cx.constant(at, 0..1)?, if op.wide_norm { of * d } else { d }) {
            (weight, wanted) if weight.len() == wanted => Ok(Some(weight)),
            (weight, wanted) => {
                Err(format!("a head norm has {} values, not {wanted}", weight.len()))
            }
        },
    };
    let query_norm = norm(past.saturating_sub(2), all_q)?;
    let key_norm = norm(past.saturating_sub(1), all_k)?;
    let eps = op.head_norm.map(|eps| eps.0);
    let make = Heads { d, rotary, table: &table, eps, wide: op.wide_norm };
    let q = cx.real_of(0, tokens * all_q * d)?;
    let q = make.ready(q, all_q, own_q, query_norm.as_deref());
    let past_keys = cx.real(past)?;
    let past_values = cx.real_of(past + 1, past_keys.len())?;
    let (mut own_keys, mut own_values) = (Vec::new(), &[][..]);
    if op.is_last() {
        let keys = cx.real_of(1, tokens * all_k * d)?;
        own_keys = make.ready(keys, all_k, own_k, key_norm.as_deref());
        own_values = cx.real_of(2, tokens * d)?;
    }
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    let scale = op.scale.0 * LOG2_E;
    let score = |product: f32| match op.cap {
        None => product * scale,
        Some(Scalar(cap)) => (product * op.scale.0 / cap).tanh() * (cap * LOG2_E),
    };
    let mut keys: Vec<&[f32]> = past_keys.chunks_exact(d).collect();
    let mut values: Vec<&[f32]> = past_values.chunks_exact(d).collect();

    // Position of the first of these keys.
    let start = cx.pos * op.split / op.splits;
    // [tokens, heads, d + 2]; a position of the step sees the past, the ones before it, and itself, as far as
    // its window reaches.
    let mut results = vec![Vec::new(); tokens * heads];
    for m in 0..tokens {
        if op.is_last() {
            keys.push(&own_keys[m * d..(m + 1) * d]);
            values.push(&own_values[m * d..(m + 1) * d]);
        }
        let first = op.window.map_or(0, |w| (cx.pos + m as u64 + 1).saturating_sub(w));
        let unseen = (first.saturating_sub(start) as usize).min(keys.len());
        for h in 0..heads {
            let q = &q[(m * heads + h) * d..][..d];
            results[m * heads + h] = softmax_sum(q, &keys[unseen..], &values[unseen..], score);
        }
    }

    let mut out = Vec::new();
    if op.append {
        out.push(Values::Real(own_keys.clone()));
        out.push(Values::Real(own_values.to_vec()));
    }
    let attention = if op.splits == 1 {
        // [tokens, heads * d], normalised.
        let normalised = results.iter().flat_map(|r| r[..d].iter().map(|o| o / r[d + 1]));
        normalised.collect()
    } else {
        // [heads, 1, tokens, d + 2].
        let by_head = (0..heads).flat_map(|h| (0..tokens).map(move |m| m * heads + h));
        by_head.flat_map(|i| results[i].iter().copied()).collect()
    };
    out.push(Values::Real(attention));
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_split_weighs_nothing() {
        let partial = softmax_sum(&[1.0, 2.0], &[], &[], |x| x);
        assert_eq!(partial, [0.0, 0.0, f32::NEG_INFINITY, 0.0]);
    }

    #[test]
    fn rope_turns_by_the_angle() {
        let mut x = [1.0, 0.0];
        rope(&mut x, &[0.0, 1.0]);
        assert_eq!(x, [0.0, 1.0]);
    }
}
