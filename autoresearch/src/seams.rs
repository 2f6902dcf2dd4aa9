//! What the rest of the program provides: proposers, workers, models of cost, and whoever looks on.

use amk_schedule_ir::{Program, Target};
use serde::{Deserialize, Serialize};

use crate::candidate::{Candidate, Point};
use crate::history::History;
use crate::journal::{Confirmation, Header, Trial};
use crate::space::Space;
use crate::verdict::{Sample, Stage, Verdict};

/// What a proposer is asked.
pub struct Ask<'a> {
    pub space: &'a Space,
    pub history: &'a History,
    /// Candidates wanted, at least 1; fewer are an answer too.
    pub count: usize,
    /// A function of the campaign's seed and of how many trials there are: whoever draws random numbers starts from
    /// it, so that the same journal gives the same proposals.
    pub seed: u64,
}

/// What a proposer answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Proposal {
    Candidates(Vec<Candidate>),
    /// It has nothing more to propose, and why.
    Done(String),
}

/// Why a proposer did not answer: it ended, or said something that is no proposal. The campaign ends cleanly.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the proposer {proposer} gave no proposal: {reason}")]
pub struct NoProposal {
    pub proposer: String,
    pub reason: String,
}

/// Names candidates. State is a function of what it was told: after a resume it is told every trial of the journal
/// again, in order.
pub trait Proposer {
    /// What its candidates' `source` says.
    fn name(&self) -> &str;

    /// Proposes up to `ask.count` candidates.
    ///
    /// # Errors
    /// It cannot answer any more.
    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal>;

    /// Tells what came of a candidate, its own or another's.
    fn told(&mut self, trial: &Trial);

    /// Asked once more with the same history, does it name the same again? Not so if somebody outside answers.
    fn repeats(&self) -> bool {
        true
    }
}

/// A candidate that was lowered, validated and rendered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prepared {
    /// Hash of the validated program, hexadecimal.
    pub program: String,
    /// Hash of the program without its provenance and of how its text is rendered, hexadecimal: two points with the same are one kernel.
    pub body: String,
    /// Bytes a token must read at the campaign's position: packed weights and cache.
    pub bytes: u64,
    /// What the model of cost says.
    pub prediction: Prediction,
}

/// A worker's refusal of a candidate: a verdict other than a measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "refusal", rename_all = "snake_case", deny_unknown_fields)]
pub enum Refusal {
    Rejected { stage: Stage, reason: String },
    Crashed { stage: Stage, reason: String },
    TimedOut { stage: Stage, seconds: f64 },
}

impl From<Refusal> for Verdict {
    fn from(refusal: Refusal) -> Verdict {
        match refusal {
            Refusal::Rejected { stage, reason } => Verdict::Rejected { stage, reason },
            Refusal::Crashed { stage, reason } => Verdict::Crashed { stage, reason },
            Refusal::TimedOut { stage, seconds } => Verdict::TimedOut { stage, seconds },
        }
    }
}

/// What a worker is to self-test and time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    pub candidate: Point,
    /// Timed in the same process, round by round.
    pub incumbent: Point,
    /// Rounds at least and at most; in between the sequential test decides.
    pub min_rounds: u32,
    pub max_rounds: u32,
    /// The worker may stop when [`crate::judge::sequential::decide`] decides with these.
    pub threshold: f64,
    pub alpha: f64,
}

/// What a worker brings back: raw, without a decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evidence {
    /// Program hashes of the images that ran, hexadecimal, as read back from them.
    pub candidate_program: String,
    pub incumbent_program: String,
    /// Keys of the images.
    pub candidate_image: String,
    pub incumbent_image: String,
    /// The device it ran on; see [`Header::device`].
    pub device: String,
    /// Positions at which the candidate's image passed its self-test.
    pub tested_positions: Vec<u64>,
    /// The greatest difference the self-test saw, relative to the spread of the logits.
    pub difference: f64,
    /// Bytes a token must read.
    pub bytes: u64,
    /// A plain read of the same bytes in the same process, microseconds: the fastest of its samples.
    pub read_us: f64,
    pub samples: Vec<Sample>,
}

/// Does what needs more than a schedule. Each call is in a process of its own or as good as that: a crash or a hang is
/// a refusal, not the end of the campaign.
pub trait Worker: Sync {
    /// Fingerprint of the device that is measured on; `None` where there is none and everything is predicted.
    ///
    /// # Errors
    /// A device is there and does not work.
    fn device(&self) -> Result<Option<String>, Refusal>;

    /// Lowers, validates, renders and predicts. Needs neither a compiler nor a device. Called from several threads at
    /// once.
    ///
    /// # Errors
    /// A stage refuses the point.
    fn prepare(&self, point: &Point) -> Result<Prepared, Refusal>;

    /// Compiles what [`Worker::prepare`] made, or takes the image from a cache, and checks it; gives the image's key:
    /// text, architecture, compiler, options. `None` where there is no compiler. Called from several threads at once.
    ///
    /// # Errors
    /// The compiler, the lint or the part refuses the point.
    fn compile(&self, point: &Point) -> Result<Option<String>, Refusal>;

    /// Self-tests the candidate and times it, paired with the incumbent. As many calls at once as the campaign
    /// was told that there are devices, by default one.
    ///
    /// # Errors
    /// A stage refuses the point.
    fn measure(&self, job: &Job) -> Result<Evidence, Refusal>;
}

/// A predicted time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// Microseconds per token.
    pub us: f64,
    /// Reading the token's bytes at the part's bandwidth, microseconds; `us` is never less.
    pub floor_us: f64,
    /// The model's name and version.
    pub model: String,
}

/// Predicts the time of one step of a program.
pub trait CostModel: Send + Sync {
    /// Name and version; part of every prediction.
    fn name(&self) -> &str;

    /// Time of one step at `position`, which lies in the program's bucket, by a kernel whose warps take up to `taken`
    /// chunks into registers while they wait for their input.
    fn predict(&self, program: &Program, target: &Target, position: u64, taken: u32) -> Prediction;
}

/// Counts of trials by what came of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    pub trials: u64,
    /// By [`Verdict::label`].
    pub by_label: std::collections::BTreeMap<String, u64>,
    /// Refused, by stage.
    pub by_stage: std::collections::BTreeMap<String, u64>,
}

/// Looks on; all calls come from the campaign's own thread.
#[allow(unused_variables)]
pub trait Observer {
    /// The journal is open; `trials` are there already.
    fn started(&mut self, header: &Header, history: &History, tally: &Tally) {}
    /// These candidates go down the path now.
    fn proposed(&mut self, candidates: &[Candidate]) {}
    /// The trial is in the journal.
    fn judged(&mut self, seq: u64, trial: &Trial, history: &History, tally: &Tally) {}
    /// The winner was measured against the original.
    fn confirmed(&mut self, confirmation: &Confirmation) {}
    /// The campaign is over.
    fn ended(&mut self, reason: &str, history: &History, tally: &Tally) {}
    /// Something a person should know, as a sentence.
    fn note(&mut self, text: &str) {}
}
