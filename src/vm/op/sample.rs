//! The next token, drawn by the rule of [`amk_models::sampling`].

use amk_models::sampling::Settings;
use amk_schedule_ir::op::Sample;

use super::{Maths, Outcome, key};
use crate::vm::memory::Values;

pub(super) fn run(op: &Sample, cx: &Maths<'_>) -> Outcome {
    draw(op, &cx.settings, cx.real_of(0, op.vocab as usize)?, cx.ids(1)?)
}

/// The writes of the op: scores and choice. `context` holds the ids of all positions before the one drawn.
pub(crate) fn draw(op: &Sample, settings: &Settings, logits: &[f32], context: &[u32]) -> Outcome {
    let scores = settings.scores(logits, context);
    let id = settings.choose(&scores, context.len() as u64);
    let id = id.ok_or_else(|| format!("one of the {} logits is not a number", op.vocab))?;
    let best = key(scores[id as usize], id);
    Ok(vec![Values::Real(scores), Values::Keys(vec![best])])
}

#[cfg(test)]
mod tests {
    use amk_models::Sampling;

    use super::*;
    use crate::vm::op::key_id;

    /// Pearson's chi-square of the op's choices over many seeds against the exact probabilities, and its scores.
    #[test]
    fn choices_follow_the_exact_probabilities() {
        const N: u32 = 60_000;
        let logits: Vec<f32> = (0..40).map(|i| ((i * 37 % 40) as f32 - 30.0) * 0.21).collect();
        let op = Sample { vocab: logits.len() as u64 };
        let context = [3, 11, 3, 39];
        let plain = Sampling { temperature: 1.0, ..Sampling::default() };
        let settings = [
            plain.clone(),
            Sampling { temperature: 0.6, top_k: Some(9), ..plain.clone() },
            Sampling { temperature: 1.7, top_p: Some(0.8), ..plain.clone() },
            Sampling { min_p: Some(0.03), repetition_penalty: 1.4, ..plain.clone() },
            Sampling { top_k: Some(25), top_p: Some(0.9), min_p: Some(0.1), ..plain },
        ];
        // The 0.9999 quantiles of chi-square, by Wilson and Hilferty.
        let limit = |degrees: f64| {
            let h = 2.0 / (9.0 * degrees);
            degrees * (1.0 - h + 3.719 * h.sqrt()).powi(3)
        };
        for sampling in settings {
            let expected = sampling.distribution(&logits, &context).unwrap();
            let mut counts = [0u32; 40];
            for seed in 0..u64::from(N) {
                let settings = Settings { seed, ..sampling.settings() };
                let writes = draw(&op, &settings, &logits, &context).unwrap();
                let [Values::Real(scores), Values::Keys(choice)] = &writes[..] else {
                    panic!("{writes:?}")
                };
                assert_eq!(*scores, settings.scores(&logits, &context));
                let id = key_id(choice[0]);
                assert_eq!(choice[0], key(scores[id as usize], id));
                counts[id as usize] += 1;
            }
            let square: f64 = expected
                .iter()
                .map(|(id, p)| {
                    let e = p * f64::from(N);
                    (f64::from(counts[*id as usize]) - e).powi(2) / e
                })
                .sum();
            let kept: u32 = expected.iter().map(|(id, _)| counts[*id as usize]).sum();
            assert_eq!(kept, N, "{sampling:?}");
            let limit = limit(expected.len() as f64 - 1.0);
            assert!(square < limit, "{sampling:?}: {square} of {limit}");
        }
    }
}
