//! Statistics of paired, interleaved samples.
//!
//! Clocks drift, so two things are compared by the ratio of their samples of the same round, and the interval of
//! the median ratio comes from resampling rounds, never samples (Efron and Tibshirani, "An Introduction to the
//! Bootstrap", percentile interval).

use serde::{Deserialize, Serialize};

/// Resamples of an interval.
const RESAMPLES: usize = 2000;

/// Order statistics of one row of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    pub median: f64,
    pub p10: f64,
    pub p90: f64,
    pub samples: usize,
}

/// The `q` quantile, linear between neighbours (type 7 of Hyndman and Fan); NaN of no samples.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = last as f64 * q.clamp(0.0, 1.0);
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut out = values.to_vec();
    out.sort_by(f64::total_cmp);
    out
}

/// The median; NaN of no samples.
pub fn median(values: &[f64]) -> f64 {
    quantile(&sorted(values), 0.5)
}

/// Median, tenth and ninetieth percentile.
pub fn summary(values: &[f64]) -> Summary {
    let s = sorted(values);
    Summary {
        median: quantile(&s, 0.5),
        p10: quantile(&s, 0.1),
        p90: quantile(&s, 0.9),
        samples: s.len(),
    }
}

/// A median ratio with its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub median: f64,
    /// The interval's ends.
    pub low: f64,
    pub high: f64,
    /// Probability the interval is meant to hold.
    pub confidence: f64,
}

/// The median over rounds of `above[round] / below[round]`, with a percentile bootstrap interval. The generator is
/// seeded, so equal samples give equal intervals. None without a pair.
pub fn ratio(above: &[f64], below: &[f64], confidence: f64, seed: u64) -> Option<Ratio> {
    let ratios: Vec<f64> =
        above.iter().zip(below).map(|(a, b)| a / b).filter(|r| r.is_finite()).collect();
    if ratios.is_empty() {
        return None;
    }
    let mut state = seed;
    let mut medians: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut pick = || {
                let n = ratios.len() as u64;
                ratios[(u128::from(next(&mut state)) * u128::from(n) >> 64) as usize]
            };
            let resample: Vec<f64> = (0..ratios.len()).map(|_| pick()).collect();
            median(&resample)
        })
        .collect();
    medians.sort_by(f64::total_cmp);
    let tail = (1.0 - confidence.clamp(0.0, 1.0)) / 2.0;
    Some(Ratio {
        median: median(&ratios),
        low: quantile(&medians, tail),
        high: quantile(&medians, 1.0 - tail),
        confidence,
    })
}

/// Sebastiano Vigna's splitmix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = *state;
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_rows() {
        let row: Vec<f64> = (0..=10).map(f64::from).collect();
        let s = summary(&row);
        assert_eq!((s.median, s.p10, s.p90, s.samples), (5.0, 1.0, 9.0, 11));
        assert_eq!(summary(&[3.0, 1.0]).median, 2.0);
        assert_eq!(summary(&[7.0]).p90, 7.0);
        assert!(summary(&[]).median.is_nan());
        // An outlier moves the tail alone.
        assert_eq!(summary(&[1.0, 2.0, 3.0, 4.0, 1e9]).median, 3.0);
    }

    #[test]
    fn drift_common_to_both_does_not_widen_the_ratio() {
        let below: Vec<f64> = (0..50).map(|i| 100.0 + f64::from(i)).collect();
        let above: Vec<f64> = below.iter().map(|b| b * 2.5).collect();
        let r = ratio(&above, &below, 0.95, 1).unwrap();
        assert!((r.median - 2.5).abs() < 1e-12 && r.high - r.low < 1e-9, "{r:?}");
    }

    #[test]
    fn the_interval_holds_the_median_and_narrows_with_rounds() {
        let mut state = 9;
        let mut noise = || (next(&mut state) >> 11) as f64 / (1u64 << 53) as f64;
        let mut width = |n: usize| {
            let below = vec![1.0; n];
            let above: Vec<f64> = (0..n).map(|_| 2.0 + noise()).collect();
            let r = ratio(&above, &below, 0.95, 3).unwrap();
            assert!(r.low <= r.median && r.median <= r.high);
            r.high - r.low
        };
        let (few, many) = (width(20), width(2000));
        assert!(few > 2.0 * many, "{few} {many}");
    }

    /// The share of intervals that hold the true median is near the confidence.
    #[test]
    fn intervals_cover_as_often_as_they_claim() {
        let mut state = 77;
        let mut noise = || (next(&mut state) >> 11) as f64 / (1u64 << 53) as f64;
        let mut held = 0;
        for seed in 0..200 {
            let above: Vec<f64> = (0..40).map(|_| 1.0 + noise()).collect();
            let r = ratio(&above, &vec![1.0; 40], 0.9, seed).unwrap();
            held += usize::from(r.low <= 1.5 && 1.5 <= r.high);
        }
        assert!((165..=198).contains(&held), "{held} of 200");
    }

    #[test]
    fn equal_samples_give_equal_intervals_and_none_give_none() {
        let (a, b) = ([3.0, 4.0, 5.0], [1.0, 1.0, 2.0]);
        assert_eq!(ratio(&a, &b, 0.95, 5), ratio(&a, &b, 0.95, 5));
        assert_eq!(ratio(&[], &[], 0.95, 5), None);
        assert_eq!(ratio(&[1.0], &[0.0], 0.95, 5), None);
    }
}
