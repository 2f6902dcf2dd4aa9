//! RMSNorm of what a stage has computed, added to the residual rows.

use amk_schedule_ir::op::NormResidual;

use super::{Maths, Outcome, inverse_rms, multiply};
use crate::vm::memory::Values;

pub(super) fn run(op: &NormResidual, cx: &Maths<'_>) -> Outcome {
    let hidden = op.hidden as usize;
    let (lo, hi) = (op.rows.lo as usize, op.rows.hi as usize);
    let x = cx.real_of(0, cx.tokens * hidden)?;
    let norm = cx.constant(1, 0..1)?;
    let weight = norm.get(lo..hi).ok_or("its norm has too few weights")?;
    let mut out = Vec::with_capacity(cx.tokens * (hi - lo));
    for row in x.chunks_exact(hidden) {
        let inverse = inverse_rms(row, op.eps.0);
        out.extend(row[lo..hi].iter().zip(weight).map(|(v, w)| v * inverse * w));
    }
    multiply(&mut out, op.factor);
    let residual = cx.real_of(2, out.len())?;
    out.iter_mut().zip(residual).for_each(|(y, r)| *y += r);
    Ok(vec![Values::Real(out.clone()), Values::Real(out)])
}
