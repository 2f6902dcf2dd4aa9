//! Where each chunk lies in the packed weights.

use amk_schedule_ir::{BLOCK_BYTES, Program, RunSource, TILE_ROWS, weight_blocks};

use super::PackError;

/// One chunk of an SM's stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlace {
    /// Run of the SM's stream.
    pub run: u32,
    /// Offset from the start of the SM's stream, bytes.
    pub offset: u64,
    pub bytes: u64,
}

/// Offsets of the packed streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamLayout {
    /// Start of each SM's stream in the packed weights, bytes.
    pub sm_at: Vec<u64>,
    /// Bytes of all streams.
    pub bytes: u64,
}

impl StreamLayout {
    /// Lays out the streams of a program.
    ///
    /// # Errors
    /// A run that holds no weights, or does not match its matrix.
    pub fn new(program: &Program) -> Result<StreamLayout, PackError> {
        let mut bytes = 0;
        let mut sm_at = Vec::with_capacity(program.sms.len());
        for sm in 0..program.sms.len() {
            sm_at.push(bytes);
            bytes += chunks(program, sm)?.iter().map(|c| c.bytes).sum::<u64>();
        }
        Ok(StreamLayout { sm_at, bytes })
    }
}

/// The chunks of one SM's stream in the order the producer issues them: the same walk as
/// `ring/common.cu.j2`.
pub fn chunks(program: &Program, sm: usize) -> Result<Vec<ChunkPlace>, PackError> {
    let mut out = Vec::new();
    let Some(entry) = program.sms.get(sm) else { return Ok(out) };
    let mut offset = 0;
    for run in &entry.stream {
        let fault =
            |what: &str| PackError::Layout { sm: sm as u32, what: format!("{} {what}", run.id) };
        let RunSource::Weight { buffer, lo, hi, tiles, blocks } = run.source else {
            return Err(fault("holds keys and values"));
        };
        let total = program
            .buffer(buffer)
            .and_then(weight_blocks)
            .ok_or_else(|| fault("reads a buffer that is no matrix"))?;
        if tiles == 0 || blocks == 0 || hi < lo {
            return Err(fault("has no chunks"));
        }
        let tile_count = (hi - lo).div_ceil(TILE_ROWS);
        let (mut tile, mut block) = (0, 0);
        while tile < tile_count {
            let tiles = u64::from(tiles).min(tile_count - tile);
            let blocks = u64::from(blocks).min(total - block);
            let bytes = tiles * blocks * BLOCK_BYTES;
            out.push(ChunkPlace { run: run.id.0, offset, bytes });
            offset += bytes;
            block += blocks;
            if block == total {
                block = 0;
                tile += tiles;
            }
        }
    }
    Ok(out)
}
