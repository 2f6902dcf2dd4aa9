//! RoPE, append and softmax attention of some query heads over one split of the past.

use std::borrow::Cow;

use amk_schedule_ir::op::Attention;

use super::{Maths, Outcome, dot};
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
}

impl Heads<'_> {
    /// Heads of `[tokens, per_token, d]`; `norm` is the weight of the norm, if there is one.
    fn ready(&self, x: &[f32], per_token: usize, norm: Option<&[f32]>) -> Vec<f32> {
        let (d, width) = (self.d, self.rotary);
        let mut out = x.to_vec();
        for (m, token) in out.chunks_exact_mut(per_token * d).enumerate() {
            for head in token.chunks_exact_mut(d) {
                if let (Some(eps), Some(norm)) = (self.eps, norm) {
                    let inverse = (dot(head, head) / d as f32 + eps).sqrt().recip();
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

/// Unnormalised output, maximum (base-2 exponent) and sum over a list of keys and values.
fn softmax_sum(q: &[f32], keys: &[&[f32]], values: &[&[f32]], scale: f32) -> Vec<f32> {
    let scores: Vec<f32> = keys.iter().map(|k| dot(q, k) * scale).collect();
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
    let norm = |at: usize| match op.head_norm {
        None => Ok(None),
        Some(_) => match cx.constant(at, 0..1)? {
            weight if weight.len() == d => Ok(Some(weight)),
            weight => Err(format!("a head norm has {} values, not {d}", weight.len())),
        },
    };
    let (query_norm, key_norm) = (norm(past.saturating_sub(2))?, norm(past.saturating_sub(1))?);
    let eps = op.head_norm.map(|eps| eps.0);
    let make = Heads { d, rotary, table: &table, eps };
    let q = make.ready(cx.real_of(0, tokens * heads * d)?, heads, query_norm.as_deref());
    let past_keys = cx.real(past)?;
    let past_values = cx.real_of(past + 1, past_keys.len())?;
    let (mut own_keys, mut own_values) = (Vec::new(), &[][..]);
    if op.is_last() {
        own_keys = make.ready(cx.real_of(1, tokens * d)?, 1, key_norm.as_deref());
        own_values = cx.real_of(2, tokens * d)?;
    }
    let scale = op.scale.0 * std::f32::consts::LOG2_E;
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
            results[m * heads + h] = softmax_sum(q, &keys[unseen..], &values[unseen..], scale);
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
        let partial = softmax_sum(&[1.0, 2.0], &[], &[], 1.0);
        assert_eq!(partial, [0.0, 0.0, f32::NEG_INFINITY, 0.0]);
    }

    #[test]
    fn rope_turns_by_the_angle() {
        let mut x = [1.0, 0.0];
        rope(&mut x, &[0.0, 1.0]);
        assert_eq!(x, [0.0, 1.0]);
    }
}
