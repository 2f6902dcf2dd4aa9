//! RMSNorm, gate and up projections, SiLU and product.

use amk_schedule_ir::op::NormGateUp;

use super::{Maths, Outcome, norm_product};
use crate::vm::memory::Values;

fn silu(x: f32) -> f32 {
    x / (1.0 + (-x).exp())
}

pub(super) fn run(op: &NormGateUp, cx: &Maths<'_>) -> Outcome {
    let x = cx.real_of(0, cx.tokens * op.hidden as usize)?;
    let rows = 2 * op.rows.lo..2 * op.rows.hi;
    let mut pairs = norm_product(cx, x, 1, op.eps.0, rows.clone())?;
    if op.bias {
        cx.add_bias(&mut pairs, 2, rows)?;
    }
    let act = pairs.chunks_exact(2).map(|pair| silu(pair[0]) * pair[1]);
    Ok(vec![Values::Real(act.collect())])
}
