//! `amk validate`: verdicts, and files that are anything but schedules.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{Run, amk, finish, run};

const GOOD: &str = "tests/schedules/accept/r-raw.sched";
const RACE: &str = "tests/schedules/reject/r-raw.sched";

/// Runs `amk validate` on a file with this content.
fn validate_bytes(bytes: &[u8]) -> Run {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, bytes).unwrap();
    // What a user sees must not depend on where the file is.
    let run = finish(amk().arg("validate").arg(&path));
    assert!(!run.err.contains("panicked"), "{}", run.err);
    run
}

fn as_json(path: &str) -> Value {
    let text = fs::read_to_string(path).unwrap();
    serde_json::to_value(amk_schedule_ir::text::parse(&text).unwrap()).unwrap()
}

#[test]
fn an_accepted_schedule_is_zero() {
    let document = run(&["validate", GOOD, "--json"]).exits(0).json();
    assert_eq!(document["ok"], true);
    assert_eq!(document["faults"], json!([]));
    assert_eq!(document["instructions"], 4);
    assert!(document["seconds"].as_f64().unwrap() >= 0.0);
    assert_eq!(document["program_hash"].as_str().unwrap().len(), 64);
    assert!(run(&["validate", GOOD]).exits(0).out.starts_with("accepted"));
}

#[test]
fn a_rejected_schedule_is_one_with_fault_and_witness() {
    let document = run(&["validate", RACE, "--json"]).exits(1).json();
    assert_eq!(document["ok"], false);
    let fault = &document["faults"][0];
    assert_eq!(fault["invariant"], "R");
    assert_eq!(fault["instruction"], 1);
    assert!(fault["message"].as_str().unwrap().contains("instr 1"));
    assert_eq!(fault["witness"]["kind"], "race");

    let shown = run(&["validate", RACE]).exits(1).out;
    // The place, the line itself, the witness, the verdict.
    let line =
        fs::read_to_string(RACE).unwrap().lines().position(|l| l.starts_with("instr 1")).unwrap()
            + 1;
    assert!(shown.contains(&format!("{RACE}:{line}:")), "{shown}");
    assert!(shown.contains("instr 1 opaque{tag=2}"), "{shown}");
    assert!(shown.contains("first access") && shown.contains("missing"), "{shown}");
    assert!(shown.contains("rejected: 1 fault in 4 instructions"), "{shown}");
}

#[test]
fn json_form_gives_the_same_verdict_and_hash() {
    for (path, code) in [(GOOD, 0), (RACE, 1)] {
        let text = run(&["validate", path, "--json"]).exits(code).json();
        let dir = TempDir::new().unwrap();
        let file = dir.path().join("program.json");
        fs::write(&file, as_json(path).to_string()).unwrap();
        let file = file.to_str().unwrap();
        let json = run(&["validate", file, "--json"]).exits(code).json();
        assert_eq!(text["program_hash"], json["program_hash"]);
        assert_eq!(text["faults"], json["faults"]);
        if code == 1 {
            let shown = run(&["validate", file]).exits(1).out;
            assert!(shown.contains("as text:"), "{shown}");
        }
    }
}

#[test]
fn every_reject_fixture_is_rejected_and_every_accept_fixture_accepted() {
    for (folder, code) in [("tests/schedules/accept", 0), ("tests/schedules/reject", 1)] {
        let mut files: Vec<PathBuf> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|f| f.extension().is_some_and(|e| e == "sched"));
        assert!(!files.is_empty());
        for file in files {
            // They are written for one part, whatever target they name.
            let h200 = [Path::new("--target"), Path::new("h200")];
            let run = run(&[&[Path::new("validate"), &file], &h200[..]].concat()).exits(code);
            assert_eq!(run.err, "", "{}", file.display());
        }
    }
}

