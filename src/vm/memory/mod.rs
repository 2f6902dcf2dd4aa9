//! The memory of a run, kept between launches: values of every buffer (`values.rs`, only where
//! numbers are computed) and the record of who wrote and read what (`shadow.rs`).

mod shadow;
mod values;

use std::collections::BTreeMap;

use amk_schedule_ir::{BufferKind, BufferSync};

use super::fault::VmFault;
use super::plan::{Interval, Plan};
pub(crate) use shadow::{Actor, Found, NO_INSTRUCTION, Packets, Record, Shadow, Trouble};
pub(crate) use values::Array;
pub use values::Values;

/// Largest memory of values, elements of all buffers together.
const MAX_VALUES: u64 = 1 << 30;

/// All buffers.
pub(crate) struct Memory {
    pub shadows: Vec<Shadow>,
    /// `None` where nothing is computed, and for read-only buffers.
    pub arrays: Vec<Option<Array>>,
    /// Consumers waiting for a packet word, by buffer and element.
    pub waiting: Vec<BTreeMap<u64, Vec<u32>>>,
    /// Ends of the elements the host has put tokens in: `[0, n)` of each tokens buffer.
    pub prompt: u64,
}

impl Memory {
    pub fn new(plan: &Plan, values: bool) -> Result<Memory, VmFault> {
        let total = plan.buffers.iter().filter(|b| b.tracked).map(|b| b.elements);
        if values && total.fold(0, u64::saturating_add) > MAX_VALUES {
            let what = "its buffers are too large to compute with; run it without data".to_owned();
            return Err(VmFault::Launch { what });
        }
        let buffers = plan.buffers.iter().zip(&plan.program.buffers);
        Ok(Memory {
            shadows: plan.buffers.iter().map(Shadow::new).collect(),
            arrays: buffers
                .map(|(p, b)| {
                    (values && p.tracked).then(|| Array::new(b.dtype, p.elements as usize))
                })
                .collect(),
            waiting: vec![BTreeMap::new(); plan.buffers.len()],
            prompt: 0,
        })
    }

    /// Gives every packet word the leftovers of an earlier epoch.
    pub fn preset_epochs(&mut self, plan: &Plan, epoch: u64) {
        for (shadow, buffer) in self.shadows.iter_mut().zip(&plan.buffers) {
            if buffer.sync == BufferSync::Packet {
                shadow.preset((0, buffer.elements), Some(epoch));
            }
        }
    }

    /// What the host has filled before a launch at `pos`, where no values say it.
    pub fn preset_host(&mut self, plan: &Plan, pos: u64) {
        let tokens = u64::from(plan.program.tokens);
        for (i, buffer) in plan.program.buffers.iter().enumerate() {
            let elements = plan.buffers[i].elements;
            let shadow = &mut self.shadows[i];
            match (buffer.kind, buffer.shape.as_slice()) {
                (BufferKind::Tokens, _) => {
                    shadow.preset((0, elements.min(pos.saturating_add(tokens))), None);
                }
                (BufferKind::Kv, [heads, capacity, width]) => {
                    let rows = pos.min(*capacity);
                    for h in 0..*heads {
                        let at = h * capacity * width;
                        if rows > 0 {
                            shadow.preset((at, at + rows * width), None);
                        }
                    }
                }
                // A cache of another shape has no rows; all of it counts as filled.
                (BufferKind::Kv, _) => shadow.preset((0, elements), None),
                _ => {}
            }
        }
    }

    /// Consumers whose awaited word lies in the interval, taken off the list.
    pub fn wake(&mut self, buffer: usize, (lo, hi): Interval, out: &mut Vec<u32>) {
        let waiting = &mut self.waiting[buffer];
        if waiting.is_empty() {
            return;
        }
        while let Some((&at, _)) = waiting.range(lo..hi).next() {
            out.extend(waiting.remove(&at).into_iter().flatten());
        }
    }
}
