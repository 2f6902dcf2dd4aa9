//! The oracle's verdict on every schedule of `tests/schedules`: what is accepted must be safe, what is
//! rejected unsafe, but for named classes of safe programs that the validator rejects.

use std::fs;
use std::path::Path;

use amk_oracle::{Invariant, Limits, Outcome, explore, predicates};
use amk_schedule_ir::{Features, Program, Target, text};

fn target() -> Target {
    Target {
        name: "test-sm_90a".into(),
        sm: "sm_90a".into(),
        sm_count: 132,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 50 << 20,
        nominal_gbps: 4800.0,
        measured_gbps: None,
        features: Features {
            cp_async: true,
            bulk_copy: true,
            wgmma: true,
            setmaxnreg: true,
            cluster: true,
        },
    }
}

/// Rejected by the validator, though nothing in the semantics is broken; with the reason it gives.
const SAFE: &[(&str, &str)] = &[
    (
        "e-wrap",
        "order of one word's reads (coherence) hides the old word; E counts happens-before alone",
    ),
    (
        "k-gate",
        "the ring orders the append before the copy; K counts gates alone, which fence the async proxy",
    ),
    (
        "s-threshold-zero",
        "a wait for nothing is met at once and does nothing; S refuses it, as it was hardly meant",
    ),
];

/// Too big for every interleaving; the seeded runs of the VM look at them.
const BIG: &[&str] = &["o-grid"];

fn fixtures(folder: &str) -> Vec<(String, Program)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/schedules").join(folder);
    let mut all: Vec<(String, Program)> = fs::read_dir(&dir)
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|x| x == "sched"))
        .map(|p| {
            let program = text::parse(&fs::read_to_string(&p).unwrap()).unwrap();
            (p.file_stem().unwrap().to_string_lossy().into_owned(), program)
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(all.len() > 40);
    all
}

fn both(p: &Program) -> (Vec<String>, Outcome) {
    let breaches = predicates(p, &target());
    let lines = breaches.iter().map(ToString::to_string).collect();
    (lines, explore(p, Limits::default()))
}

#[test]
fn accepted_fixtures_are_safe() {
    let all = fixtures("accept");
    // In-place chains, ordered reuse of a buffer, and lists in another order than that of execution.
    for name in ["residual-chain", "r-war", "c-order", "d-packet-in-place"] {
        assert!(all.iter().any(|f| f.0 == name), "{name}");
    }
    let mut wrong = Vec::new();
    for (name, p) in all {
        let (breaches, outcome) = both(&p);
        let right = match outcome {
            Outcome::Safe => !BIG.contains(&name.as_str()),
            Outcome::TooBig(_) => BIG.contains(&name.as_str()),
            Outcome::Unsafe(_) => false,
        };
        if !right || !breaches.is_empty() {
            wrong.push(format!("{name}: {breaches:?} {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn rejected_fixtures_are_unsafe() {
    let mut wrong = Vec::new();
    for (name, p) in fixtures("reject") {
        let (breaches, outcome) = both(&p);
        let safe = breaches.is_empty() && outcome == Outcome::Safe;
        if safe != SAFE.iter().any(|s| s.0 == name) {
            wrong.push(format!("{name}: {breaches:?} {outcome:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn letters_are_all_there() {
    let all: Vec<Invariant> = fixtures("reject")
        .iter()
        .flat_map(|(_, p)| predicates(p, &target()))
        .map(|b| b.invariant)
        .collect();
    for letter in
        [Invariant::S, Invariant::B, Invariant::C, Invariant::M, Invariant::O, Invariant::K]
    {
        assert!(all.contains(&letter), "{letter:?}");
    }
}
