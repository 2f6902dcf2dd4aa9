//! Packing: the weights of a program as the byte streams its SMs load.
//!
//! A packed block is 8 rows x 32 K of bf16, 512 bytes. Lane `L` of a warp owns the 16 bytes at `16 L`: of
//! row `L / 4`, the eight values from K `8 * (L % 4)` on. A block is the A fragment of one `mma.m16n8k16`: bytes 0 to 7
//! are rows 0 to 7 (registers a0 and a2), bytes 8 to 15 rows 8 to 15 (a1 and a3), under a permutation of K that the
//! activation fragment shares: a token has one column for each of the two halves.
//!
//! A chunk holds whole tiles (`tiles > 1`) or some K blocks of one tile, tile by tile and block by block.
//! A tile of a matrix `[rows, k]` has `terms * ceil(k / 32)` blocks: block `b` is bf16 term
//! `b / ceil(k / 32)` of K block `b % ceil(k / 32)`. Terms of a float16 or float32 weight are the bf16
//! roundings of what is left, so they add up to the weight exactly. Rows and K past the end are zero.
//! Chunks follow each other without gaps, runs in stream order, SMs in order.

mod block;
mod layout;

use amk_schedule_ir::{BLOCK_BYTES, BufferId, Program, RunSource, TILE_ROWS, weight_blocks};

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
}

/// Some neighbouring tiles of one run: what is packed at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    sm: u32,
    buffer: BufferId,
    lo: u64,
    hi: u64,
    /// Offset in the packed weights, bytes.
    pub at: u64,
    pub bytes: u64,
}

impl StreamLayout {
    /// All weights of a program in pieces of about `bytes` bytes, at least a tile each, in the order they lie in
    /// memory and without gaps.
    ///
    /// # Errors
    /// A run that holds no matrix.
    pub fn pieces(&self, program: &Program, bytes: u64) -> Result<Vec<Piece>, PackError> {
        let mut out = Vec::new();
        for (sm, entry) in program.sms.iter().enumerate() {
            let sm = sm as u32;
            let mut at = self.sm_at.get(sm as usize).copied().unwrap_or(0);
            for run in &entry.stream {
                // Keys and values are not packed.
                let RunSource::Weight { buffer, lo, hi, .. } = run.source else { continue };
                let (_, total, _) = self.matrix(program, sm, buffer)?;
                let tile = total * BLOCK_BYTES;
                let rows = (bytes / tile.max(1)).max(1) * TILE_ROWS;
                let mut row = lo;
                while row < hi {
                    let end = row.saturating_add(rows).min(hi);
                    let bytes = (end - row).div_ceil(TILE_ROWS) * tile;
                    out.push(Piece { sm, buffer, lo: row, hi: end, at, bytes });
                    at += bytes;
                    row = end;
                }
            }
        }
        Ok(out)
    }

    /// The packed bytes of a piece.
    ///
    /// # Errors
    /// Contents are missing.
    pub fn pack_piece(
        &self,
        program: &Program,
        piece: &Piece,
        data: &dyn Data,
    ) -> Result<Vec<u8>, PackError> {
        let (width, _, terms) = self.matrix(program, piece.sm, piece.buffer)?;
        let mut out = Vec::with_capacity(piece.bytes as usize);
        let mut row = piece.lo;
        while row < piece.hi {
            let end = (row + TILE_ROWS).min(piece.hi);
            let values = data.rows(piece.buffer, row..end)?;
            // K blocks of a tile are contiguous whether they fill one chunk or several.
            pack_tile(&values, width as usize, terms as usize, &mut out);
            row = end;
        }
        match out.len() as u64 == piece.bytes {
            true => Ok(out),
            false => Err(PackError::Layout {
                sm: piece.sm,
                what: format!("{} bytes instead of {}", out.len(), piece.bytes),
            }),
        }
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
