//! What a predicate says: one breach, with the letter of the invariant and a short id.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The invariants a schedule can break. The letters are those of the design; the type is the oracle's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Invariant {
    /// Structure: ids, parameters, shapes, queues, streams, counters.
    S,
    /// Bounds, footprints, read-only buffers, whole packet words.
    B,
    /// Coverage: what is read was written, outputs once.
    C,
    /// Deadlock freedom.
    D,
    /// Race freedom.
    R,
    /// Epochs.
    E,
    /// What may be a packet.
    M,
    /// Static resources.
    O,
    /// Caches and positions.
    K,
}

/// A predicate that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Breach {
    pub invariant: Invariant,
    /// Short name of the predicate, such as `queue-twice`.
    pub id: &'static str,
    /// The object at fault, such as `instr 3`.
    pub place: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {} at {}", self.invariant, self.id, self.place)
    }
}

/// The breaches found so far.
#[derive(Default)]
pub(crate) struct Breaches(pub Vec<Breach>);

impl Breaches {
    /// Notes a breach unless `holds`.
    pub fn demand(
        &mut self,
        holds: bool,
        invariant: Invariant,
        id: &'static str,
        place: impl FnOnce() -> String,
    ) {
        if !holds {
            self.0.push(Breach { invariant, id, place: place() });
        }
    }
}
