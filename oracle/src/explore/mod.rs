//! Every interleaving of a small program.
//!
//! The consumers and producers of all SMs move one micro-step at a time: enter an instruction (its counter
//! waits hold; plain accesses are made), read its packets, consume a chunk, write packets, post signals; issue a
//! chunk; perform a posted signal. What the page lets a kernel do otherwise is there too: packets may be written
//! before those of the same instruction are read (never one's own words), and a posted signal is performed some time
//! later, in the order of its SM's signals and before its arrival at the boundary, so that packets overtake it.
//!
//! **Happens-before** is kept as a vector clock of every agent along the execution (`table.rs` has the
//! tables, `state/` the moves). A wait acquires the signals up to the one that first reached its threshold in
//! this execution; packets carry nothing. A hazard is one of:
//!
//! - *race*: two accesses of different agents to one element of plain memory, one of them a write, both made and
//!   neither happening before the other (looked up when the later is made);
//! - *unwritten*: a read of an element that nothing wrote in this step and that was not there before;
//! - *missed epoch*: a packet word rewritten although a reader of another epoch does not happen before the rewrite;
//! - *race* on a packet word: a second write in a step that is not known to come after the first. It is if the first
//!   happens before it, or was read by an access that does, or by the very instruction that makes the second;
//! - *stale epoch*: a reader that may take an older word with the tag it waits for: the word itself holds it, or held
//!   it and nothing that happens before the read (a later write, or a read of one) hides it;
//! - *two writers* of one packet word in one step and phase;
//! - *deadlock*: a state in which no agent must move and not all are done.
//!
//! **Reduction.** A move that neither disables nor is disabled by others, and whose hazards are judged by clocks
//! and not by time, is made at once instead of being interleaved: entering, reading packets, chunks, issues, writes of
//! words with one writer, signals of counters all of whose thresholds need every signal or whose signals are of one
//! SM. The rest is branched on, with every state visited once. [`Limits::reduce`] turns this off; a test
//! compares the two.
//!
//! **Bounds.** Steps, positions, states and sizes as [`Limits`] says. What repeats from step to step does so within
//! the default number of steps: the boundary starts every step alike but for epochs modulo the number of tags and
//! for producers that run ahead.

mod compile;
mod state;
mod table;

use std::fmt;

use amk_schedule_ir::{BufferId, InstrId, Program};
use serde::Serialize;

use compile::{Compiled, Refused};
use state::Search;

/// How far to look.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Steps executed from each position.
    pub steps: u64,
    /// First positions tried at most: all of the bucket if they are no more, otherwise its ends and a spread.
    pub positions: usize,
    /// States of all positions together; more is [`Outcome::TooBig`].
    pub states: usize,
    /// Make moves that commute with all others at once.
    pub reduce: bool,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { steps: 3, positions: 24, states: 200_000, reduce: true }
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// No interleaving within the limits shows a hazard.
    Safe,
    Unsafe(Witness),
    /// More states, SMs, instructions or regions than are looked at; says which.
    TooBig(&'static str),
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hazard {
    /// The program has no execution: an id, a queue or a run makes no sense.
    Malformed,
    Race,
    Unwritten,
    MissedEpoch,
    StaleEpoch,
    TwoWriters,
    Deadlock,
}

/// An instruction of an SM, or its producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Site {
    pub sm: u32,
    /// `None` for the producer, and for the boundary's accesses.
    pub instruction: Option<InstrId>,
}

/// The hazard found, with the two accesses or the agent concerned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Witness {
    pub hazard: Hazard,
    /// First position of the launch.
    pub pos: u64,
    /// Step of the launch.
    pub step: u64,
    pub buffer: Option<BufferId>,
    /// The access made, or the agent that is stuck.
    pub at: Option<Site>,
    /// The access it conflicts with.
    pub with: Option<Site>,
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.instruction {
            Some(i) => write!(f, "{i} of sm {}", self.sm),
            None => write!(f, "the producer of sm {}", self.sm),
        }
    }
}

impl fmt::Display for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} in step {} from position {}", self.hazard, self.step, self.pos)?;
        if let Some(b) = self.buffer {
            write!(f, ", {b}")?;
        }
        if let Some(s) = self.at {
            write!(f, ", {s}")?;
        }
        if let Some(s) = self.with {
            write!(f, ", against {s}")?;
        }
        Ok(())
    }
}

/// Tries every interleaving of a program; see the page of `explore/`.
pub fn explore(program: &Program, limits: Limits) -> Outcome {
    let mut states = limits.states;
    for (pos, steps) in starts(program, limits) {
        let compiled = match Compiled::new(program, pos, steps, limits) {
            Ok(c) => c,
            Err(Refused::TooBig(what)) => return Outcome::TooBig(what),
            Err(Refused::Unsafe(w)) => return Outcome::Unsafe(w),
        };
        match Search::new(&compiled, limits, &mut states).run() {
            Ok(true) => {}
            Ok(false) => return Outcome::TooBig("states"),
            Err(w) => return Outcome::Unsafe(w),
        }
    }
    Outcome::Safe
}

/// First positions with the number of steps from each.
fn starts(p: &Program, limits: Limits) -> Vec<(u64, u64)> {
    let (first, last) = (p.bucket.first, p.bucket.last.max(p.bucket.first));
    let tokens = u64::from(p.tokens.max(1));
    let steps = |pos: u64| limits.steps.min(p.max_steps.max(1)).min((last - pos) / tokens + 1);
    if !table::follows_position(p) {
        return vec![(first, steps(first))];
    }
    let span = last - first;
    let n = limits.positions.max(3) as u64;
    let mut all: Vec<u64> = if span < n {
        (first..=last).collect()
    } else {
        let full = last.saturating_sub((limits.steps - 1).saturating_mul(tokens)).max(first);
        let near = (0..3).flat_map(|k| [first + k, full.saturating_sub(k).max(first)]);
        let spread = (1..n.saturating_sub(7)).map(|k| first + (span / n) * k);
        near.chain([last]).chain(spread).collect()
    };
    all.sort_unstable();
    all.dedup();
    all.into_iter().map(|pos| (pos, steps(pos))).collect()
}
