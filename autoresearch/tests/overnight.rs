//! A whole night: 10,000 candidates in a synthetic world with crashes, hangs, lies, noise, outliers and a drifting clock.
//! The truly best candidate is kept and no false one, and memory does not grow.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use amk_autoresearch::*;
use common::*;

/// Counts the bytes in use.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Notes the memory in use every thousand trials.
#[derive(Default)]
struct Watching {
    live: Vec<usize>,
    kept: Vec<Point>,
}

impl Observer for Watching {
    fn judged(&mut self, _: u64, trial: &Trial, history: &History, _: &Tally) {
        if history.len().is_multiple_of(1000) {
            self.live.push(LIVE.load(Ordering::Relaxed));
        }
        if trial.verdict.kept() {
            self.kept.push(trial.candidate.knobs.clone());
        }
    }
}

#[test]
fn a_night_keeps_the_truly_best_candidate_and_no_false_one() {
    let plagues = Plagues {
        noise: 0.004,
        drift: true,
        crash: 40,
        hang: 50,
        out_of_memory: 60,
        compiler: 45,
        wrong: 55,
        liar: 35,
        // Each writes its backtrace to the test's output.
        panic: 1500,
        outliers: true,
    };
    let mut world = World::new(true, plagues);
    world.seen.lock().unwrap().clear();
    let space = space();
    let folder = folder();
    let path = folder.path().join("journal.jsonl");
    let mut proposer = proposers::by_name("mix", Box::new(cost)).unwrap();
    let mut watching = Watching::default();
    let mut header = header(&world, "mix", 2026);
    header.batch = 16;
    let parts = Parts {
        space: &space,
        worker: &world,
        proposer: &mut *proposer,
        observer: &mut watching,
        stop: &world.stop,
    };
    let outcome = begin(&path, header.clone(), parts, iters(10_000)).unwrap();
    assert_eq!(outcome.history.len(), 10_000);

    // No false one: each that was kept is truly faster than the one before it.
    let mut before = truth(&header.original);
    for point in &watching.kept {
        let now = truth(point);
        assert!(now < before, "kept {now} after {before}");
        before = now;
    }
    // The truly best: none that was judged honestly is faster by more than the test can tell.
    let mut best = f64::INFINITY;
    journal::check(&path, &mut |e| {
        if let Event::Trial(Trial { verdict: Verdict::Measured(_), candidate, .. }) = &e.event {
            best = best.min(truth(&candidate.knobs));
        }
    })
    .unwrap();
    let found = truth(&outcome.history.incumbent);
    assert!(found <= best * (1.0 + 2.0 * header.threshold), "kept {found}, and {best} was tried");
    let c = outcome.confirmation.unwrap();
    let gain = truth(&header.original) / found;
    assert!(
        c.holds && (c.measurement.unwrap().speedup.median / gain - 1.0).abs() < 0.01,
        "{}",
        c.text
    );

    // Everything that was planted happened, and was survived.
    let tally = &outcome.history.tally;
    for label in ["crashed", "timed out", "quarantined", "rejected", "kept"] {
        assert!(tally.by_label.get(label).is_some_and(|n| *n >= 5), "{label}: {tally:?}");
    }
    // What is kept of a trial is a few short hashes; the last few thousand trials take no more than that.
    world.seen.get_mut().unwrap().clear();
    let (early, late) = (watching.live[2], watching.live[9]);
    let each = late.saturating_sub(early) / 7000;
    assert!(each < 160, "{each} bytes a trial: {:?}", watching.live);
}
