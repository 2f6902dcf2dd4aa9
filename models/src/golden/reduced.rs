//! The rule for reduced precision, fixed beforehand.
//!
//! An executor that computes in bf16 or f16 is judged teacher-forced along HuggingFace's float32 tokens. The *regret*
//! of a position is HuggingFace's greatest float32 logit there, less the float32 logit of our token; the latter comes
//! from the CPU reference, once that has matched the golden. A position is *exact* when the tokens agree, *excused*
//! when its regret is at most `max(0.25, 4 × HuggingFace's own rms difference)`, and a *mismatch* otherwise: none is
//! allowed. Over the file, our rms logit difference from float32 must be at most 0.8 of HuggingFace's own in the same
//! type, and the positions that are not exact at most HuggingFace's own count plus two.

use super::exact::check_length;
use super::report::{FileReport, FirstMismatch};
use super::source::{Limits, LogitSource, SourceError};
use super::{Golden, GoldenError, Prompt};
use crate::reference::greedy;

/// The rule's numbers for one file, derived from HuggingFace's own behaviour in that type.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReducedRule {
    /// Greatest regret that is excused.
    pub regret_allowed: f64,
    /// Greatest rms logit difference over the file.
    pub rms_allowed: f64,
    /// Most positions that may be not exact.
    pub not_exact_allowed: usize,
}

/// The verdict on one position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Judgement {
    /// The tokens agree.
    Exact,
    /// Another token, within the regret allowed.
    Excused,
    /// Another token, beyond it.
    Mismatch,
}

impl ReducedRule {
    /// The rule for a golden's half-precision run (`bf16` or `f16`). `prompts` bounds the prompts that are compared;
    /// HuggingFace's own figures are taken over the same ones.
    pub fn of(golden: &Golden, compute: &str, prompts: usize) -> Result<Self, GoldenError> {
        let run = golden.run(compute)?;
        let mut squares = 0f64;
        let (mut steps, mut differ) = (0usize, 0usize);
        for p in run.prompts.iter().take(prompts) {
            let Some(a) = &p.along_f32_path else {
                return Err(GoldenError::Unreadable {
                    file: golden.checkpoint.clone(),
                    detail: format!(
                        "the {compute} run of prompt {} has no along_f32_path",
                        p.label
                    ),
                });
            };
            squares += a.rms_dlogit * a.rms_dlogit * a.steps as f64;
            steps += a.steps;
            differ += a.argmax_differs_at.len();
        }
        let rms = (squares / steps.max(1) as f64).sqrt();
        Ok(Self {
            regret_allowed: (4.0 * rms).max(0.25),
            rms_allowed: 0.8 * rms,
            not_exact_allowed: differ + 2,
        })
    }

    /// Judges one position: HuggingFace's float32 token and its logit, our token, and the float32 logit of our token.
    pub fn judge(
        &self,
        expected_token: u32,
        expected_max: f64,
        token: u32,
        float32_logit_of_token: f64,
    ) -> Judgement {
        if token == expected_token {
            Judgement::Exact
        } else if expected_max - float32_logit_of_token <= self.regret_allowed {
            // A NaN compares false and is a mismatch.
            Judgement::Excused
        } else {
            Judgement::Mismatch
        }
    }
}

/// Collects the positions of one file and gives the verdict.
pub struct FileJudge {
    rule: ReducedRule,
    report: FileReport,
    squares: f64,
    logits: u64,
}

impl FileJudge {
    /// Begins a file.
    pub fn new(name: &str, compute: &str, rule: ReducedRule) -> Self {
        let report = FileReport {
            name: name.to_string(),
            compute: compute.to_string(),
            ..FileReport::default()
        };
        Self { rule, report, squares: 0.0, logits: 0 }
    }

    /// Counts one position: step `step` of a prompt of the float32 run, our logits and the CPU reference's float32
    /// logits for the same tokens. Vectors of different lengths or with NaN count as a mismatch.
    pub fn position(
        &mut self,
        prompt: &Prompt,
        step: usize,
        ours: &[f32],
        float32: &[f32],
    ) -> Judgement {
        let r = &mut self.report;
        r.positions += 1;
        let expected = prompt.generated_ids[step];
        let expected_max = f64::from(prompt.top2_logits[step][0]);
        let token = if ours.len() == float32.len() { greedy(ours) } else { None };
        let verdict = match token {
            None => Judgement::Mismatch,
            Some(t) => {
                let ours_in_float32 = float32.get(t as usize).copied().map_or(f64::NAN, f64::from);
                self.rule.judge(expected, expected_max, t, ours_in_float32)
            }
        };
        match verdict {
            Judgement::Exact => r.exact += 1,
            Judgement::Excused => r.excused += 1,
            Judgement::Mismatch => r.mismatched += 1,
        }
        for (a, b) in ours.iter().zip(float32) {
            let d = f64::from(*a) - f64::from(*b);
            let d = if d.is_nan() { f64::INFINITY } else { d };
            self.squares += d * d;
            r.max_abs_logit_error = r.max_abs_logit_error.max(d.abs());
        }
        self.logits += ours.len().min(float32.len()) as u64;
        if verdict == Judgement::Mismatch && r.first_mismatch.is_none() {
            let t = token.unwrap_or(u32::MAX);
            r.first_mismatch = Some(FirstMismatch {
                prompt: prompt.label.clone(),
                pass: "teacher-forced".to_string(),
                step,
                what: "token".to_string(),
                expected_token: expected,
                actual_token: t,
                expected_logit: expected_max,
                actual_logit: ours.get(t as usize).copied().map_or(f64::NAN, f64::from),
                margin: Some(f64::from(prompt.margin[step])),
            });
        }
        verdict
    }

