//! RMSNorm, LM head of the step's last token, and the largest of these logits.

use amk_schedule_ir::op::NormLmHead;

use super::{Maths, Outcome, key, multiply, norm_product, soft_cap};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormLmHead, cx: &Maths<'_>) -> Outcome {
    let hidden = op.hidden as usize;
    let x = cx.real_of(0, cx.tokens * hidden)?;
    let last = &x[x.len() - hidden..];
    let mut logits = norm_product(cx, last, 1, op.eps.0, op.rows.lo..op.rows.hi)?;
    multiply(&mut logits, op.factor);
    soft_cap(&mut logits, op.cap);
    let keys = logits.iter().zip(op.rows.lo..).map(|(&value, id)| key(value, id as u32));
    let best = keys.max().unwrap_or(0);
    Ok(vec![Values::Real(logits), Values::Keys(vec![best])])
}
