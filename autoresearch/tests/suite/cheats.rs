//! Workers that cheat. Each is refused, nothing of it is kept, and the journal says why.

use amk_autoresearch::*;

use crate::common::*;

type Cheat = Box<dyn Fn(&Job, &mut Evidence) + Send + Sync>;

/// A world whose worker cheats with every candidate but the start.
fn cheating(cheat: impl Fn(&Job, &mut Evidence) + Send + Sync + 'static) -> World {
    let mut world = World::new(true, Plagues { noise: 0.003, ..Plagues::default() });
    world.cheat = Some(Box::new(move |job, e| {
        if job.candidate != space().default_point() {
            cheat(job, e);
        }
    }));
    world
}

#[test]
fn no_cheat_is_kept_and_the_journal_says_why() {
    let quicker = |e: &mut Evidence, factor: f64| {
        for s in &mut e.samples {
            s.candidate_us *= factor;
        }
    };
    let cheats: Vec<(&str, &str, Cheat)> = vec![
        ("skips work", "less than reading its bytes", Box::new(move |_, e| quicker(e, 0.3))),
        ("reads less", "bytes a token", Box::new(|_, e| e.bytes /= 2)),
        (
            "slows the baseline",
            "the baseline was slowed down",
            Box::new(|_, e| e.samples.iter_mut().for_each(|s| s.incumbent_us *= 1.6)),
        ),
        (
            "times nothing",
            "same to the last bit",
            Box::new(|_, e| {
                let first = Sample { candidate_us: 510.0, ..e.samples[0] };
                e.samples.iter_mut().for_each(|s| *s = first);
            }),
        ),
        (
            "a clock that stands still for the candidate",
            "same to the last bit",
            Box::new(|_, e| e.samples.iter_mut().for_each(|s| s.candidate_us = 512.5)),
        ),
        (
            "does not wait for the device",
            "less than reading its bytes",
            Box::new(move |_, e| quicker(e, 0.01)),
        ),
        (
            "slows the plain read down with the clock",
            "less than reading its bytes",
            Box::new(move |_, e| {
                quicker(e, 0.3);
                e.read_us = 10.0;
            }),
        ),
        (
            "an impossible read",
            "faster than the target's bandwidth",
            Box::new(|_, e| e.read_us = 100.0),
        ),
        (
            "another device",
            "measured on faster part",
            Box::new(|_, e| e.device = "faster part".into()),
        ),
        (
            "another program",
            "the candidate's program",
            Box::new(|job, e| e.candidate_program = program(&job.incumbent)),
        ),
        (
            "another baseline",
            "the incumbent's program",
            Box::new(|_, e| e.incumbent_program = "0".repeat(64)),
        ),
        (
            "another image",
            "the candidate's image",
            Box::new(|_, e| e.candidate_image = "precomputed tokens".into()),
        ),
        (
            "tests position 0 alone",
            "at position 0 nothing is tested",
            Box::new(|_, e| e.tested_positions = vec![0, 0]),
        ),
        (
            "tests nothing",
            "self-test ran at positions []",
            Box::new(|_, e| e.tested_positions.clear()),
        ),
        (
            "tests one position twice",
            "2 different ones",
            Box::new(|_, e| e.tested_positions = vec![9, 9]),
        ),
        (
            "tests outside the bucket",
            "2 different ones",
            Box::new(|_, e| e.tested_positions = vec![9, 3000]),
        ),
        ("NaN passes the test", "difference of NaN", Box::new(|_, e| e.difference = f64::NAN)),
        ("a wrong answer passes", "0.1 is allowed", Box::new(|_, e| e.difference = 0.7)),
        ("one lucky round", "1 rounds where 12", Box::new(|_, e| e.samples.truncate(1))),
        (
            "rounds without end",
            "rounds where 12 to 80",
            Box::new(|_, e| {
                let more = e.samples.clone();
                e.samples.extend(more.iter().cycle().take(200));
            }),
        ),
        ("negative time", "which is no time", Box::new(|_, e| e.samples[0].candidate_us = -1.0)),
        (
            "NaN time",
            "which is no time",
            Box::new(|_, e| e.samples.iter_mut().for_each(|s| s.candidate_us = f64::NAN)),
        ),
        ("no read", "which is no time", Box::new(|_, e| e.read_us = 0.0)),
    ];
    assert!(cheats.len() >= 15);
    for (name, why, cheat) in cheats {
        let world = cheating(cheat);
        let ran = run(&world, "mutate", 6, iters(12));
        let outcome = ran.outcome.unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(outcome.history.incumbent, space().default_point(), "{name} was kept");
        assert!(outcome.confirmation.is_none(), "{name}");
        let all = trials(&ran.path);
        let judged = &all[1..];
        let caught = judged.iter().filter(|t| t.verdict.reason().contains(why)).count();
        let other: Vec<String> = judged.iter().map(|t| t.verdict.reason()).collect();
        assert!(caught > 0, "{name}: nobody says {why:?}, but {other:?}");
        assert!(
            judged.iter().all(|t| t.verdict.decision().is_none() || !t.verdict.kept()),
            "{name}"
        );
    }
}

/// A model of cost that promises more than memory allows keeps nothing.
#[test]
fn predictions_below_the_floor_are_quarantined() {
    struct Promising(World);
    impl Worker for Promising {
        fn device(&self) -> Result<Option<String>, Refusal> {
            Ok(None)
        }
        fn prepare(&self, point: &Point) -> Result<Prepared, Refusal> {
            let mut p = self.0.prepare(point)?;
            if *point != space().default_point() {
                p.prediction.us = FLOOR / 2.0;
            }
            Ok(p)
        }
        fn compile(&self, point: &Point) -> Result<Option<String>, Refusal> {
            self.0.compile(point)
        }
        fn measure(&self, job: &Job) -> Result<Evidence, Refusal> {
            self.0.measure(job)
        }
    }
    let worker = Promising(World::new(false, Plagues::default()));
    let folder = folder();
    let path = folder.path().join("journal.jsonl");
    let space = space();
    let mut proposer = proposers::Random;
    let parts = Parts {
        space: &space,
        worker: &worker,
        proposer: &mut proposer,
        observer: &mut Quiet,
        stop: &worker.0.stop,
    };
    let outcome = begin(&path, header(&worker.0, "random", 1), parts, iters(10)).unwrap();
    assert_eq!(outcome.history.incumbent, space.default_point());
    assert!(outcome.history.tally.by_label["quarantined"] > 0);
}
