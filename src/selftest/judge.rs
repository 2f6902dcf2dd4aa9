//! Are two logit vectors the same, as far as a type allows?

use crate::lower::Mode;

/// What a comparison found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Judged {
    /// Root mean square difference over the spread (standard deviation) of the reference's logits.
    pub difference: f64,
    /// What is wrong, if anything.
    pub reason: Option<String>,
}

impl Judged {
    /// A fault that is not one of logits.
    pub fn wrong(reason: String) -> Judged {
        Judged { difference: 0.0, reason: Some(reason) }
    }

    /// Both findings together; the first reason stays.
    pub fn worse(self, other: Judged) -> Judged {
        Judged {
            difference: self.difference.max(other.difference),
            reason: self.reason.or(other.reason),
        }
    }
}

/// Greatest relative difference, and greatest regret in spreads: how far the reference's logit of our token may lie
/// below its greatest. In float32 only the order of sums differs; in bf16 every activation is rounded.
pub fn limits(mode: Mode) -> (f64, f64) {
    match mode {
        Mode::F32 => (1e-3, 2e-3),
        Mode::Bf16 => (0.1, 0.4),
    }
}

/// Compares our logits with the reference's.
pub fn judge(mode: Mode, ours: &[f32], theirs: &[f32]) -> Judged {
    if ours.len() != theirs.len() || theirs.is_empty() {
        return Judged::wrong(format!("{} logits instead of {}", ours.len(), theirs.len()));
    }
    let n = theirs.len() as f64;
    let mean = theirs.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
    let spread = (theirs.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let square = |(a, b): (&f32, &f32)| (f64::from(*a) - f64::from(*b)).powi(2);
    let rms = (ours.iter().zip(theirs).map(square).sum::<f64>() / n).sqrt();
    let scale = spread.max(1e-6);
    let difference = rms / scale;
    let (most, regret_allowed) = limits(mode);
    // A NaN compares false.
    let close = difference <= most;
    if !close {
        let reason =
            format!("the logits differ by {difference:.4} of their spread, {most} is allowed");
        return Judged { difference, reason: Some(reason) };
    }
    let best = |v: &[f32]| {
        v.iter()
            .enumerate()
            .fold((0, f32::NEG_INFINITY), |m, (i, x)| if *x > m.1 { (i, *x) } else { m })
    };
    let (token, _) = best(ours);
    let (expected, greatest) = best(theirs);
    let regret = f64::from(greatest - theirs[token]) / scale;
    let reason = (regret > regret_allowed).then(|| {
        format!("token {token} is said where {expected} is right ({regret:.4} spreads apart, {regret_allowed} are allowed)")
    });
    Judged { difference, reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits() -> Vec<f32> {
        (0..100).map(|i| ((i * 37) % 100) as f32 / 10.0).collect()
    }

    #[test]
    fn equal_logits_pass_and_rounding_passes_in_bf16_alone() {
        let theirs = logits();
        assert_eq!(judge(Mode::F32, &theirs, &theirs).reason, None);
        let ours: Vec<f32> =
            theirs.iter().enumerate().map(|(i, v)| v + 0.05 * (i as f32).sin()).collect();
        assert_eq!(judge(Mode::Bf16, &ours, &theirs).reason, None);
        assert!(judge(Mode::F32, &ours, &theirs).reason.unwrap().contains("differ"));
    }

    #[test]
    fn scaled_nan_and_short_logits_fail() {
        let theirs = logits();
        let scaled: Vec<f32> = theirs.iter().map(|v| v * 1.25).collect();
        assert!(judge(Mode::Bf16, &scaled, &theirs).reason.is_some());
        let mut nan = theirs.clone();
        nan[3] = f32::NAN;
        assert!(judge(Mode::Bf16, &nan, &theirs).reason.is_some());
        assert!(judge(Mode::Bf16, &theirs[1..], &theirs).reason.unwrap().contains("99"));
    }

    #[test]
    fn another_token_must_be_about_as_good() {
        let mut theirs = logits();
        theirs[0] = 30.0;
        let mut ours = theirs.clone();
        // One element alone is little of the whole, and says another token.
        ours[1] = 30.1;
        let judged = judge(Mode::Bf16, &ours, &theirs);
        assert!(judged.reason.is_some());
    }
}
