//! The residual connection.

use candle_core::{Result, Tensor};

/// `x + y`, elementwise.
pub fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x + y
}
