//! Evidence to verdict.
//!
//! A worker brings raw samples; what they mean is decided here and nowhere else, from numbers that were checked first.
//! `sequential` is the test. Everything else in this file answers one question: can the evidence be what it says?
//! A worker that contradicts itself or the journal is refused at stage `reply`; a time that memory does not allow, a clock
//! that stands still or a baseline that suddenly runs slow is quarantined for a person to look at.

pub mod sequential;

use crate::journal::Header;
use crate::seams::{Evidence, Prepared};
use crate::verdict::{Decision, Interval, Measurement, Sample, Stage, Verdict};

/// A measured time below this share of the plain read of the same bytes, beside it in the same process, is implausible.
pub const READ_MARGIN: f64 = 0.97;
/// The same against the read at the bandwidth of the target's record: caches hold some of a small model.
pub const RECORD_MARGIN: f64 = 0.75;
/// How far the incumbent's distance from the plain read may move between two measurements.
pub const BASELINE_SHIFT: f64 = 0.25;

/// What is known about a measurement beforehand.
#[derive(Clone, Debug)]
pub struct Known<'a> {
    pub header: &'a Header,
    pub candidate: &'a Prepared,
    /// Key of the candidate's image.
    pub image: &'a str,
    /// Program of the incumbent.
    pub incumbent_program: &'a str,
    /// The incumbent's time over that of the plain read, where it was measured before.
    pub incumbent_share: Option<f64>,
    /// What the sequential test may err by.
    pub alpha: f64,
    /// See [`Header::threshold`].
    pub threshold: f64,
}

/// The verdict on a measurement.
pub fn judge(evidence: Evidence, known: &Known<'_>) -> Verdict {
    if let Err(reason) = consistent(&evidence, known) {
        return Verdict::Rejected { stage: Stage::Reply, reason };
    }
    let measurement = measure(evidence, known.threshold, known.alpha);
    match implausible(&measurement, known) {
        Some(reason) => Verdict::Quarantined { reason, measurement: Some(measurement) },
        None => Verdict::Measured(measurement),
    }
}

/// What the `k`-th measurement of a campaign, counted from 1, may err by. Half of what the campaign may err by goes to
/// keeping candidates, the other half to confirming winners, each with its own count.
pub fn share(confidence: f64, k: u64) -> f64 {
    sequential::alpha_of((1.0 - confidence) / 2.0, k)
}

/// Medians, interval and decision of raw samples.
pub fn measure(evidence: Evidence, threshold: f64, alpha: f64) -> Measurement {
    let Evidence { samples, read_us, .. } = evidence;
    Measurement {
        speedup: sequential::interval(&samples, alpha),
        candidate_us: sequential::median(samples.iter().map(|s| s.candidate_us)),
        incumbent_us: sequential::median(samples.iter().map(|s| s.incumbent_us)),
        floor_us: read_us,
        decision: sequential::decide(&samples, threshold, alpha),
        alpha,
        samples,
    }
}

/// Is the measurement what its own samples say? For journals.
pub fn recomputes(m: &Measurement, threshold: f64) -> bool {
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let Interval { median, low, high } = sequential::interval(&m.samples, m.alpha);
    sequential::decide(&m.samples, threshold, m.alpha) == m.decision
        && close(median, m.speedup.median)
        && close(low, m.speedup.low)
        && close(high, m.speedup.high)
        && close(sequential::median(m.samples.iter().map(|s| s.candidate_us)), m.candidate_us)
        && close(sequential::median(m.samples.iter().map(|s| s.incumbent_us)), m.incumbent_us)
}

