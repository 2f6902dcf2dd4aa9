//! Bytes per SM: how evenly the schedule deals out the streams.

use amk_schedule_ir::{BufferKind, Instruction, Program};
use serde::Serialize;

use crate::graph::DependenceGraph;

/// What one SM does in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SmLoad {
    pub instructions: usize,
    /// Packed weight bytes through its stream.
    pub weight_bytes: u64,
    /// KV cache bytes it reads at the last position of the bucket.
    pub kv_bytes: u64,
}

/// All SMs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Balance {
    pub sms: Vec<SmLoad>,
    /// Weight bytes of all SMs.
    pub weight_bytes: u64,
    /// KV bytes of all SMs at the last position.
    pub kv_bytes: u64,
    /// Weight bytes of the busiest SM over the mean; 1 is even.
    pub worst_over_mean: f64,
}

impl Balance {
    /// Sums up a program's stages by SM.
    pub fn of(program: &Program, graph: &DependenceGraph) -> Self {
        let queue_kv = |sm: &amk_schedule_ir::Sm| {
            let instructions = sm.queue.iter().filter_map(|id| program.instruction(*id));
            instructions.map(|i| kv_bytes(program, i)).sum()
        };
        let mut sms: Vec<SmLoad> = program
            .sms
            .iter()
            .map(|sm| SmLoad {
                instructions: sm.queue.len(),
                weight_bytes: 0,
                kv_bytes: queue_kv(sm),
            })
            .collect();
        for (sm, bytes) in graph.graph.node_weights().flat_map(|stage| &stage.sm_bytes) {
            if let Some(load) = sms.get_mut(*sm) {
                load.weight_bytes += bytes;
            }
        }
        let weight_bytes = sms.iter().map(|s| s.weight_bytes).sum();
        let worst = sms.iter().map(|s| s.weight_bytes).max().unwrap_or(0);
        let mean = weight_bytes as f64 / sms.len().max(1) as f64;
        Self {
            kv_bytes: sms.iter().map(|s| s.kv_bytes).sum(),
            weight_bytes,
            worst_over_mean: if mean > 0.0 { worst as f64 / mean } else { 1.0 },
            sms,
        }
    }
}

/// Bytes of cached rows an instruction reads at the last position of the bucket.
fn kv_bytes(program: &Program, i: &Instruction) -> u64 {
    let reads = i.reads.iter().filter_map(|a| {
        let buffer = program.buffer(a.buffer).filter(|b| b.kind == BufferKind::Kv)?;
        let elements = u64::try_from(a.region.volume(program.bucket.last)?).ok()?;
        elements.checked_mul(buffer.dtype.bytes())
    });
    reads.fold(0, u64::saturating_add)
}
