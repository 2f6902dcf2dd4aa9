//! RMSNorm and the fused query, key and value projection.

use amk_schedule_ir::Source;
use amk_schedule_ir::op::NormQkv;

use super::{Maths, Outcome, embed, norm_product};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormQkv, cx: &Maths<'_>) -> Outcome {
    let rows = op.rows.lo..op.rows.hi;
    let out = match op.source {
        Source::Hidden => {
            let x = cx.real_of(0, cx.tokens * op.hidden as usize)?;
            norm_product(cx, x, 1, op.eps.0, rows)?
        }
        Source::Embedding => {
            let x = embed::rows(cx, 0, 1, op.vocab, 0..op.hidden)?;
            norm_product(cx, &x, 2, op.eps.0, rows)?
        }
    };
    Ok(vec![Values::Real(out)])
}