fn consistent(e: &Evidence, known: &Known<'_>) -> Result<(), String> {
    let same = |what: &str, said: &str, is: &str| match said == is {
        true => Ok(()),
        false => Err(format!("the worker ran {what} {said}, and it is {is} that was asked for")),
    };
    same("the candidate's program", &e.candidate_program, &known.candidate.program)?;
    same("the candidate's image", &e.candidate_image, known.image)?;
    same("the incumbent's program", &e.incumbent_program, known.incumbent_program)?;
    let device = known.header.device.as_deref().unwrap_or("no device");
    if e.device != device {
        return Err(format!(
            "the worker measured on {}, and this journal is about {device}; start another journal for another device",
            e.device
        ));
    }
    if e.bytes != known.candidate.bytes {
        return Err(format!(
            "the worker read {} bytes a token, and the program reads {}",
            e.bytes, known.candidate.bytes
        ));
    }
    tested(e, known.header)?;
    let (n, h) = (e.samples.len(), known.header);
    if n < h.min_rounds as usize || n > h.max_rounds as usize {
        let (low, high) = (h.min_rounds, h.max_rounds);
        return Err(format!("the worker brings {n} rounds where {low} to {high} were asked for"));
    }
    let times = e.samples.iter().flat_map(|s| [s.candidate_us, s.incumbent_us]);
    match times.chain([e.read_us]).find(|t| !(t.is_finite() && *t > 0.0)) {
        Some(t) => Err(format!("the worker says something took {t} us, which is no time")),
        None => Ok(()),
    }
}

/// Was the image tested where a test means something?
fn tested(e: &Evidence, header: &Header) -> Result<(), String> {
    let (first, last) = header.bucket;
    let inside = |p: &&u64| (first..=last).contains(*p) && **p > 0;
    let mut positions: Vec<u64> = e.tested_positions.iter().filter(inside).copied().collect();
    positions.sort_unstable();
    positions.dedup();
    let wanted = if last - first > 128 { 2 } else { 1 };
    if positions.len() < wanted {
        return Err(format!(
            "the self-test ran at positions {:?}; {wanted} different ones from {} to {last} are needed, since at position 0 nothing is tested",
            e.tested_positions,
            first.max(1)
        ));
    }
    let most = if header.mode == "f32" { 1e-3 } else { 0.1 };
    // NaN compares false.
    if !(e.difference >= 0.0 && e.difference <= most) {
        return Err(format!(
            "the self-test saw a difference of {}, and {most} is allowed",
            e.difference
        ));
    }
    Ok(())
}

fn implausible(m: &Measurement, known: &Known<'_>) -> Option<String> {
    let still = |pick: fn(&Sample) -> f64| {
        m.samples.iter().all(|s| pick(s).to_bits() == pick(&m.samples[0]).to_bits())
    };
    if m.samples.len() > 1 && (still(|s| s.candidate_us) || still(|s| s.incumbent_us)) {
        return Some(format!(
            "all {} samples are the same to the last bit, so nothing was timed",
            m.samples.len()
        ));
    }
    let read = READ_MARGIN * m.floor_us;
    let record = RECORD_MARGIN * known.candidate.prediction.floor_us;
    if m.candidate_us < read.max(record) {
        return Some(format!(
            "{:.1} us a token is less than reading its bytes takes ({:.1} us measured, {:.1} us by the target's bandwidth), so work was left out or the timing does not wait for it",
            m.candidate_us, m.floor_us, known.candidate.prediction.floor_us
        ));
    }
    if m.floor_us < record {
        return Some(format!(
            "a plain read of {:.1} us is faster than the target's bandwidth allows ({:.1} us)",
            m.floor_us, known.candidate.prediction.floor_us
        ));
    }
    let share = m.incumbent_us / m.floor_us;
    if let Some(before) = known.incumbent_share
        && share > before * (1.0 + BASELINE_SHIFT)
    {
        return Some(format!(
            "the incumbent took {share:.2} times a plain read here and {before:.2} times before: the baseline was slowed down, or the device is shared",
        ));
    }
    None
}

/// The verdict of a prediction: no test, since the model has no noise.
pub fn predicted(us: f64, incumbent_us: f64, threshold: f64) -> Decision {
    if incumbent_us / us > 1.0 + threshold { Decision::Kept } else { Decision::NotFaster }
}
