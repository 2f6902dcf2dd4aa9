//! The tools, each with its schema.

use std::collections::BTreeMap;

use amk_autoresearch::bridge::{
    Fault, MOST_CANDIDATES, Offered, TrialMessage, candidate_schema, faults_of, shape_fault,
};
use amk_autoresearch::cost::{Options, simulate, stage_times};
use amk_autoresearch::{Entry, Event, Point, Refusal, Stage, Verdict};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::Session;
use crate::doctor::{DoctorOptions, diagnose};
use crate::search::child::ask;
use crate::search::cost_model;
use crate::search::request::{Reply, Request, Task};
use crate::search::stored;

/// Most entries of one answer of `journal`.
const MOST_ENTRIES: u64 = 200;

/// A tool as it is listed.
pub struct ToolInfo {
    pub name: &'static str,
    pub about: &'static str,
    /// Does it change nothing?
    pub read_only: bool,
    schema: fn(&Session) -> Json,
    run: fn(&Session, Json) -> Answer,
}

impl ToolInfo {
    /// JSON schema of its arguments.
    pub fn schema(&self, session: &Session) -> Json {
        (self.schema)(session)
    }
}

/// A document, or what to change.
type Answer = Result<Json, Vec<Fault>>;

/// Every tool.
pub const TOOLS: &[ToolInfo] = &[
    ToolInfo {
        name: "doctor",
        about: "What of this machine works: compiler, driver, device, cache, each with what to do about a fault.",
        read_only: true,
        schema: |_| nothing(),
        run: doctor,
    },
    ToolInfo {
        name: "space",
        about: "What may be chosen: every knob with its domain and default, what the search is for, and the start.",
        read_only: true,
        schema: |_| nothing(),
        run: space,
    },
    ToolInfo {
        name: "propose",
        about: "Give candidates to the campaign: each is lowered, validated, compiled, self-tested and timed against the incumbent, and written to the journal with its verdict. A candidate that is certainly faster becomes the incumbent. Answers when all have been judged.",
        read_only: false,
        schema: |s| {
            let items = candidate_schema(Some(&s.space));
            let candidates = json!({
                "type": "array", "items": items, "minItems": 1, "maxItems": MOST_CANDIDATES,
            });
            object(json!({ "candidates": candidates }), &["candidates"])
        },
        run: propose,
    },
    ToolInfo {
        name: "validate",
        about: "Lower and validate one candidate: its program's hash and predicted time, or why there is none. Writes nothing down.",
        read_only: true,
        schema: |s| object(json!({ "knobs": s.space.schema() }), &["knobs"]),
        run: validate,
    },
    ToolInfo {
        name: "evaluate",
        about: "Judge one candidate against another, by default the default schedule, without the campaign: the same gates, nothing is written down, nothing becomes the incumbent.",
        read_only: true,
        schema: |s| {
            let knobs = s.space.schema();
            object(json!({ "knobs": knobs, "incumbent": knobs }), &["knobs"])
        },
        run: evaluate,
    },
    ToolInfo {
        name: "journal",
        about: "Entries of the journal from one on, checked from the first: trials with verdicts and what to change.",
        read_only: true,
        schema: |_| {
            let from = json!({ "type": "integer", "minimum": 0, "description": "first entry; absent: the last ones" });
            let limit =
                json!({ "type": "integer", "minimum": 1, "maximum": MOST_ENTRIES, "default": 20 });
            object(json!({ "from": from, "limit": limit }), &[])
        },
        run: journal,
    },
    ToolInfo {
        name: "best",
        about: "The incumbent of the campaign, its time and the start's, and the stored schedule that other commands use.",
        read_only: true,
        schema: |_| nothing(),
        run: best,
    },
    ToolInfo {
        name: "trace_summary",
        about: "Where the time of a step goes for one candidate, stage by stage: waiting for input, products, publishing. Predicted by simulation, never measured.",
        read_only: true,
        schema: |s| object(json!({ "knobs": s.space.schema() }), &[]),
        run: trace_summary,
    },
];

fn object(properties: Json, required: &[&str]) -> Json {
    json!({
        "type": "object", "properties": properties, "required": required,
        "additionalProperties": false,
    })
}

fn nothing() -> Json {
    object(json!({}), &[])
}

/// Calls a tool. The document has `ok`; with `false` it has `faults`.
pub fn call(session: &Session, name: &str, arguments: Json) -> (bool, Json) {
    let answer = match TOOLS.iter().find(|t| t.name == name) {
        Some(tool) => (tool.run)(session, arguments),
        None => {
            let names: Vec<&str> = TOOLS.iter().map(|t| t.name).collect();
            let message = format!("there is no tool {name:?}");
            let fix = format!("call one of {}", names.join(", "));
            Err(vec![Fault::new("unknown_tool", message, fix)])
        }
    };
    match answer {
        Ok(mut document) => {
            if let Some(object) = document.as_object_mut() {
                object.insert("ok".to_owned(), json!(true));
            }
            (true, document)
        }
        Err(faults) => (false, json!({ "ok": false, "faults": faults })),
    }
}

