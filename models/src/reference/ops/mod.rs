//! The ops of the forward pass, one file each. Activations are contiguous float32 tensors `[positions, width]`.

mod add;
mod attention;
mod dot;
mod embedding;
mod gated;
mod linear;
mod nan;
mod rms_norm;
mod rope;
mod softcap;

pub(super) use add::add;
pub(super) use attention::{Attention, attention};
pub(super) use embedding::embedding;
pub use gated::activate;
pub(super) use gated::gated;
pub(super) use linear::{Linear, linear};
pub(super) use nan::first_nan;
pub(super) use rms_norm::rms_norm;
pub(super) use rope::rope;
pub(super) use softcap::softcap;

use candle_core::{CpuStorage, Layout, Result};

/// Elements of a contiguous f32 operand.
fn elements<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let all = storage.as_slice::<f32>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => candle_core::bail!("the operand is not contiguous"),
    }
}

/// Work (multiply-adds) below which an op stays on one thread.
const PARALLEL_WORK: usize = 32 * 1024;
