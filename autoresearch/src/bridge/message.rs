//! The messages, one JSON object a line.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::fault::{Fault, faults_of};
use super::{MOST_CANDIDATES, VERSION};
use crate::candidate::{Candidate, CandidateId, Point};
use crate::journal::Trial;
use crate::space::Space;
use crate::verdict::{Interval, Verdict};

/// What amk says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToAgent {
    /// First, once.
    Hello(Hello),
    /// Candidates are wanted; `propose` or `done` with its id answers it.
    Ask(AskMessage),
    /// What came of a candidate, the agent's own or another's.
    Trial(TrialMessage),
    /// The last line was no answer; the ask stands.
    Error { v: u32, id: u64, faults: Vec<Fault>, attempts_left: u32 },
    /// Nothing more is asked.
    Bye { v: u32, reason: String },
}

/// The first message.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hello {
    pub v: u32,
    /// Version of amk.
    pub amk: String,
    pub space: Space,
    /// JSON schemas: of a candidate's knobs, and of every message an agent may send.
    pub knobs_schema: Json,
    pub answer_schema: Json,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AskMessage {
    pub v: u32,
    /// To be said in the answer.
    pub id: u64,
    /// Most candidates of the answer.
    pub count: usize,
    pub seed: u64,
    /// Trials so far.
    pub trials: u64,
    /// The point to beat, and its time.
    pub incumbent: Point,
    pub incumbent_us: Option<f64>,
}

/// What came of a candidate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrialMessage {
    pub v: u32,
    pub index: u64,
    pub id: CandidateId,
    pub source: String,
    pub parent: Option<CandidateId>,
    pub knobs: Point,
    /// One of the labels of a verdict, such as `kept` or `rejected`.
    pub verdict: String,
    pub kept: bool,
    /// Microseconds per token, where it got that far; `predicted` says by what.
    pub us: Option<f64>,
    pub predicted: bool,
    /// How many times as fast as the incumbent of then.
    pub speedup: Option<Interval>,
    /// Why it was not kept, and what to change.
    pub faults: Vec<Fault>,
    /// It was in the journal before this process began.
    pub replayed: bool,
}

impl TrialMessage {
    /// Of a trial in the journal.
    pub fn new(trial: &Trial, replayed: bool) -> TrialMessage {
        let speedup = match &trial.verdict {
            Verdict::Measured(m) => Some(m.speedup),
            _ => None,
        };
        TrialMessage {
            v: VERSION,
            index: trial.index,
            id: trial.candidate.id(),
            source: trial.candidate.source.clone(),
            parent: trial.candidate.parent.clone(),
            knobs: trial.candidate.knobs.clone(),
            verdict: trial.verdict.label().to_owned(),
            kept: trial.verdict.kept(),
            us: trial.verdict.us(),
            predicted: matches!(trial.verdict, Verdict::Predicted { .. }),
            speedup,
            faults: faults_of(&trial.verdict),
            replayed,
        }
    }
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum FromAgent {
    Propose(Offer),
    Done(Farewell),
}

/// Candidates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    pub v: u32,
    /// The ask's.
    pub id: u64,
    pub candidates: Vec<Offered>,
}

/// Nothing more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Farewell {
    pub v: u32,
    pub id: u64,
    pub reason: String,
}

/// A candidate as an agent may name it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offered {
    pub knobs: Point,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CandidateId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Offered {
    /// As a candidate of `source`, which the agent does not choose.
    pub fn candidate(self, source: &str) -> Candidate {
        Candidate {
            knobs: self.knobs,
            parent: self.parent,
            source: source.to_owned(),
            note: self.note,
        }
    }
}

/// An answer to an ask.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Candidates(Vec<Offered>),
    Done(String),
}

/// Reads a line as the answer to the ask `id` for up to `count` candidates.
///
/// # Errors
/// What is wrong with it, and what to change.
pub fn answer_of(line: &str, id: u64, count: usize) -> Result<Answer, Vec<Fault>> {
    let one = |fault: Fault| vec![fault];
    let json: Json = serde_json::from_str(line).map_err(|e| {
        one(Fault::new(
            "not_json",
            format!("the line is no JSON: {e}"),
            "send one JSON object a line",
        ))
    })?;
    let Some(object) = json.as_object() else {
        let fix = "send an object with `v`, `type` and `id`";
        return Err(one(Fault::new("wrong_type", "the line is no JSON object", fix)));
    };
    match object.get("v").and_then(Json::as_u64) {
        Some(v) if v == u64::from(VERSION) => {}
        found => {
            let found = found.map_or_else(|| "no version".to_owned(), |v| format!("version {v}"));
            let message = format!("the message has {found}; this amk speaks version {VERSION}");
            return Err(one(
                Fault::new("version", message, format!("set `v` to {VERSION}")).at("v")
            ));
        }
    }
    let kind = object.get("type").and_then(Json::as_str).unwrap_or_default().to_owned();
    if kind != "propose" && kind != "done" {
        let message = format!("there is no message of type {kind:?}");
        let fix = "set `type` to \"propose\" or \"done\"";
        return Err(one(Fault::new("unknown_type", message, fix).at("type")));
    }
    let message: FromAgent = serde_json::from_value(json).map_err(|e| one(shape_fault(&e)))?;
    let (said, answer) = match message {
        FromAgent::Propose(Offer { id, candidates, .. }) => (id, Answer::Candidates(candidates)),
        FromAgent::Done(Farewell { id, reason, .. }) => (id, Answer::Done(reason)),
    };
    if said != id {
        let message = format!("the message answers ask {said}, and ask {id} is open");
        return Err(one(Fault::new("stale", message, format!("set `id` to {id}")).at("id")));
    }
    match &answer {
        Answer::Candidates(c) if c.is_empty() => {
            let fix = "name at least one candidate, or say \"done\"";
            Err(one(Fault::new("nothing", "the message names no candidate", fix).at("candidates")))
        }
        Answer::Candidates(c) if c.len() > count.min(MOST_CANDIDATES) => {
            let most = count.min(MOST_CANDIDATES);
            let message =
                format!("the message names {} candidates, {most} were asked for", c.len());
            let fix = format!("send at most {most}; more are asked for later");
            Err(one(Fault::new("too_many", message, fix).at("candidates")))
        }
        _ => Ok(answer),
    }
}

/// What serde says about a message of the wrong shape.
pub fn shape_fault(error: &serde_json::Error) -> Fault {
    let text = error.to_string();
    let (code, fix) = if text.starts_with("unknown field") {
        (
            "unknown_field",
            "leave the field out: a candidate is knobs, parent and note; times and verdicts are the judge's",
        )
    } else if text.starts_with("missing field") {
        ("missing_field", "add the field; the schema says what there must be")
    } else {
        ("wrong_type", "compare the message with its schema")
    };
    Fault::new(code, format!("the message is not of its form: {text}"), fix)
}
