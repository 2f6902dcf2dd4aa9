//! The commands: campaigns killed and resumed, locked, edited; workers that crash and lie.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use amk_autoresearch::rng::Rng;
use amk_autoresearch::{Event, Trial, journal};
use serde_json::Value;

fn amk(cache: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amk"));
    command.env("AMK_CACHE", cache).env_remove("AMK_LOG").stdin(Stdio::null());
    command
}

/// A predicted campaign on the embedded model that ends by `until`.
fn campaign(folder: &Path, until: [&str; 2], more: &[&str]) -> Command {
    let mut command = amk(folder);
    command.args(["autoresearch", "--predict", "--target", "h200", "--no-compile", "--json"]);
    command.args(["--start", "naive", "--seed", "5"]).args(until).arg("--journal");
    command.arg(folder.join("journal.jsonl")).args(more);
    command
}

fn search(folder: &Path, iters: u64, more: &[&str]) -> Command {
    campaign(folder, ["--iters", &iters.to_string()], more)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(output: &Output) -> Value {
    let out = text(&output.stdout);
    let last = out.lines().last().unwrap_or_else(|| panic!("{}", text(&output.stderr)));
    serde_json::from_str(last).unwrap()
}

fn trials(folder: &Path) -> Vec<Trial> {
    let mut out = Vec::new();
    journal::check(&folder.join("journal.jsonl"), &mut |e| {
        if let Event::Trial(t) = &e.event {
            out.push(t.clone());
        }
    })
    .unwrap();
    out
}

/// Killed at random moments and resumed until it is over, a campaign has the trials of one that was left alone.
#[test]
fn a_campaign_that_is_killed_again_and_again_loses_and_repeats_nothing() {
    const ITERS: u64 = 60;
    let alone = tempfile::tempdir().unwrap();
    let done = search(alone.path(), ITERS, &[]).output().unwrap();
    assert!(done.status.success(), "{}", text(&done.stderr));
    let whole = trials(alone.path());
    assert_eq!(whole.len() as u64, ITERS);
    let document = json(&done);
    assert_eq!(document["predicted"], true);
    assert!(document["confirmation"]["text"].as_str().unwrap().contains("nothing was measured"));
    assert!(document["us"].as_f64().unwrap() < document["original_us"].as_f64().unwrap());

    let folder = tempfile::tempdir().unwrap();
    let mut rng = Rng::new(99);
    let mut kills = 0;
    loop {
        let mut command = search(folder.path(), ITERS, &["--resume"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let life = Duration::from_millis(30 + rng.below(700));
        let began = Instant::now();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            if began.elapsed() > life && kills < 12 {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        match ended {
            Some(status) => {
                assert!(status.success());
                break;
            }
            None => kills += 1,
        }
    }
    assert!(kills > 0, "nothing was killed");
    let resumed = trials(folder.path());
    assert_eq!(resumed.len(), whole.len());
    for (a, b) in whole.iter().zip(&resumed) {
        // Entries are numbered otherwise where a process began again between them.
        let of =
            |t: &Trial| (t.candidate.clone(), t.verdict.label(), t.verdict.us(), t.program.clone());
        assert_eq!(of(a), of(b));
    }
}

/// Three minutes of search, killed at random moments and resumed: what was written down whole stays as it is, and every
/// invariant of the journal holds at the end.
#[test]
fn a_campaign_of_three_minutes_only_ever_adds_to_its_journal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("journal.jsonl");
    let mut rng = Rng::new(7);
    let end = Instant::now() + Duration::from_secs(180);
    let mut known = Vec::new();
    let mut kills = 0;
    while Instant::now() < end {
        let mut command = campaign(folder.path(), ["--minutes", "3"], &["--resume", "--jobs", "1"]);
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let life = Duration::from_millis(2_000 + rng.below(23_000));
        std::thread::sleep(life.min(end.saturating_duration_since(Instant::now())));
        assert!(child.try_wait().unwrap().is_none(), "it ended before its three minutes");
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        let mut found = std::fs::read(&path).unwrap();
        // The last line may be cut short.
        found.truncate(found.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1));
        assert!(found.starts_with(&known), "a line was lost or changed by kill {kills}");
        known = found;
    }
    assert!(kills >= 7, "{kills} kills");
    // A last process that has nothing left to try writes down the end.
    let last = campaign(folder.path(), ["--iters", "1"], &["--resume"]).output().unwrap();
    assert!(last.status.success(), "{}", text(&last.stderr));
    assert!(std::fs::read(&path).unwrap().starts_with(&known));
    let verified = amk(folder.path()).args(["journal", "verify"]).arg(&path).output().unwrap();
    assert!(verified.status.success(), "{}", text(&verified.stderr));
    let found = trials(folder.path());
    assert!(found.len() > 20, "{} trials", found.len());
    assert!(found.iter().enumerate().all(|(i, t)| t.index == i as u64));
}

#[test]
fn journals_are_checked_shown_and_exported_and_an_edit_is_an_answer_of_no() {
    let folder = tempfile::tempdir().unwrap();
    let run = search(folder.path(), 20, &["--proposer", "guided"]).output().unwrap();
    assert!(run.status.success(), "{}", text(&run.stderr));
    let path = folder.path().join("journal.jsonl");
    let journal = |args: &[&str]| {
        let mut command = amk(folder.path());
        command.arg("journal").arg(args[0]).arg(&path).args(&args[1..]).output().unwrap()
    };
    let head = json(&run)["head"].as_str().unwrap().to_owned();
    let verified = journal(&["verify", "--head", &head[..12], "--json"]);
    assert_eq!((verified.status.code(), json(&verified)["trials"].as_u64()), (Some(0), Some(20)));
    assert_eq!(journal(&["verify", "--head", "0123456789abcdef"]).status.code(), Some(1));
    assert_eq!(json(&journal(&["best", "--json"]))["predicted"], true);
    assert_eq!(json(&journal(&["replay", "3", "--json"]))["ok"], true);
    assert_eq!(journal(&["show", "999"]).status.code(), Some(2));
    let knobs = folder.path().join("knobs.json");
    assert!(journal(&["export", "--out", knobs.to_str().unwrap()]).status.success());
    let read: amk::lower::Knobs = serde_json::from_slice(&std::fs::read(&knobs).unwrap()).unwrap();
    assert_ne!(read, amk::lower::Knobs::default());
    // Predictions are not kept for other commands.
    assert!(json(&run)["not_stored"].as_str().unwrap().contains("measured is kept"));

    // Begun twice; about something else; locked; edited.
    let again = search(folder.path(), 30, &[]).output().unwrap();
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--resume goes on with it"));
    let other = search(folder.path(), 30, &["--resume", "--position", "300"]).output().unwrap();
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("the position"), "{}", text(&other.stderr));
    let held = journal::Journal::resume(&path, &mut |_| {}).unwrap();
    let locked = search(folder.path(), 30, &["--resume"]).output().unwrap();
    assert!(text(&locked.stderr).contains("another process is writing"));
    drop(held);
    let edited = std::fs::read_to_string(&path).unwrap().replacen("\"index\":7", "\"index\":8", 1);
    std::fs::write(&path, edited).unwrap();
    let verified = journal(&["verify"]);
    assert_eq!(verified.status.code(), Some(1));
    assert!(text(&verified.stderr).contains("edited or damaged"), "{}", text(&verified.stderr));
    assert_eq!(search(folder.path(), 30, &["--resume"]).output().unwrap().status.code(), Some(1));
}

#[test]
fn a_stop_ends_a_campaign_cleanly() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = search(folder.path(), 1_000_000, &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let path = folder.path().join("journal.jsonl");
    let began = Instant::now();
    while std::fs::read_to_string(&path).map_or(0, |t| t.lines().count()) < 5 {
        assert!(began.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(json(&output)["stopped"], true);
    let summary = journal::check(&path, &mut |_| {}).unwrap();
    assert_eq!(summary.ended.as_deref(), Some("it was stopped"));
    assert_eq!(summary.torn_bytes, 0);
}

/// A worker that plays a device: a small Python program which crashes, hangs, babbles, claims or lies for some candidates.
const WORKER: &str = r#"
import json, sys, time, hashlib, subprocess, os
request = json.loads(sys.stdin.readline())
task = request["task"]
amk, target = os.environ["PLAY_AMK"], json.loads(os.environ["PLAY_TARGET"])
def say(reply):
    print(json.dumps(reply)); sys.exit(0)
if task["task"] == "device":
    say({"reply": "device", "device": {"fingerprint": "played part", "target": target}})
def identity(point):
    ask = dict(request, task={"task": "prepare", "point": point})
    out = subprocess.run([amk, "evaluate", "-", "--json"], input=json.dumps(ask) + "\n",
                         capture_output=True, text=True, env={k: v for k, v in os.environ.items() if k != "AMK_SEARCH_CHILD"}).stdout
    return json.loads(out)["prepared"]
def key(point):
    return hashlib.sha256(json.dumps(point, sort_keys=True).encode()).hexdigest()
if task["task"] == "compile":
    say({"reply": "compiled", "image": key(task["point"])})
job = task["job"]
c, i = job["candidate"], job["incumbent"]
folder = os.path.dirname(sys.argv[0])
way = os.path.join(folder, "way-" + key(c))
if os.path.exists(way):
    # Measured once more, beside a new incumbent: it goes wrong as before.
    n = int(open(way).read())
else:
    turn = 0
    while True:
        try:
            os.close(os.open(os.path.join(folder, f"turn{turn}"), os.O_CREAT | os.O_EXCL)); break
        except FileExistsError:
            turn += 1
    # The first turn is the start's; each of the next five goes wrong in its own way.
    n = turn - 1
    open(way, "w").write(str(n))
if c != i:
    if n == 0: os.abort()
    if n == 1: time.sleep(600)
    if n == 2: print("faster, believe me"); sys.exit(0)
    if n == 3: say({"reply": "measured", "decision": "kept", "evidence": {}})
    if n == 4: print("out of memory", file=sys.stderr); sys.exit(137)
a, b = identity(c), identity(i)
us = lambda p: 100.0 + sum(10.0 for k, v in p.items() if v == "counter")
rounds = [{"candidate_us": us(c) * (1 + 0.0001 * (r % 7)), "incumbent_us": us(i) * (1 + 0.0001 * (r % 5))}
          for r in range(job["max_rounds"])]
say({"reply": "measured", "evidence": {
    "candidate_program": a["program"], "incumbent_program": b["program"],
    "candidate_image": key(c), "incumbent_image": key(i), "device": "played part",
    "tested_positions": [96, 5], "difference": 0.0001, "bytes": a["bytes"], "read_us": 50.0, "samples": rounds}})
"#;

#[test]
fn a_workers_crash_hang_or_lie_costs_its_candidate_alone_and_the_best_is_kept_for_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("worker.py");
    std::fs::write(&script, WORKER).unwrap();
    let target = amk::target::resolve("h200").unwrap().target;
    let mut command = amk(folder.path());
    command.args([
        "autoresearch",
        "--json",
        "--start",
        "naive",
        "--iters",
        "30",
        "--patience",
        "2",
    ]);
    command.args(["--proposer", "mutate", "--prune", "0", "--devices", "2", "--journal"]);
    command.arg(folder.path().join("journal.jsonl"));
    command.arg("--worker").arg(format!("python3 {}", script.display()));
    command.env("PLAY_AMK", env!("CARGO_BIN_EXE_amk"));
    command.env("PLAY_TARGET", serde_json::to_string(&target).unwrap());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document = json(&output);
    assert_eq!(document["predicted"], false);
    let reasons: Vec<String> = trials(folder.path()).iter().map(|t| t.verdict.reason()).collect();
    for why in ["SIGABRT", "was ended", "reply is none", "out of memory"] {
        assert!(reasons.iter().any(|r| r.contains(why)), "nobody says {why:?}: {reasons:#?}");
    }
    let confirmation = &document["confirmation"];
    assert_eq!(confirmation["holds"], true, "{document}");
    let stored = document["stored"].as_str().unwrap().to_owned();

    let compile = |more: &[&str]| {
        let mut command = amk(folder.path());
        command.args(["compile", "--target", "h200", "--no-run", "--json", "--allow-spills"]);
        // An NVRTC that is none of this folder's: sources are enough here.
        command.args(["--position", "16", "--out"]).arg(folder.path().join("out")).args(more);
        json(&command.output().unwrap())
    };
    let said = |d: &Value| d["stored"].to_string();
    let with = compile(&[]);
    assert!(said(&with).contains("times as fast as the naive start"), "{with}");
    let without = compile(&["--no-store"]);
    assert_eq!(said(&without), "[]");
    assert_ne!(with["program_hash"], without["program_hash"]);
    let damaged = std::fs::read_to_string(&stored).unwrap().replace("naive", "clever");
    std::fs::write(&stored, damaged).unwrap();
    let ignored = compile(&[]);
    assert!(said(&ignored).contains("damaged or was edited"), "{ignored}");
    assert_eq!(ignored["program_hash"], without["program_hash"]);
}

#[test]
fn a_request_is_answered_and_one_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let ask = |request: &str| {
        let file = folder.path().join("request.json");
        std::fs::write(&file, request).unwrap();
        amk(folder.path()).args(["evaluate", "--json"]).arg(&file).output().unwrap()
    };
    let base = r#""target": "h200", "compile": false"#;
    let good = ask(&format!(
        r#"{{{base}, "task": {{"task": "evaluate", "candidate": {{"knobs": {{"rotation": 3}}}}}}}}"#
    ));
    assert_eq!(good.status.code(), Some(0), "{}", text(&good.stderr));
    assert_eq!(json(&good)["verdict"]["verdict"], "predicted");
    let refused = ask(&format!(
        r#"{{{base}, "task": {{"task": "prepare", "point": {{"rotation": 4000}}}}}}"#
    ));
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stdout).contains("rotation is 4000"));
    let claims = ask(&format!(
        r#"{{{base}, "task": {{"task": "evaluate", "candidate": {{"knobs": {{}}, "us": 1}}}}}}"#
    ));
    assert_eq!(claims.status.code(), Some(2));
    for nonsense in ["", "{}", "[1]", "{\"task\": {\"task\": \"win\"}}"] {
        assert_eq!(ask(nonsense).status.code(), Some(2), "{nonsense:?}");
    }
}
