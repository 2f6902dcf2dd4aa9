//! How the arenas of several programs lie over each other, so that all use one cache and one copy of the constants.
//!
//! A program's addresses are offsets into an arena of its own making. The arenas are laid so that the cache, the
//! constants and the output coincide; the base of each is `shift` bytes into the memory. Token buffers differ in
//! length between programs of one and of several positions a step and so do not coincide; the engine writes tokens to
//! the buffer of the program that runs next. Everything from `zero_from` on belongs to one program at a time.

use amk_schedule_ir::{Buffer, BufferKind, Program, Run, RunSource};

use super::EngineError;
use crate::codegen::Arena;

/// Shifts of some programs' arenas, and the memory they take together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overlay {
    /// By program, bytes.
    pub shifts: Vec<u64>,
    /// Bytes of all.
    pub bytes: u64,
}

/// Buffers that all programs of a model hold in common.
fn shared(buffer: &&Buffer) -> bool {
    matches!(buffer.kind, BufferKind::Kv | BufferKind::Constant | BufferKind::Output)
}

/// Lays the arenas of programs over each other.
///
/// # Errors
/// The programs stream different weights, or do not place what they share alike.
pub fn overlay(programs: &[&Program]) -> Result<Overlay, EngineError> {
    let mismatch = |what: &str| {
        EngineError::Mismatch(format!(
            "the programs of the position buckets {what}; use the same knobs for all"
        ))
    };
    let Some(first) = programs.first() else {
        return Err(EngineError::Mismatch("no program was given".to_owned()));
    };
    let places = |p: &Program| {
        let arena = Arena::new(p);
        let kept = p.buffers.iter().filter(shared);
        kept.map(|b| (b.name.clone(), b.dtype, b.shape.clone(), arena.offset(b.id)))
            .collect::<Vec<_>>()
    };
    let base = places(first);
    let mut offsets = Vec::new();
    for program in programs {
        if streams(program) != streams(first) {
            return Err(mismatch("stream different weights"));
        }
        let mine = places(program);
        let alike = mine.len() == base.len()
            && mine.iter().zip(&base).all(|(a, b)| (&a.0, a.1, &a.2) == (&b.0, b.1, &b.2));
        if !alike {
            return Err(mismatch("have different caches or constants"));
        }
        // The distance from the first program is the same for every buffer.
        let distance = |i: usize| mine[i].3.wrapping_sub(base[i].3);
        let from = if mine.is_empty() { 0 } else { distance(0) };
        if !(0..mine.len()).all(|i| distance(i) == from) {
            return Err(mismatch("place their caches or constants differently"));
        }
        offsets.push(mine.first().map_or(0, |m| m.3));
    }
    let most = offsets.iter().copied().max().unwrap_or(0);
    let shifts: Vec<u64> = offsets.iter().map(|o| most - o).collect();
    let ends = programs.iter().zip(&shifts).map(|(p, s)| Arena::new(p).bytes + s);
    Ok(Overlay { bytes: ends.max().unwrap_or(0), shifts })
}

/// The weight rows each SM streams, in order. Packed bytes depend on them and not on how they are cut into chunks.
fn streams(program: &Program) -> Vec<Vec<(&str, u64, u64)>> {
    let rows = |r: &Run| match &r.source {
        RunSource::Weight { buffer, lo, hi, .. } => {
            program.buffer(*buffer).map(|b| (b.name.as_str(), *lo, *hi))
        }
        RunSource::Kv { .. } => None,
    };
    program.sms.iter().map(|s| s.stream.iter().filter_map(rows).collect()).collect()
}

/// Device memory a model takes, by what it is for. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    pub weights: u64,
    pub kv: u64,
    /// Embedding, norms, RoPE table.
    pub constants: u64,
    /// Packets, counters, logits, tokens.
    pub activations: u64,
    /// Instruction tables of all programs.
    pub tables: u64,
}

impl Memory {
    /// What some programs take together, with their tables and packed weights.
    pub fn of(programs: &[&Program], overlay: &Overlay, tables: u64, weights: u64) -> Memory {
        let sum = |kind: BufferKind| {
            let Some(first) = programs.first() else { return 0 };
            let of_kind = first.buffers.iter().filter(|b| b.kind == kind);
            of_kind.map(crate::codegen::arena::buffer_bytes).sum::<u64>()
        };
        let (kv, constants) = (sum(BufferKind::Kv), sum(BufferKind::Constant));
        let activations = overlay.bytes.saturating_sub(kv + constants);
        Memory { weights, kv, constants, activations, tables }
    }

    /// All of it.
    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.constants + self.activations + self.tables
    }

    /// Compares with what is free.
    ///
    /// # Errors
    /// It does not fit; `reserve` bytes are left to the driver.
    pub fn check(&self, free: u64, reserve: u64) -> Result<(), EngineError> {
        let needed = self.total();
        if needed.saturating_add(reserve) <= free {
            return Ok(());
        }
        let what = format!(
            "the model ({} of weights, {} of KV cache, {} of constants, {} of activations and tables)",
            mebi(self.weights),
            mebi(self.kv),
            mebi(self.constants),
            mebi(self.activations + self.tables)
        );
        Err(crate::device::DeviceError::Memory { what, needed, free }.into())
    }
}

fn mebi(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_compared_with_what_is_free() {
        let need = Memory { weights: 3 << 20, kv: 1 << 20, ..Memory::default() };
        need.check(5 << 20, 1 << 20).unwrap();
        let text = need.check((5 << 20) - 1, 1 << 20).unwrap_err().to_string();
        assert!(text.contains("3.0 MiB of weights"), "{text}");
        assert!(text.contains("4194304") && text.contains("5242879"), "{text}");
    }
}
