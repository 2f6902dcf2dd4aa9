//! RoPE, append and softmax attention of some query heads over one split of the past.

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

fn roped(x: &[f32], d: usize, per_token: usize, table: &[f32]) -> Vec<f32> {
    let mut out = x.to_vec();
    for (m, token) in out.chunks_exact_mut(per_token * d).enumerate() {
        token.chunks_exact_mut(d).for_each(|head| rope(head, &table[m * d..(m + 1) * d]));
    }
    out
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
    let after = if op.is_last() { 3 } else { 1 };
    let table = cx.constant(after, cx.pos..cx.pos + tokens as u64)?;
    if table.len() != tokens * d {
        return Err(format!("the RoPE rows have {} values, not {}", table.len(), tokens * d));
    }
    let q = roped(cx.real_of(0, tokens * heads * d)?, d, heads, &table);
    let past_keys = cx.real(after + 1)?;
    let past_values = cx.real_of(after + 2, past_keys.len())?;
    let (mut own_keys, mut own_values) = (Vec::new(), &[][..]);
    if op.is_last() {
        own_keys = roped(cx.real_of(1, tokens * d)?, d, 1, &table);
        own_values = cx.real_of(2, tokens * d)?;
    }
    let scale = op.scale.0 * std::f32::consts::LOG2_E;
    let mut keys: Vec<&[f32]> = past_keys.chunks_exact(d).collect();
    let mut values: Vec<&[f32]> = past_values.chunks_exact(d).collect();

    // [tokens, heads, d + 2]; a position of the step sees the past, the ones before it, and itself.
    let mut results = vec![Vec::new(); tokens * heads];
    for m in 0..tokens {
        if op.is_last() {
            keys.push(&own_keys[m * d..(m + 1) * d]);
            values.push(&own_values[m * d..(m + 1) * d]);
        }
        for h in 0..heads {
            let q = &q[(m * heads + h) * d..][..d];
            results[m * heads + h] = softmax_sum(q, &keys, &values, scale);
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