    /// Counts one prompt as done; `divergence` is where its free-running generation left HuggingFace's, if it did.
    pub fn prompt_done(&mut self, divergence: Option<FirstMismatch>) {
        self.report.prompts += 1;
        self.report.free_running.extend(divergence);
    }

    /// The verdict on the file.
    pub fn finish(mut self) -> FileReport {
        let r = &mut self.report;
        let rms = (self.squares / self.logits.max(1) as f64).sqrt();
        r.rms_logit_error = Some(rms);
        r.rms_allowed = Some(self.rule.rms_allowed);
        r.not_exact_allowed = Some(self.rule.not_exact_allowed);
        if r.positions == 0 {
            r.failures.push("nothing was compared".to_string());
        }
        if r.mismatched > 0 {
            r.failures.push(format!(
                "{} of {} positions are beyond the regret allowed ({})",
                r.mismatched, r.positions, self.rule.regret_allowed
            ));
        }
        let not_exact = r.positions - r.exact;
        if not_exact > self.rule.not_exact_allowed {
            r.failures.push(format!(
                "{not_exact} positions are not exact, {} are allowed",
                self.rule.not_exact_allowed
            ));
        }
        if rms.is_nan() || rms > self.rule.rms_allowed {
            r.failures.push(format!(
                "the rms logit difference is {rms}, {} is allowed",
                self.rule.rms_allowed
            ));
        }
        r.ok = r.failures.is_empty();
        self.report
    }
}

/// Judges an executor in reduced precision: along HuggingFace's float32 tokens, with the float32 reference beside it,
/// and free running for the report. `limits.tokens` bounds the steps per prompt.
pub fn verify_reduced(
    golden: &Golden,
    compute: &str,
    device: &mut dyn LogitSource,
    reference: &mut dyn LogitSource,
    limits: Limits,
) -> Result<FileReport, GoldenError> {
    let f32_run = golden.run("f32")?;
    let mut judge = FileJudge::new(
        &golden.checkpoint,
        compute,
        ReducedRule::of(golden, compute, limits.prompts)?,
    );
    for prompt in f32_run.prompts.iter().take(limits.prompts) {
        let failed =
            |e: SourceError| GoldenError::Source { prompt: prompt.label.clone(), source: e };
        one_prompt(&mut judge, prompt, device, reference, limits).map_err(failed)?;
    }
    Ok(judge.finish())
}

fn one_prompt(
    judge: &mut FileJudge,
    p: &Prompt,
    device: &mut dyn LogitSource,
    reference: &mut dyn LogitSource,
    limits: Limits,
) -> Result<(), SourceError> {
    let steps = p.generated_ids.len().min(limits.tokens);
    let mut forced = p.forced();
    forced.truncate((p.prompt_ids.len() + steps).saturating_sub(1));
    let first = p.prompt_ids.len() - 1;
    let mut expected: Vec<Vec<f32>> = Vec::with_capacity(steps);
    reference.reset()?;
    reference.prefill(&forced, 0, &mut |i, logits| {
        if i >= first {
            expected.push(logits.to_vec());
        }
    })?;
    let vocab = device.vocab_size();
    let mut problem: Option<SourceError> = None;
    device.reset()?;
    device.prefill(&forced, 0, &mut |i, logits| {
        let Some(step) = i.checked_sub(first) else { return };
        if let Err(e) = check_length(logits, vocab) {
            problem.get_or_insert(e);
            return;
        }
        match expected.get(step) {
            Some(e) => {
                judge.position(p, step, logits, e);
            }
            None => {
                problem.get_or_insert("the reference gave fewer positions than the device".into());
            }
        }
    })?;
    if let Some(e) = problem {
        return Err(e);
    }
    let divergence = if limits.free_running { free_running(p, device, steps)? } else { None };
    judge.prompt_done(divergence);
    Ok(())
}

/// Where generation first leaves HuggingFace's float32 tokens.
fn free_running(
    p: &Prompt,
    device: &mut dyn LogitSource,
    steps: usize,
) -> Result<Option<FirstMismatch>, SourceError> {
    device.reset()?;
    let mut logits = device.prompt(&p.prompt_ids)?;
    for step in 0..steps {
        let token = greedy(&logits).ok_or("the logits hold a NaN")?;
        let expected = p.generated_ids[step];
        if token != expected {
            return Ok(Some(FirstMismatch {
                prompt: p.label.clone(),
                pass: "free-running".to_string(),
                step,
                what: "token".to_string(),
                expected_token: expected,
                actual_token: token,
                expected_logit: f64::from(p.top2_logits[step][0]),
                actual_logit: logits.get(token as usize).copied().map_or(f64::NAN, f64::from),
                margin: Some(f64::from(p.margin[step])),
            }));
        }
        if step + 1 < steps {
            logits = device.step(token, p.prompt_ids.len() + step)?;
        }
    }
    Ok(None)
}
