//! Soft cap.

use candle_core::{Result, Tensor};

/// `cap * tanh(x / cap)`, elementwise.
pub fn softcap(x: &Tensor, cap: f32) -> Result<Tensor> {
    ((x / f64::from(cap))?.tanh()?) * f64::from(cap)
}
