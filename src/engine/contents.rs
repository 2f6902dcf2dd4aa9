//! Buffers filled from a checkpoint: constants in their storage type, weights packed into streams.

use amk_schedule_ir::{Buffer, BufferId, BufferKind, DType};
use half::{bf16, f16};

use super::{Built, EngineError};
use crate::codegen::Arena;
use crate::device::Block;
use crate::pack::StreamLayout;
use crate::vm::Data;

/// Rows of a constant that are converted at once.
const ROWS: u64 = 4096;

/// Elements in storage type, little-endian. Values came from that type or a narrower one, so the
/// conversion is exact.
pub fn constant_bytes(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Uploads constants and weights; `progress(done, total)` in bytes.
pub(super) fn upload(
    built: &Built,
    data: &dyn Data,
    weights: &mut Block,
    arena: &mut Block,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), EngineError> {
    let layout = Arena::new(&built.program);
    for (i, buffer) in built.program.buffers.iter().enumerate() {
        if buffer.kind == BufferKind::Constant {
            upload_constant(buffer, BufferId(i as u32), data, layout.offset(buffer.id), arena)?;
        }
    }
    let streams = StreamLayout::new(&built.program)?;
    let total = built.tables.weight_bytes;
    let mut packed = Vec::new();
    for (sm, &at) in built.tables.weight_at.iter().enumerate() {
        packed.clear();
        streams.pack_sm(&built.program, sm, data, &mut packed)?;
        let end = built.tables.weight_at.get(sm + 1).copied().unwrap_or(total);
        if at + packed.len() as u64 != end {
            return Err(EngineError::Mismatch(format!(
                "sm {sm}: {} bytes were packed where the tables expect {}",
                packed.len(),
                end - at
            )));
        }
        weights.write(at, &packed)?;
        progress(end, total);
    }
    Ok(())
}

fn upload_constant(
    buffer: &Buffer,
    id: BufferId,
    data: &dyn Data,
    offset: u64,
    arena: &mut Block,
) -> Result<(), EngineError> {
    let rows = if buffer.shape.len() > 1 { buffer.shape[0] } else { 1 };
    let mut at = offset;
    for lo in (0..rows).step_by(ROWS as usize) {
        let values = data.rows(id, lo..(lo + ROWS).min(rows))?;
        let bytes = constant_bytes(&values, buffer.dtype);
        arena.write(at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}
