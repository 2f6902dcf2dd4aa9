//! What a run may find, as data and as a sentence.

use std::fmt;

use amk_schedule_ir::{BufferId, InstrId, SmId};

/// One of the two agents of an SM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Agent {
    /// The consumer group C: runs the queue.
    Consumer(SmId),
    /// The producer P: issues the stream.
    Producer(SmId),
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Agent::Consumer(sm) => write!(f, "the consumers of sm {}", sm.0),
            Agent::Producer(sm) => write!(f, "the producer of sm {}", sm.0),
        }
    }
}

/// An access: who made it, on behalf of what, in which step of the launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Site {
    pub agent: Agent,
    /// The instruction; `None` for the accesses of the boundary and for stream copies.
    pub instruction: Option<InstrId>,
    /// Step of the launch, from 0.
    pub step: u64,
    pub write: bool,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.write { "write" } else { "read" };
        match (self.agent, self.instruction) {
            (_, Some(id)) => {
                write!(f, "the {what} of instr {} ({}, step {})", id.0, self.agent, self.step)
            }
            (Agent::Consumer(_), None) => {
                write!(f, "the boundary's {what} ({}, step {})", self.agent, self.step)
            }
            (Agent::Producer(_), None) => {
                write!(f, "the stream's {what} ({}, step {})", self.agent, self.step)
            }
        }
    }
}

/// A place in a buffer: the flattened elements `[lo, hi)` and the indices of the first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    pub buffer: BufferId,
    pub name: Box<str>,
    pub lo: u64,
    pub hi: u64,
    /// Indices of element `lo`, outermost first.
    pub first: Box<[u64]>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {} `{}` element {:?}", self.buffer.0, self.name, self.first)?;
        match self.hi - self.lo {
            0 | 1 => Ok(()),
            n => write!(f, " and the {} after it", n - 1),
        }
    }
}

/// What a blocked agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockedOn {
    /// The counter has not reached the step's threshold.
    Counter { name: String, value: u64, target: u64 },
    /// A packet word does not carry the expected tag (0 = never written).
    Packet { place: Place, expected: u64, seen: u64 },
    /// The chunk has not landed; `issued` tells whether P has got that far.
    Chunk { chunk: u64, issued: bool },
    /// The slot of the chunk is still held by an earlier chunk.
    Slot { chunk: u64, held_by: Option<u64> },
    /// As many chunks in flight as the window allows.
    Window { chunk: u64, window: u32 },
    /// The boundary that ends this step has not happened.
    Gate { chunk: u64, step: u64 },
    /// Some SMs have not arrived at the boundary.
    Boundary { arrived: usize, of: usize },
}

impl fmt::Display for BlockedOn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BlockedOn::Counter { name, value, target } => {
                write!(f, "counter `{name}` to reach {target}; it is {value}")
            }
            BlockedOn::Packet { place, expected, seen } => {
                write!(f, "tag {expected} in {place}; it carries {seen}")
            }
            BlockedOn::Chunk { chunk, issued: false } => {
                write!(f, "chunk {chunk}, which its producer has not issued")
            }
            BlockedOn::Chunk { chunk, issued: true } => {
                write!(f, "chunk {chunk}, which was issued but is not in its slot")
            }
            BlockedOn::Slot { chunk, held_by: Some(other) } => {
                write!(f, "the ring slot of chunk {chunk}, which chunk {other} still holds")
            }
            BlockedOn::Slot { chunk, held_by: None } => {
                write!(f, "a ring slot for chunk {chunk}; the ring has none")
            }
            BlockedOn::Window { chunk, window } => {
                write!(f, "the window of {window} chunks to let chunk {chunk} through")
            }
            BlockedOn::Gate { chunk, step } => {
                write!(f, "the boundary that ends step {step}, the gate of chunk {chunk}")
            }
            BlockedOn::Boundary { arrived, of } => {
                write!(f, "the boundary, where {arrived} of {of} SMs have arrived")
            }
        }
    }
}

/// An agent that can go no further.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocked {
    pub agent: Agent,
    pub step: u64,
    /// The instruction it is at; `None` for producers.
    pub instruction: Option<InstrId>,
    pub on: BlockedOn,
}

impl fmt::Display for Blocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.agent)?;
        if let Some(id) = self.instruction {
            write!(f, " at instr {}", id.0)?;
        }
        write!(f, " in step {} for {}", self.step, self.on)
    }
}

fn who(instruction: &Option<InstrId>) -> String {
    instruction.map_or("the boundary or a stream".to_owned(), |i| format!("instr {}", i.0))
}

fn list(blocked: &[Blocked]) -> String {
    let shown: Vec<String> = blocked.iter().take(8).map(|b| b.to_string()).collect();
    let rest = match blocked.len().saturating_sub(8) {
        0 => String::new(),
        n => format!("; and {n} more"),
    };
    format!("{}{rest}", shown.join("; "))
}

