//! A new image is tested on the device it will run on before anything it says is used.
//!
//! The cache is filled with the same keys and values here and in the CPU reference, and a few tokens are decoded
//! at positions in the middle of each program's bucket: at position 0 RoPE is the identity and attention has one key,
//! so it tests nothing. `judge` compares logits, `verdict` keeps what was found under a key of everything the
//! verdict depends on: source, architecture, compiler, driver, device.

mod judge;
mod verdict;

use amk_models::golden::SourceError;
use amk_models::sampling::Settings;
use amk_models::{Checkpoint, Reference, ReferenceError, Want, greedy};
use half::bf16;
use rayon::prelude::*;

use crate::decode::{Executor, LaunchOptions, LaunchPlan, ProgramFacts};
use crate::engine::{Engine, EngineError};
use crate::lower::Mode;

pub use judge::{Judged, judge, limits};
pub use verdict::{Decision, Policy, Verdict, VerdictCache, VerdictKey, decide};

/// Steps decoded at each position.
const STEPS: u64 = 3;
/// How far into a bucket the first position lies, and the second behind it.
const INTO: u64 = 5;
const APART: u64 = 91;

/// Why there is no verdict, or a bad one.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The image says something else than the reference.
    #[error(
        "the image failed its self-test: {0}; nothing is decoded with it (the compiler or the device is at fault, or amk itself)"
    )]
    Failed(String),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error("the self-test could not run: {0}")]
    Subject(SourceError),
}

/// What is tested: an engine, or in tests something that plays one.
pub trait Subject {
    fn programs(&self) -> Vec<ProgramFacts>;
    /// Fills the first `rows` positions of a layer's cache, `[kv head][position][element]`.
    fn fill(
        &mut self,
        layer: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), SourceError>;
    /// Runs one launch over tokens at `plan.position ..`; gives the tokens after each step and the last logits.
    fn launch(
        &mut self,
        plan: &LaunchPlan,
        tokens: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError>;
    /// Does the program draw tokens by what `draw_by` was told last?
    fn draws(&self, _program: usize) -> bool {
        false
    }
    /// How tokens are drawn from now on; at first the best is taken.
    fn draw_by(&mut self, _settings: Settings) {}
    /// As `launch`, with all tokens from position 0 on: who draws looks at all of them.
    fn launch_after(
        &mut self,
        plan: &LaunchPlan,
        line: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        self.launch(plan, line.get(plan.position as usize..).unwrap_or_default())
    }
}

impl Subject for Engine {
    fn programs(&self) -> Vec<ProgramFacts> {
        Executor::programs(self)
    }

    fn fill(
        &mut self,
        layer: usize,
        rows: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), SourceError> {
        Ok(self.fill_cache(layer, rows, keys, values)?)
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        tokens: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        self.put(plan.position, tokens);
        let prompt_len = plan.position + tokens.len() as u64;
        let options = LaunchOptions { prompt_len, logits: true, ..LaunchOptions::default() };
        let mut said = Vec::new();
        self.run(plan, &options, &mut |token| {
            said.push(token);
            true
        })?;
        Ok((said, self.logits()?))
    }

    fn draws(&self, program: usize) -> bool {
        Engine::draws(self, program)
    }

    fn draw_by(&mut self, settings: Settings) {
        Engine::draw_by(self, settings);
    }

    fn launch_after(
        &mut self,
        plan: &LaunchPlan,
        line: &[u32],
    ) -> Result<(Vec<u32>, Vec<f32>), SourceError> {
        self.put(0, line);
        Subject::launch(self, plan, line.get(plan.position as usize..).unwrap_or_default())
    }
}

/// What a test of one program found.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Findings {
    pub ok: bool,
    /// First positions tested.
    pub positions: Vec<u64>,
    /// Greatest difference seen, relative to the spread of the logits.
    pub difference: f64,
    /// What is wrong, if anything.
    pub reason: Option<String>,
}

