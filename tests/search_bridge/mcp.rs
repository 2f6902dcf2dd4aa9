//! `amk mcp` driven by a client of the protocol's own library.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rmcp::ServiceExt;
use rmcp::model::{CallToolRequestParams, CallToolResult};
use rmcp::service::{RoleClient, RunningService};
use serde_json::{Value as Json, json};
use tokio::net::unix::pipe;

type Client = RunningService<RoleClient, ()>;

/// Starts a server in a folder and shakes hands with it.
async fn connect(folder: &Path) -> (Child, Client) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_amk"))
        .args(["mcp", "--target", "h200", "--no-compile", "--journal", "campaign.jsonl"])
        .current_dir(folder)
        .env("AMK_CACHE_DIR", folder.join("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let from = OwnedFd::from(child.stdout.take().unwrap());
    let to = OwnedFd::from(child.stdin.take().unwrap());
    let from = pipe::Receiver::from_owned_fd(from).unwrap();
    let to = pipe::Sender::from_owned_fd(to).unwrap();
    let client = ().serve((from, to)).await.unwrap();
    (child, client)
}

async fn raw(client: &Client, tool: &str, arguments: Json) -> CallToolResult {
    let Json::Object(arguments) = arguments else { panic!("{arguments}") };
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    client.call_tool(params).await.unwrap()
}

/// A tool's document, which also stands in its text.
async fn call(client: &Client, tool: &str, arguments: Json) -> Json {
    let result = raw(client, tool, arguments).await;
    let document = result.structured_content.clone().unwrap();
    assert_eq!(result.is_error, Some(document["ok"] == json!(false)), "{tool}: {document}");
    let text = serde_json::to_value(&result.content).unwrap();
    let text: Json = serde_json::from_str(text[0]["text"].as_str().unwrap()).unwrap();
    assert_eq!(text, document);
    document
}

fn fault(document: &Json, code: &str) -> String {
    assert_eq!(document["ok"], json!(false), "{document}");
    let faults = document["faults"].as_array().unwrap();
    let found = faults.iter().find(|f| f["code"] == code).unwrap_or_else(|| panic!("{document}"));
    assert!(!found["message"].as_str().unwrap().is_empty(), "{found}");
    found["fix"].as_str().unwrap().to_owned()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}

/// Leaves, and waits until the campaign has ended and the server with it.
async fn leave(mut child: Child, client: Client) {
    client.cancel().await.unwrap();
    let ended = tokio::task::spawn_blocking(move || child.wait()).await.unwrap().unwrap();
    assert!(ended.success(), "{ended}");
}

#[test]
fn an_agent_looks_proposes_and_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    block_on(async {
        let (child, client) = connect(folder.path()).await;
        let info = client.peer_info().unwrap();
        assert!(info.capabilities.tools.is_some(), "{info:?}");
        let tools = client.list_all_tools().await.unwrap();
        let names: Vec<&str> = tools.iter().map(|t| t.name.as_ref()).collect();
        let expected = [
            "doctor",
            "space",
            "propose",
            "validate",
            "evaluate",
            "journal",
            "best",
            "trace_summary",
        ];
        assert_eq!(names, expected);
        for tool in &tools {
            let schema = Json::Object((*tool.input_schema).clone());
            assert_eq!(schema["type"], "object", "{schema}");
            assert_eq!(schema["additionalProperties"], json!(false), "{schema}");
            assert!(tool.description.as_ref().is_some_and(|d| d.len() > 20));
        }
        let doctor = call(&client, "doctor", json!({})).await;
        assert!(doctor["report"]["checks"].is_array(), "{doctor}");
        let space = call(&client, "space", json!({})).await;
        assert_eq!(space["predicted"], json!(true));
        let knobs = space["space"]["knobs"].as_array().unwrap();
        assert!(knobs.iter().any(|k| k["name"] == "rotation"), "{space}");
        assert!(space["schema"]["properties"]["rotation"].is_object());

        // What is wrong is said with what to change.
        let unknown = json!({ "knobs": { "rotations": 1 } });
        let fix = fault(&call(&client, "validate", unknown).await, "unknown_knob");
        assert!(fix.contains("\"rotation\""), "{fix}");
        let value = json!({ "knobs": { "consumer_warps": 1000 } });
        assert!(fault(&call(&client, "validate", value).await, "bad_value").contains("from 1"));
        // Claims of one's own have no place.
        let claim = json!({ "candidates": [{ "knobs": {}, "us": 1.0, "verdict": "kept" }] });
        fault(&call(&client, "propose", claim).await, "unknown_field");
        fault(&call(&client, "propose", json!({ "candidates": [] })).await, "nothing");
        fault(&call(&client, "journal", json!({ "from": "x" })).await, "wrong_type");
        let none = raw(&client, "lower_the_clock", json!({})).await;
        fault(&none.structured_content.unwrap(), "unknown_tool");

        let valid = call(&client, "validate", json!({ "knobs": { "rotation": 3 } })).await;
        assert_eq!(valid["program"].as_str().unwrap().len(), 64);
        assert!(valid["predicted_us"].as_f64().unwrap() >= valid["floor_us"].as_f64().unwrap());
        let evaluated = call(&client, "evaluate", json!({ "knobs": { "rotation": 3 } })).await;
        assert_eq!(evaluated["predicted"], json!(true), "{evaluated}");
        let summary = call(&client, "trace_summary", json!({ "knobs": {} })).await;
        assert_eq!(summary["predicted"], json!(true));
        assert!(summary["ops"]["norm_gate_up"]["products_us"].as_f64().unwrap() > 0.0, "{summary}");

        let batch = json!({ "candidates": [
            { "knobs": { "rotation": 2 }, "note": "a first try" },
            { "knobs": { "ring_slots": 2, "edges.hidden": "counter" } },
            { "knobs": { "rotation": 2 } },
            { "knobs": { "rotation": "fast" } },
        ] });
        let judged = call(&client, "propose", batch).await;
        let trials = judged["trials"].as_array().unwrap();
        assert_eq!(trials.len(), 4, "{judged}");
        assert!(trials.iter().all(|t| t["source"] == "mcp"));
        let good = ["kept (predicted)", "not faster (predicted)"];
        for t in &trials[..2] {
            assert!(good.iter().any(|g| t["verdict"] == *g), "{t}");
            assert!(t["us"].as_f64().unwrap() > 0.0 && t["predicted"] == json!(true));
        }
        assert!(trials[2]["kept"] == json!(false) && !trials[2]["faults"][0].is_null());
        assert_eq!(trials[3]["verdict"], "rejected", "{}", trials[3]);
        let reason = trials[3]["faults"][0]["message"].as_str().unwrap();
        assert!(reason.contains("rotation") && reason.contains("must be"), "{reason}");

        let journal = call(&client, "journal", json!({ "limit": 50 })).await;
        let entries = journal["entries"].as_array().unwrap();
        // The header, that a process began, the start, four candidates.
        assert_eq!(journal["of"].as_u64().unwrap() as usize, entries.len());
        let written: Vec<&Json> =
            entries.iter().map(|e| &e["event"]["trial"]).filter(|t| !t.is_null()).collect();
        assert_eq!(written.len(), 5, "{journal}");
        for (t, w) in trials.iter().zip(&written[1..]) {
            assert_eq!((&t["id"], &t["verdict"], &t["us"]), (&w["id"], &w["verdict"], &w["us"]));
        }
        let best = call(&client, "best", json!({})).await;
        let incumbent = best["us"].as_f64().unwrap();
        assert!(incumbent <= best["original_us"].as_f64().unwrap());
        leave(child, client).await;
    });
    // The journal holds together, and the next server goes on with it.
    let verify = Command::new(env!("CARGO_BIN_EXE_amk"))
        .args(["journal", "verify", "campaign.jsonl"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(verify.status.success(), "{verify:?}");
    block_on(async {
        let (child, client) = connect(folder.path()).await;
        let again = json!({ "candidates": [{ "knobs": { "rotation": 2 } }, { "knobs": { "rotation": 5 } }] });
        let judged = call(&client, "propose", again).await;
        let trials = judged["trials"].as_array().unwrap();
        // Judged before, in an earlier process; and a new one, which is not lost on the way.
        assert_eq!(trials.len(), 2, "{judged}");
        assert_eq!(trials[0]["kept"], json!(false));
        assert!(trials[1]["us"].as_f64().is_some() || !trials[1]["faults"][0].is_null());
        let journal = call(&client, "journal", json!({ "from": 0, "limit": 1 })).await;
        assert_eq!(journal["entries"].as_array().unwrap().len(), 1);
        assert!(journal["of"].as_u64().unwrap() > 8);
        leave(child, client).await;
    });
}

#[test]
fn what_does_not_speak_the_protocol_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_amk"))
        .args(["mcp", "--target", "h200", "--no-compile"])
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("MCP"), "{said}");
    assert!(output.stdout.is_empty());
}

