//! Buffers filled from a checkpoint: constants in their storage type, weights packed into streams.
//!
//! Weights are packed piece by piece on all cores and copied through two page-locked buffers, so that host memory
//! stays bounded however large the model is.

use amk_schedule_ir::{Buffer, BufferId, BufferKind, DType, Program};
use half::{bf16, f16};
use rayon::prelude::*;

use super::packed::Keeping;
use super::{Built, EngineError, Keep};
use crate::codegen::Arena;
use crate::device::{Block, Device, Staging};
use crate::pack::{PackError, Piece, StreamLayout};
use crate::vm::Data;

/// Rows of a constant that are converted at once.
const ROWS: u64 = 4096;
/// Bytes of one packed piece, about.
const PIECE_BYTES: u64 = 2 << 20;
/// Bytes of pieces that are in memory at once, about.
const BATCH_BYTES: u64 = 128 << 20;
/// Bytes of each of the two page-locked buffers.
const STAGING_BYTES: usize = 16 << 20;

/// Elements in storage type, little-endian. Values came from that type or a narrower one, so the
/// conversion is exact.
pub fn constant_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Uploads constants, whose arena begins `shift` bytes into `arena`, and weights; `progress(done, total)` in bytes.
pub(super) fn upload(
    device: &Device,
    built: &Built,
    data: &dyn Data,
    weights: &mut Block,
    (arena, shift): (&mut Block, u64),
    keep: Option<&Keep>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), EngineError> {
    let layout = Arena::new(&built.program);
    let mut staging = Staging::new(device, STAGING_BYTES)?;
    for (i, buffer) in built.program.buffers.iter().enumerate() {
        // What is not numbers the launches bring.
        if buffer.kind == BufferKind::Constant && buffer.dtype != DType::U32 {
            let at = shift + layout.offset(buffer.id);
            upload_constant(buffer, BufferId(i as u32), data, at, arena, &mut staging)?;
        }
    }
    let total = built.tables.weight_bytes;
    let mut put = |at: u64, bytes: &[u8]| -> Result<(), EngineError> {
        staging.write(weights, at, bytes)?;
        progress(at + bytes.len() as u64, total);
        Ok(())
    };
    let there = match keep.map(|k| k.cache.load(&k.key, total, &mut put)).transpose() {
        Ok(there) => there == Some(true),
        Err(EngineError::Packed(why)) => {
            tracing::warn!("{why}");
            false
        }
        Err(other) => return Err(other),
    };
    if !there {
        let mut keeping = keep.and_then(|k| begin(k, total));
        pack(&built.program, &built.tables.weight_at, total, data, &mut |at, bytes| {
            put(at, bytes)?;
            if let Some(Err(why)) = keeping.as_mut().map(|k| k.push(bytes)) {
                tracing::warn!("{why}");
                keeping = None;
            }
            Ok(())
        })?;
        if let Some(Err(why)) = keeping.map(Keeping::finish) {
            tracing::warn!("{why}");
        }
    }
    device.synchronize()?;
    Ok(())
}

/// A file to keep packed weights in. One that cannot be made is no reason not to go on.
fn begin(keep: &Keep, total: u64) -> Option<Keeping> {
    keep.cache.begin(&keep.key, total).map_err(|why| tracing::warn!("{why}")).ok()
}

/// Packs all streams of a program in the order they lie in memory; `put(at, bytes)` gets piece after piece.
/// `weight_at` and `total` are what the tables expect.
///
/// # Errors
/// Contents are missing, the tables expect other places, or `put` fails.
pub fn pack(
    program: &Program,
    weight_at: &[u64],
    total: u64,
    data: &dyn Data,
    put: &mut dyn FnMut(u64, &[u8]) -> Result<(), EngineError>,
) -> Result<(), EngineError> {
    let layout = StreamLayout::new(program)?;
    if layout.sm_at != weight_at || layout.bytes != total {
        return Err(EngineError::Mismatch(format!(
            "{} bytes of weights are packed where the tables expect {total}",
            layout.bytes
        )));
    }
    let pieces = layout.pieces(program, PIECE_BYTES)?;
    let mut rest = &pieces[..];
    while !rest.is_empty() {
        let mut bytes = 0;
        let within = |p: &&Piece| {
            bytes += p.bytes;
            bytes <= BATCH_BYTES
        };
        let n = rest.iter().take_while(within).count().max(1);
        let (batch, later) = rest.split_at(n);
        let packed: Vec<Result<Vec<u8>, PackError>> =
            batch.par_iter().map(|piece| layout.pack_piece(program, piece, data)).collect();
        for (piece, bytes) in batch.iter().zip(packed) {
            put(piece.at, &bytes?)?;
        }
        rest = later;
    }
    Ok(())
}

fn upload_constant(
    buffer: &Buffer,
    id: BufferId,
    data: &dyn Data,
    offset: u64,
    arena: &mut Block,
    staging: &mut Staging,
) -> Result<(), EngineError> {
    let rows = if buffer.shape.len() > 1 { buffer.shape[0] } else { 1 };
    let mut at = offset;
    for lo in (0..rows).step_by(ROWS as usize) {
        let values = data.rows(id, lo..(lo + ROWS).min(rows))?;
        let bytes = constant_bytes(&values, buffer.dtype);
        staging.write(arena, at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}
