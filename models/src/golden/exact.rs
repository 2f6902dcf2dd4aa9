//! Comparison in float32: token for token, and every logit the golden holds within a tolerance.

use super::report::{FileReport, FirstMismatch, Perplexity};
use super::source::{Limits, LogitSource, SourceError};
use super::{Golden, GoldenError, Prompt};
use crate::reference::greedy;

/// Greatest difference of a logit that counts as equal in float32. HuggingFace's own cached and uncached passes
/// differ by up to a quarter of it.
pub const TOLERANCE: f64 = 1e-3;

/// Compares an executor with a golden's float32 run: free-running generation (tokens, the two best logits of each
/// step, the last step's logits), the teacher-forced pass (best token, its logit, log-sum-exp, negative log
/// probability of the next token), and the perplexity of the golden's text.
///
/// The caller has checked the checkpoint's files against the golden ([`Golden::check_files`]).
pub fn verify_f32(
    golden: &Golden,
    source: &mut dyn LogitSource,
    limits: Limits,
) -> Result<FileReport, GoldenError> {
    let run = golden.run("f32")?;
    let mut tally = Tally::new(&golden.checkpoint);
    for prompt in run.prompts.iter().take(limits.prompts) {
        tally.report.prompts += 1;
        let failed =
            |e: SourceError| GoldenError::Source { prompt: prompt.label.clone(), source: e };
        if limits.free_running {
            tally.free_running(prompt, source, limits.tokens).map_err(failed)?;
        }
        if limits.teacher_forced {
            tally.teacher_forced(prompt, source, limits.tokens).map_err(failed)?;
        }
    }
    if limits.perplexity {
        let failed = |e: SourceError| GoldenError::Source {
            prompt: run.perplexity.label.clone(),
            source: e,
        };
        tally.perplexity(&run.perplexity, source).map_err(failed)?;
    }
    Ok(tally.finish())
}

struct Tally {
    report: FileReport,
}

/// One value compared at a position.
struct Value {
    what: &'static str,
    expected: f64,
    actual: f64,
}

impl Tally {
    fn new(name: &str) -> Self {
        Self {
            report: FileReport {
                name: name.to_string(),
                compute: "f32".to_string(),
                ..FileReport::default()
            },
        }
    }

    /// Counts one position: the tokens must agree and every value lie within the tolerance. True if it is exact.
    fn position(
        &mut self,
        place: (&Prompt, &str, usize),
        expected_token: u32,
        actual_token: u32,
        margin: Option<f64>,
        values: &[Value],
    ) -> bool {
        let (prompt, pass, step) = place;
        let r = &mut self.report;
        r.positions += 1;
        let mut worst: Option<&Value> = None;
        for v in values {
            let difference = (v.expected - v.actual).abs();
            // A NaN or an infinity is no small difference.
            let difference = if difference.is_nan() { f64::INFINITY } else { difference };
            r.max_abs_logit_error = r.max_abs_logit_error.max(difference);
            if difference > TOLERANCE && worst.is_none() {
                worst = Some(v);
            }
        }
        if expected_token == actual_token && worst.is_none() {
            r.exact += 1;
            return true;
        }
        r.mismatched += 1;
        if r.first_mismatch.is_none() {
            let shown = if expected_token != actual_token { values.first() } else { worst };
            r.first_mismatch = Some(FirstMismatch {
                prompt: prompt.label.clone(),
                pass: pass.to_string(),
                step,
                what: if expected_token != actual_token {
                    "token"
                } else {
                    shown.map_or("token", |v| v.what)
                }
                .to_string(),
                expected_token,
                actual_token,
                expected_logit: shown.map_or(f64::NAN, |v| v.expected),
                actual_logit: shown.map_or(f64::NAN, |v| v.actual),
                margin,
            });
        }
        false
    }

    /// Generates from the prompt, EOS not obeyed. After a wrong token the sequences are different ones, so the rest of
    /// the prompt is not compared.
    fn free_running(
        &mut self,
        p: &Prompt,
        source: &mut dyn LogitSource,
        tokens: usize,
    ) -> Result<(), SourceError> {
        source.reset()?;
        let n = p.generated_ids.len().min(tokens);
        let mut logits = source.prompt(&p.prompt_ids)?;
        for step in 0..n {
            check_length(&logits, source.vocab_size())?;
            let token = greedy(&logits).ok_or("the logits hold a NaN")?;
            let [first, second] = p.top2_ids[step];
            let mut values = vec![
                value("best logit", p.top2_logits[step][0], &logits, first),
                value("second logit", p.top2_logits[step][1], &logits, second),
            ];
            if step + 1 == p.generated_ids.len() {
                if let Some(all) = &p.final_logits {
                    if all.len() != logits.len() {
                        return Err(format!(
                            "the golden has {} final logits, the model {}",
                            all.len(),
                            logits.len()
                        )
                        .into());
                    }
                    values.extend(
                        (0u32..).zip(all).map(|(id, e)| value("final logit", *e, &logits, id)),
                    );
                }
                let top = &p.final_logits_top32;
                values.extend(
                    top.ids
                        .iter()
                        .zip(&top.logits)
                        .map(|(id, e)| value("final top logit", *e, &logits, *id)),
                );
            }
            let expected = p.generated_ids[step];
            let margin = Some(f64::from(p.margin[step]));
            self.position((p, "free-running", step), expected, token, margin, &values);
            if token != expected {
                break;
            }
            if step + 1 < n {
                logits = source.step(token, p.prompt_ids.len() + step)?;
            }
        }
        Ok(())
    }

