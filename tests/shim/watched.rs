//! ThreadSanitizer is silent on the text as it is, and its tokens are the reference's; every
//! synchronisation dropped from it is seen: by the sanitizer, by wrong tokens, or because the launch got
//! stuck or broke a rule.

use std::collections::BTreeSet;

use amk::lower::{Knobs, Mode};
use rayon::prelude::*;

use crate::build::{Build, Host, Run};
use crate::mutants::{Mutant, edit_names, plant, unseen};
use crate::support::{Case, Launch, folder};
use crate::tiny::Tiny;
use crate::tokens::{counters, small};

/// Seeds a text is given to show itself in.
const SEEDS: u64 = 6;

/// A program under watch.
struct Watched {
    name: &'static str,
    case: Case,
    mode: Mode,
    host: Host,
    mutants: Vec<Mutant>,
    /// What the first seed gave.
    right: Run,
}

impl Watched {
    /// Renders and compiles a case, with all switches.
    fn new(
        name: &'static str,
        tiny: Tiny,
        sms: u32,
        bulk: bool,
        knobs: &Knobs,
        mode: Mode,
    ) -> Self {
        let folder = folder(name);
        let case = Case::new(tiny.checkpoint(&folder.join("model")), sms, bulk, knobs, mode);
        let (text, mutants) = plant(&case.render().text);
        let host = Host::new(&text, &folder, Build::Watched);
        let right =
            Run { code: None, tokens: vec![], stdout: String::new(), stderr: String::new() };
        Watched { name, case, mode, host, mutants, right }
    }

    /// Two launches from a prompt of two tokens: one that runs to its end and one that a token ends early.
    fn decode(mut self) -> Self {
        let prompt = self.case.prompt(2);
        let launch = Launch { steps: 4, epoch_base: 1, ..Launch::default() };
        self.case.write(self.host.folder(), &prompt, std::slice::from_ref(&launch));
        let free = self.first_seed();
        let tokens = &free.tokens[0];
        // Step 0 gives the second token of the prompt.
        let mut text = vec![prompt[0]];
        for token in tokens {
            if text.len() >= prompt.len() {
                self.is_right(&text, *token);
            }
            text.push(*token);
        }
        assert_eq!(text[..2], prompt);
        // Once more, with the last of these tokens ending the launch early, where it first comes up.
        let last = tokens[3];
        let stopping = Launch { epoch_base: 10, steps: 6, eos: vec![last], ..launch.clone() };
        self.case.write(self.host.folder(), &prompt, &[launch, stopping]);
        let right = self.first_seed();
        assert_eq!(right.tokens[0], *tokens, "{}", self.name);
        let stop = 1 + tokens[1..].iter().position(|t| *t == last).unwrap();
        assert_eq!(right.tokens[1], tokens[..=stop], "{}", self.name);
        self.right = right;
        self
    }