/// The positions a program is tested at, latest first.
fn positions(facts: &ProgramFacts) -> Vec<u64> {
    let span = if facts.tokens == 1 { STEPS } else { 1 };
    let last = (facts.bucket.last + 1).saturating_sub(span).max(facts.bucket.first);
    let first = (facts.bucket.first + INTO).min(last);
    let mut out = vec![first];
    if facts.tokens == 1 && first + APART <= last {
        out.insert(0, first + APART);
    }
    out
}

/// Tests the programs of a subject that are listed in `which`, against the CPU reference of the same checkpoint.
/// `said` gets the findings by program index.
///
/// # Errors
/// The subject or the reference fails; wrong logits are findings, no error.
pub fn test(
    subject: &mut dyn Subject,
    checkpoint: &Checkpoint,
    mode: Mode,
    which: &[usize],
) -> Result<Vec<(usize, Findings)>, SelfTestError> {
    let programs = subject.programs();
    let mut cases: Vec<(u64, usize)> = which
        .iter()
        .filter_map(|&i| programs.get(i).map(|f| (i, f)))
        .flat_map(|(i, f)| positions(f).into_iter().map(move |p| (p, i)))
        .collect();
    // Latest first: what a case computes lies behind what the next one reads.
    cases.sort_by(|a, b| b.cmp(a));
    let rows = cases.first().map_or(0, |c| c.0) as usize;
    let mut reference = Reference::new(checkpoint)?;
    fill(subject, &mut reference, checkpoint, rows)?;
    let mut found: Vec<(usize, Findings)> = which
        .iter()
        .map(|&i| {
            let none = Findings { ok: true, positions: Vec::new(), difference: 0.0, reason: None };
            (i, none)
        })
        .collect();
    for (position, index) in cases {
        let tokens = programs[index].tokens;
        let mut judged = match tokens {
            1 => decoding(subject, &mut reference, mode, index, position)?,
            _ => prefilling(subject, &mut reference, mode, index, position, tokens)?,
        };
        if subject.draws(index) {
            let vocab = reference.config().vocab_size as u64;
            let drawn = drawing(subject, vocab, index, position, tokens);
            subject.draw_by(Settings::default());
            judged = judged.worse(drawn?);
        }
        let Some((_, f)) = found.iter_mut().find(|(i, _)| *i == index) else { continue };
        f.positions.push(position);
        f.difference = f.difference.max(judged.difference);
        if let Some(reason) = judged.reason {
            f.ok = false;
            f.reason.get_or_insert(format!("at position {position}, {reason}"));
        }
    }
    Ok(found)
}

fn decoding(
    subject: &mut dyn Subject,
    reference: &mut Reference,
    mode: Mode,
    program: usize,
    position: u64,
) -> Result<Judged, SelfTestError> {
    let vocab = reference.config().vocab_size as u64;
    let first = token(position, vocab);
    let mut worst = Judged::default();
    let (mut feed, mut alone) = (first, Vec::<u32>::new());
    for step in 0..STEPS {
        let plan = LaunchPlan { program, position: position + step, steps: 1, tokens: 1 };
        let (said, ours) = subject.launch(&plan, &[feed]).map_err(SelfTestError::Subject)?;
        let theirs = reference.forward(feed, plan.position as usize)?;
        worst = worst.worse(judge(mode, &ours, &theirs));
        // The kernel's own argmax is that of its logits.
        if said.first().copied() != greedy(&ours) {
            worst = worst.worse(Judged::wrong(format!(
                "the kernel says {said:?} and its logits {:?}",
                greedy(&ours)
            )));
        }
        alone.extend(&said);
        feed = greedy(&ours).unwrap_or(0);
    }
    let plan = LaunchPlan { program, position, steps: STEPS, tokens: 1 };
    let (together, _) = subject.launch(&plan, &[first]).map_err(SelfTestError::Subject)?;
    if together != alone {
        worst = worst.worse(Judged::wrong(format!(
            "one launch of {STEPS} steps says {together:?} and {STEPS} launches say {alone:?}"
        )));
    }
    Ok(worst)
}

