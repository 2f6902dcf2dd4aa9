//! RMSNorm, gate and up projections, activation and product.

use amk_models::erf;
use amk_schedule_ir::op::{Activation, NormGateUp};

use super::{Maths, Outcome, product};
use crate::vm::memory::Values;

fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            // sqrt(2 / pi)
            const BETA: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
            0.5 * x * (1.0 + (BETA * (x + 0.044715 * x * x * x)).tanh())
        }
    }
}

pub(super) fn run(op: &NormGateUp, cx: &Maths<'_>) -> Outcome {
    let x = cx.real_of(0, cx.tokens * op.hidden as usize)?;
    let rows = 2 * op.rows.lo..2 * op.rows.hi;
    let norm = (!op.plain).then_some((1, op.eps.0));
    let mut pairs = product(cx, x, op.hidden as usize, norm, rows.clone())?;
    if op.bias {
        let at = if op.plain { 1 } else { 2 };
        cx.add_bias(&mut pairs, at, rows)?;
    }
    let act = pairs.chunks_exact(2).map(|pair| activate(op.activation, pair[0]) * pair[1]);
    Ok(vec![Values::Real(act.collect())])
}
