//! Faults planted in tables that were already packed and checked, to see that a hang ends and is named.

use amk_schedule_ir::{BufferSync, Instruction, Op, Program};

/// Bytes of one instruction, and of the fields that are changed; see `megakernel.cu.j2`.
const RECORD: usize = 128;
const OP_AT: usize = 0;
const SIGNAL_COUNT_AT: usize = 5 * 4;

/// What to take away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tampered {
    /// The signals of the first instruction that has some.
    Signal,
    /// The first instruction that writes packets and streams no weights.
    Packet,
    /// The last SM's arrival at the step boundary.
    Boundary,
}

/// A change of packed tables: four bytes at an offset, and what it takes away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub at: usize,
    pub word: u32,
    pub what: String,
}

/// The change that plants a fault in a program's tables; none if the program has nothing of the kind.
pub fn tamper(program: &Program, tables: &[u8], fault: Tampered) -> Option<Change> {
    let code_at = u32::from_le_bytes(tables.get(..4)?.try_into().ok()?) as usize;
    let packets = |i: &Instruction| {
        let sync = |b| program.buffer(b).map(|b| b.sync);
        i.run.is_none() && i.writes.iter().any(|w| sync(w.buffer) == Some(BufferSync::Packet))
    };
    let wanted = |i: &Instruction| match fault {
        Tampered::Signal => !i.signals.is_empty(),
        Tampered::Packet => packets(i),
        Tampered::Boundary => matches!(i.op, Op::Boundary(_)),
    };
    let queues = program.sms.iter().flat_map(|sm| sm.queue.iter().map(move |id| (sm.id, *id)));
    let mut found = queues.enumerate().filter_map(|(index, (sm, id))| {
        let i = program.instruction(id)?;
        wanted(i).then_some((index, sm, i))
    });
    let (index, sm, i) = match fault {
        Tampered::Boundary => found.last()?,
        _ => found.next()?,
    };
    let (field, word, part) = match fault {
        Tampered::Signal => (SIGNAL_COUNT_AT, 0, "the signals of"),
        // No program has so many kinds of instruction.
        _ => (OP_AT, u32::MAX, ""),
    };
    let what = format!("{part} {} {} of {sm}", i.id, i.op.name()).trim().to_owned();
    Some(Change { at: code_at + index * RECORD + field, word, what })
}
