//! `amk validate --certificate` and `amk check`.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::run;

const GOOD: &str = "tests/schedules/accept/llama-layer.sched";
const OTHER: &str = "tests/schedules/accept/r-raw.sched";

/// The certificate of a schedule, in a folder of its own.
fn certificate(schedule: &str) -> (TempDir, String) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cert.json").to_str().unwrap().to_owned();
    let args = ["validate", schedule, "--target", "h200", "--json", "--certificate", &path];
    let document = run(&args).exits(0).json();
    assert_eq!(document["certificate"], json!(path));
    (dir, path)
}

fn check(schedule: &str, certificate: &str) -> crate::support::Run {
    run(&["check", schedule, certificate, "--target", "h200", "--json"])
}

#[test]
fn a_certificate_proves_its_schedule_and_no_other() {
    let (_dir, path) = certificate(GOOD);
    let document = check(GOOD, &path).exits(0).json();
    assert_eq!(document["ok"], true);
    assert!(document["refusal"].is_null());
    let refused = check(OTHER, &path).exits(1).json();
    assert_eq!(refused["ok"], false);
    assert!(refused["refusal"].as_str().unwrap().contains("for the program"), "{refused}");
    let shown = run(&["check", GOOD, &path, "--target", "h200"]).exits(0).out;
    assert!(shown.starts_with("proved"), "{shown}");
}

#[test]
fn a_changed_certificate_is_refused() {
    let (_dir, path) = certificate(GOOD);
    let mut certificate: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    certificate["order"].as_array_mut().unwrap().reverse();
    fs::write(&path, certificate.to_string()).unwrap();
    let refused = check(GOOD, &path).exits(1).json();
    assert!(refused["refusal"].as_str().unwrap().contains("damaged"), "{refused}");
}

#[test]
fn a_rejected_schedule_gets_no_certificate() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("cert.json");
    let args = ["validate", "tests/schedules/reject/r-raw.sched", "--json", "--certificate"];
    let document = run(&[&args[..], &[path.to_str().unwrap()]].concat()).exits(1).json();
    assert!(document["certificate"].is_null());
    assert!(!path.exists());
}

#[test]
fn what_is_no_certificate_is_wrong_use() {
    run(&["check", OTHER, "Cargo.toml"]).exits(2).says(&["Cargo.toml is no certificate"]);
    run(&["check", OTHER, "no-such.json"]).exits(2).says(&["no-such.json"]);
    run(&["check", "Cargo.toml", "Cargo.toml"]).exits(2).says(&["schedule"]);
}
