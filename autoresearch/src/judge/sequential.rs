//! The sequential test on paired rounds.
//!
//! Let `r_i` be the speed-up of round `i`: the incumbent's time over the candidate's, measured right after one another.
//! The claim "the median speed-up of a round is at most `m`" says that, whatever happened before, `r_i > m` has
//! probability at most 1/2. Against it we bet: after `n` rounds of which `s` had `r_i > m`, the wealth is
//!
//! `E(s, n) = 2 * integral over p from 1/2 to 1 of (2p)^s (2 (1-p))^(n-s) dp = sum_{k<=s} C(n+1, k) / ((n+1) C(n, s))`,
//!
//! a mixture of likelihood ratios, each of which is a supermartingale under the claim. So by Ville's inequality the
//! wealth ever reaches `1/alpha` with probability at most `alpha`: one may look after every round and stop when one
//! likes. Nothing is assumed about the size, the shape or the constancy of noise, nor that rounds are alike: clocks may
//! drift and samples may have outliers, as long as drift reaches both members of a round alike. (See Ramdas, Grunwald,
//! Vovk, Shafer, "Game-theoretic statistics and safe anytime-valid inference", 2023.)
//!
//! All `m` that the test has refused at `alpha` make the lower end of a confidence bound for the median, an order
//! statistic; the upper end is its mirror image.

use crate::verdict::{Decision, Interval, Sample};

/// Where an interval has no upper end: more rounds are needed to have one.
pub const NO_BOUND: f64 = 1e6;
/// Probability of calling a candidate not faster that is, if it is faster by just the threshold.
pub const MISS: f64 = 0.05;

/// Natural logarithm of the wealth `E(s, n)`, for `s <= n`.
pub fn log_wealth(s: usize, n: usize) -> f64 {
    let s = s.min(n);
    // ln of C(n+1, k), summed without overflow around the greatest term.
    let mut ln_choose = 0.0f64;
    let mut terms = Vec::with_capacity(s + 1);
    for k in 0..=s {
        terms.push(ln_choose);
        ln_choose += ((n + 1 - k) as f64).ln() - ((k + 1) as f64).ln();
    }
    let top = terms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum = top + terms.iter().map(|t| (t - top).exp()).sum::<f64>().ln();
    // C(n, s) = C(n+1, s) (n+1-s) / (n+1).
    let ln_n_choose_s = terms[s] + ((n + 1 - s) as f64).ln() - ((n + 1) as f64).ln();
    sum - ((n + 1) as f64).ln() - ln_n_choose_s
}

/// The least number of wins of `n` rounds whose wealth reaches `1/alpha`.
pub fn wins_needed(n: usize, alpha: f64) -> Option<usize> {
    let goal = -alpha.ln();
    if n == 0 || log_wealth(n, n) < goal {
        return None;
    }
    // Wealth grows with the wins.
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = (low + high) / 2;
        if log_wealth(middle, n) >= goal { high = middle } else { low = middle + 1 }
    }
    Some(low)
}

/// The median speed-up with its bounds: below `low` with probability at most `alpha`, above `high` with at most
/// [`MISS`], at whatever round one stops.
pub fn interval(samples: &[Sample], alpha: f64) -> Interval {
    let mut ratios: Vec<f64> = samples.iter().map(Sample::speedup).collect();
    ratios.sort_by(f64::total_cmp);
    let n = ratios.len();
    let low = wins_needed(n, alpha).map_or(0.0, |s| ratios[n - s.max(1)]);
    let high = wins_needed(n, MISS).map_or(NO_BOUND, |s| ratios[s.max(1) - 1]);
    Interval { median: median_of(&ratios), low, high }
}

/// What the rounds so far say about "faster by more than `threshold`": whether the bounds of [`interval`] lie on one
/// side of it, found by counting.
pub fn decide(samples: &[Sample], threshold: f64, alpha: f64) -> Decision {
    let bound = 1.0 + threshold;
    let n = samples.len();
    let wins = samples.iter().filter(|s| s.speedup() > bound).count();
    let losses = samples.iter().filter(|s| s.speedup() < bound).count();
    let reaches = |count: usize, alpha: f64| n > 0 && log_wealth(count, n) >= -alpha.ln();
    match () {
        () if reaches(wins, alpha) => Decision::Kept,
        () if reaches(losses, MISS) => Decision::NotFaster,
        () => Decision::Undecided,
    }
}

