//! Packing: the weights of a program as the byte streams its SMs load.
//!
//! A packed block is 8 rows x 32 K of bf16, 512 bytes. Lane `L` of a warp owns the 16 bytes at `16 L`: of
//! row `L / 4`, the eight values from K `8 * (L % 4)` on. Bytes 0 to 7 are the B fragment of one
//! `mma.m16n8k16` (registers b0 and b1), bytes 8 to 15 that of the next, under a permutation of K that the
//! activation fragment shares: lane `L` loads the same eight K values of its row of the input.
//!
//! A chunk holds whole tiles (`tiles > 1`) or some K blocks of one tile, tile by tile and block by block.
//! A tile of a matrix `[rows, k]` has `terms * ceil(k / 32)` blocks: block `b` is bf16 term
//! `b / ceil(k / 32)` of K block `b % ceil(k / 32)`. Terms of a float16 or float32 weight are the bf16
//! roundings of what is left, so they add up to the weight exactly. Rows and K past the end are zero.
//! Chunks follow each other without gaps, runs in stream order, SMs in order.

mod block;
mod layout;

use std::io::Write;

use amk_schedule_ir::{BufferId, Program, RunSource, TILE_ROWS, weight_blocks};

use crate::vm::{Data, DataError};

pub use block::{pack_tile, terms_of, unpack_tile};
pub use layout::{ChunkPlace, StreamLayout, chunks};

/// Why weights could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error("the weight stream of sm {sm} cannot be packed: {what}")]
    Layout { sm: u32, what: String },
    #[error("packed weights could not be written: {0}")]
    Io(#[from] std::io::Error),
}

impl StreamLayout {
    /// Writes the packed stream of SM `sm`; never more than one tile is in memory besides the rows it
    /// is made from.
    ///
    /// # Errors
    /// Contents are missing, or the writer fails.
    pub fn pack_sm(
        &self,
        program: &Program,
        sm: usize,
        data: &dyn Data,
        out: &mut impl Write,
    ) -> Result<(), PackError> {
        let Some(entry) = program.sms.get(sm) else { return Ok(()) };
        let mut tile = Vec::new();
        for run in &entry.stream {
            let RunSource::Weight { buffer, lo, hi, blocks, .. } = run.source else {
                return Err(PackError::Layout {
                    sm: sm as u32,
                    what: format!("{} holds keys and values", run.id),
                });
            };
            let (width, total, terms) = self.matrix(program, sm as u32, buffer)?;
            let mut row = lo;
            while row < hi {
                let end = (row + TILE_ROWS).min(hi);
                let values = data.rows(buffer, row..end)?;
                tile.clear();
                pack_tile(&values, width as usize, terms as usize, &mut tile);
                debug_assert_eq!(tile.len() as u64, total * amk_schedule_ir::BLOCK_BYTES);
                // K blocks of a tile are contiguous whether they fill one chunk or several.
                debug_assert!(blocks > 0);
                out.write_all(&tile)?;
                row = end;
            }
        }
        Ok(())
    }

    fn matrix(
        &self,
        program: &Program,
        sm: u32,
        id: BufferId,
    ) -> Result<(u64, u64, u64), PackError> {
        let buffer = program.buffer(id);
        let found =
            buffer.and_then(|b| Some((*b.shape.get(1)?, weight_blocks(b)?, b.dtype.terms())));
        found.ok_or_else(|| PackError::Layout { sm, what: format!("{id} is no matrix") })
    }
}
