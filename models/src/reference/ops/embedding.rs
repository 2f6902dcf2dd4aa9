//! Token embedding.

use super::Linear;
use candle_core::{Device, Result, Tensor};

/// Rows of the embedding matrix, widened: `[tokens, hidden]`. Tokens must be inside the vocabulary.
pub fn embedding(table: &Linear, tokens: &[u32]) -> Result<Tensor> {
    let mut values = Vec::with_capacity(tokens.len() * table.cols());
    for &token in tokens {
        let row = table.row_f32(token as usize);
        if row.len() != table.cols() {
            candle_core::bail!("token {token} is outside the embedding of {} rows", table.rows());
        }
        values.extend(row);
    }
    Tensor::from_vec(values, (tokens.len(), table.cols()), &Device::Cpu)
}