fn median_of(sorted: &[f64]) -> f64 {
    let n = sorted.len();
    match n {
        0 => f64::NAN,
        _ if n % 2 == 1 => sorted[n / 2],
        _ => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

/// The median; NaN of nothing.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    median_of(&values)
}

/// The share of a campaign's error that its `k`-th measurement may use, counted from 1: the shares of all `k` add up to
/// `budget`.
pub fn alpha_of(budget: f64, k: u64) -> f64 {
    let k = k.max(1) as f64;
    budget / (k * (k + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    #[test]
    fn wealth_is_that_of_the_formula() {
        // n = 1: E(1, 1) = (1 + 2) / (2 * 1), E(0, 1) = 1 / 2.
        assert!((log_wealth(1, 1).exp() - 1.5).abs() < 1e-12);
        assert!((log_wealth(0, 1).exp() - 0.5).abs() < 1e-12);
        // All wins: (2^(n+1) - 1) / (n + 1).
        assert!((log_wealth(10, 10).exp() - 2047.0 / 11.0).abs() < 1e-9);
        assert_eq!(log_wealth(0, 0), 0.0);
        assert!(log_wealth(900, 1000).is_finite());
    }

    /// The expectation over a fair coin is 1 at every length: the bet is fair.
    #[test]
    fn the_bet_is_fair() {
        for n in 1..=40usize {
            let (mut total, mut choose) = (0.0, 1.0f64);
            for s in 0..=n {
                total += choose * 0.5f64.powi(n as i32) * log_wealth(s, n).exp();
                choose *= (n - s) as f64 / (s + 1) as f64;
            }
            assert!((total - 1.0).abs() < 1e-9, "{n}: {total}");
        }
    }

    fn rounds(rng: &mut Rng, n: usize, speedup: f64, noise: f64) -> Vec<Sample> {
        (0..n)
            .map(|_| {
                let candidate_us = 100.0 * (1.0 + noise * rng.normal());
                let incumbent_us = 100.0 * speedup * (1.0 + noise * rng.normal());
                Sample { candidate_us, incumbent_us }
            })
            .collect()
    }

    /// Looked at after every round, a candidate exactly at the threshold is kept no more often than stated.
    #[test]
    fn false_keeps_are_as_rare_as_stated_though_one_looks_after_every_round() {
        let (alpha, mut kept) = (0.05, 0);
        let mut rng = Rng::new(4);
        for _ in 0..1000 {
            let all = rounds(&mut rng, 80, 1.01, 0.02);
            let faster = |n| decide(&all[..n], 0.01, alpha) == Decision::Kept;
            kept += u32::from((8..=80).any(faster));
        }
        assert!(kept <= 50, "{kept} of 1000");
        assert!(kept > 0, "the test never keeps anything at the border, so it says little");
    }

    #[test]
    fn a_faster_candidate_is_kept_and_a_slower_one_is_not() {
        let mut rng = Rng::new(9);
        for _ in 0..100 {
            let fast = rounds(&mut rng, 60, 1.03, 0.005);
            assert_eq!(decide(&fast, 0.005, 1e-4), Decision::Kept);
            let slow = rounds(&mut rng, 60, 0.99, 0.005);
            assert_eq!(decide(&slow, 0.005, 1e-4), Decision::NotFaster);
        }
    }

    /// Clocks that sink by half during the rounds, in steps and slopes, reach both members of a round.
    #[test]
    fn drift_changes_no_decision() {
        let mut rng = Rng::new(5);
        for _ in 0..50 {
            let mut samples = rounds(&mut rng, 60, 1.0, 0.003);
            for (i, s) in samples.iter_mut().enumerate() {
                let clock = 1.0 - 0.5 * i as f64 / 60.0 + if i > 30 { 0.2 } else { 0.0 };
                s.candidate_us /= clock;
                s.incumbent_us /= clock;
            }
            assert_ne!(decide(&samples, 0.005, 1e-3), Decision::Kept);
            for s in &mut samples {
                s.incumbent_us *= 1.04;
            }
            assert_eq!(decide(&samples, 0.005, 1e-3), Decision::Kept);
        }
    }

    #[test]
    fn outliers_move_no_bound() {
        let mut rng = Rng::new(6);
        let mut samples = rounds(&mut rng, 60, 1.0, 0.002);
        for s in samples.iter_mut().step_by(7) {
            s.incumbent_us *= 50.0;
        }
        assert_ne!(decide(&samples, 0.005, 1e-3), Decision::Kept);
    }

    #[test]
    fn decisions_are_what_the_interval_says() {
        let mut rng = Rng::new(12);
        for _ in 0..300 {
            let n = 1 + rng.below(60) as usize;
            let speedup = 0.98 + 0.05 * rng.unit();
            let all = rounds(&mut rng, n, speedup, 0.01);
            let i = interval(&all, 0.01);
            let said = match decide(&all, 0.005, 0.01) {
                Decision::Kept => i.low > 1.005,
                Decision::NotFaster => i.high < 1.005,
                Decision::Undecided => i.low <= 1.005 && i.high >= 1.005,
            };
            assert!(said, "{i:?}");
        }
    }

    #[test]
    fn few_rounds_decide_nothing() {
        let sample = Sample { candidate_us: 1.0, incumbent_us: 2.0 };
        assert_eq!(decide(&[], 0.0, 0.01), Decision::Undecided);
        assert_eq!(decide(&[sample; 5], 0.0, 0.01), Decision::Undecided);
        assert_eq!(decide(&[sample; 40], 0.0, 0.01), Decision::Kept);
        let i = interval(&[sample; 2], 0.01);
        assert_eq!((i.low, i.high), (0.0, NO_BOUND));
    }

    #[test]
    fn shares_add_up_to_the_budget() {
        let sum: f64 = (1..100_000).map(|k| alpha_of(0.05, k)).sum();
        assert!(sum < 0.05 && sum > 0.0499);
    }
}
