//! A real trained model, SmolLM2-135M-Instruct (its weights were 4-bit before they became the bf16 of this checkpoint).
//! `scripts/test.sh` fetches it; without it these tests fail.

use std::path::Path;

use crate::support::run;

const FOLDER: &str = ".cache/SmolLM2-135M-Instruct";

fn folder() -> &'static str {
    let there = Path::new(FOLDER).join("model.safetensors").is_file();
    assert!(there, "{FOLDER} is not there; run scripts/test.sh, which fetches it");
    FOLDER
}

#[test]
fn two_prompts_are_exact_in_float32() {
    let golden = "tests/goldens/hf/SmolLM2-135M-Instruct.json";
    let arguments = ["verify", folder(), "--golden", golden, "--prompts", "2", "--json"];
    let document = run(&arguments).exits(0).json();
    let file = &document["files"][0];
    assert_eq!(document["ok"], true);
    assert_eq!(file["prompts"], 2);
    assert_eq!(file["exact"], file["positions"]);
    assert_eq!(file["mismatched"], 0);
    assert!(file["max_abs_logit_error"].as_f64().unwrap() <= 1e-3);
}

#[test]
fn compiles_for_hopper() {
    let out = tempfile::tempdir().unwrap();
    let to = out.path().to_str().unwrap();
    let arguments = ["compile", folder(), "--target", "sm_90a", "--out", to, "--no-run", "--json"];
    let document = run(&arguments).exits(0).json();
    let target = &document["targets"][0];
    assert_eq!(document["validated"], true);
    assert_eq!(target["spill_bytes"], 0);
    assert!(Path::new(target["cubin"].as_str().unwrap()).is_file());
}
