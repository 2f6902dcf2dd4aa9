//! `amk toolchain` and `amk doctor` on machines that lack things.

use std::process::Command;

use crate::support::{amk, finish, run};

/// A machine whose named NVRTC is not there, with an empty cache and no Python.
fn bare(cache: &std::path::Path, args: &[&str]) -> Command {
    let mut command = amk();
    command
        .args(args)
        .env("AMK_CACHE", cache)
        .env("AMK_NVRTC", cache.join("no-such-library"))
        .env("AMK_PYTHON", cache.join("no-such-python"));
    command
}

#[test]
fn status_without_a_compiler_is_three_and_says_how_to_get_one() {
    let cache = tempfile::tempdir().unwrap();
    let status = finish(&mut bare(cache.path(), &["toolchain", "status"])).exits(3);
    assert!(status.out.contains("AMK_NVRTC"), "{}", status.out);
    let document =
        finish(&mut bare(cache.path(), &["toolchain", "status", "--json"])).exits(3).json();
    assert_eq!(document["ok"], false);
    assert!(document["nvrtc"].is_null());
    assert_eq!(document["fetched"].as_array().unwrap().len(), 0);
}

#[test]
fn fetch_without_python_is_three_and_names_it() {
    let cache = tempfile::tempdir().unwrap();
    finish(&mut bare(cache.path(), &["toolchain", "fetch"]))
        .exits(3)
        .says(&["no-such-python", "python 3 with pip"]);
}

#[test]
fn fetch_of_a_version_that_is_none_is_wrong_use() {
    run(&["toolchain", "fetch", "--version", "newest"]).exits(2).says(&["newest", "like 13."]);
}

#[test]
fn doctor_reports_every_check_with_its_fix() {
    let document = run(&["doctor", "--json"]).json();
    let checks = document["checks"].as_array().unwrap();
    let names: Vec<_> = checks.iter().map(|c| c["name"].as_str().unwrap()).collect();
    for name in ["nvrtc", "driver", "device", "python", "cache"] {
        assert!(names.contains(&name), "{names:?}");
    }
    for check in checks {
        assert!(["ok", "warn", "fail"].contains(&check["status"].as_str().unwrap()));
        assert!(!check["detail"].as_str().unwrap().is_empty());
        assert_eq!(check["status"] == "ok", check["fix"].is_null(), "{check}");
    }
    let failed = checks.iter().any(|c| c["status"] == "fail");
    assert_eq!(document["ok"], !failed);
}

#[test]
fn doctor_fails_on_a_named_compiler_that_is_not_there() {
    let cache = tempfile::tempdir().unwrap();
    let doctor = finish(&mut bare(cache.path(), &["doctor"])).exits(3);
    assert!(doctor.out.contains("fail  nvrtc"), "{}", doctor.out);
    assert!(doctor.out.contains("fix:"), "{}", doctor.out);
}