#[test]
fn standard_input_is_a_file_too() {
    let mut child =
        amk().args(["validate", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&fs::read(GOOD).unwrap()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout.starts_with(b"accepted"));
}

#[test]
fn targets_are_found_or_refused_by_name() {
    run(&["validate", GOOD, "--target", "h100"]).exits(0);
    run(&["validate", GOOD, "--target", "sm_77"]).exits(2).says(&["sm_77", "sm_90a"]);
    run(&["validate", GOOD, "--target-file", "no-such.json"]).exits(2).says(&["no-such.json"]);
    run(&["validate", GOOD, "--target-file", "Cargo.toml"]).exits(2).says(&["Cargo.toml"]);
    let text = fs::read_to_string(GOOD).unwrap().replace("target sm_90a", "target sm_1x");
    validate_bytes(text.as_bytes()).exits(2).says(&["sm_1x", "--target"]);
}

#[test]
fn other_format_versions_are_refused_by_name() {
    let text = fs::read_to_string(GOOD).unwrap().replace("amk-schedule 1", "amk-schedule 7");
    validate_bytes(text.as_bytes()).exits(2).says(&["version 7"]);
    let mut program = as_json(GOOD);
    program["version"] = json!(7);
    validate_bytes(program.to_string().as_bytes()).exits(2).says(&["version 7 is not known"]);
    program["version"] = json!("one");
    validate_bytes(program.to_string().as_bytes()).exits(2).says(&["version \"one\""]);
    program.as_object_mut().unwrap().remove("version");
    validate_bytes(program.to_string().as_bytes()).exits(2).says(&["version none"]);
}

#[test]
fn unknown_fields_and_wrong_types_are_named_with_their_place() {
    let mut program = as_json(GOOD);
    program["surprise"] = json!(1);
    validate_bytes(program.to_string().as_bytes()).exits(2).says(&["surprise", "line 1"]);
    let mut program = as_json(GOOD);
    program["tokens"] = json!(-1);
    validate_bytes(program.to_string().as_bytes()).exits(2).says(&["-1"]);
}

#[test]
fn a_parse_error_points_into_the_text() {
    let text = fs::read_to_string(GOOD)
        .unwrap()
        .replace("buffer 0 \"x\" activation", "buffer 0 \"x\" actuation");
    let run = validate_bytes(text.as_bytes()).exits(2);
    assert!(run.err.contains("actuation") && run.err.contains("here"), "{}", run.err);
    let line = text.lines().position(|l| l.contains("actuation")).unwrap() + 1;
    assert!(run.err.contains(&format!("file:{line}:")), "{}", run.err);
}

#[test]
fn garbage_gets_a_sentence() {
    let good = fs::read(GOOD).unwrap();
    let program = as_json(GOOD).to_string();
    let cases: Vec<Vec<u8>> = vec![
        vec![],
        b"\n\n \t".to_vec(),
        b"\0\0\0\0".to_vec(),
        b"\xff\xfe\x00".to_vec(),
        b"{".to_vec(),
        b"{}".to_vec(),
        b"[1, 2, 3]".to_vec(),
        b"null".to_vec(),
        b"PK\x03\x04".to_vec(),
        b"\x1b[2J\x1b[31m".to_vec(),
        "\u{feff}amk-schedule 1".into(),
        [b"{\"version\": ".to_vec(), vec![b'['; 100_000]].concat(),
        [b"{\"version\": 1, \"a\": ".to_vec(), b"{\"a\":".repeat(100_000)].concat(),
        [vec![b' '; 20_000_000], b"x".to_vec()].concat(),
        vec![b'\n'; 5_000_000],
        vec![b'#'; 5_000_000],
        vec![b'a'; 5_000_000],
        [b"amk-schedule 1 name \"".to_vec(), vec![b'x'; 3_000_000]].concat(),
        [b"amk-schedule 1\nname ".to_vec(), vec![b'9'; 100_000]].concat(),
        program.as_bytes()[..program.len() / 2].to_vec(),
    ];
    for (i, case) in cases.iter().enumerate() {
        let run = validate_bytes(case);
        assert_eq!(run.code, 2, "case {i}: {} {}", run.out, run.err);
        assert!(!run.err.trim().is_empty() && run.err.len() < 3000, "case {i}: {}", run.err);
        assert!(!run.err.contains('\u{1b}'), "case {i}: {:?}", run.err);
    }
    // Every prefix: a sentence or a verdict, never a crash.
    for end in (0..good.len()).step_by(7) {
        let run = validate_bytes(&good[..end]);
        assert!([1, 2].contains(&run.code), "{end}: {}", run.err);
    }
}

#[test]
fn huge_numbers_are_judged_or_refused() {
    let good = fs::read_to_string(GOOD).unwrap();
    let max = u64::MAX.to_string();
    for (from, to) in [
        ("[1, 16]", format!("[{max}, {max}]")),
        ("bucket 0..=63", format!("bucket 0..={max}")),
        ("steps 8", format!("steps {max}")),
        ("tokens 1", "tokens 4294967295".to_owned()),
        ("slots 2", "slots 4294967295".to_owned()),
        ("slot_bytes 4096", format!("slot_bytes {max}")),
        ("init 0 per_step 1", format!("init {max} per_step {max}")),
        ("signal 0+1", format!("signal 4294967295+{max}")),
        ("queue 0 2", "queue 4294967295 0 0 0".to_owned()),
        ("steps 8", "steps 99999999999999999999999999".to_owned()),
    ] {
        assert!(good.contains(from), "{from}");
        let run = validate_bytes(good.replace(from, &to).as_bytes());
        // A ring that nobody uses may have any size; everything else is out of range.
        let verdicts: &[i32] = if from.starts_with("slot") { &[0, 1, 2] } else { &[1, 2] };
        assert!(verdicts.contains(&run.code), "{to}: {} {}", run.out, run.err);
    }
}

#[test]
fn memory_is_bounded_by_the_file() {
    // A stream without an end is read up to the limit and no further; here through a small limit on memory.
    let status = std::process::Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 4000000; exec \"$0\" validate /dev/zero")
        .arg(env!("CARGO_BIN_EXE_amk"))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&status.stderr);
    assert_eq!(status.status.code(), Some(2), "{err}");
    assert!(err.contains("more than"), "{err}");
}

/// A gigabyte of nothing, most of it line ends, ends in a sentence and takes little more memory than itself.
#[test]
fn a_gigabyte_of_blanks_is_refused_in_bounded_memory() {
    let mut child = std::process::Command::new("sh")
        .arg("-c")
        .arg("ulimit -v 3000000; exec \"$0\" validate -")
        .arg(env!("CARGO_BIN_EXE_amk"))
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let blanks = [vec![b'\n'; 700_000], vec![b' '; 300_000]].concat();
    let mut input = child.stdin.take().unwrap();
    for _ in 0..1000 {
        input.write_all(&blanks).unwrap();
    }
    drop(input);
    let output = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("the end of the file") && err.len() < 3000, "{err}");
}

#[test]
fn what_cannot_be_read_is_named() {
    run(&["validate", "no-such.sched"]).exits(2).says(&["no-such.sched"]);
    run(&["validate", "src"]).exits(2).says(&["src"]);
}
