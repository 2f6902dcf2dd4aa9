//! Programs that draw their tokens: those of the CPU sampler, whatever the interleaving.

use amk::lower::{Knobs, Mode};
use amk::vm::{Options, VmModel};
use amk_models::sampling::Settings;
use amk_models::{Checkpoint, Reference, Sampler, Sampling, Want};
use amk_validator::validate;

use crate::support::{Case, checkpoint, policies, target};

const NEW: usize = 14;

fn knobs() -> Knobs {
    Knobs { capacity: Some(64), sampled: true, ..Knobs::default() }
}

/// What the CPU reference says when a sampler picks its tokens.
fn expected(case: &Case, sampling: &Sampling, prompt: &[u32]) -> Vec<u32> {
    let sampler = Sampler::new(sampling.clone()).unwrap();
    let mut reference = Reference::new(&case.checkpoint).unwrap();
    let mut logits = reference.prefill(prompt, 0, Want::Last).unwrap().pop().unwrap();
    let mut context = prompt.to_vec();
    loop {
        let token = sampler.pick(&logits, &context).unwrap();
        context.push(token);
        if context.len() == prompt.len() + NEW {
            return context.split_off(prompt.len());
        }
        logits = reference.forward(token, context.len() - 1).unwrap();
    }
}

fn settings() -> Vec<Sampling> {
    let warm = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
    vec![
        warm(1),
        Sampling { temperature: 0.7, top_k: Some(20), ..warm(2) },
        Sampling { temperature: 1.4, top_p: Some(0.9), ..warm(u64::MAX) },
        Sampling { min_p: Some(0.02), repetition_penalty: 1.3, ..warm(4) },
        Sampling {
            temperature: 0.9,
            top_k: Some(50),
            top_p: Some(0.95),
            min_p: Some(0.01),
            repetition_penalty: 1.1,
            seed: 5,
        },
        // Greedy, but for what has been said.
        Sampling { temperature: 0.0, repetition_penalty: 1.5, ..warm(6) },
    ]
}

fn run(case: &Case, settings: Settings, options: Options, prompt: &[u32], launch: u64) -> Vec<u32> {
    let mut model: VmModel = case.model(Options { settings, ..options });
    model.generate(prompt, NEW, launch).unwrap().tokens
}

#[test]
fn tokens_are_those_of_the_cpu_sampler() {
    let case = Case::new(Checkpoint::embedded().unwrap(), 7, &knobs(), 63, Mode::F32);
    validate(case.lowered.program.clone(), &target(7)).unwrap();
    let prompt = case.prompt(6);
    let mut different = std::collections::BTreeSet::new();
    for (i, sampling) in settings().into_iter().enumerate() {
        let want = expected(&case, &sampling, &prompt);
        for (n, options) in policies().enumerate().filter(|(n, _)| n % 2 == i % 2) {
            let launch = [1, 6, 40][n % 3];
            let got = run(&case, sampling.settings(), options, &prompt, launch);
            assert_eq!(got, want, "{sampling:?}, launches of {launch}");
        }
        different.insert(want);
    }
    assert_eq!(different.len(), settings().len(), "every setting says something else");
}

/// Also with several positions a step, where the prompt ends with a step.
#[test]
fn a_prefill_step_draws_the_first_token() {
    let case = Case::new(checkpoint("llama-gqa-bf16"), 5, &knobs(), 63, Mode::F32);
    let eight = Knobs { tokens: 4, ..knobs() };
    let prefill = Case::new(checkpoint("llama-gqa-bf16"), 5, &eight, 63, Mode::F32);
    validate(prefill.lowered.program.clone(), &target(5)).unwrap();
    let prompt = case.prompt(8);
    let sampling = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
    let want = expected(&case, &sampling, &prompt);
    let options = || Options { settings: sampling.settings(), ..Options::default() };
    let mut first = prefill.model(options());
    first.vm().put_tokens(0, &prompt).unwrap();
    first.vm().run(0, 1).unwrap();
    let outcome = first.vm().run(4, 1).unwrap();
    assert_eq!(outcome.steps[0].token, Some(want[0]));
    let mut rest = case.model(options());
    rest.take_over(&first, 8).unwrap();
    assert_eq!(rest.resume(8, 8, NEW, 5).unwrap().tokens, want[1..]);
}

#[test]
fn without_a_temperature_it_is_the_greedy_program() {
    let case = Case::new(checkpoint("qwen3-bf16"), 4, &knobs(), 63, Mode::F32);
    let prompt = case.prompt(5);
    let (greedy, _) = case.expected(&prompt, NEW);
    assert_eq!(run(&case, Settings::default(), Options::default(), &prompt, 9), greedy);
    // Next to none, and only one to choose from.
    for sampling in [
        Sampling { temperature: 1e-6, seed: 8, ..Sampling::default() },
        Sampling { temperature: 5.0, top_k: Some(1), seed: 8, ..Sampling::default() },
        Sampling { temperature: 5.0, min_p: Some(1.0), seed: 8, ..Sampling::default() },
    ] {
        let got = run(&case, sampling.settings(), Options::default(), &prompt, 9);
        assert_eq!(got, greedy, "{sampling:?}");
    }
}
