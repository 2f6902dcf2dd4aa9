//! The other judge: predicates and exploration of the oracle, executions of the reference VM. It shares
//! no code with the validator.

use std::sync::Arc;

use amk_oracle::{Limits, Outcome, explore, predicates};
use amk_schedule_ir::{Buffer, BufferSync, Program, Target};
use serde::Serialize;

use crate::vm::{Effort, VmFault, refute_with};

/// Programs of at least this many instructions are called large.
pub const LARGE: usize = 500;
/// Programs of at least this many are called huge.
pub const HUGE: usize = 20_000;
/// Largest programs whose predicates are judged; they compare accesses pair by pair.
const PREDICATES: usize = 1500;
/// Largest programs that are explored, and how far.
const EXPLORED: usize = 12;
const STATES: usize = 10_000;

/// How many executions an accepted program has to survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Runs {
    /// Programs below [`LARGE`].
    pub small: u64,
    /// Programs below [`HUGE`].
    pub large: u64,
    pub huge: u64,
}

impl Runs {
    /// Executions of a program with this many instructions.
    pub fn of(self, instructions: usize) -> u64 {
        match instructions {
            n if n >= HUGE => self.huge,
            n if n >= LARGE => self.large,
            _ => self.small,
        }
    }
}

/// Why a program is unsafe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// `predicate`, `exploration` or `execution`.
    pub by: &'static str,
    pub what: String,
}

/// What the oracle says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Opinion {
    Unsafe(Evidence),
    /// Nothing found; `explored`: every interleaving was tried.
    NotRefuted {
        explored: bool,
    },
}

impl Opinion {
    pub fn evidence(self) -> Option<Evidence> {
        match self {
            Opinion::Unsafe(evidence) => Some(evidence),
            Opinion::NotRefuted { .. } => None,
        }
    }
}

/// Judges a program with so many executions.
pub(crate) fn judge(program: &Arc<Program>, target: &Target, seed: u64, runs: u64) -> Opinion {
    let n = program.instructions.len();
    if n <= PREDICATES {
        let breaches = predicates(program, target);
        if let Some(breach) = breaches.first() {
            return Opinion::Unsafe(Evidence { by: "predicate", what: breach.to_string() });
        }
    }
    // Few positions: executions look at others.
    let limits = Limits { steps: 2, positions: 3, states: STATES, reduce: true };
    let outcome = if n <= EXPLORED { explore(program, limits) } else { Outcome::TooBig("") };
    if let Outcome::Unsafe(witness) = &outcome {
        return Opinion::Unsafe(Evidence { by: "exploration", what: witness.to_string() });
    }
    // The finest steps where they cost little.
    let (steps, fine) = match n {
        n if n >= HUGE => (1, Some(false)),
        n if n >= LARGE => (2, Some(false)),
        n if n >= 100 => (3, Some(false)),
        _ => (3, None),
    };
    let counts = |fault: &VmFault| !is_limit(program, fault);
    match refute_with(program, Effort { seed, runs, steps, fine }, &counts) {
        Some(refutation) => {
            let what = refutation.faults.first().map(ToString::to_string).unwrap_or_default();
            Opinion::Unsafe(Evidence { by: "execution", what })
        }
        None => Opinion::NotRefuted { explored: outcome == Outcome::Safe },
    }
}

/// The VM says that it cannot run the program, not that the program is unsafe: it has too many pieces, or
/// packets whose rows end within a word of the flattened buffer, which is how the VM looks at them.
fn is_limit(program: &Program, fault: &VmFault) -> bool {
    let VmFault::Malformed { what, .. } = fault else { return false };
    let ragged = |b: &Buffer| {
        let (rows, row) = (b.shape.iter().rev().skip(1), b.shape.last().copied().unwrap_or(0));
        b.sync == BufferSync::Packet
            && b.dtype.per_word() > 1
            && rows.product::<u64>() > 1
            && !row.is_multiple_of(b.dtype.per_word())
    };
    what.contains("too many pieces")
        || what.contains("whole words") && program.buffers.iter().any(ragged)
}
