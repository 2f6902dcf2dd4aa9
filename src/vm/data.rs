//! Contents of read-only buffers.

use std::borrow::Cow;
use std::ops::Range;

use amk_schedule_ir::BufferId;

/// Why contents could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DataError {
    /// Nothing is known about the buffer.
    #[error("there are no contents for {0}; the lowering gives no recipe for it")]
    NoContents(BufferId),
    /// The rows are not there.
    #[error("{buffer} has no rows {lo}..{hi}")]
    NoRows { buffer: BufferId, lo: u64, hi: u64 },
    /// The checkpoint lacks a tensor, or has it in another shape.
    #[error("{0}")]
    Tensor(String),
}

/// Contents of `weight` and `constant` buffers, as float32 (exact for every storage type).
pub trait Data: Send + Sync {
    /// Rows of a matrix `[rows, columns]`, one after another. A vector is one row.
    ///
    /// # Errors
    /// The buffer or the rows are unknown.
    fn rows(&self, buffer: BufferId, rows: Range<u64>) -> Result<Cow<'_, [f32]>, DataError>;
}

impl<T: Data + ?Sized> Data for std::sync::Arc<T> {
    fn rows(&self, buffer: BufferId, rows: Range<u64>) -> Result<Cow<'_, [f32]>, DataError> {
        (**self).rows(buffer, rows)
    }
}