/// A fault found while executing a program, or a reason why it cannot be executed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum VmFault {
    /// The program has no execution: an id, a shape or a queue makes no sense.
    #[error("the program cannot be executed: {what}; validate it for the full list")]
    Malformed { what: String, instruction: Option<InstrId> },
    /// The launch asks for something the program does not offer.
    #[error("this launch cannot run: {what}")]
    Launch { what: String },
    /// An access leaves its buffer.
    #[error(
        "{} accesses [{lo}, {hi}) in dimension {dimension} of `{buffer}`, which has {extent} there",
        who(.instruction)
    )]
    OutOfBounds {
        instruction: Option<InstrId>,
        buffer: String,
        dimension: usize,
        lo: i128,
        hi: i128,
        extent: u64,
    },
    /// A weight or constant buffer is written.
    #[error("{site} goes to {place}, which nobody may write")]
    ReadOnly { site: Site, place: Place },
    /// Two conflicting accesses that happens-before does not order.
    #[error("race on {place}: {first} and {second} are not ordered")]
    Race { place: Place, first: Site, second: Site },
    /// A read of something never written.
    #[error("{site} finds {place} never written")]
    Unwritten { site: Site, place: Place },
    /// A read of what an earlier step left.
    #[error("{site} finds in {place} what {writer} left, not this step's value")]
    Stale { site: Site, place: Place, writer: Site },
    /// A packet word with the expected tag but the value of another epoch (tags have wrapped).
    #[error(
        "{site} takes {place} for epoch {expected}, but the word carries epoch {found}, whose tag is the same"
    )]
    WrongEpoch { site: Site, place: Place, expected: u64, found: u64 },
    /// A packet word was rewritten before this reader took it.
    #[error("{site} waits for epoch {expected} of {place}, which already carries epoch {found}")]
    MissedEpoch { site: Site, place: Place, expected: u64, found: u64 },
    /// An element that may be written once per step (output) or phase (packet) is written again.
    #[error("{second} writes {place} again after {first}")]
    DoubleWrite { place: Place, first: Site, second: Site },
    /// An element of a `local` buffer touched by two SMs.
    #[error("{second} touches {place} of a local buffer, which belongs to another SM: {first}")]
    Shared { place: Place, first: Site, second: Site },
    /// An output element the step did not write.
    #[error("step {step} leaves {missing} elements of output `{buffer}` unwritten")]
    MissingOutput { buffer: String, step: u64, missing: u64 },
    /// A run that no instruction consumed.
    #[error("nobody consumes run {run} of sm {}; its chunks never leave the ring", .sm.0)]
    Unconsumed { sm: SmId, run: usize },
    /// Nothing can move any more.
    #[error("stuck: {}", list(.blocked))]
    Stuck { blocked: Vec<Blocked> },
    /// A result that is not a number.
    #[error("{op} (instr {}, weights `{weights}`) gives NaN for {place} at position {pos}", .instruction.0)]
    NotANumber { op: &'static str, instruction: InstrId, weights: String, place: Place, pos: u64 },
    /// The maths of an instruction cannot be done.
    #[error("{} ({op}): {what}", who(.instruction))]
    Maths { op: &'static str, instruction: Option<InstrId>, what: String },
}

/// The kind of a fault alone, for tests and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FaultKind {
    Malformed,
    Launch,
    OutOfBounds,
    ReadOnly,
    Race,
    Unwritten,
    Stale,
    WrongEpoch,
    MissedEpoch,
    DoubleWrite,
    Shared,
    MissingOutput,
    Unconsumed,
    Stuck,
    NotANumber,
    Maths,
}

impl VmFault {
    /// Kind of the fault.
    pub fn kind(&self) -> FaultKind {
        match self {
            VmFault::Malformed { .. } => FaultKind::Malformed,
            VmFault::Launch { .. } => FaultKind::Launch,
            VmFault::OutOfBounds { .. } => FaultKind::OutOfBounds,
            VmFault::ReadOnly { .. } => FaultKind::ReadOnly,
            VmFault::Race { .. } => FaultKind::Race,
            VmFault::Unwritten { .. } => FaultKind::Unwritten,
            VmFault::Stale { .. } => FaultKind::Stale,
            VmFault::WrongEpoch { .. } => FaultKind::WrongEpoch,
            VmFault::MissedEpoch { .. } => FaultKind::MissedEpoch,
            VmFault::DoubleWrite { .. } => FaultKind::DoubleWrite,
            VmFault::Shared { .. } => FaultKind::Shared,
            VmFault::MissingOutput { .. } => FaultKind::MissingOutput,
            VmFault::Unconsumed { .. } => FaultKind::Unconsumed,
            VmFault::Stuck { .. } => FaultKind::Stuck,
            VmFault::NotANumber { .. } => FaultKind::NotANumber,
            VmFault::Maths { .. } => FaultKind::Maths,
        }
    }

    /// Does execution still make sense after this fault? Orders between accesses can be judged
    /// further; values and progress cannot.
    pub(crate) fn is_ordering(&self) -> bool {
        matches!(self, VmFault::Race { .. } | VmFault::Shared { .. })
    }
}
