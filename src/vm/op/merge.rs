//! Combines the partial results of split attention.

use amk_schedule_ir::op::AttentionMerge;

use super::{Maths, Outcome};
use crate::vm::memory::Values;

pub(super) fn run(op: &AttentionMerge, cx: &Maths<'_>) -> Outcome {
    let (d, splits, tokens) = (op.head_dim as usize, op.splits as usize, cx.tokens);
    let heads = (op.q.hi - op.q.lo) as usize;
    let partial = cx.real_of(0, heads * splits * tokens * (d + 2))?;
    // The output is [tokens, heads * d]; the partial results are [heads, splits, tokens, d + 2].
    let mut out = vec![0.0; tokens * heads * d];
    for h in 0..heads {
        for m in 0..tokens {
            let part = |s: usize| &partial[((h * splits + s) * tokens + m) * (d + 2)..][..d + 2];
            let largest = (0..splits).map(|s| part(s)[d]).fold(f32::NEG_INFINITY, f32::max);
            let row = &mut out[(m * heads + h) * d..][..d];
            let mut sum = 0.0;
            for s in 0..splits {
                let part = part(s);
                let weight = (part[d] - largest).exp2();
                sum += weight * part[d + 1];
                row.iter_mut().zip(part).for_each(|(o, p)| *o += weight * p);
            }
            row.iter_mut().for_each(|o| *o /= sum);
        }
    }
    Ok(vec![Values::Real(out)])
}