    /// Three launches of one step of several positions each.
    fn prefill(mut self, tokens: u64) -> Self {
        let launch = |i| Launch { pos0: tokens * i, steps: 1, epoch_base: i, ..Launch::default() };
        let prompt = self.case.prompt(3 * tokens as usize);
        self.case.write(self.host.folder(), &prompt, &[launch(0), launch(1), launch(2)]);
        self.right = self.first_seed();
        for n in 0..3 {
            let (_, want) = self.case.expected(&prompt[..(n + 1) * tokens as usize], 1);
            let got = self.host.logits(n);
            let far = got.iter().zip(&want[0]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            assert!(far < self.limit(&want[0]), "{} launch {n}: off by {far}", self.name);
        }
        self
    }

    fn first_seed(&self) -> Run {
        let run = self.host.run(0, 0);
        assert_eq!(run.code, Some(0), "{}: {}{}", self.name, run.stdout, run.stderr);
        run
    }

    /// How far logits may be from the reference's.
    fn limit(&self, reference: &[f32]) -> f32 {
        let spread = reference.iter().fold(0f32, |m, v| m.max(v.abs()));
        spread * if self.mode == Mode::F32 { 2e-5 } else { 0.05 }
    }

    /// The token after `text` is the reference's, or as good but for rounding.
    fn is_right(&self, text: &[u32], token: u32) {
        let (best, logits) = self.case.expected(text, 1);
        let logits = &logits[0];
        let regret = logits[best[0] as usize] - logits[token as usize];
        assert!(regret <= self.limit(logits), "{}: {token} after {text:?}", self.name);
    }

    /// Every seed is silent and gives what the first one gave.
    fn is_silent(&self) {
        let silent: Vec<String> = (0..SEEDS)
            .into_par_iter()
            .map(|seed| (seed, self.host.run(seed, 0)))
            .filter(|(_, run)| run.code != Some(0) || run.stdout != self.right.stdout)
            .map(|(seed, run)| format!("{} seed {seed}: {}{}", self.name, run.stdout, run.stderr))
            .collect();
        assert!(silent.is_empty(), "{}", silent.join("\n"));
    }

    /// How a mutant shows itself, if it does.
    fn seen(&self, mutant: &Mutant) -> Option<String> {
        for seed in 0..SEEDS {
            let run = self.host.run(seed, mutant.id);
            let how = match run.code {
                Some(0) if run.stdout == self.right.stdout => continue,
                Some(0) => "other tokens or logits",
                Some(1) => "given up",
                Some(3) => "stuck",
                Some(4) => "a broken rule",
                Some(66) => "a race",
                _ => panic!("{}: {:?} {}", mutant.name, run.code, run.stderr),
            };
            return Some(format!("{}: {}: {how} (seed {seed})", self.name, mutant.name));
        }
        None
    }

    /// With a limit on waiting, a lost signal ends the launch with a report that says which wait it was.
    fn gives_up(&self) {
        let lost = self.mutants.iter().find(|m| m.name.starts_with("amk_counter_release()"));
        let launch = Launch { steps: 2, spin_limit: 1000, ..Launch::default() };
        self.case.write(self.host.folder(), &self.case.prompt(2), &[launch]);
        // What the launch does after it was given up is in no order any more.
        let run = self.host.run_with(0, lost.unwrap().id, "report_bugs=0");
        assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
        let report = run.stdout.lines().find(|line| line.starts_with("given up 1:"));
        let report = report.unwrap_or_else(|| panic!("{}", run.stdout));
        assert!(report.contains("edge 2") && report.contains("step 0"), "{report}");
    }
}

/// Packets through a ring of bulk copies. Two SMs have a part of the head; on the third the last
/// instruction is another.
fn packets() -> Watched {
    let knobs = Knobs { splits: Some(2), ..small() };
    let tiny = Tiny { vocab: 16, ..Tiny::default() };
    Watched::new("watched_packets", tiny, 3, true, &knobs, Mode::Bf16).decode()
}

/// Packets, with chunks taken into registers before the input is looked at.
fn taken() -> Watched {
    let tiny = Tiny { hidden: 128, inner: 128, layers: 1, vocab: 16, ..Tiny::default() };
    let knobs = Knobs { taken: Some(3), ..small() };
    let watched = Watched::new("watched_taken", tiny, 2, true, &knobs, Mode::Bf16);
    assert!(watched.case.render().text.contains("MOST_TAKEN = 3"));
    watched.decode()
}

/// Counters, and a ring of 16-byte copies.
fn plain() -> Watched {
    let knobs = Knobs { edges: counters(), splits: Some(2), ..small() };
    Watched::new("watched_counters", Tiny::default(), 2, false, &knobs, Mode::F32).decode()
}

/// Several positions per step, which is where some barriers within ops matter.
fn prefill() -> Watched {
    let model = Tiny { layers: 1, ..Tiny::default() };
    let knobs = Knobs { tokens: 4, splits: Some(2), q_heads_per_unit: Some(1), ..small() };
    Watched::new("watched_prefill", model, 2, false, &knobs, Mode::F32).prefill(4)
}

/// Of each place it is enough that one of the programs cannot do without it; the two kinds of ring are
/// judged apart.
#[test]
fn every_place_dropped_is_seen() {
    let (mut all, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for make in [packets, plain, prefill, taken] {
        let watched = make();
        watched.is_silent();
        let ring = |m: &Mutant| {
            let name = if m.name.contains("in ring_") { " of 16-byte copies" } else { "" };
            let bulk = watched.case.target.features.bulk_copy;
            format!("{}{}", m.name, if bulk { "" } else { name })
        };
        // Nobody waits for a counter where there is none.
        let counters = !watched.case.program.counters.is_empty();
        let here =
            |m: &&Mutant| unseen(&m.name).is_none() && (counters || !m.name.contains("counter_"));
        let left = watched.mutants.iter().filter(here);
        all.extend(left.clone().map(ring));
        let left: Vec<&Mutant> = left.filter(|m| !seen.contains(&ring(m))).collect();
        let found = left.par_iter().filter_map(|m| Some((ring(m), watched.seen(m)?)));
        for (name, how) in found.collect::<Vec<_>>() {
            println!("{how}");
            seen.insert(name);
        }
        if watched.name == "watched_counters" {
            watched.gives_up();
        }
    }
    for name in edit_names() {
        assert!(all.iter().any(|m| m.starts_with(name)), "no text holds what `{name}` edits");
    }
    let missed: Vec<_> = all.difference(&seen).collect();
    assert!(
        missed.is_empty(),
        "dropped and not seen, {} of {}: {missed:#?}",
        missed.len(),
        all.len()
    );
}

/// The other pairs of ring and arithmetic, silent and right.
#[test]
fn packets_in_float32_through_bulk_copies_are_silent() {
    let tiny = Tiny { heads: 4, kv_heads: 2, ..Tiny::default() };
    Watched::new("watched_bulk_f32", tiny, 3, true, &small(), Mode::F32).decode().is_silent();
}

#[test]
fn packets_in_bf16_through_small_copies_are_silent() {
    let tiny = Tiny { hidden: 80, inner: 72, ..Tiny::default() };
    Watched::new("watched_async_bf16", tiny, 2, false, &small(), Mode::Bf16).decode().is_silent();
}

#[test]
fn prefill_through_bulk_copies_is_silent() {
    let model = Tiny { layers: 1, ..Tiny::default() };
    let knobs = Knobs { tokens: 6, ..small() };
    let watched = Watched::new("watched_bulk_prefill", model, 3, true, &knobs, Mode::Bf16);
    watched.prefill(6).is_silent();
}
