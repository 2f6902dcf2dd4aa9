use std::io::{BufReader, Cursor, Write};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value as Json, json};

use super::*;
use crate::candidate::{Candidate, Point, Value};
use crate::history::History;
use crate::journal::Trial;
use crate::seams::{Ask, Proposal, Proposer};
use crate::space::{Domain, Knob, Space};
use crate::verdict::{Stage, Verdict};

fn space() -> Space {
    let knob = |name: &str, domain| Knob {
        name: name.to_owned(),
        about: "for tests".to_owned(),
        domain,
        default: Value::Int(1),
    };
    Space {
        title: "a test".to_owned(),
        knobs: vec![
            knob("rotation", Domain::Range { low: 0, high: 9, step: 1, auto: false }),
            knob("windows.dense", Domain::Range { low: 1, high: 4, step: 1, auto: true }),
        ],
    }
}

/// A pipe's writing end that a test can look into.
#[derive(Clone, Default)]
struct Said(Arc<Mutex<Vec<u8>>>);

impl Write for Said {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Said {
    fn lines(&self) -> Vec<Json> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes)
            .unwrap()
            .lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }
}

fn options() -> LinesOptions {
    LinesOptions {
        amk: "0".to_owned(),
        patience: Duration::from_secs(20),
        attempts: 3,
        stop: Arc::new(AtomicBool::new(false)),
    }
}

fn proposer(input: impl Into<Vec<u8>>, said: &Said) -> LinesProposer<Said> {
    let reader = BufReader::with_capacity(7, Cursor::new(input.into()));
    LinesProposer::new(&space(), reader, said.clone(), options())
}

fn ask<'a>(space: &'a Space, history: &'a History) -> Ask<'a> {
    Ask { space, history, count: 2, seed: 7 }
}

fn trial(index: u64, verdict: Verdict) -> Trial {
    let candidate = Candidate::new(Point::default().with("rotation", 3), "stdio");
    serde_json::from_value(json!({
        "index": index, "batch": index, "candidate": candidate, "seed": 1, "incumbent": null,
        "verdict": verdict, "seconds": 0.5,
    }))
    .unwrap()
}

/// Does a value have the shape a schema asks for? As much of JSON schema as the messages use.
fn fits(schema: &Json, value: &Json) -> bool {
    let Some(s) = schema.as_object() else { return true };
    let is = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let kinds = match s.get("type") {
        Some(Json::String(kind)) => is(kind),
        Some(Json::Array(kinds)) => kinds.iter().any(|k| is(k.as_str().unwrap())),
        _ => true,
    };
    let whole = s.get("const").is_none_or(|c| c == value)
        && s.get("oneOf")
            .is_none_or(|o| o.as_array().unwrap().iter().filter(|o| fits(o, value)).count() == 1)
        && s.get("minimum").is_none_or(|m| value.as_f64().is_none_or(|v| v >= m.as_f64().unwrap()))
        && s.get("maximum").is_none_or(|m| value.as_f64().is_none_or(|v| v <= m.as_f64().unwrap()));
    let object = value.as_object().is_none_or(|object| {
        let none = serde_json::Map::new();
        let properties = s.get("properties").and_then(Json::as_object).unwrap_or(&none);
        let closed = s.get("additionalProperties") == Some(&json!(false));
        let required = s.get("required").and_then(Json::as_array);
        required.is_none_or(|r| r.iter().all(|k| object.contains_key(k.as_str().unwrap())))
            && object.iter().all(|(k, v)| properties.get(k).map_or(!closed, |p| fits(p, v)))
    });
    let array = value.as_array().is_none_or(|items| {
        let item = s.get("items").cloned().unwrap_or(json!({}));
        let least = s.get("minItems").and_then(Json::as_u64).unwrap_or(0) as usize;
        items.len() >= least && items.iter().all(|i| fits(&item, i))
    });
    kinds && whole && object && array
}

