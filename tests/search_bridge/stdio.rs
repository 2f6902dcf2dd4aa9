//! `amk autoresearch --proposer stdio`: an agent that speaks JSON lines.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value as Json, json};

struct Agent {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

impl Agent {
    fn start(folder: &std::path::Path, more: &[&str]) -> Agent {
        let mut child = Command::new(env!("CARGO_BIN_EXE_amk"))
            .args(["autoresearch", "--proposer", "stdio", "--target", "h200", "--no-compile"])
            .args(["--predict", "--no-store", "--batch", "4", "--journal", "j.jsonl"])
            .args(more)
            .current_dir(folder)
            .env("AMK_CACHE_DIR", folder.join("cache"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Agent { child, to, from }
    }

    fn hear(&mut self) -> Json {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|e| panic!("{e}: {line:?}"))
    }

    /// Hears messages up to the next of a type; all of them.
    fn until(&mut self, kind: &str) -> Vec<Json> {
        let mut heard = vec![self.hear()];
        while heard.last().unwrap()["type"] != kind {
            heard.push(self.hear());
        }
        heard
    }

    fn say(&mut self, message: &Json) {
        writeln!(self.to.as_mut().unwrap(), "{message}").unwrap();
    }

    fn end(mut self) -> std::process::ExitStatus {
        drop(self.to.take());
        self.child.wait().unwrap()
    }
}

#[test]
fn an_agent_names_candidates_and_hears_what_came_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(folder.path(), &["--iters", "200"]);
    let heard = agent.until("ask");
    assert_eq!(heard[0]["type"], "hello");
    assert!(heard[0]["knobs_schema"]["properties"]["rotation"].is_object());
    let start = heard.iter().find(|m| m["type"] == "trial").unwrap();
    assert_eq!(start["source"], "start");
    let ask = heard.last().unwrap();
    assert_eq!((&ask["v"], &ask["id"], &ask["count"]), (&json!(1), &json!(0), &json!(4)));

    // A claim is no candidate: the ask stands.
    agent.say(
        &json!({ "v": 1, "type": "propose", "id": 0, "candidates": [{ "knobs": {}, "us": 1 }] }),
    );
    let error = agent.until("error").pop().unwrap();
    assert_eq!(error["faults"][0]["code"], "unknown_field");
    agent.say(&json!({ "v": 1, "type": "propose", "id": 0, "candidates": [
        { "knobs": { "rotation": 4 }, "note": "why not" }, { "knobs": { "rotatoin": 4 } },
    ] }));
    let heard = agent.until("ask");
    let trials: Vec<&Json> = heard.iter().filter(|m| m["type"] == "trial").collect();
    assert_eq!(trials.len(), 2, "{heard:?}");
    assert!(trials[0]["us"].as_f64().unwrap() > 0.0 && trials[0]["predicted"] == json!(true));
    assert_eq!(trials[1]["verdict"], "rejected");
    assert!(trials[1]["faults"][0]["message"].as_str().unwrap().contains("rotatoin"));
    agent.say(&json!({ "v": 1, "type": "done", "id": 1, "reason": "that was all" }));
    assert!(agent.end().success());

    // It goes on, and the agent hears of everything once more.
    let mut agent = Agent::start(folder.path(), &["--iters", "200", "--resume"]);
    let heard = agent.until("ask");
    let replayed = heard.iter().filter(|m| m["replayed"] == json!(true)).count();
    assert_eq!(replayed, 2, "{heard:?}");
    let id = heard.last().unwrap()["id"].clone();
    agent.say(&json!({ "v": 1, "type": "propose", "id": id, "candidates": [{ "knobs": { "rotation": 6 } }] }));
    let heard = agent.until("ask");
    let trial = heard.iter().find(|m| m["type"] == "trial").unwrap_or_else(|| panic!("{heard:?}"));
    assert_eq!(trial["knobs"]["rotation"], 6);
    // Leaving without a word is an error, and what was judged stays.
    assert!(!agent.end().success());
    let verify = Command::new(env!("CARGO_BIN_EXE_amk"))
        .args(["journal", "verify", "j.jsonl", "--json"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let document: Json = serde_json::from_slice(&verify.stdout).unwrap();
    assert_eq!((&document["ok"], &document["trials"]), (&json!(true), &json!(4)));
}
