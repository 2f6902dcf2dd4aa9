//! Mutators of **M**: edges that are asked to carry what they cannot.

use amk_schedule_ir::{BufferKind, BufferSync, DType, Program};

use super::{List, buffer, site};
use crate::fuzz::draw::Draw;
use crate::vm::rng::Rng;

pub(super) const LIST: List = &[
    ("keys-as-packets", keys_as_packets),
    ("packet-of-another-kind", other_kind),
    ("phase-without-packets", phase),
];

/// A 64-bit value that shares its word with an epoch.
fn keys_as_packets(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let keys = buffer(p, rng, |b| b.dtype == DType::Key && b.sync == BufferSync::Plain);
    match keys {
        Some(i) => p.buffers[i].sync = BufferSync::Packet,
        None => {
            let i = buffer(p, rng, |b| b.sync == BufferSync::Packet)?;
            p.buffers[i].dtype = DType::Key;
        }
    }
    Some(())
}

/// Packets, or private memory, that is no activation.
fn other_kind(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let i = buffer(p, rng, |b| b.kind != BufferKind::Activation)?;
    p.buffers[i].sync = rng.pick(&[BufferSync::Packet, BufferSync::Packet, BufferSync::Local]);
    Some(())
}

/// A phase where there are no epochs.
fn phase(p: &mut Program, rng: &mut Rng) -> Option<()> {
    let s = site(p, rng, |_, _, b, _| b.sync != BufferSync::Packet)?;
    s.access(p).phase = rng.range(1, 2) as u32;
    Some(())
}
