//! Where each buffer lies in device memory.
//!
//! Weights are a block of their own (the packed streams). Every other buffer, the counters and the
//! boundary's words share one arena; offsets are relative to it, so tables do not depend on a device.

use amk_schedule_ir::{Buffer, BufferId, BufferKind, BufferSync, Program};

/// Alignment of every buffer, bytes.
const ALIGN: u64 = 256;
/// Distance between counters, bytes: one L2 line each.
pub const COUNTER_STRIDE: u64 = 128;

/// Offsets into the arena, bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// By buffer id; `None` for buffers that are not in the arena (weights, SM-private ones).
    pub offsets: Vec<Option<u64>>,
    pub counters: u64,
    /// Boundary arrivals, a u32.
    pub arrivals: u64,
    /// Token word, a u64.
    pub token_word: u64,
    /// Cancel request, a u32 the host sets.
    pub cancel: u64,
    /// Report of a wait that was given up: eight u32.
    pub report: u64,
    /// Size of the arena.
    pub bytes: u64,
    /// Everything from here on is zero before the first launch: packets, counters, boundary words.
    pub zero_from: u64,
}

/// Innermost extent in memory, in elements: rank-2 activations are padded to four, so that every row
/// can be read four elements at a time.
pub fn pitch(buffer: &Buffer) -> u64 {
    let inner = buffer.shape.last().copied().unwrap_or(0);
    match (buffer.kind, buffer.shape.len()) {
        (BufferKind::Activation, 2) => inner.next_multiple_of(4),
        _ => inner,
    }
}

/// Bytes of a buffer in the arena.
pub fn buffer_bytes(buffer: &Buffer) -> u64 {
    let rows: u64 = buffer.shape.iter().rev().skip(1).product();
    let elements = rows * pitch(buffer);
    match buffer.sync {
        BufferSync::Packet => elements.div_ceil(buffer.dtype.per_word().max(1)) * 8,
        _ => elements * buffer.dtype.bytes(),
    }
}

impl Arena {
    /// Lays out the buffers of a program: read-only data and cache first, then what starts as zero.
    pub fn new(program: &Program) -> Arena {
        let mut at = 0u64;
        let mut take = |bytes: u64| {
            let offset = at;
            // At least one alignment of slack: four-element reads may pass the end of a row.
            at = (at + bytes + 16).next_multiple_of(ALIGN);
            offset
        };
        let mut offsets = vec![None; program.buffers.len()];
        let zeroed = |b: &Buffer| b.kind == BufferKind::Activation;
        let mut zero_from = 0;
        for pass in [false, true] {
            if pass {
                zero_from = take(0);
            }
            for (slot, buffer) in offsets.iter_mut().zip(&program.buffers) {
                let placed = buffer.kind != BufferKind::Weight && buffer.sync != BufferSync::Local;
                if placed && zeroed(buffer) == pass {
                    *slot = Some(take(buffer_bytes(buffer)));
                }
            }
        }
        let counters = take(program.counters.len() as u64 * COUNTER_STRIDE);
        let (arrivals, token_word, cancel, report) = (take(4), take(8), take(4), take(32));
        Arena { offsets, counters, arrivals, token_word, cancel, report, bytes: at, zero_from }
    }

    /// Offset of a buffer; 0 for one that is not in the arena.
    pub fn offset(&self, id: BufferId) -> u64 {
        self.offsets.get(id.index()).copied().flatten().unwrap_or(0)
    }
}
