//! What the validator says: faults with place and witness, and the report that collects them.

use std::fmt;

use amk_schedule_ir::text::{SourceMap, visible};
use amk_schedule_ir::{Access, InstrId, Program};
use serde::{Deserialize, Serialize};

/// The invariants, by the letters of the crate page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Invariant {
    /// Structure.
    S,
    /// Bounds and footprints.
    B,
    /// Coverage.
    C,
    /// Deadlock freedom.
    D,
    /// Race freedom.
    R,
    /// Epochs.
    E,
    /// Memory model: what each kind of edge may carry.
    M,
    /// Resources.
    O,
    /// KV cache and positions.
    K,
}

impl Invariant {
    /// All of them, in the order of the crate page.
    pub const ALL: [Invariant; 9] = [
        Invariant::S,
        Invariant::B,
        Invariant::C,
        Invariant::D,
        Invariant::R,
        Invariant::E,
        Invariant::M,
        Invariant::O,
        Invariant::K,
    ];
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The part of the program a fault is about. Numbers are list indices, which the ids of a faulty
/// program may disagree with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The program as a whole.
    Program,
    /// The resource record.
    Resources,
    Buffer(usize),
    Counter(usize),
    /// The accesses of the step boundary.
    Boundary,
    Sm(usize),
    Run {
        sm: usize,
        run: usize,
    },
    Instruction(usize),
}

impl Place {
    /// The 1-based line of the text the place stands on, if the map knows it.
    pub fn line(self, map: &SourceMap) -> Option<u32> {
        match self {
            Place::Program => Some(map.program),
            Place::Resources => Some(map.resources),
            Place::Buffer(i) => map.buffers.get(i).copied(),
            Place::Counter(i) => map.counters.get(i).copied(),
            Place::Boundary => Some(map.boundary),
            Place::Sm(i) => map.sms.get(i).copied(),
            Place::Run { sm, run } => map.runs.get(sm)?.get(run).copied(),
            Place::Instruction(i) => map.instructions.get(i).copied(),
        }
    }
}

/// The evidence of a fault.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Witness {
    /// The message says everything.
    None,
    /// Waits in a circle: each entry waits for the next, the last for the first.
    Cycle { nodes: Vec<String> },
    /// Two accesses, neither of which is ordered before the other.
    Race {
        /// The access that comes first in the order the validator tried.
        first: String,
        second: String,
        /// The edge that would order them; one the other way would too.
        missing: String,
    },
    /// The exact elements at fault, as a region of `buffer` in the text form.
    Range { buffer: String, elements: String },
}

/// One violated invariant at one place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub invariant: Invariant,
    /// The instruction at fault, if the place is one.
    pub instruction: Option<InstrId>,
    pub place: Place,
    /// The access at fault, if it is about one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<Access>,
    /// A sentence: what is wrong, where, and what to do.
    pub message: String,
    pub witness: Witness,
}

impl Fault {
    pub(crate) fn new(invariant: Invariant, place: Place, message: impl Into<String>) -> Fault {
        let instruction = match place {
            Place::Instruction(i) => Some(InstrId(i as u32)),
            _ => None,
        };
        Fault {
            invariant,
            instruction,
            place,
            access: None,
            // Names and architectures come from the file; the message is one line whatever they hold.
            message: visible(&message.into()),
            witness: Witness::None,
        }
    }

    pub(crate) fn access(mut self, access: &Access) -> Fault {
        self.access = Some(access.clone());
        self
    }

    pub(crate) fn witness(mut self, witness: Witness) -> Fault {
        self.witness = witness;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.message)?;
        match &self.witness {
            Witness::None => Ok(()),
            Witness::Cycle { nodes } => {
                write!(f, " [cycle: {}]", nodes.join(" -> "))
            }
            Witness::Race { first, second, missing } => {
                write!(f, " [first: {first}; second: {second}; missing: {missing}]")
            }
            Witness::Range { buffer, elements } => write!(f, " [{buffer}: {elements}]"),
        }
    }
}

/// An invariant that was not judged, or not on the whole program, because of other faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    pub invariant: Invariant,
    pub reason: String,
}

/// The verdict on a program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// No fault was found and nothing was skipped.
    pub ok: bool,
    /// In the order of the invariants, then of the places.
    pub faults: Vec<Fault>,
    /// Checks that could not be made. Never empty without a fault.
    pub skipped: Vec<Skipped>,
    /// Faults beyond [`MAX_FAULTS`] of one invariant that were met and not listed; checks of pairs stop looking there.
    pub omitted: u64,
    /// Number of instructions judged.
    pub instructions: usize,
}

/// Most faults of one invariant that a report lists; the rest is counted where it is met, and not looked for.
pub const MAX_FAULTS: usize = 1000;

/// Collects faults while the checks run.
#[derive(Default)]
pub(crate) struct Faults {
    list: Vec<Fault>,
    count: [usize; Invariant::ALL.len()],
    skipped: Vec<Skipped>,
}

impl Faults {
    pub fn push(&mut self, fault: Fault) {
        let count = &mut self.count[fault.invariant as usize];
        *count += 1;
        if *count <= MAX_FAULTS {
            self.list.push(fault);
        }
    }

    pub fn skip(&mut self, invariant: Invariant, reason: &str) {
        self.skipped.push(Skipped { invariant, reason: reason.to_owned() });
    }

    /// Faults of this invariant so far.
    pub fn count(&self, invariant: Invariant) -> usize {
        self.count[invariant as usize]
    }

    /// Is the list of this invariant full?
    pub fn full(&self, invariant: Invariant) -> bool {
        self.count(invariant) >= MAX_FAULTS
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes in the faults of another list as if they had been found here, one by one.
    pub fn absorb(&mut self, other: Faults) {
        let mut unlisted = other.count;
        for fault in other.list {
            unlisted[fault.invariant as usize] -= 1;
            self.push(fault);
        }
        for (n, more) in self.count.iter_mut().zip(unlisted) {
            *n += more;
        }
        self.skipped.extend(other.skipped);
    }

    /// Takes in the faults of another list.
    pub fn append(&mut self, other: Faults) {
        for (n, more) in self.count.iter_mut().zip(other.count) {
            *n += more;
        }
        self.list.extend(other.list);
        self.skipped.extend(other.skipped);
    }

    pub fn report(mut self, program: &Program) -> Report {
        self.list.sort_by_key(|f| (f.invariant, f.place));
        let omitted = self.count.iter().map(|&n| n.saturating_sub(MAX_FAULTS) as u64).sum();
        Report {
            ok: self.list.is_empty() && self.skipped.is_empty(),
            faults: self.list,
            skipped: self.skipped,
            omitted,
            instructions: program.instructions.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lists joined are as one list, also past what is listed.
    #[test]
    fn absorbing_is_pushing_one_by_one() {
        let fault = |i: usize| {
            let invariant = if i.is_multiple_of(3) { Invariant::B } else { Invariant::S };
            Fault::new(invariant, Place::Instruction(i), format!("fault {i}"))
        };
        for (a, b) in [(2, 5), (900, 900), (3000, 10), (10, 3000), (4000, 4000)] {
            let [mut joined, mut other, mut one] = [0; 3].map(|_| Faults::default());
            (0..a).for_each(|i| joined.push(fault(i)));
            (a..a + b).for_each(|i| other.push(fault(i)));
            joined.absorb(other);
            (0..a + b).for_each(|i| one.push(fault(i)));
            assert_eq!(joined.list, one.list);
            assert_eq!(joined.count, one.count);
        }
    }
}
