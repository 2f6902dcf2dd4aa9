//! Entries and the events they hold.

use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, Point};
use crate::verdict::{Measurement, Verdict};

/// Version of the journal's form.
pub const FORMAT: u32 = 1;

/// One line of a journal. The line ends with its hash, which covers the rest of the line and, through `prev`, every
/// line before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// 0 for the header, then one more each line.
    pub seq: u64,
    /// Hash of the line before, hexadecimal; 64 zeros for the header.
    pub prev: String,
    /// Milliseconds since 1970 by the clock of the machine, which may be wrong.
    pub at_ms: u64,
    pub event: Event,
    /// Hash of the line up to here, hexadecimal.
    pub hash: String,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)]
pub enum Event {
    /// The first entry, and no other.
    Header(Header),
    /// A candidate and what came of it.
    Trial(Trial),
    /// The winner was measured against the original.
    Confirmed(Confirmation),
    /// A process went on with the journal. `cut_bytes` of a line that was never finished were removed.
    Resumed { cut_bytes: u64, device: Option<String> },
    /// A process ended as it should.
    Ended { reason: String },
}

/// What a campaign is about; does not change once it is written.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    pub format: u32,
    /// Version of amk.
    pub amk: String,
    /// The model, as it was named, and a hash of its shape.
    pub model: String,
    pub shape: String,
    /// Name of the target record and its architecture.
    pub target: String,
    pub sm: String,
    /// `bf16` or `f32`.
    pub mode: String,
    /// The position a token is timed or predicted at, and the bucket of positions it lies in.
    pub position: u64,
    pub bucket: (u64, u64),
    /// Fingerprint of the device: name, capability, SMs, driver. `None`: no device, every time is predicted.
    pub device: Option<String>,
    /// Name of the model of cost.
    pub cost_model: String,
    /// Hash of the space.
    pub space: String,
    pub proposer: String,
    pub seed: u64,
    /// Candidates asked for at once.
    pub batch: u64,
    /// A candidate is kept if its speed-up is more than 1 plus this, with `confidence`.
    pub threshold: f64,
    pub confidence: f64,
    pub min_rounds: u32,
    pub max_rounds: u32,
    /// Name of the start and its point.
    pub start: String,
    pub original: Point,
}

/// A candidate and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// 0 for the start itself.
    pub index: u64,
    /// Index of the first trial asked for together with this one.
    pub batch: u64,
    pub candidate: Candidate,
    /// What the proposer's random numbers started from.
    pub seed: u64,
    /// The incumbent's entry, `None` for the start.
    pub incumbent: Option<u64>,
    /// Hash of the validated program, where it got that far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<String>,
    /// Hash of the program without its provenance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Key of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// What the model of cost said, microseconds per token, whether or not it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_us: Option<f64>,
    /// Positions of the self-test.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tested_positions: Vec<u64>,
    pub verdict: Verdict,
    /// Wall time from proposal to verdict.
    pub seconds: f64,
}

/// The winner against the original, both run anew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confirmation {
    pub winner: Point,
    pub original: Point,
    /// Entry of the winner; `None` where nothing beat the start.
    pub entry: Option<u64>,
    /// `None`: predicted, see the two fields below.
    pub measurement: Option<Measurement>,
    /// By the model of cost.
    pub predicted_us: Option<f64>,
    pub original_predicted_us: Option<f64>,
    /// Does the gain hold?
    pub holds: bool,
    /// What was found, as a sentence.
    pub text: String,
}
