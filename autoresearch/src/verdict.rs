//! What can come of a candidate.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The stages of the one path, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The candidate itself: unknown knobs, values outside their domain, something already judged.
    Proposal,
    /// Knobs to schedule.
    Lower,
    Validate,
    /// Schedule to text.
    Render,
    /// The model of cost: so much slower than the incumbent that compiling it is not worth the time.
    Predict,
    Compile,
    /// The compiled kernel keeps values in memory that should be in registers: measuring it is not worth the device's time.
    Spills,
    /// Image, tables and weights to the device.
    Load,
    SelfTest,
    Time,
    /// What a worker says does not hold together.
    Reply,
}

impl Stage {
    /// Its name in text.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Proposal => "proposal",
            Stage::Lower => "lower",
            Stage::Validate => "validate",
            Stage::Render => "render",
            Stage::Predict => "predict",
            Stage::Compile => "compile",
            Stage::Spills => "spills",
            Stage::Load => "load",
            Stage::SelfTest => "self-test",
            Stage::Time => "time",
            Stage::Reply => "reply",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One round: both were run right after one another. Microseconds per token.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sample {
    pub candidate_us: f64,
    pub incumbent_us: f64,
}

impl Sample {
    /// How many times as fast as the incumbent the candidate was in this round.
    pub fn speedup(&self) -> f64 {
        self.incumbent_us / self.candidate_us
    }
}

/// A median with the bounds of its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

/// What the sequential test of a measurement said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// Faster by more than the threshold, with the campaign's confidence: the new incumbent.
    Kept,
    /// Not faster by more than the threshold.
    NotFaster,
    /// The rounds ran out first; the incumbent stays.
    Undecided,
}

/// A measurement on a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Every round, in order.
    pub samples: Vec<Sample>,
    /// Speed-up over the incumbent, with the interval of the sequential test.
    pub speedup: Interval,
    /// Medians over the rounds, microseconds per token.
    pub candidate_us: f64,
    pub incumbent_us: f64,
    /// The least time in which the device reads what a token must read, microseconds.
    pub floor_us: f64,
    /// What the sequential test may err by: the probability of keeping a candidate that is not faster.
    pub alpha: f64,
    pub decision: Decision,
}

/// What came of a candidate. A worker's claims are never in here: decisions are computed from raw samples by the one
/// that writes the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// A stage refused it.
    Rejected { stage: Stage, reason: String },
    /// It gives the very program that an earlier entry was judged by.
    Repeated { of: u64 },
    /// It was timed on a device.
    Measured(Measurement),
    /// No device: a model of cost named `model` says so. Never compared with a measurement.
    Predicted { us: f64, floor_us: f64, incumbent_us: f64, model: String, decision: Decision },
    /// Its result cannot be true, such as a time below that of reading its bytes. Kept for a person to look at.
    Quarantined {
        reason: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        measurement: Option<Measurement>,
    },
    /// The process that judged it ended unexpectedly: a crash, no memory.
    Crashed { stage: Stage, reason: String },
    /// It did not end in time and was ended.
    TimedOut { stage: Stage, seconds: f64 },
}

impl Verdict {
    /// The decision, where the candidate got that far.
    pub fn decision(&self) -> Option<Decision> {
        match self {
            Verdict::Measured(m) => Some(m.decision),
            Verdict::Predicted { decision, .. } => Some(*decision),
            _ => None,
        }
    }

    /// Is the candidate the new incumbent?
    pub fn kept(&self) -> bool {
        self.decision() == Some(Decision::Kept)
    }

    /// Microseconds per token, measured or predicted, of a candidate whose result counts.
    pub fn us(&self) -> Option<f64> {
        match self {
            Verdict::Measured(m) => Some(m.candidate_us),
            Verdict::Predicted { us, .. } => Some(*us),
            _ => None,
        }
    }

    /// One word for tables and tallies.
    pub fn label(&self) -> &'static str {
        match self {
            Verdict::Rejected { .. } => "rejected",
            Verdict::Repeated { .. } => "repeated",
            Verdict::Measured(m) => match m.decision {
                Decision::Kept => "kept",
                Decision::NotFaster => "not faster",
                Decision::Undecided => "undecided",
            },
            Verdict::Predicted { decision: Decision::Kept, .. } => "kept (predicted)",
            Verdict::Predicted { .. } => "not faster (predicted)",
            Verdict::Quarantined { .. } => "quarantined",
            Verdict::Crashed { .. } => "crashed",
            Verdict::TimedOut { .. } => "timed out",
        }
    }

    /// Why it was not kept, as a sentence; empty for one that was.
    pub fn reason(&self) -> String {
        match self {
            Verdict::Rejected { stage, reason } => format!("{stage}: {reason}"),
            Verdict::Repeated { of } => format!("the program of entry {of}, judged before"),
            Verdict::Quarantined { reason, .. } => reason.clone(),
            Verdict::Crashed { stage, reason } => format!("crashed in {stage}: {reason}"),
            Verdict::TimedOut { stage, seconds } => {
                format!("{stage} was not over after {seconds:.0} s and was ended")
            }
            Verdict::Measured(m) => match m.decision {
                Decision::Kept => String::new(),
                _ => format!(
                    "{:.4} times as fast as the incumbent ({:.4} to {:.4})",
                    m.speedup.median, m.speedup.low, m.speedup.high
                ),
            },
            Verdict::Predicted { decision: Decision::Kept, .. } => String::new(),
            Verdict::Predicted { us, incumbent_us, .. } => {
                format!("predicted {us:.1} us, the incumbent {incumbent_us:.1} us")
            }
        }
    }
}
