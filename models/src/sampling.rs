//! Choosing a token from logits: greedily or at random, and the probabilities of a choice.
//!
//! The steps and their order are those of HuggingFace's `generate`: repetition penalty, temperature, top-k, top-p,
//! min-p. All arithmetic is float64, so that the distribution is exact to what the logits are. The generator is
//! SplitMix64; one number of it is drawn per token, so the same seed gives the same tokens on every machine.

use crate::reference::greedy;
use serde::Serialize;

/// How tokens are drawn. The default draws nothing: it is greedy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sampling {
    /// Logits are divided by it; 0 is greedy.
    pub temperature: f64,
    /// Only so many of the best tokens; all if none.
    pub top_k: Option<usize>,
    /// Only the fewest best tokens whose probabilities reach this sum.
    pub top_p: Option<f64>,
    /// Only tokens at least this many times as probable as the best.
    pub min_p: Option<f64>,
    /// Logits of tokens already there are divided by it if positive and multiplied if negative; 1 is none.
    pub repetition_penalty: f64,
    /// Seed of the generator.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: None,
            top_p: None,
            min_p: None,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

/// A setting out of range.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{name} is {value}, expected {expected}")]
pub struct SamplingError {
    /// The setting.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What would have been accepted.
    pub expected: &'static str,
}

impl Sampling {
    /// Refuses settings out of range.
    ///
    /// # Errors
    /// The first such setting.
    pub fn check(&self) -> Result<(), SamplingError> {
        let bad = |name, value: String, expected| Err(SamplingError { name, value, expected });
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return bad("temperature", self.temperature.to_string(), "0 (greedy) or more");
        }
        if self.top_k == Some(0) {
            return bad("top-k", "0".into(), "1 or more");
        }
        if let Some(p) = self.top_p.filter(|p| !(*p > 0.0 && *p <= 1.0)) {
            return bad("top-p", p.to_string(), "more than 0 and at most 1");
        }
        if let Some(p) = self.min_p.filter(|p| !(*p >= 0.0 && *p <= 1.0)) {
            return bad("min-p", p.to_string(), "0 to 1");
        }
        if !(self.repetition_penalty.is_finite() && self.repetition_penalty > 0.0) {
            let value = self.repetition_penalty.to_string();
            return bad("repetition penalty", value, "more than 0 (1 for none)");
        }
        Ok(())
    }

    /// Whether the best token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// The tokens that may follow `context` (prompt and generated tokens) and their probabilities, best first, the
    /// lower id first among equals. With temperature 0 that is one token. None if a logit is NaN or there is none.
    pub fn distribution(&self, logits: &[f32], context: &[u32]) -> Option<Vec<(u32, f64)>> {
        let scores = self.penalised(logits, context);
        if self.is_greedy() {
            return Some(vec![(greedy(&scores)?, 1.0)]);
        }
        if scores.is_empty() || scores.iter().any(|l| l.is_nan()) {
            return None;
        }
        let mut kept: Vec<(u32, f64)> = (0u32..)
            .zip(&scores)
            .map(|(id, l)| (id, f64::from(*l) / self.temperature))
            .filter(|(_, l)| *l > f64::NEG_INFINITY)
            .collect();
        // Stable, so that equals stay in the order of their ids.
        kept.sort_by(|a, b| b.1.total_cmp(&a.1));
        if kept.is_empty() {
            // Every logit is minus infinity: nothing tells the tokens apart.
            return Some(vec![(0, 1.0)]);
        }
        kept.truncate(self.top_k.unwrap_or(usize::MAX));
        normalise(&mut kept);
        if let Some(top_p) = self.top_p {
            let mut sum = 0.0;
            let enough = kept.iter().position(|(_, p)| {
                sum += p;
                sum >= top_p
            });
            kept.truncate(enough.map_or(kept.len(), |n| n + 1));
        }
        if let Some(min_p) = self.min_p {
            let least = min_p * kept[0].1;
            kept.retain(|(_, p)| *p >= least);
        }
        let total: f64 = kept.iter().map(|(_, p)| p).sum();
        kept.iter_mut().for_each(|(_, p)| *p /= total);
        Some(kept)
    }

    fn penalised(&self, logits: &[f32], context: &[u32]) -> Vec<f32> {
        let mut scores = logits.to_vec();
        if self.repetition_penalty != 1.0 {
            let penalty = self.repetition_penalty as f32;
            let mut seen: Vec<u32> = context.to_vec();
            seen.sort_unstable();
            seen.dedup();
            for id in seen {
                if let Some(l) = scores.get_mut(id as usize) {
                    *l = if *l < 0.0 { *l * penalty } else { *l / penalty };
                }
            }
        }
        scores
    }
}

