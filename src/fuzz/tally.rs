//! What is counted. Tallies of groups are added up; the sum does not depend on the order.

use std::sync::Arc;

use amk_schedule_ir::{Program, Target};
use amk_validator::Invariant;

use super::judge::{Evidence, HUGE, LARGE};

/// Most disagreements that are kept as programs; all are counted.
const KEPT: usize = 24;

/// Where a program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Smith,
    Lowering,
}

/// How validator and oracle disagree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disagreement {
    /// Accepted, and unsafe.
    FalseAccept,
    /// Valid by construction, and rejected.
    FalseReject,
    /// The validator panicked.
    Panic,
}

/// A program they disagree about.
#[derive(Clone, Debug)]
pub(crate) struct Disagreed {
    pub how: Disagreement,
    /// Group and place in the group, which give the program again.
    pub number: (usize, usize),
    /// Mutators applied.
    pub mutators: Vec<&'static str>,
    pub evidence: String,
    pub program: Arc<Program>,
    pub target: Target,
}

/// What one mutator did.
#[derive(Clone, Debug, Default)]
pub(crate) struct MutatorTally {
    /// Mutants it took part in, and what became of them.
    pub made: u64,
    pub rejected: u64,
    pub accepted: u64,
    pub refuted: u64,
    /// Mutants it made alone; all below are of these.
    pub alone: u64,
    pub rejected_alone: u64,
    pub judged: u64,
    pub unsafe_by_oracle: u64,
    /// By invariant, rejections in which it had a fault.
    pub rejected_by: [u64; 9],
}

/// Everything counted.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    pub programs: u64,
    pub smith: u64,
    pub lowerings: u64,
    pub mutants: u64,
    pub mutants_accepted: u64,
    pub instructions: u64,
    /// Programs of fewer than 10, 100, 500, 5,000 and 20,000 instructions, and the rest.
    pub sizes: [u64; 6],
    pub large: u64,
    pub huge: u64,
    pub false_accepts: u64,
    pub false_rejects: u64,
    pub panics: u64,
    /// Programs the oracle looked at: accepted ones, and rejected ones of the sample.
    pub accepted_judged: u64,
    pub accepted_explored: u64,
    pub rejected_judged: u64,
    pub rejected_unsafe: u64,
    /// By invariant, unsafe programs all of whose faults are of it.
    pub caught_only_by: [u64; 9],
    pub mutators: Vec<MutatorTally>,
    pub disagreed: Vec<Disagreed>,
}

/// Upper ends of the size classes.
pub(crate) const SIZES: [usize; 5] = [10, 100, LARGE, 5000, HUGE];

impl Tally {
    pub fn new(mutators: usize) -> Tally {
        Tally {
            programs: 0,
            smith: 0,
            lowerings: 0,
            mutants: 0,
            mutants_accepted: 0,
            instructions: 0,
            sizes: [0; 6],
            large: 0,
            huge: 0,
            false_accepts: 0,
            false_rejects: 0,
            panics: 0,
            accepted_judged: 0,
            accepted_explored: 0,
            rejected_judged: 0,
            rejected_unsafe: 0,
            caught_only_by: [0; 9],
            mutators: vec![MutatorTally::default(); mutators],
            disagreed: Vec::new(),
        }
    }

    /// One more program of this size.
    pub fn program(&mut self, instructions: usize) {
        self.programs += 1;
        self.instructions += instructions as u64;
        let class = SIZES.iter().position(|&end| instructions < end).unwrap_or(SIZES.len());
        self.sizes[class] += 1;
        self.large += u64::from(instructions >= LARGE);
        self.huge += u64::from(instructions >= HUGE);
    }

    pub fn disagreement(&mut self, d: Disagreed) {
        match d.how {
            Disagreement::FalseAccept => self.false_accepts += 1,
            Disagreement::FalseReject => self.false_rejects += 1,
            Disagreement::Panic => self.panics += 1,
        }
        self.disagreed.push(d);
        self.trim();
    }

    fn trim(&mut self) {
        self.disagreed.sort_by_key(|d| (d.program.instructions.len(), d.number));
        self.disagreed.truncate(KEPT);
    }

    /// Adds another tally.
    pub fn add(mut self, other: Tally) -> Tally {
        for (to, from) in [
            (&mut self.programs, other.programs),
            (&mut self.smith, other.smith),
            (&mut self.lowerings, other.lowerings),
            (&mut self.mutants, other.mutants),
            (&mut self.mutants_accepted, other.mutants_accepted),
            (&mut self.instructions, other.instructions),
            (&mut self.large, other.large),
            (&mut self.huge, other.huge),
            (&mut self.false_accepts, other.false_accepts),
            (&mut self.false_rejects, other.false_rejects),
            (&mut self.panics, other.panics),
            (&mut self.accepted_judged, other.accepted_judged),
            (&mut self.accepted_explored, other.accepted_explored),
            (&mut self.rejected_judged, other.rejected_judged),
            (&mut self.rejected_unsafe, other.rejected_unsafe),
        ] {
            *to += from;
        }
        add_all(&mut self.sizes, &other.sizes);
        add_all(&mut self.caught_only_by, &other.caught_only_by);
        for (m, o) in self.mutators.iter_mut().zip(&other.mutators) {
            m.made += o.made;
            m.rejected += o.rejected;
            m.accepted += o.accepted;
            m.refuted += o.refuted;
            m.alone += o.alone;
            m.rejected_alone += o.rejected_alone;
            m.judged += o.judged;
            m.unsafe_by_oracle += o.unsafe_by_oracle;
            add_all(&mut m.rejected_by, &o.rejected_by);
        }
        self.disagreed.extend(other.disagreed);
        self.trim();
        self
    }
}

fn add_all(to: &mut [u64], from: &[u64]) {
    for (t, f) in to.iter_mut().zip(from) {
        *t += f;
    }
}

/// The letters of the faults, by place in [`Invariant::ALL`].
pub(crate) fn letters(report: &amk_validator::Report) -> [bool; 9] {
    let mut found = [false; 9];
    for fault in &report.faults {
        if let Some(at) = Invariant::ALL.iter().position(|&i| i == fault.invariant) {
            found[at] = true;
        }
    }
    found
}

/// Evidence as a sentence.
pub(crate) fn sentence(evidence: &Evidence) -> String {
    format!("{}: {}", evidence.by, evidence.what)
}