#[test]
fn an_agent_is_greeted_asked_told_and_answers() {
    let said = Said::default();
    let answer = json!({
        "v": 1, "type": "propose", "id": 0,
        "candidates": [{"knobs": {"rotation": 2, "windows.dense": null}, "note": "why not"}],
    });
    let done = json!({"v": 1, "type": "done", "id": 1, "reason": "enough"});
    let mut p = proposer(format!("\n{answer}\n\n{done}"), &said);
    let (space, history) = (space(), History::default());
    p.told(&trial(1, Verdict::Repeated { of: 0 }));
    let Proposal::Candidates(c) = p.propose(&ask(&space, &history)).unwrap() else { panic!() };
    assert_eq!(c.len(), 1);
    assert_eq!((c[0].source.as_str(), c[0].note.as_deref()), ("stdio", Some("why not")));
    assert_eq!(c[0].knobs.get("windows.dense"), Some(&Value::Auto));
    p.told(&trial(2, Verdict::Rejected { stage: Stage::Spills, reason: "it spills".into() }));
    assert_eq!(p.propose(&ask(&space, &history)), Ok(Proposal::Done("enough".into())));
    p.bye("it is over");
    let lines = said.lines();
    let kinds: Vec<&str> = lines.iter().map(|l| l["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["hello", "trial", "ask", "trial", "ask", "bye"]);
    // Every message is of the schema, and the schema says no to other things.
    let schema = to_agent_schema();
    assert!(lines.iter().all(|l| fits(&schema, l)), "{lines:#?}");
    assert!(!fits(&schema, &json!({"v": 2, "type": "bye", "reason": "x"})));
    for good in [&answer, &done] {
        assert!(fits(&lines[0]["answer_schema"], good), "{good}");
    }
    assert!(lines[1]["replayed"] == json!(true) && lines[3]["replayed"] == json!(false));
    let fault = &lines[3]["faults"][0];
    assert_eq!(fault["code"], "spills");
    assert!(fault["fix"].as_str().unwrap().contains("fewer consumer warps"), "{fault}");
    assert_eq!(lines[2]["id"], 0);
    assert_eq!(lines[4]["id"], 1);
}

#[test]
fn every_wrong_line_says_what_to_change() {
    let candidate = r#"{"knobs":{"rotation":1}}"#;
    let many = [candidate; 3].join(",");
    let cases = [
        ("hello".to_owned(), "not_json"),
        ("[1]".to_owned(), "wrong_type"),
        (r#"{"type":"propose","id":0,"candidates":[]}"#.to_owned(), "version"),
        (r#"{"v":2,"type":"propose","id":0,"candidates":[]}"#.to_owned(), "version"),
        (r#"{"v":1,"type":"measure","id":0}"#.to_owned(), "unknown_type"),
        (r#"{"v":1,"type":"propose","candidates":[]}"#.to_owned(), "missing_field"),
        (r#"{"v":1,"type":"propose","id":0,"candidates":[]}"#.to_owned(), "nothing"),
        (format!(r#"{{"v":1,"type":"propose","id":0,"candidates":[{many}]}}"#), "too_many"),
        (format!(r#"{{"v":1,"type":"propose","id":9,"candidates":[{candidate}]}}"#), "stale"),
        (
            r#"{"v":1,"type":"propose","id":0,"candidates":[{"knobs":[1]}]}"#.to_owned(),
            "wrong_type",
        ),
        (
            r#"{"v":1,"type":"propose","id":0,"candidates":[{"knobs":{"rotation":1.5}}]}"#
                .to_owned(),
            "wrong_type",
        ),
        // Claims of one's own have no place.
        (
            r#"{"v":1,"type":"propose","id":0,"candidates":[{"knobs":{},"us":1.0}]}"#.to_owned(),
            "unknown_field",
        ),
        (
            r#"{"v":1,"type":"propose","id":0,"candidates":[],"verdict":"kept"}"#.to_owned(),
            "unknown_field",
        ),
        (
            r#"{"v":1,"type":"propose","id":0,"candidates":[{"knobs":{},"source":"start"}]}"#
                .to_owned(),
            "unknown_field",
        ),
        ("x".repeat(LONGEST_LINE + 1), "too_long"),
    ];
    let (space, history) = (space(), History::default());
    let schema = from_agent_schema(Some(&space));
    for (line, code) in cases {
        if let Ok(json) = serde_json::from_str::<Json>(&line)
            && !matches!(code, "stale" | "too_many")
        {
            assert!(!fits(&schema, &json), "{line}");
        }
        let said = Said::default();
        let good = format!(r#"{{"v":1,"type":"propose","id":0,"candidates":[{candidate}]}}"#);
        let mut p = proposer(format!("{line}\n{good}\n"), &said);
        let answer = p.propose(&ask(&space, &history));
        assert!(matches!(answer, Ok(Proposal::Candidates(_))), "{code}: {answer:?}");
        let lines = said.lines();
        let error = &lines[2];
        assert_eq!(error["type"], "error", "{lines:#?}");
        assert_eq!(error["faults"][0]["code"], code, "{error}");
        assert_eq!(error["attempts_left"], 2);
        assert!(!error["faults"][0]["fix"].as_str().unwrap().is_empty());
        assert!(fits(&to_agent_schema(), error));
    }
}

#[test]
fn who_never_answers_is_given_up() {
    let (space, history) = (space(), History::default());
    let said = Said::default();
    let mut p = proposer("a\nb\nc\nd\n", &said);
    let error = p.propose(&ask(&space, &history)).unwrap_err().to_string();
    assert!(error.contains("3 lines in a row"), "{error}");
    let mut p = proposer("", &said);
    let error = p.propose(&ask(&space, &history)).unwrap_err().to_string();
    assert!(error.contains("without saying done"), "{error}");
    // One that says nothing for too long, and one that is stopped meanwhile.
    let (reader, _kept) = std::io::pipe().unwrap();
    let patience = Duration::from_millis(60);
    let o = LinesOptions { patience, ..options() };
    let mut p = LinesProposer::new(&space, BufReader::new(reader), said.clone(), o);
    let error = p.propose(&ask(&space, &history)).unwrap_err().to_string();
    assert!(error.contains("did not answer"), "{error}");
    let (reader, _kept) = std::io::pipe().unwrap();
    let o = options();
    o.stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut p = LinesProposer::new(&space, BufReader::new(reader), said, o);
    assert!(matches!(p.propose(&ask(&space, &history)), Ok(Proposal::Done(_))));
}

#[test]
fn knobs_that_are_none_are_named_with_their_neighbours() {
    let point = Point::default()
        .with("rotations", 1)
        .with("windows.dens", 2)
        .with("windows.dense", 9)
        .with("xylophone_quality", 1);
    let faults = space_faults(&space(), &point, "knobs");
    let by = |at: &str| faults.iter().find(|f| f.at == at).unwrap_or_else(|| panic!("{faults:?}"));
    assert!(by("knobs.rotations").fix.contains("\"rotation\""));
    assert!(by("knobs.windows.dens").fix.contains("\"windows.dense\""));
    assert!(by("knobs.xylophone_quality").fix.contains("ask for the space"));
    let value = by("knobs.windows.dense");
    assert_eq!(value.code, "bad_value");
    assert!(value.fix.contains("from 1 to 4"), "{value:?}");
    assert!(space_faults(&space(), &space().default_point(), "knobs").is_empty());
}

#[test]
fn a_relay_brings_every_verdict_back() {
    let stop = Arc::new(AtomicBool::new(false));
    let (server, mut campaign) = relay("mcp", stop.clone());
    let offered =
        |n: u64| Offered { knobs: Point::default().with("rotation", n), parent: None, note: None };
    let submitted = server.submit((0..3).map(offered).collect()).unwrap();
    assert_eq!(submitted.count, 3);
    let (space, history) = (space(), History::default());
    // A trial nobody here asked for.
    campaign.told(&trial(0, Verdict::Repeated { of: 0 }));
    let mut index = 0;
    for expected in [2, 1] {
        let Proposal::Candidates(c) = campaign.propose(&ask(&space, &history)).unwrap() else {
            panic!()
        };
        assert_eq!(c.len(), expected);
        for candidate in c {
            assert_eq!(candidate.source, "mcp");
            index += 1;
            let mut trial = trial(index, Verdict::Repeated { of: 0 });
            trial.candidate = candidate;
            campaign.told(&trial);
        }
    }
    for n in 0..3 {
        let trial = submitted.next_trial().unwrap();
        assert_eq!(trial.candidate.knobs.get("rotation"), Some(&Value::Int(n)));
    }
    // Of what is not judged nobody hears; a campaign that is over takes nothing.
    let submitted = server.submit(vec![offered(5)]).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let _ = campaign.propose(&ask(&space, &history));
    drop(campaign);
    assert!(submitted.next_trial().is_none());
    assert!(server.submit(vec![offered(6)]).is_none());
}
