//! Matrix product added to the residual rows, which are then published; or published itself, for a norm to follow.

use amk_schedule_ir::op::LinearResidual;

use super::{Maths, Outcome, multiply};
use crate::vm::memory::Values;

pub(super) fn run(op: &LinearResidual, cx: &Maths<'_>) -> Outcome {
    let k = op.inner as usize;
    let x = cx.real_of(0, cx.tokens * k)?;
    let mut out = cx.product(op.rows.lo..op.rows.hi, x, k)?;
    if op.bias {
        let at = if op.raw { 1 } else { 2 };
        cx.add_bias(&mut out, at, op.rows.lo..op.rows.hi)?;
    }
    if op.raw {
        return Ok(vec![Values::Real(out)]);
    }
    multiply(&mut out, op.factor);
    let residual = cx.real_of(1, out.len())?;
    out.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    Ok(vec![Values::Real(out.clone()), Values::Real(out)])
}
