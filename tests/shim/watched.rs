//! ThreadSanitizer is silent on the text as it is, and every synchronisation dropped from it is seen:
//! by the sanitizer, by wrong tokens, or because the launch got stuck or broke a rule.

use amk::lower::{Knobs, Mode};
use rayon::prelude::*;

use crate::build::{Build, Host, Run};
use crate::mutants::{Kind, Mutant, plant, spare};
use crate::support::{Case, Launch, folder};
use crate::tiny::Tiny;
use crate::tokens::{counters, small};

/// Seeds a mutant is given to show itself in.
const SEEDS: u64 = 6;

/// What each run of a mutant showed, or that nothing did.
fn seen(host: &Host, mutant: &Mutant, right: &Run) -> Result<String, String> {
    for seed in 0..SEEDS {
        let run = host.run(seed, mutant.id);
        let how = match run.code {
            Some(0) if run.stdout == right.stdout => continue,
            Some(0) => "other tokens or logits",
            Some(1) => "given up",
            Some(3) => "stuck",
            Some(4) => "a broken rule",
            Some(66) => "a race",
            _ => panic!("{}: {:?} {}", mutant.name, run.code, run.stderr),
        };
        return Ok(format!("{}: {how} (seed {seed})", mutant.name));
    }
    Err(mutant.name.clone())
}

/// With a limit on waiting, a lost signal ends the launch with a report that says which wait it was.
fn gives_up(case: &Case, host: &Host, lost: &Mutant) {
    let launch = Launch { steps: 2, spin_limit: 1000, ..Launch::default() };
    case.write(host.folder(), &case.prompt(2), &[launch]);
    // What the launch does after it was given up is in no order any more.
    let run = host.run_with(0, lost.id, "report_bugs=0");
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    let report = run.stdout.lines().find(|line| line.starts_with("given up 1:"));
    assert!(report.is_some_and(|r| r.contains("edge 2") && r.contains("step 0")), "{}", run.stdout);
}

/// The text as it is stays silent in every seed and gives what `right` gave; each mutant does not.
fn judge(name: &str, host: &Host, kind: Kind, mutants: &[Mutant], right: &Run) {
    assert_eq!(right.code, Some(0), "{name}: {}{}", right.stdout, right.stderr);
    let silent: Vec<String> = (0..SEEDS)
        .into_par_iter()
        .map(|seed| (seed, host.run(seed, 0)))
        .filter(|(_, run)| run.code != Some(0) || run.stdout != right.stdout)
        .map(|(seed, run)| format!("{name} seed {seed}: {}{}", run.stdout, run.stderr))
        .collect();
    assert!(silent.is_empty(), "{}", silent.join("\n"));
    let results: Vec<_> = mutants.par_iter().map(|m| seen(host, m, right)).collect();
    for text in results.iter().flatten() {
        println!("{name}: {text}");
    }
    let missed = results.iter().filter_map(|r| r.as_ref().err());
    let missed: Vec<&String> = missed.filter(|name| spare(name, kind).is_none()).collect();
    assert!(missed.is_empty(), "{name}: dropped and not seen: {missed:#?}");
}

/// Decoding: a launch that runs to its end and one that a token ends early.
fn decode(name: &str, tiny: Tiny, sms: u32, kind: Kind, knobs: &Knobs, mode: Mode) {
    let folder = folder(name);
    let case = Case::new(tiny.checkpoint(&folder.join("model")), sms, kind.bulk, knobs, mode);
    let (text, mutants) = plant(&case.render().text, kind);
    let host = Host::new(&text, &folder, Build::Watched);
    let prompt = case.prompt(2);
    let launch = Launch { steps: 4, epoch_base: 1, ..Launch::default() };
    case.write(&folder, &prompt, std::slice::from_ref(&launch));
    let free = host.run(0, 0);
    assert_eq!(free.code, Some(0), "{name}: {}", free.stderr);
    // Once more, with the last of these tokens ending the launch early, where it first comes up.
    let last = free.tokens[0][3];
    let stopping = Launch { epoch_base: 10, steps: 6, eos: vec![last], ..launch.clone() };
    case.write(&folder, &prompt, &[launch, stopping]);
    let right = host.run(0, 0);
    assert_eq!(right.tokens[0], free.tokens[0], "{name}");
    let stop = 1 + free.tokens[0][1..].iter().position(|t| *t == last).unwrap();
    assert_eq!(right.tokens[1], free.tokens[0][..=stop], "{name}");
    judge(name, &host, kind, &mutants, &right);
    if let Some(lost) = mutants.iter().find(|m| m.name == "signal of a counter") {
        gives_up(&case, &host, lost);
    }
}

#[test]
fn packets_and_bulk_copies() {
    let kind = Kind { packets: true, bulk: true, prefill: false };
    let knobs = Knobs { splits: Some(2), ..small() };
    // Two SMs have a part of the head; on the third the last instruction is another.
    let tiny = Tiny { vocab: 16, ..Tiny::default() };
    decode("watched_packets", tiny, 3, kind, &knobs, Mode::Bf16);
}

#[test]
fn counters_and_small_copies() {
    let kind = Kind { packets: false, bulk: false, prefill: false };
    let knobs = Knobs { edges: counters(), splits: Some(2), ..small() };
    decode("watched_counters", Tiny::default(), 2, kind, &knobs, Mode::F32);
}

/// Several positions per step: barriers within ops, since each launch is one step.
#[test]
fn prefill() {
    let (name, kind) = ("watched_prefill", Kind { packets: true, bulk: false, prefill: true });
    let folder = folder(name);
    let model = Tiny { layers: 1, ..Tiny::default() }.checkpoint(&folder.join("model"));
    let knobs = Knobs { tokens: 4, splits: Some(2), q_heads_per_unit: Some(1), ..small() };
    let case = Case::new(model, 2, kind.bulk, &knobs, Mode::F32);
    let (text, mutants) = plant(&case.render().text, kind);
    let host = Host::new(&text, &folder, Build::Watched);
    let launch = |i| Launch { pos0: 4 * i, steps: 1, epoch_base: i, ..Launch::default() };
    case.write(&folder, &case.prompt(12), &[launch(0), launch(1), launch(2)]);
    let right = host.run(0, 0);
    let within = |m: &&Mutant| m.name.contains("_sync") && !m.name.ends_with("boundary");
    let mutants: Vec<Mutant> = mutants.iter().filter(within).cloned().collect();
    judge(name, &host, kind, &mutants, &right);
}