fn prefilling(
    subject: &mut dyn Subject,
    reference: &mut Reference,
    mode: Mode,
    program: usize,
    position: u64,
    tokens: u64,
) -> Result<Judged, SelfTestError> {
    let vocab = reference.config().vocab_size as u64;
    let prompt: Vec<u32> = (0..tokens).map(|i| token(position + i, vocab)).collect();
    let plan = LaunchPlan { program, position, steps: 1, tokens };
    let (_, ours) = subject.launch(&plan, &prompt).map_err(SelfTestError::Subject)?;
    let theirs = reference.prefill(&prompt, position as usize, Want::Last)?;
    Ok(judge(mode, &ours, theirs.last().map_or(&[], Vec::as_slice)))
}

/// What is drawn is what the rule says of the image's own logits, step by step and in one launch.
fn drawing(
    subject: &mut dyn Subject,
    vocab: u64,
    program: usize,
    position: u64,
    tokens: u64,
) -> Result<Judged, SelfTestError> {
    let plain = Settings { temperature: 1.0, seed: 0x5eed_0000_0001, ..Settings::default() };
    let all = Settings {
        temperature: 0.8,
        penalty: 1.2,
        top_k: 40,
        // 0.9 of the mass, and a fiftieth of the best.
        top_p: 3_865_470_566,
        min_p: -3.912_023,
        seed: 2,
    };
    let steps = if tokens == 1 { STEPS } else { 1 };
    for settings in [plain, Settings { top_p: 1 << 31, ..plain }, all] {
        subject.draw_by(settings);
        let first: Vec<u32> = (0..position + tokens).map(|p| token(p, vocab)).collect();
        let mut line = first.clone();
        for step in 0..steps {
            let plan = LaunchPlan { program, position: position + step, steps: 1, tokens };
            let (said, ours) =
                subject.launch_after(&plan, &line).map_err(SelfTestError::Subject)?;
            let right = settings.choose(&settings.scores(&ours, &line), line.len() as u64);
            let Some(right) = right.filter(|t| said.first() == Some(t)) else {
                return Ok(Judged::wrong(format!(
                    "the kernel draws {said:?} and its logits give {right:?} for {settings:?}"
                )));
            };
            line.push(right);
        }
        let plan = LaunchPlan { program, position, steps, tokens };
        let (together, _) = subject.launch_after(&plan, &first).map_err(SelfTestError::Subject)?;
        if together != line[first.len()..] {
            return Ok(Judged::wrong(format!(
                "one launch of {steps} steps draws {together:?} and {steps} launches draw {:?}",
                &line[first.len()..]
            )));
        }
    }
    Ok(Judged::default())
}

/// A token that depends on the position alone.
fn token(position: u64, vocab: u64) -> u32 {
    (mix(position ^ 0x5eed) % vocab.max(1)) as u32
}

/// Positions whose keys and values are computed to fill a cache with.
const COMPUTED: usize = 16;
/// How far the rows of a cache lie from those they are made from, as a part of them.
const APART_BY: f32 = 0.03;

