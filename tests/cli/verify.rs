//! `amk verify`.

use std::fs;

use serde_json::Value;

use crate::support::run;

const GOLDEN: &str = "models/default/golden.json";

#[test]
fn the_embedded_model_is_exact_in_float32() {
    let document = run(&["verify", "--golden", GOLDEN, "--json"]).exits(0).json();
    assert_eq!(document["ok"], true);
    let file = &document["files"][0];
    assert_eq!(file["compute"], "f32");
    assert_eq!(file["prompts"], 10);
    assert_eq!(file["exact"], file["positions"]);
    assert_eq!(file["excused"], 0);
    assert_eq!(file["mismatched"], 0);
    assert!(file["first_mismatch"].is_null());
    assert!(file["max_abs_logit_error"].as_f64().unwrap() <= 1e-3);
}

#[test]
fn a_wrong_token_is_one_and_is_shown() {
    let mut golden: Value = serde_json::from_slice(&fs::read(GOLDEN).unwrap()).unwrap();
    golden["runs"]["f32"]["prompts"][1]["generated_ids"][5] = 77.into();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.json");
    fs::write(&path, golden.to_string()).unwrap();
    let path = path.to_str().unwrap();
    let document = run(&["verify", "--golden", path, "--json"]).exits(1).json();
    assert_eq!(document["ok"], false);
    let first = &document["files"][0]["first_mismatch"];
    assert_eq!(first["step"], 5);
    assert_eq!(first["expected_token"], 77);
    let shown = run(&["verify", "--golden", path]).exits(1).out;
    assert!(shown.contains("failed") && shown.contains("first difference"), "{shown}");

    // The other prompts are as they were: without the second, nothing differs.
    run(&["verify", "--golden", path, "--prompts", "1"]).exits(0);
}

#[test]
fn hashes_of_the_files_are_checked_first() {
    let mut golden: Value = serde_json::from_slice(&fs::read(GOLDEN).unwrap()).unwrap();
    golden["files_sha256"]["model.safetensors"] = "0".repeat(64).into();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.json");
    fs::write(&path, golden.to_string()).unwrap();
    // The first golden would pass; nothing is computed all the same.
    run(&["verify", "--golden", GOLDEN, path.to_str().unwrap()]).exits(2).says(&[
        "model.safetensors",
        "is not the file the golden",
        "0000",
    ]);
}

#[test]
fn what_is_no_golden_is_refused() {
    run(&["verify"]).exits(2).says(&["--golden"]);
    run(&["verify", "--golden", "no-such.json"]).exits(2).says(&["no-such.json"]);
    run(&["verify", "--golden", "Cargo.toml"]).exits(2).says(&["Cargo.toml is not a golden file"]);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new.json");
    fs::write(&path, r#"{"schema": 99}"#).unwrap();
    run(&["verify", "--golden", path.to_str().unwrap()]).exits(2).says(&["version 99"]);
}

#[test]
fn the_schedule_on_the_vm_passes_in_both_types() {
    for (compute, prompts) in [("f32", "1"), ("bf16", "2")] {
        let args = ["verify", "--golden", GOLDEN, "--device", "vm", "--prompts", prompts];
        let run = run(&[&args[..], &["--compute", compute, "--json"]].concat());
        let file = &run.exits(0).json()["files"][0];
        assert_eq!(file["compute"], compute);
        assert_eq!(file["mismatched"], 0);
    }
    run(&["verify", "--golden", GOLDEN, "--compute", "bf16"]).exits(2).says(&["--device vm"]);
}
