//! RMSNorm and the fused query, key and value projection.

use amk_schedule_ir::Source;
use amk_schedule_ir::op::NormQkv;

use super::{Maths, Outcome, embed, multiply, norm_product};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormQkv, cx: &Maths<'_>) -> Outcome {
    let rows = op.rows.lo..op.rows.hi;
    let (mut out, norm) = match op.source {
        Source::Hidden => {
            let x = cx.real_of(0, cx.tokens * op.hidden as usize)?;
            (norm_product(cx, x, 1, op.eps.0, rows.clone())?, 1)
        }
        Source::Embedding => {
            let mut x = embed::rows(cx, 0, 1, op.vocab, 0..op.hidden)?;
            multiply(&mut x, op.factor);
            (norm_product(cx, &x, 2, op.eps.0, rows.clone())?, 2)
        }
    };
    if op.bias {
        cx.add_bias(&mut out, norm + 1, rows)?;
    }
    Ok(vec![Values::Real(out)])
}