/// Fills both caches with the same rows: those that the model itself computes for a few tokens, over and over, each changed
/// at random so that no two are alike. They are rounded to bf16, which every cache type holds exactly.
///
/// Rows that are altogether random are no past that a trained model ever sees: a change of them by 0.2%, as bf16 rounds, moves
/// the logits of SmolLM2-135M by half their spread, and a tenth is allowed.
fn fill(
    subject: &mut dyn Subject,
    reference: &mut Reference,
    checkpoint: &Checkpoint,
    rows: usize,
) -> Result<(), SelfTestError> {
    let config = checkpoint.config();
    let (heads, width) = (config.num_kv_heads, config.head_dim);
    let computed = rows.min(COMPUTED);
    if computed == 0 {
        return Ok(());
    }
    let prompt: Vec<u32> =
        (0..computed as u64).map(|p| token(p, config.vocab_size as u64)).collect();
    reference.prefill(&prompt, 0, Want::Last)?;
    let all: Vec<_> = (0..config.num_layers)
        .map(|layer| reference.cached_rows(layer, computed))
        .collect::<Result<_, _>>()?;
    for (layer, (keys, values)) in all.iter().enumerate() {
        // `[position][kv head][element]`, as the reference has them.
        let make = |from: &[f32], what: u64| -> Vec<f32> {
            let seed = mix(layer as u64 * 2 + what);
            let element = |i: usize| {
                let near = 1.0 + APART_BY * noise(seed ^ mix(i as u64));
                bf16::from_f32(from[i % from.len()] * near).to_f32()
            };
            (0..rows * heads * width).into_par_iter().map(element).collect()
        };
        let (keys, values) = (make(keys, 0), make(values, 1));
        let by_head = |v: &[f32]| -> Vec<f32> {
            let at = |head: usize| (0..rows).map(move |row| (row * heads + head) * width);
            (0..heads).flat_map(at).flat_map(|a| v[a..a + width].iter().copied()).collect()
        };
        subject
            .fill(layer, rows, &by_head(&keys), &by_head(&values))
            .map_err(SelfTestError::Subject)?;
        reference.preload(layer, rows, keys, values)?;
    }
    Ok(())
}

/// Sebastiano Vigna's splitmix64, one step.
fn mix(seed: u64) -> u64 {
    let z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// About normal, of variance 1: the sum of four uniform values.
fn noise(seed: u64) -> f32 {
    let bits = mix(seed);
    let part = |k: u32| ((bits >> (16 * k)) & 0xffff) as f32 / 65_536.0 - 0.5;
    (part(0) + part(1) + part(2) + part(3)) * 3.0f32.sqrt()
}

/// Makes sure that every image of an engine has passed, as the policy has it.
///
/// # Errors
/// An image failed, now or before; or the test could not run.
pub fn ensure(
    engine: &mut Engine,
    checkpoint: &Checkpoint,
    mode: Mode,
    policy: Policy,
    cache: &VerdictCache,
) -> Result<Vec<Verdict>, SelfTestError> {
    let facts = engine.device().facts().clone();
    let driver = engine.device().driver_version();
    let keys: Vec<VerdictKey> = (0..engine.len())
        .filter_map(|i| engine.image_key(i).map(|k| VerdictKey::new(k, driver, &facts)))
        .collect();
    let known: Vec<Option<Verdict>> = keys.iter().map(|k| cache.load(k)).collect();
    let decisions: Vec<Decision> = known.iter().map(|v| decide(policy, v.as_ref())).collect();
    let which: Vec<usize> = (0..keys.len()).filter(|&i| decisions[i] == Decision::Test).collect();
    let mut verdicts = Vec::new();
    let tested = match which.is_empty() {
        true => Vec::new(),
        false => test(engine, checkpoint, mode, &which)?,
    };
    for (index, findings) in tested {
        let verdict = Verdict::new(&keys[index], findings, &facts.name, driver);
        // A verdict that cannot be kept is found again next time.
        if let Err(error) = cache.store(&keys[index], &verdict) {
            tracing::warn!("the self-test's verdict could not be kept: {error}");
        }
        verdicts.push(verdict);
    }
    for (index, decision) in decisions.iter().enumerate() {
        if *decision == Decision::Known
            && let Some(verdict) = &known[index]
        {
            verdicts.push(Verdict { cached: true, ..verdict.clone() });
        }
    }
    match verdicts.iter().find(|v| !v.findings.ok) {
        Some(bad) => {
            let reason = bad.findings.reason.clone().unwrap_or_default();
            let cached =
                if bad.cached { " (found earlier; --self-test always tests again)" } else { "" };
            Err(SelfTestError::Failed(format!("{reason}{cached}")))
        }
        None => Ok(verdicts),
    }
}

#[cfg(test)]
mod tests;
