//! The loop.

use std::sync::atomic::Ordering;

use amk_autoresearch::*;

use crate::common::*;

#[test]
fn every_proposer_finds_something_better_and_the_gain_is_confirmed() {
    let original = truth(&space().default_point());
    for name in proposers::NAMES {
        let world = World::new(true, Plagues { noise: 0.004, ..Plagues::default() });
        let ran = run(&world, name, 1, iters(200));
        let outcome = ran.outcome.unwrap();
        let found = truth(&outcome.history.incumbent);
        let wanted = if name == "random" { 0.9 } else { 0.75 };
        assert!(found < wanted * original, "{name}: {found} from {original}");
        let c = outcome.confirmation.unwrap();
        assert!(c.holds, "{name}: {}", c.text);
        let m = c.measurement.unwrap();
        assert!((m.speedup.median / (original / found) - 1.0).abs() < 0.01, "{}", c.text);
        let summary = journal::check(&ran.path, &mut |_| {}).unwrap();
        // Single moves from a point are tried through sooner or later.
        let singles = ["sweep", "bandit"].contains(&name);
        assert!(summary.history.len() == 200 || singles, "{name}");
        assert!(
            summary.history == outcome.history,
            "{name}: the history is a function of the journal"
        );
        assert_eq!(summary.head, outcome.head);
    }
}

#[test]
fn the_same_seed_gives_the_same_trials_and_another_seed_others() {
    let points = |seed| -> Vec<Point> {
        let world = World::new(false, Plagues::default());
        let ran = run(&world, "mix", seed, iters(80));
        trials(&ran.path).into_iter().map(|t| t.candidate.knobs).collect()
    };
    assert_eq!(points(5), points(5));
    assert_ne!(points(5), points(6));
}

#[test]
fn without_a_device_everything_is_predicted_and_says_so() {
    let world = World::new(false, Plagues::default());
    let ran = run(&world, "guided", 3, iters(60));
    let outcome = ran.outcome.unwrap();
    let all = trials(&ran.path);
    assert!(all.iter().all(|t| !matches!(t.verdict, Verdict::Measured(_))));
    assert!(all.iter().any(|t| t.verdict.label() == "kept (predicted)"));
    let c = outcome.confirmation.unwrap();
    assert!(c.holds && c.measurement.is_none() && c.text.contains("nothing was measured"));
    assert_eq!(world.measured.load(Ordering::SeqCst), 0);
}

/// The journal of a campaign that was stopped after any trial and resumed is that of one that was not.
#[test]
fn a_resumed_campaign_has_the_trials_of_one_that_was_not_stopped() {
    let world = World::new(false, Plagues::default());
    let whole = trials(&run(&world, "mix", 9, iters(60)).path);
    for cut in [1, 2, 3, 5, 8, 13, 21, 34, 59] {
        let mut ran = run(&world, "mix", 9, iters(cut));
        assert_eq!(trials(&ran.path).len() as u64, cut);
        go_on(&world, "mix", &mut ran, 9, iters(60));
        let resumed = trials(&ran.path);
        assert_eq!(resumed.len(), whole.len());
        for (a, b) in whole.iter().zip(&resumed) {
            assert_eq!(
                (&a.candidate, &a.verdict, a.batch),
                (&b.candidate, &b.verdict, b.batch),
                "{cut}"
            );
        }
    }
}

#[test]
fn each_plague_costs_its_candidate_alone() {
    let plagues = Plagues {
        noise: 0.004,
        drift: true,
        crash: 9,
        hang: 11,
        out_of_memory: 13,
        compiler: 8,
        wrong: 10,
        liar: 12,
        panic: 14,
        outliers: true,
    };
    let world = World::new(true, plagues);
    let ran = run(&world, "random", 2, iters(300));
    let outcome = ran.outcome.unwrap();
    let tally = &outcome.history.tally;
    assert_eq!(tally.trials, 300);
    for label in ["rejected", "crashed", "timed out", "quarantined", "not faster"] {
        assert!(tally.by_label.get(label).is_some_and(|n| *n > 0), "{label}: {tally:?}");
    }
    for stage in ["lower", "compile", "load", "self-test", "time"] {
        assert!(tally.by_stage.get(stage).is_some_and(|n| *n > 0), "{stage}: {tally:?}");
    }
    assert!(outcome.confirmation.unwrap().holds);
}

/// Names one point again and again, and points that are none.
struct Stubborn;

impl Proposer for Stubborn {
    fn name(&self) -> &str {
        "stubborn"
    }
    fn propose(&mut self, _: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let mut forged = Candidate::new(Point::default().with("warps", 5), "stubborn");
        forged.parent = Some(CandidateId("feedfeedfeedfeed".to_owned()));
        Ok(Proposal::Candidates(vec![
            Candidate::new(Point::default(), "stubborn"),
            Candidate::new(Point::default().with("wraps", 3), "stubborn"),
            Candidate::new(Point::default().with("warps", 99), "stubborn"),
            forged,
        ]))
    }
    fn told(&mut self, _: &Trial) {}
}

