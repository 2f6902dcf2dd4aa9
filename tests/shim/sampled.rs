//! The kernel text draws the tokens that the rule, and the VM, draw.

use std::path::Path;

use amk::lower::{Knobs, Mode, Shape, lower};
use amk::vm::{Options, VmModel};
use amk_models::Sampling;
use amk_models::sampling::Settings;
use amk_schedule_ir::Bucket;

use crate::build::{Build, Host};
use crate::support::{Case, Launch, folder, target};
use crate::tiny::Tiny;
use crate::tokens::small;

const PROMPT: usize = 3;
const NEW: usize = 6;

fn knobs() -> Knobs {
    Knobs { sampled: true, ..small() }
}

fn settings() -> Vec<Settings> {
    let warm = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    let all = [
        Sampling::default(),
        warm(1),
        Sampling { temperature: 0.6, top_k: Some(7), ..warm(1 << 40) },
        Sampling { temperature: 2.5, top_p: Some(0.7), ..warm(3) },
        Sampling { min_p: Some(0.2), repetition_penalty: 1.7, ..warm(4) },
        Sampling {
            temperature: 3.0,
            top_k: Some(30),
            top_p: Some(0.9),
            min_p: Some(0.02),
            repetition_penalty: 0.8,
            seed: 5,
        },
        Sampling { temperature: 0.0, repetition_penalty: 2.0, ..warm(6) },
        Sampling { top_k: Some(60), top_p: Some(1e-9), ..warm(7) },
    ];
    all.iter().map(Sampling::settings).collect()
}

/// Runs the case step by step and in one launch: tokens of both, which must be those that the rule gives for
/// the kernel's own logits.
fn drawn(
    case: &Case,
    host: &Host,
    folder: &Path,
    prompt: &[u32],
    new: usize,
    seed: u64,
) -> Vec<u32> {
    let steps = (prompt.len() + new - 1) as u64;
    let single: Vec<Launch> = (0..steps)
        .map(|pos0| Launch { pos0, steps: 1, epoch_base: 7 + pos0, ..Launch::default() })
        .collect();
    let whole = [Launch { steps, epoch_base: 99, ..Launch::default() }];
    let run = |launches: &[Launch]| -> Vec<u32> {
        case.write(folder, prompt, launches);
        let run = host.run(seed, 0);
        assert_eq!(run.code, Some(0), "{:?}: {}{}", case.settings, run.stdout, run.stderr);
        run.tokens.concat().split_off(prompt.len() - 1)
    };
    let alone = run(&single);
    let mut line = prompt.to_vec();
    for at in prompt.len() - 1..steps as usize {
        let scores = case.settings.scores(&host.logits(at), &line);
        line.push(case.settings.choose(&scores, line.len() as u64).unwrap());
    }
    assert_eq!(alone, line[prompt.len()..], "{:?}", case.settings);
    assert_eq!(run(&whole), alone, "{:?}", case.settings);
    alone
}

#[test]
fn the_kernel_text_draws_what_the_vm_draws() {
    for (bulk, mode) in [(true, Mode::F32), (false, Mode::Bf16)] {
        let name = format!("drawn_{bulk}");
        let folder = folder(&name);
        let checkpoint = Tiny::default().checkpoint(&folder.join("model"));
        let bucket = Bucket { first: 0, last: 63 };
        let lowered =
            lower(&Shape::of(&checkpoint), &target(3, bulk), &knobs(), bucket, mode).unwrap();
        let mut case = Case::new(checkpoint, 3, bulk, &knobs(), mode);
        let host = Host::new(&case.render().text, &folder, Build::Plain);
        let prompt = case.prompt(PROMPT);
        let mut different = std::collections::BTreeSet::new();
        for (i, settings) in settings().into_iter().enumerate() {
            case.settings = settings;
            let tokens = drawn(&case, &host, &folder, &prompt, NEW, i as u64);
            if mode == Mode::F32 {
                let options = Options { settings, ..Options::default() };
                let mut vm = VmModel::new(&lowered, &case.checkpoint, options).unwrap();
                assert_eq!(vm.generate(&prompt, NEW, 4).unwrap().tokens, tokens, "{settings:?}");
            }
            different.insert(tokens);
        }
        assert!(different.len() >= 6, "{different:?}");
    }
}

/// More ids than are marked at once, and several positions a step.
#[test]
fn many_ids_and_prefill_draw_by_the_rule() {
    let folder = folder("drawn_many");
    let sizes = Tiny { hidden: 16, layers: 1, inner: 16, vocab: 30_011, ..Tiny::default() };
    let knobs = Knobs { slot_bytes: Some(8192), ring_slots: Some(4), ..knobs() };
    let model = || sizes.checkpoint(&folder.join("model"));
    let mut case = Case::new(model(), 2, true, &knobs, Mode::F32);
    let host = Host::new(&case.render().text, &folder, Build::Plain);
    let prompt = [30_000, 12_345, 29_999, 24_576, 24_575];
    let wide = Sampling { temperature: 1.5, repetition_penalty: 1.9, ..Sampling::default() };
    for sampling in [
        Sampling { top_p: Some(0.95), seed: 1, ..wide.clone() },
        Sampling { top_k: Some(2000), top_p: Some(0.999), min_p: Some(1e-3), ..wide },
    ] {
        case.settings = sampling.settings();
        drawn(&case, &host, &folder, &prompt, 2, 0);
    }
    let five = Knobs { tokens: 5, ..knobs };
    let mut case = Case::new(model(), 2, true, &five, Mode::F32);
    let host = Host::new(&case.render().text, &folder, Build::Plain);
    case.settings = Settings { temperature: 1.0, penalty: 3.0, seed: 9, ..Settings::default() };
    case.write(&folder, &prompt, &[Launch { steps: 1, ..Launch::default() }]);
    let run = host.run(0, 0);
    assert_eq!(run.code, Some(0), "{}{}", run.stdout, run.stderr);
    let scores = case.settings.scores(&host.logits(0), &prompt);
    assert_eq!(run.tokens, [[case.settings.choose(&scores, 5).unwrap()]]);
}

/// No order that the draw leans on is missing, as the sanitizer sees it.
#[test]
fn a_watched_draw_is_in_order() {
    let folder = folder("drawn_watched");
    let sizes = Tiny { layers: 1, hidden: 16, inner: 16, ..Tiny::default() };
    let model = sizes.checkpoint(&folder.join("model"));
    let mut case = Case::new(model, 2, true, &knobs(), Mode::Bf16);
    let host = Host::new(&case.render().text, &folder, Build::Watched);
    let prompt = case.prompt(2);
    for (seed, settings) in settings().into_iter().enumerate().skip(4).take(2) {
        case.settings = settings;
        drawn(&case, &host, &folder, &prompt, 2, seed as u64);
    }
}