    fn teacher_forced(
        &mut self,
        p: &Prompt,
        source: &mut dyn LogitSource,
        tokens: usize,
    ) -> Result<(), SourceError> {
        source.reset()?;
        let mut forced = p.forced();
        forced.truncate(p.prompt_ids.len().saturating_add(tokens.saturating_sub(1)));
        let vocab = source.vocab_size();
        let t = &p.teacher_forced;
        let mut problem: Option<SourceError> = None;
        source.prefill(&forced, 0, &mut |i, logits| {
            if problem.is_some() {
                return;
            }
            if let Err(e) = check_length(logits, vocab) {
                problem = Some(e);
                return;
            }
            let Some(token) = greedy(logits) else {
                problem = Some("the logits hold a NaN".into());
                return;
            };
            let sum = log_sum_exp(logits);
            let next =
                forced.get(i + 1).or(p.generated_ids.get((i + 1).wrapping_sub(p.prompt_ids.len())));
            let mut values = vec![
                Value {
                    what: "best logit",
                    expected: f64::from(t.max_logit[i]),
                    actual: logits.get(token as usize).copied().map_or(f64::NAN, f64::from),
                },
                Value { what: "logsumexp", expected: t.logsumexp[i], actual: sum },
            ];
            if let Some(logit) = next.and_then(|n| logits.get(*n as usize)) {
                values.push(Value {
                    what: "negative log probability of the next token",
                    expected: t.nll_of_next[i],
                    actual: sum - f64::from(*logit),
                });
            }
            let generated = (i + 1).checked_sub(p.prompt_ids.len());
            let margin = generated.and_then(|step| p.margin.get(step)).map(|m| f64::from(*m));
            self.position((p, "teacher-forced", i), t.argmax[i], token, margin, &values);
        })?;
        problem.map_or(Ok(()), Err)
    }

    fn perplexity(
        &mut self,
        golden: &super::GoldenPerplexity,
        source: &mut dyn LogitSource,
    ) -> Result<(), SourceError> {
        source.reset()?;
        let mut sum = 0f64;
        let mut terms = 0usize;
        let inputs = &golden.ids[..golden.ids.len() - 1];
        source.prefill(inputs, 0, &mut |i, logits| {
            if let Some(next) = golden.ids.get(i + 1).and_then(|n| logits.get(*n as usize)) {
                sum += log_sum_exp(logits) - f64::from(*next);
                terms += 1;
            }
        })?;
        let actual = (sum / terms.max(1) as f64).exp();
        self.report.perplexity =
            Some(Perplexity { expected: golden.perplexity, actual, tokens: terms });
        let difference = (sum - golden.nll_sum).abs() / golden.n_predicted as f64;
        if terms != golden.n_predicted || difference.is_nan() || difference > TOLERANCE {
            self.report.failures.push(format!(
                "perplexity of {}: {actual} over {terms} tokens, HuggingFace has {} over {}",
                golden.label, golden.perplexity, golden.n_predicted
            ));
        }
        Ok(())
    }

    fn finish(mut self) -> FileReport {
        let r = &mut self.report;
        if r.mismatched > 0 {
            r.failures.insert(0, format!("{} of {} positions differ", r.mismatched, r.positions));
        }
        if r.positions == 0 && r.perplexity.is_none() {
            r.failures.push("nothing was compared".to_string());
        }
        r.ok = r.failures.is_empty();
        self.report
    }
}

fn value(what: &'static str, expected: f32, logits: &[f32], id: u32) -> Value {
    Value {
        what,
        expected: f64::from(expected),
        actual: logits.get(id as usize).copied().map_or(f64::NAN, f64::from),
    }
}

pub(super) fn check_length(logits: &[f32], vocab: usize) -> Result<(), SourceError> {
    if logits.len() == vocab {
        Ok(())
    } else {
        Err(format!("{} logits for a vocabulary of {vocab}", logits.len()).into())
    }
}

/// Logarithm of the sum of exponentials, in float64.
pub(super) fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    max + logits.iter().map(|l| (f64::from(*l) - max).exp()).sum::<f64>().ln()
}