#[test]
fn candidates_that_are_none_are_refused_by_name_and_a_proposer_without_ideas_ends_the_campaign() {
    let world = World::new(true, Plagues { noise: 0.004, ..Plagues::default() });
    let ran = run_with(&world, &mut Stubborn, 1, Limits { jobs: 2, ..Limits::default() });
    let outcome = ran.outcome.unwrap();
    assert!(outcome.reason.contains("nothing new"), "{}", outcome.reason);
    let all = trials(&ran.path);
    let reasons: Vec<String> = all[1..5].iter().map(|t| t.verdict.reason()).collect();
    assert!(reasons[0].contains("judged before"), "{reasons:?}");
    assert!(reasons[1].contains("no knob \"wraps\"") && reasons[1].contains("warps"));
    assert!(reasons[2].contains("warps is 99; it must be from 1 to 16"), "{reasons:?}");
    assert!(reasons[3].contains("parent feedfeedfeedfeed"), "{reasons:?}");
    assert_eq!(world.measured.load(Ordering::SeqCst), 1, "the start alone was measured");
}

#[test]
fn limits_end_a_campaign_each_with_its_reason() {
    let world = World::new(false, Plagues::default());
    let plateau = Limits { plateau: Some(40), ..Limits::default() };
    let outcome = run(&world, "mutate", 4, plateau).outcome.unwrap();
    assert!(outcome.reason.contains("plateau") && outcome.history.since_kept == 40);
    let time = Limits { time: Some(std::time::Duration::from_millis(50)), ..Limits::default() };
    let outcome = run(&world, "mutate", 4, time).outcome.unwrap();
    assert!(outcome.reason.contains("minutes are over"));
}

#[test]
fn a_stop_ends_it_cleanly_and_the_rest_comes_later() {
    let mut world = World::new(true, Plagues { noise: 0.004, ..Plagues::default() });
    world.stop_after = Some(10);
    let mut ran = run(&world, "mutate", 4, iters(40));
    let stopped = ran.outcome.as_ref().unwrap();
    assert!(stopped.stopped && stopped.confirmation.is_none());
    let summary = journal::check(&ran.path, &mut |_| {}).unwrap();
    assert_eq!(summary.ended.as_deref(), Some("it was stopped"));
    assert!(summary.history.len() < 40);
    world.stop.store(false, Ordering::SeqCst);
    world.stop_after = None;
    go_on(&world, "mutate", &mut ran, 4, iters(40));
    let done = ran.outcome.unwrap();
    assert_eq!(done.history.len(), 40);
    assert!(done.confirmation.is_some());
}

#[test]
fn several_devices_measure_at_once_and_every_verdict_is_against_the_incumbent_of_its_time() {
    let world = World::new(true, Plagues { noise: 0.004, ..Plagues::default() });
    let limits = Limits { devices: 4, ..iters(120) };
    let ran = run(&world, "mutate", 8, limits);
    // `check` compares each trial's incumbent with the one of its time.
    assert_eq!(trials(&ran.path).len(), 120);
    assert!(truth(&ran.outcome.unwrap().history.incumbent) < 0.8 * truth(&space().default_point()));
}

#[test]
fn what_is_predicted_far_slower_is_not_measured() {
    let world = World::new(true, Plagues { noise: 0.004, ..Plagues::default() });
    let limits = Limits { prune: Some(1.05), ..iters(100) };
    let ran = run(&world, "random", 8, limits);
    let pruned = ran.outcome.unwrap().history.tally.by_stage["predict"];
    assert!(pruned > 20, "{pruned}");
    assert!(world.measured.load(Ordering::SeqCst) + pruned <= 101);
}

#[test]
fn a_start_that_is_refused_or_beats_itself_is_no_start() {
    let world = World { device: Some(DEVICE.into()), ..World::new(true, Plagues::default()) };
    let mut biased = World::new(true, Plagues { noise: 0.001, ..Plagues::default() });
    biased.cheat = Some(Box::new(|_, e| {
        for s in &mut e.samples {
            s.candidate_us *= 0.98;
        }
    }));
    let error = run(&biased, "random", 1, iters(5)).outcome.unwrap_err().to_string();
    assert!(error.contains("biased"), "{error}");
    let mut wrong = world;
    wrong.plagues.noise = 0.001;
    wrong.cheat = Some(Box::new(|_, e| e.difference = f64::NAN));
    let ran = run(&wrong, "random", 1, iters(5));
    let error = ran.outcome.unwrap_err().to_string();
    assert!(error.contains("difference of NaN"), "{error}");
    assert!(journal::check(&ran.path, &mut |_| {}).unwrap().ended.unwrap().contains("refused"));
}
