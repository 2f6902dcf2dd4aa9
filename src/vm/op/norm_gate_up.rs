//! RMSNorm, gate and up projections, activation and product.

use amk_models::{Activation as Function, activate};
use amk_schedule_ir::op::{Activation, NormGateUp};

use super::{Maths, Outcome, product};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormGateUp, cx: &Maths<'_>) -> Outcome {
    let x = cx.real_of(0, cx.tokens * op.hidden as usize)?;
    let rows = 2 * op.rows.lo..2 * op.rows.hi;
    let norm = (!op.plain).then_some((1, op.eps.0));
    let mut pairs = product(cx, x, op.hidden as usize, norm, rows.clone())?;
    if op.bias {
        let at = if op.plain { 1 } else { 2 };
        cx.add_bias(&mut pairs, at, rows)?;
    }
    let function = match op.activation {
        Activation::Silu => Function::Silu,
        Activation::Gelu => Function::Gelu,
        Activation::GeluTanh => Function::GeluTanh,
    };
    let act = pairs.chunks_exact(2).map(|pair| activate(function, pair[0]) * pair[1]);
    Ok(vec![Values::Real(act.collect())])
}
