//! The result of a run, as data.

use std::collections::BTreeMap;

use amk_validator::Invariant;
use serde::Serialize;

use super::judge::Runs;
use super::mutators;
use super::tally::{SIZES, Tally};

/// What a run found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// No false accept, no false reject, no panic.
    pub ok: bool,
    /// Programs judged.
    pub count: u64,
    /// Programs asked for; more than `count` where time ran out.
    pub asked: u64,
    pub seed: u64,
    pub commit: Option<String>,
    /// Hash of the sources of the validator that was judged, [`amk_validator::PIN`].
    pub pin: &'static str,
    pub threads: usize,
    pub seconds: f64,
    /// Processor time of all threads; other work on the machine does not count.
    pub cpu_seconds: Option<f64>,
    pub schedules_per_second: f64,
    pub instructions_per_second: f64,
    /// Accepted, and called unsafe by the oracle.
    pub false_accepts: u64,
    /// Valid by construction or really lowered, and rejected.
    pub false_rejects: u64,
    pub panics: u64,
    pub smith: u64,
    pub lowerings: u64,
    pub mutants: u64,
    pub mutants_accepted: u64,
    /// Seeded executions of the VM that an accepted program survived, by its size.
    pub runs: Runs,
    /// Accepted programs judged by the oracle, and how many of them in every interleaving.
    pub accepted_judged: u64,
    pub accepted_explored: u64,
    /// Rejected mutants judged too: one of this many, but none of 20,000 instructions and more.
    pub sampled_one_of: usize,
    pub rejected_judged: u64,
    pub rejected_unsafe: u64,
    pub at_least_500_instructions: u64,
    pub at_least_20000_instructions: u64,
    /// Programs by number of instructions.
    pub sizes: BTreeMap<String, u64>,
    /// Unsafe programs that only this invariant's check rejects.
    pub caught_only_by: BTreeMap<String, u64>,
    pub mutators: Vec<MutatorReport>,
    /// Mutators never seen making a program that the oracle calls unsafe; they do not count.
    pub mutators_without_effect: Vec<&'static str>,
    pub disagreements: Vec<DisagreementReport>,
}

/// One mutator. The first counts are of all mutants it took part in, the others of those it made alone.
#[derive(Clone, Debug, Serialize)]
pub struct MutatorReport {
    pub name: &'static str,
    pub invariant: Invariant,
    pub made: u64,
    pub rejected: u64,
    pub accepted: u64,
    /// Accepted mutants the oracle refuted: false accepts.
    pub refuted: u64,
    pub alone: u64,
    pub rejected_alone: u64,
    /// Mutants judged by the oracle, and those it calls unsafe.
    pub judged: u64,
    pub unsafe_by_oracle: u64,
    /// Rejections in which an invariant had a fault.
    pub rejected_by: BTreeMap<String, u64>,
}

/// A program validator and oracle disagree about.
#[derive(Clone, Debug, Serialize)]
pub struct DisagreementReport {
    /// `FalseAccept`, `FalseReject` or `Panic`.
    pub how: String,
    pub mutators: Vec<&'static str>,
    pub evidence: String,
    /// Instructions of the program as made, and after shrinking.
    pub instructions: usize,
    pub shrunk: Option<usize>,
    /// The part it was judged for.
    pub target: String,
    /// The shrunk program in text form.
    #[serde(skip)]
    pub text: String,
    /// Where it was written.
    pub file: Option<String>,
}

fn by_letter(counts: &[u64; 9]) -> BTreeMap<String, u64> {
    let pairs = Invariant::ALL.iter().zip(counts).filter(|(_, n)| **n > 0);
    pairs.map(|(i, &n)| (i.to_string(), n)).collect()
}

impl Report {
    pub(super) fn new(
        tally: &Tally,
        options: &super::Options,
        seconds: f64,
        cpu_seconds: Option<f64>,
        disagreements: Vec<DisagreementReport>,
    ) -> Report {
        let mutators: Vec<MutatorReport> = mutators::all()
            .iter()
            .zip(&tally.mutators)
            .map(|(m, t)| MutatorReport {
                name: m.name,
                invariant: m.invariant,
                made: t.made,
                rejected: t.rejected,
                accepted: t.accepted,
                refuted: t.refuted,
                alone: t.alone,
                rejected_alone: t.rejected_alone,
                judged: t.judged,
                unsafe_by_oracle: t.unsafe_by_oracle,
                rejected_by: by_letter(&t.rejected_by),
            })
            .collect();
        let mut sizes = BTreeMap::new();
        for (i, &n) in tally.sizes.iter().enumerate() {
            let from = if i == 0 { 0 } else { SIZES[i - 1] };
            let name = match SIZES.get(i) {
                Some(end) => format!("{from:05} to {:05}", end - 1),
                None => format!("{from:05} and more"),
            };
            sizes.insert(name, n);
        }
        Report {
            ok: tally.false_accepts + tally.false_rejects + tally.panics == 0,
            count: tally.programs,
            asked: options.count,
            seed: options.seed,
            commit: options.commit.clone(),
            pin: amk_validator::PIN,
            threads: options.threads,
            seconds,
            cpu_seconds,
            schedules_per_second: tally.programs as f64 / seconds.max(1e-9),
            instructions_per_second: tally.instructions as f64 / seconds.max(1e-9),
            false_accepts: tally.false_accepts,
            false_rejects: tally.false_rejects,
            panics: tally.panics,
            smith: tally.smith,
            lowerings: tally.lowerings,
            mutants: tally.mutants,
            mutants_accepted: tally.mutants_accepted,
            runs: options.runs,
            accepted_judged: tally.accepted_judged,
            accepted_explored: tally.accepted_explored,
            sampled_one_of: options.sample,
            rejected_judged: tally.rejected_judged,
            rejected_unsafe: tally.rejected_unsafe,
            at_least_500_instructions: tally.large,
            at_least_20000_instructions: tally.huge,
            sizes,
            caught_only_by: by_letter(&tally.caught_only_by),
            mutators_without_effect: mutators
                .iter()
                .filter(|m| m.unsafe_by_oracle == 0)
                .map(|m| m.name)
                .collect(),
            mutators,
            disagreements,
        }
    }
}
