//! Commands that need a CUDA device, on a machine without: one sentence, exit code 3, never a panic.

use std::path::Path;

use crate::support::{Run, amk, finish, run};

/// Hides a driver this machine may have: what is found first is no library.
fn without_driver(args: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    for name in ["libcuda.so", "libcuda.so.1", "libnvcuda.so", "libnvcuda.so.1"] {
        std::fs::write(folder.path().join(name), "").unwrap();
    }
    let inherited = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    let path = format!("{}:{inherited}", folder.path().display());
    finish(amk().args(args).env("LD_LIBRARY_PATH", path))
}

#[test]
fn every_command_that_needs_a_device_says_so() {
    let golden = "models/default/golden.json";
    let commands: [&[&str]; 8] = [
        &["generate", "--prompt", "x", "--device", "cuda"],
        &["verify", "--golden", golden, "--device", "cuda"],
        &["bench"],
        &["bench", "--repeat-check", "3"],
        &["trace"],
        &["diagnose", "hang"],
        &["diagnose", "refusals"],
        &["diagnose", "corrupt"],
    ];
    for command in commands {
        let run = without_driver(command).exits(3).says(&["no CUDA driver", "install"]);
        assert_eq!(run.out, "", "{command:?}");
        let json = without_driver(&[command, &["--json"]].concat()).exits(3).json();
        assert_eq!(json["error"]["exit_code"], 3, "{command:?}");
        assert_eq!(json["ok"], false);
    }
    // Nothing was written.
    assert!(!Path::new("trace").exists());
}

#[test]
fn auto_is_the_cpu_where_there_is_no_device() {
    let args = ["generate", "--prompt", "x", "--max-tokens", "2", "--json"];
    let auto = without_driver(&args).exits(0).json();
    assert_eq!(auto["device"], "cpu");
    assert!(auto["self_test"].is_null());
    let args = ["generate", "--prompt", "x", "--max-tokens", "2", "--activations", "bf16"];
    without_driver(&args).exits(2).says(&["--device vm or cuda"]);
}

#[test]
fn wrong_wishes_are_refused_before_a_device_is_looked_for() {
    run(&["bench", "--positions", "600"]).exits(2).says(&["position 600", "512"]);
    run(&["bench", "--positions", "500", "--steps", "20"]).exits(2).says(&["500", "20 steps"]);
    run(&["bench", "--prefill", "--steps", "2"]).exits(2).says(&["cannot be used with"]);
    run(&["bench", "--baseline", "cublas"]).exits(2).says(&["graph", "compile"]);
    run(&["trace", "--position", "512"]).exits(2).says(&["512"]);
    run(&["diagnose", "corrupt", "--replace", "same=same"]).exits(2).says(&["OLD=NEW"]);
    run(&["generate", "--prompt-ids", "1024", "--device", "cuda"]).exits(2).says(&["vocabulary"]);
    run(&["generate", "--prompt", "x", "--target", "sm_80", "--resources-of", "sm_120"])
        .exits(2)
        .says(&["cannot be used with"]);
}

#[test]
fn streams_can_be_held_back() {
    let args = ["generate", "--prompt", "And the king", "--max-tokens", "4", "--json"];
    let held = run(&[&args[..], &["--stream", "--no-stream"]].concat()).exits(0);
    assert_eq!(held.documents().len(), 1);
    let told = run(&[&args[..], &["--no-stream", "--stream"]].concat()).exits(0);
    assert_eq!(told.documents().len(), 5);
}