/// The protocol's library would keep the last of two values; the server refuses the message and goes on.
#[test]
fn a_message_that_names_a_key_twice_is_refused_with_the_key() {
    use std::io::{BufRead, BufReader, Write};
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_amk"))
        .args(["mcp", "--target", "h200", "--no-compile", "--journal", "campaign.jsonl"])
        .current_dir(&folder)
        .env("AMK_CACHE_DIR", folder.path().join("cache"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut to = child.stdin.take().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut answer = |line: &str| -> Json {
        writeln!(to, "{line}").unwrap();
        serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap()
    };
    let hello = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}"#;
    assert_eq!(answer(hello)["id"], 1);
    let twice = r#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"validate","arguments":{"knobs":{"rotation":1,"rotation":2}}}}"#;
    let refused = answer(twice);
    assert_eq!(refused["id"], 2, "{refused}");
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(message.contains("\"rotation\" is given twice"), "{message}");
    let ready = r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#;
    let once = r#"{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"validate","arguments":{"knobs":{"rotation":2}}}}"#;
    let judged = answer(&format!("{ready}\n{once}"));
    assert_eq!(
        (&judged["id"], &judged["result"]["isError"]),
        (&json!(3), &json!(false)),
        "{judged}"
    );
    drop(to);
    assert!(child.wait().unwrap().success());
}
