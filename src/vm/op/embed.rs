//! Embedding rows into the residual.

use amk_schedule_ir::op::Embed;

use super::{Maths, Outcome, multiply};
use crate::vm::memory::Values;

/// Columns `lo..hi` of the embedding rows of the step's tokens: `[tokens, hi - lo]`.
pub(crate) fn rows(
    cx: &Maths<'_>,
    ids: usize,
    table: usize,
    vocab: u64,
    columns: std::ops::Range<u64>,
) -> Result<Vec<f32>, String> {
    let mut out = Vec::new();
    for &id in cx.ids(ids)? {
        let id = u64::from(id);
        if id >= vocab {
            return Err(format!("token {id} is not in the vocabulary of {vocab}"));
        }
        let row = cx.constant(table, id..id + 1)?;
        let part = row.get(columns.start as usize..columns.end as usize);
        out.extend_from_slice(part.ok_or("the embedding row is too short")?);
    }
    Ok(out)
}

pub(super) fn run(op: &Embed, cx: &Maths<'_>) -> Outcome {
    let mut out = rows(cx, 0, 1, op.vocab, op.rows.lo..op.rows.hi)?;
    multiply(&mut out, op.factor);
    Ok(vec![Values::Real(out)])
}
