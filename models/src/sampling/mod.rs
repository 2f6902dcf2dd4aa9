//! Choosing a token from logits: greedily or at random, and the probabilities of a choice.
//!
//! `rule.rs` is the rule itself, one for all executors; `philox.rs` its generator. What is drawn depends on seed and
//! position alone, not on what was drawn before, so the same seed gives the same tokens on every machine.

mod philox;
mod rule;

pub use rule::{Candidate, SETTINGS_WORDS, Settings};

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
        if !((self.temperature as f32).is_finite() && self.temperature >= 0.0) {
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
        let penalty = self.repetition_penalty as f32;
        if !(penalty.is_finite() && penalty > 0.0) {
            let value = self.repetition_penalty.to_string();
            return bad("repetition penalty", value, "more than 0 (1 for none)");
        }
        Ok(())
    }

    /// Whether the best token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0
    }

    /// What the rule takes. Call only after [`Sampling::check`] has passed.
    pub fn settings(&self) -> Settings {
        let fraction =
            |p: f64| (p * 4_294_967_296.0).round().clamp(1.0, f64::from(u32::MAX)) as u32;
        Settings {
            temperature: self.temperature as f32,
            penalty: self.repetition_penalty as f32,
            top_k: self.top_k.map_or(0, |k| u32::try_from(k).unwrap_or(u32::MAX)),
            top_p: self.top_p.filter(|p| *p < 1.0).map_or(0, fraction),
            min_p: self.min_p.map_or(f32::NEG_INFINITY, |p| p.ln() as f32),
            seed: self.seed,
        }
    }

    /// The tokens that may follow `context` (prompt and generated tokens) and their probabilities in float64, best
    /// first, the lower id first among equals. With temperature 0 that is one token. None if a logit is NaN or there
    /// is none.
    pub fn distribution(&self, logits: &[f32], context: &[u32]) -> Option<Vec<(u32, f64)>> {
        let settings = self.settings();
        let scores = settings.scores(logits, context);
        let mut kept = settings.candidates(&scores)?;
        kept.retain(|c| c.weight > 0.0);
        // Stable, so that equals stay in the order of their ids.
        kept.sort_by(|a, b| b.below.total_cmp(&a.below));
        let weights: Vec<f64> = kept.iter().map(|c| f64::from(c.below).exp()).collect();
        let total: f64 = weights.iter().sum();
        Some(kept.iter().zip(weights).map(|(c, w)| (c.id, w / total)).collect())
    }
}

/// Draws tokens.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    settings: Settings,
}

impl Sampler {
    /// A sampler of these settings.
    ///
    /// # Errors
    /// A setting is out of range.
    pub fn new(sampling: Sampling) -> Result<Self, SamplingError> {
        sampling.check()?;
        Ok(Self { settings: sampling.settings(), sampling })
    }

    /// The sampler that always takes the best token.
    pub fn greedy() -> Self {
        Self { settings: Settings::default(), sampling: Sampling::default() }
    }

    /// The settings, as they were given.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// The settings, as the rule takes them.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// The token after `context`, which holds all tokens before it; none if a logit is NaN or there is none.
    pub fn pick(&self, logits: &[f32], context: &[u32]) -> Option<u32> {
        let scores = self.settings.scores(logits, context);
        self.settings.choose(&scores, context.len() as u64)
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
        let sampler = Sampler::new(Sampling::default()).unwrap();
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
        let s = with(|s| s.repetition_penalty = 2.0).settings();
        assert_eq!(s.scores(&LOGITS, &[1, 1, 3, 99])[..4], [1.0, 1.5, 2.5, -2.0]);
        let greedy = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        assert_eq!(greedy.distribution(&LOGITS, &[1]).unwrap(), [(2, 1.0)]);
    }

    #[test]
    fn the_same_seed_draws_the_same_and_another_one_does_not() {
        let draw = |seed| {
            let s = Sampler::new(with(|s| s.seed = seed)).unwrap();
            (0..40).map(|n| s.pick(&LOGITS, &[0; 40][..n]).unwrap()).collect::<Vec<_>>()
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
            let settings = sampling.settings();
            let scores = settings.scores(&LOGITS, &[1, 6]);
            let n = 200_000u32;
            let mut counts = [0u32; LOGITS.len()];
            for position in 0..n {
                counts[settings.choose(&scores, position.into()).unwrap() as usize] += 1;
            }
            let square: f64 = expected
                .iter()
                .map(|(id, p)| {
                    let e = p * f64::from(n);
                    (f64::from(counts[*id as usize]) - e).powi(2) / e
                })
                .sum();
            assert_eq!(expected.iter().map(|(id, _)| counts[*id as usize]).sum::<u32>(), n);
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
