//! Detection of NaN.

use super::elements;
use candle_core::{Result, Storage, Tensor};

/// The first row of `[positions, width]` that holds a NaN.
pub fn first_nan(x: &Tensor) -> Result<Option<usize>> {
    let x = x.contiguous()?;
    let width = x.dim(1)?;
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else {
        candle_core::bail!("the tensor is not on the CPU")
    };
    let values = elements(storage, layout)?;
    // NaN is the only thing a sum of products with zero keeps: cheap to look for, and infinities count only once they
    // have turned into NaN.
    Ok(values.chunks(width.max(1)).position(|row| row.iter().any(|v| v.is_nan())))
}
