//! **M, memory model.** Exact statement:
//!
//! - Packet words hold a value and an epoch in 64 bits, so `key` elements cannot be packets. Only
//!   activations are packets or local; every other kind is plain.
//! - Only packet accesses have a phase.
//! - What an edge carries is fixed by its kind ([`EdgeKind`]): program order, the ring, counters and
//!   boundaries order all accesses around them; a packet delivers its own word and orders nothing.
//!   Invariant R counts the former alone, so a plain access that leans on a packet is a race.
//!
//! The edge kinds as PTX, which the generated text must contain (judged there, not here):
//!
//! | edge | release side | acquire side |
//! | --- | --- | --- |
//! | counter | block barrier over the consumer warps, `red.release.gpu.add` (or `fence.acq_rel.gpu` and a relaxed add) by one thread | `ld.acquire.gpu` in a loop by one thread, block barrier |
//! | ring, landed | the copy completes on the slot's mbarrier (`complete_tx`, async proxy) | `mbarrier.try_wait.parity` (acquire, cta) |
//! | ring, released | each consumer warp `mbarrier.arrive` (release, cta) after its last read of the slot | P `mbarrier.try_wait.parity` before the next copy into it |
//! | boundary | block barrier, `atom.acq_rel.gpu` on the arrival word; the last arriver's `st.release.gpu` of the token word | `ld.acquire.gpu` of the token word, block barrier |
//! | gate | the boundary that ends step `t - g` | P's own `ld.acquire.gpu` of the token word, then `fence.proxy.async` before the copy |
//! | packet | `st.relaxed.gpu.b64` of value and epoch | `ld.relaxed.gpu.b64` until the epoch is there |

use amk_schedule_ir::text::print_access;
use amk_schedule_ir::{Access, BufferKind, BufferSync, Instruction, Program};

use crate::fault::{Fault, Faults, Invariant, Place};

/// Kinds of dependences between accesses, and what each carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EdgeKind {
    /// Program order of one agent.
    Program,
    /// A slot of the ring: landed, or released.
    Ring,
    /// A counter signal and a wait it must precede.
    Counter,
    /// The step boundary, gates included.
    Boundary,
    /// A packet word.
    Packet,
}

impl EdgeKind {
    /// Does the edge order the accesses before it against those after it? Otherwise it delivers one
    /// word.
    pub fn orders(self) -> bool {
        self != EdgeKind::Packet
    }
}

/// Judges the buffers; works on any program.
pub(crate) fn buffers(p: &Program, faults: &mut Faults) {
    for (i, b) in p.buffers.iter().enumerate() {
        if b.sync == BufferSync::Packet && b.dtype.per_word() == 0 {
            faults.push(Fault::new(
                Invariant::M,
                Place::Buffer(i),
                format!("buffer {i} has packets of {:?}, which do not fit a 64-bit word with their epoch; make it plain", b.dtype),
            ));
        }
        if b.sync != BufferSync::Plain && b.kind != BufferKind::Activation {
            faults.push(Fault::new(
                Invariant::M,
                Place::Buffer(i),
                format!("buffer {i} is a {:?} buffer with {:?} synchronisation, but only activations may be anything but plain", b.kind, b.sync),
            ));
        }
    }
}

/// Judges one instruction.
pub(crate) fn instruction(p: &Program, i: usize, x: &Instruction, faults: &mut Faults) {
    for a in x.reads.iter().chain(&x.writes) {
        phase(p, Place::Instruction(i), a, faults);
    }
}

/// Judges the boundary.
pub(crate) fn boundary(p: &Program, faults: &mut Faults) {
    for a in p.boundary.reads.iter().chain(&p.boundary.writes) {
        phase(p, Place::Boundary, a, faults);
    }
}

fn phase(p: &Program, place: Place, a: &Access, faults: &mut Faults) {
    if a.phase == 0 || p.buffer(a.buffer).is_none_or(|b| b.sync == BufferSync::Packet) {
        return;
    }
    let who = match place {
        Place::Instruction(i) => format!("instr {i}"),
        _ => "the boundary".to_owned(),
    };
    faults.push(
        Fault::new(
            Invariant::M,
            place,
            format!("{who} accesses {} in a phase, but {} has no packets and so no epochs; remove `@{}`", print_access(a), a.buffer, a.phase),
        )
        .access(a),
    );
}
