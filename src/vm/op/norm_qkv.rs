//! RMSNorm and the fused query, key and value projection.

use amk_schedule_ir::Source;
use amk_schedule_ir::op::NormQkv;

use super::{Maths, Outcome, embed, multiply, product};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormQkv, cx: &Maths<'_>) -> Outcome {
    let rows = op.rows.lo..op.rows.hi;
    let k = op.hidden as usize;
    let norm = |at: usize| (!op.plain).then_some((at, op.eps.0));
    // The operand after the input.
    let (mut out, next) = match op.source {
        Source::Hidden => {
            let x = cx.real_of(0, cx.tokens * k)?;
            (product(cx, x, k, norm(1), rows.clone())?, 1)
        }
        Source::Embedding => {
            let mut x = embed::rows(cx, 0, 1, op.vocab, 0..op.hidden)?;
            multiply(&mut x, op.factor);
            (product(cx, &x, k, norm(2), rows.clone())?, 2)
        }
    };
    if op.bias {
        cx.add_bias(&mut out, next + usize::from(!op.plain), rows)?;
    }
    Ok(vec![Values::Real(out)])
}