/// Logits to probabilities; the greatest logit comes first.
fn normalise(kept: &mut [(u32, f64)]) {
    let best = kept.first().map_or(0.0, |k| k.1);
    // Several infinities share everything.
    let weight = |l: f64| if l == best { 1.0 } else { (l - best).exp() };
    let total: f64 = kept.iter().map(|(_, l)| weight(*l)).sum();
    kept.iter_mut().for_each(|(_, l)| *l = weight(*l) / total);
}

/// Draws tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    state: u64,
}

impl Sampler {
    /// A sampler at the beginning of its seed's numbers.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(sampling: Sampling) -> Result<Self, SamplingError> {
        sampling.check()?;
        Ok(Self { state: sampling.seed, sampling })
    }

    /// The sampler that always takes the best token.
    pub fn greedy() -> Self {
        Self { state: 0, sampling: Sampling::default() }
    }

    /// The settings.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// The next token after `context`; none if a logit is NaN or there is none.
    pub fn pick(&mut self, logits: &[f32], context: &[u32]) -> Option<u32> {
        let kept = self.sampling.distribution(logits, context)?;
        let mut left = if self.sampling.is_greedy() { 0.0 } else { self.uniform() };
        for (id, p) in &kept {
            if left < *p {
                return Some(*id);
            }
            left -= p;
        }
        // Rounding of the sum.
        kept.last().map(|(id, _)| *id)
    }

    /// A number in [0, 1): SplitMix64.
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Log probabilities under the model itself, before any setting of sampling.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogProbs {
    /// Of the token chosen.
    pub chosen: f64,
    /// The best tokens and theirs, best first.
    pub top: Vec<(u32, f64)>,
}

