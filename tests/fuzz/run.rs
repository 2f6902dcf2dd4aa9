//! Runs of the library: no disagreement, every mutator has an effect, no check of the validator is dead,
//! and the result depends on the seed alone.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use amk::fuzz::judge::Runs;
use amk::fuzz::{Options, Report, mutators, run};
use amk_validator::Invariant;

fn options(count: u64, threads: usize) -> Options {
    Options {
        count,
        seed: 20,
        threads,
        sample: 1,
        runs: Runs { small: 7, large: 2, huge: 1 },
        ..Options::default()
    }
}

/// One run for all that asks of it.
fn report() -> &'static Report {
    static REPORT: OnceLock<Report> = OnceLock::new();
    REPORT.get_or_init(|| run(&options(4000, 2), &|_| {}).unwrap())
}

#[test]
fn validator_and_oracle_agree() {
    let r = report();
    let found: Vec<String> = r
        .disagreements
        .iter()
        .map(|d| format!("{} {:?}: {}\n{}", d.how, d.mutators, d.evidence, d.text))
        .collect();
    assert!(r.ok, "{}", found.join("\n"));
    assert_eq!(r.count, 4000);
    assert!(r.at_least_500_instructions >= 400, "{}", r.at_least_500_instructions);
    assert!(r.at_least_20000_instructions >= 6, "{}", r.at_least_20000_instructions);
    assert!(r.smith > 40 && r.lowerings > 20 && r.mutants_accepted > 200);
}

#[test]
fn every_mutator_breaks_something() {
    let r = report();
    assert_eq!(r.mutators.len(), mutators::all().len());
    assert!(r.mutators_without_effect.is_empty(), "{:?}", r.mutators_without_effect);
    for m in &r.mutators {
        assert!(m.made >= m.alone && m.made == m.accepted + m.rejected, "{}", m.name);
        assert!(m.rejected > 0, "{} is never rejected", m.name);
    }
}

/// Without the faults of one invariant, some program that the oracle calls unsafe would pass.
#[test]
fn no_check_of_the_validator_is_dead() {
    let r = report();
    for invariant in Invariant::ALL {
        let n = r.caught_only_by.get(&invariant.to_string()).copied().unwrap_or(0);
        assert!(n > 0, "nothing unsafe is caught by {invariant} alone: {:?}", r.caught_only_by);
    }
}

#[test]
fn the_result_depends_on_the_seed_alone() {
    let told = AtomicU64::new(0);
    let progress = |n| {
        told.fetch_add(n, Ordering::Relaxed);
    };
    let strip = |mut r: Report| {
        (r.threads, r.seconds, r.cpu_seconds) = (0, 0.0, None);
        (r.schedules_per_second, r.instructions_per_second) = (0.0, 0.0);
        serde_json::to_string(&r).unwrap()
    };
    let one = strip(run(&options(400, 1), &progress).unwrap());
    assert_eq!(told.load(Ordering::Relaxed), 400);
    assert_eq!(one, strip(run(&options(400, 3), &|_| {}).unwrap()));
    let other = Options { seed: 21, ..options(400, 3) };
    assert_ne!(one, strip(run(&other, &|_| {}).unwrap()));
}