fn arguments<T: DeserializeOwned>(json: Json) -> Result<T, Vec<Fault>> {
    serde_json::from_value(json).map_err(|e| vec![shape_fault(&e)])
}

fn document(value: impl Serialize) -> Answer {
    serde_json::to_value(value).map_err(|e| {
        let fix = "report it: this is a fault of amk itself";
        vec![Fault::new("internal", format!("the answer has no JSON form: {e}"), fix)]
    })
}

fn one(code: &str, message: impl Into<String>, fix: &str) -> Vec<Fault> {
    vec![Fault::new(code, message, fix)]
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Knobs {
    #[serde(default)]
    knobs: Point,
}

fn doctor(session: &Session, json: Json) -> Answer {
    let Nothing {} = arguments(json)?;
    let options = DoctorOptions::from_env(session.base.nvrtc.clone());
    let report = document(diagnose(&options, &mut |_| {}))?;
    Ok(json!({ "report": report }))
}

fn space(session: &Session, json: Json) -> Answer {
    let Nothing {} = arguments(json)?;
    let s = &session.subject;
    Ok(json!({
        "space": document(&session.space)?,
        "schema": session.space.schema(),
        "model": s.model, "target": s.target.name, "sm": s.target.sm, "mode": s.mode_name(),
        "position": s.position, "bucket": [s.bucket.first, s.bucket.last],
        "predicted": session.predicted,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Proposed {
    candidates: Vec<Offered>,
}

fn propose(session: &Session, json: Json) -> Answer {
    let Proposed { candidates } = arguments(json)?;
    if candidates.is_empty() {
        return Err(one("nothing", "there is no candidate", "name at least one candidate"));
    }
    if candidates.len() > MOST_CANDIDATES {
        let message = format!("there are {} candidates", candidates.len());
        return Err(one("too_many", message, &format!("send at most {MOST_CANDIDATES} at once")));
    }
    let over = |reason: String| {
        one(
            "over",
            format!("the campaign is over: {reason}"),
            "start the server again; it goes on with the journal",
        )
    };
    let submitted = session.relay().map_err(over)?.submit(candidates);
    let submitted = submitted
        .ok_or_else(|| over(session.over().unwrap_or_else(|| "it has ended".to_owned())))?;
    let mut trials = Vec::with_capacity(submitted.count);
    while trials.len() < submitted.count
        && let Some(trial) = submitted.next_trial()
    {
        trials.push(document(TrialMessage::new(&trial, false))?);
    }
    if trials.len() < submitted.count {
        let reason = session.over().unwrap_or_else(|| "it was stopped".to_owned());
        let message = format!(
            "{} of {} candidates were judged and are in the journal, then the campaign ended: {reason}",
            trials.len(),
            submitted.count
        );
        return Err(one(
            "over",
            message,
            "start the server again and propose the others once more",
        ));
    }
    let kept = trials.iter().filter(|t| t["kept"] == json!(true)).count();
    Ok(json!({ "trials": trials, "kept": kept }))
}

fn refused(refusal: Refusal) -> Vec<Fault> {
    faults_of(&Verdict::from(refusal))
}

fn validate(session: &Session, json: Json) -> Answer {
    let Knobs { knobs } = arguments(json)?;
    let point = session.complete(&knobs, "knobs")?;
    let made = session.subject.make(&point, &*cost_model()).map_err(refused)?;
    Ok(json!({
        "valid": true,
        "program": made.prepared.program,
        "bytes": made.prepared.bytes,
        "predicted_us": made.prepared.prediction.us,
        "floor_us": made.prepared.prediction.floor_us,
        "model_of_cost": made.prepared.prediction.model,
        "knobs": point,
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Evaluated {
    knobs: Point,
    #[serde(default)]
    incumbent: Option<Point>,
}

fn evaluate(session: &Session, json: Json) -> Answer {
    let Evaluated { knobs, incumbent } = arguments(json)?;
    let point = session.complete(&knobs, "knobs")?;
    let incumbent = session.complete(&incumbent.unwrap_or_default(), "incumbent")?;
    let candidate = amk_autoresearch::Candidate::new(point, "mcp");
    let task = Task::Evaluate { candidate, incumbent: Some(incumbent) };
    let request = Request { task, ..session.base.clone() };
    let limit = session.patience.compile + session.patience.measure;
    let reply = ask(&session.program, &request, Stage::Time, limit, &session.stop);
    match reply.map_err(refused)? {
        Reply::Evaluated { prepared, verdict } => {
            let faults = faults_of(&verdict);
            Ok(json!({
                "verdict": document(&verdict)?, "label": verdict.label(), "kept": verdict.kept(),
                "us": verdict.us(), "predicted": matches!(verdict, Verdict::Predicted { .. }),
                "prepared": document(prepared)?, "faults": faults,
            }))
        }
        Reply::Refused { refusal } => Err(refused(refusal)),
        other => {
            let message: String = format!("the worker answered something else: {other:?}");
            let message: String = message.chars().take(300).collect();
            Err(one("reply", message, "report it: this is a fault of the worker"))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct From {
    #[serde(default)]
    from: Option<u64>,
    #[serde(default)]
    limit: Option<u64>,
}

fn journal(session: &Session, json: Json) -> Answer {
    let From { from, limit } = arguments(json)?;
    let limit = limit.unwrap_or(20).clamp(1, MOST_ENTRIES) as usize;
    let mut rows: std::collections::VecDeque<Entry> = std::collections::VecDeque::new();
    let read = session.read(&mut |entry| match from {
        Some(from) if entry.seq >= from && rows.len() < limit => rows.push_back(entry.clone()),
        Some(_) => {}
        None => {
            if rows.len() == limit {
                rows.pop_front();
            }
            rows.push_back(entry.clone());
        }
    });
    let summary = read.map_err(unreadable)?;
    let mut entries = Vec::with_capacity(rows.len());
    for e in &rows {
        let event = match &e.event {
            Event::Trial(trial) => json!({ "trial": document(TrialMessage::new(trial, true))? }),
            other => document(other)?,
        };
        entries.push(json!({ "seq": e.seq, "at_ms": e.at_ms, "hash": e.hash, "event": event }));
    }
    Ok(json!({
        "entries": entries, "of": summary.entries, "head": summary.head,
        "tally": document(&summary.history.tally)?, "predicted": session.predicted,
    }))
}

fn unreadable(error: amk_autoresearch::JournalError) -> Vec<Fault> {
    let fix = "propose a candidate first; if the journal was edited, name another one";
    one("journal", error.to_string(), fix)
}

fn best(session: &Session, json: Json) -> Answer {
    let Nothing {} = arguments(json)?;
    let summary = session.read(&mut |_| {}).map_err(unreadable)?;
    let h = &summary.history;
    let s = &session.subject;
    let stored = match stored::store() {
        Ok(store) => {
            let choice = stored::choose(&store, &s.shape, &s.target, s.mode, s.bucket);
            json!({ "knobs": document(&choice.knobs)?, "text": choice.text })
        }
        Err(error) => json!({ "knobs": null, "text": error.to_string() }),
    };
    Ok(json!({
        "knobs": h.incumbent, "id": h.incumbent.id(), "entry": h.incumbent_entry,
        "us": h.incumbent_us, "original_us": h.original_us, "estimated_gain": h.gain,
        "original": summary.header.original, "confirmation": document(&summary.confirmation)?,
        "predicted": session.predicted, "stored": stored,
    }))
}

/// Sums over the stages of one op.
#[derive(Default, Serialize)]
struct OpSum {
    stages: usize,
    input_us: f64,
    products_us: f64,
    publish_us: f64,
}

fn trace_summary(session: &Session, json: Json) -> Answer {
    let Knobs { knobs } = arguments(json)?;
    let point = session.complete(&knobs, "knobs")?;
    let s = &session.subject;
    let made = s.make(&point, &*cost_model()).map_err(refused)?;
    let options = Options { position: s.position, steps: 1, stamps: true, taken: made.taken };
    let calibration = session.simulated.calibration();
    let simulation = simulate(&made.program, &s.target, calibration, options).map_err(|e| {
        one("simulation", e.to_string(), "report it: the validator accepted this schedule")
    })?;
    let stages = stage_times(&made.program, &simulation.stamps);
    let mut ops: BTreeMap<&str, OpSum> = BTreeMap::new();
    for stage in &stages {
        let sum = ops.entry(stage.op).or_default();
        sum.stages += 1;
        sum.input_us += stage.input_us;
        sum.products_us += stage.products_us;
        sum.publish_us += stage.publish_us;
    }
    Ok(json!({
        "predicted": true, "calibration": calibration.name, "provenance": document(&calibration.provenance)?,
        "step_us": simulation.step_us, "floor_us": simulation.floor.us(),
        "ops": document(ops)?, "stages": document(stages)?,
    }))
}
