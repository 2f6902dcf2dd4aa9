//! The kernel's parameters and its report, field for field as the templates declare them.

use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

/// `Params` of `megakernel.cu.j2`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Params {
    pub weights: u64,
    pub arena: u64,
    pub tables: u64,
    pub host_tokens: u64,
    pub host_progress: u64,
    pub trace: u64,
    pub spin_limit: u64,
    pub pos0: u32,
    pub steps: u32,
    pub epoch_base: u32,
    pub prompt_len: u32,
    pub flags: u32,
    pub eos_count: u32,
    pub eos: [u32; 8],
    pub trace_stride: u32,
    pub pad: u32,
}

// SAFETY: plain integers without padding holes, laid out as the kernel reads them.
unsafe impl DeviceRepr for Params {}
// SAFETY: all-zero is a value of every field.
unsafe impl ValidAsZeroBits for Params {}

/// `SpinReport` of `sync/spin.cu.j2`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchReport {
    /// 0 went well, 1 a wait was given up, 2 NaN logits.
    pub given_up: u32,
    pub sm: u32,
    pub pc: u32,
    pub edge: u32,
    pub expected: u32,
    pub seen: u32,
    pub step: u32,
}

impl LaunchReport {
    /// Bytes of the report on the device.
    pub const BYTES: usize = 32;

    /// Reads the device's eight little-endian words.
    pub fn read(bytes: &[u8]) -> LaunchReport {
        let word = |i: usize| {
            bytes.get(4 * i..4 * i + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        };
        LaunchReport {
            given_up: word(0),
            sm: word(1),
            pc: word(2),
            edge: word(3),
            expected: word(4),
            seen: word(5),
            step: word(6),
        }
    }
}

impl LaunchReport {
    /// The error a report that is not clean stands for.
    pub fn into_error(self) -> super::DeviceError {
        if self.given_up == 2 {
            return super::DeviceError::NaN { step: self.step };
        }
        super::DeviceError::Hung(super::error::Hang {
            sm: self.sm,
            queue_index: self.pc,
            instruction: None,
            step: self.step,
            edge: self.edge,
            expected: self.expected,
            seen: self.seen,
        })
    }
}