/// The log probability of `token` and of the `n` best. None if a logit is NaN or the token is not there.
pub fn log_probs(logits: &[f32], token: u32, n: usize) -> Option<LogProbs> {
    if logits.iter().any(|l| l.is_nan()) {
        return None;
    }
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let best = f64::from(best);
    let sum = best + logits.iter().map(|l| (f64::from(*l) - best).exp()).sum::<f64>().ln();
    let mut all: Vec<(u32, f64)> =
        (0u32..).zip(logits).map(|(id, l)| (id, f64::from(*l) - sum)).collect();
    let chosen = all.get(token as usize)?.1;
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(n);
    Some(LogProbs { chosen, top: all })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 8] = [1.0, 3.0, 2.5, -1.0, 0.0, 2.5, -4.0, 1.5];

    fn with(change: impl FnOnce(&mut Sampling)) -> Sampling {
        let mut sampling = Sampling { temperature: 1.0, ..Sampling::default() };
        change(&mut sampling);
        sampling
    }

    fn ids(sampling: &Sampling) -> Vec<u32> {
        sampling.distribution(&LOGITS, &[]).unwrap().into_iter().map(|(id, _)| id).collect()
    }

    #[test]
    fn greedy_takes_the_best_and_the_lowest_of_equals() {
        let mut sampler = Sampler::new(Sampling::default()).unwrap();
        assert_eq!(sampler.pick(&LOGITS, &[]), Some(1));
        assert_eq!(sampler.pick(&[0.5, 2.0, 2.0], &[]), Some(1));
        assert_eq!(sampler.pick(&[0.5, f32::NAN], &[]), None);
        assert_eq!(sampler.pick(&[], &[]), None);
    }

    #[test]
    fn each_filter_keeps_what_it_says() {
        assert_eq!(ids(&with(|_| ())), [1, 2, 5, 7, 0, 4, 3, 6]);
        assert_eq!(ids(&with(|s| s.top_k = Some(3))), [1, 2, 5]);
        // Softmax: 0.379, 0.230, 0.230, 0.085, 0.051, …
        assert_eq!(ids(&with(|s| s.top_p = Some(0.5))), [1, 2]);
        assert_eq!(ids(&with(|s| s.top_p = Some(0.65))), [1, 2, 5]);
        assert_eq!(ids(&with(|s| s.top_p = Some(1e-9))), [1]);
        assert_eq!(ids(&with(|s| s.min_p = Some(0.5))), [1, 2, 5]);
        assert_eq!(ids(&with(|s| s.min_p = Some(1.0))), [1]);
        // Of the three that top-k leaves, two reach 0.7.
        assert_eq!(ids(&with(|s| (s.top_k, s.top_p) = (Some(3), Some(0.7)))), [1, 2]);
        let cold = with(|s| s.temperature = 1e-3).distribution(&LOGITS, &[]).unwrap();
        assert!(cold[0] == (1, 1.0));
        for s in [with(|_| ()), with(|s| s.top_p = Some(0.6)), with(|s| s.min_p = Some(0.1))] {
            let total: f64 = s.distribution(&LOGITS, &[]).unwrap().iter().map(|(_, p)| p).sum();
            assert!((total - 1.0).abs() < 1e-12);
        }
    }

    #[test]
    fn repetition_is_penalised_once_whatever_the_sign() {
        let s = with(|s| s.repetition_penalty = 2.0);
        assert_eq!(s.penalised(&LOGITS, &[1, 1, 3, 99])[..4], [1.0, 1.5, 2.5, -2.0]);
        let greedy = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(greedy.distribution(&LOGITS, &[1]).unwrap(), [(2, 1.0)]);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_one_does_not() {
        let draw = |seed| {
            let mut s = Sampler::new(with(|s| s.seed = seed)).unwrap();
            (0..40).map(|_| s.pick(&LOGITS, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    /// Pearson's chi-square of draws against the exact probabilities, for several settings.
    #[test]
    fn draws_follow_the_distribution() {
        let settings = [
            with(|_| ()),
            with(|s| s.temperature = 0.7),
            with(|s| (s.temperature, s.top_k) = (1.5, Some(5))),
            with(|s| s.top_p = Some(0.9)),
            with(|s| (s.min_p, s.repetition_penalty) = (Some(0.05), 1.3)),
        ];
        for (i, sampling) in settings.into_iter().enumerate() {
            let sampling = Sampling { seed: 1000 + i as u64, ..sampling };
            let expected = sampling.distribution(&LOGITS, &[1, 6]).unwrap();
            let mut sampler = Sampler::new(sampling).unwrap();
            let n = 200_000;
            let mut counts = [0u32; LOGITS.len()];
            for _ in 0..n {
                counts[sampler.pick(&LOGITS, &[1, 6]).unwrap() as usize] += 1;
            }
            let square: f64 = expected
                .iter()
                .map(|(id, p)| {
                    let e = p * f64::from(n);
                    (f64::from(counts[*id as usize]) - e).powi(2) / e
                })
                .sum();
            assert_eq!(expected.iter().map(|(id, _)| counts[*id as usize]).sum::<u32>(), n as u32);
            // The 0.9999 quantile of chi-square with 7 degrees of freedom is 29.9; fewer degrees have smaller ones.
            assert!(square < 29.9, "setting {i}: {square}");
        }
    }

    #[test]
    fn log_probabilities_are_of_the_model_itself() {
        let l = log_probs(&[0.0, (3f32).ln()], 0, 5).unwrap();
        assert!((l.chosen - 0.25f64.ln()).abs() < 1e-7 && l.top[0].0 == 1 && l.top.len() == 2);
        assert!((l.top[0].1 - 0.75f64.ln()).abs() < 1e-7);
        assert!(log_probs(&[0.0], 1, 1).is_none() && log_probs(&[f32::NAN], 0, 1).is_none());
    }

    #[test]
    fn settings_out_of_range_are_refused_by_name() {
        let says = |s: Sampling| Sampler::new(s).unwrap_err().to_string();
        assert_eq!(
            says(with(|s| s.temperature = -1.0)),
            "temperature is -1, expected 0 (greedy) or more"
        );
        assert!(says(with(|s| s.temperature = f64::NAN)).starts_with("temperature is NaN"));
        assert_eq!(says(with(|s| s.top_k = Some(0))), "top-k is 0, expected 1 or more");
        assert!(says(with(|s| s.top_p = Some(0.0))).starts_with("top-p is 0"));
        assert!(says(with(|s| s.min_p = Some(1.5))).starts_with("min-p is 1.5"));
        assert!(says(with(|s| s.repetition_penalty = 0.0)).starts_with("repetition penalty is 0"));
    }
}
