//! Every family on the CPU, and what schedules cannot express refused by the feature's name.

use crate::support::run;

/// Checkpoints, one a family.
const FAMILIES: &[&str] = &[
    "llama-attnbias-f32",
    "mistral-swa-bf16",
    "qwen2-bf16",
    "qwen3-bf16",
    "smollm3-nope-bf16",
    "phi3-swa-bf16",
    "gemma2-bf16",
    "gemma3-text-bf16",
    "granite-tied-bf16",
    "olmo2-f32",
];

#[test]
fn the_cpu_reference_is_exact_for_each() {
    for name in FAMILIES {
        let folder = format!("tests/checkpoints/{name}");
        let golden = format!("tests/goldens/hf/{name}.json");
        let args = ["verify", &folder, "--golden", &golden, "--prompts", "1", "--json"];
        let document = run(&args).exits(0).json();
        assert_eq!(document["files"][0]["exact"], document["files"][0]["positions"], "{name}");
        let ids = ["generate", &folder, "--prompt-ids", "3,4,5", "--max-tokens", "2", "--json"];
        assert_eq!(run(&ids).exits(0).json()["device"], "cpu");
    }
}

#[test]
fn schedules_refuse_what_they_cannot_express_by_name() {
    let temporary = tempfile::tempdir().unwrap();
    let out = temporary.path().join("out");
    let model = temporary.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for entry in std::fs::read_dir("tests/checkpoints/llama-gqa-bf16").unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
    }
    let config = model.join("config.json");
    // Frequencies that depend on the length of the sequence.
    let text = std::fs::read_to_string(&config).unwrap();
    let mut object: serde_json::Value = serde_json::from_str(&text).unwrap();
    object["rope_scaling"] = serde_json::json!({"rope_type": "dynamic", "factor": 2.0});
    std::fs::write(&config, object.to_string()).unwrap();
    let refusal = ["dynamic rope", "cannot express yet", "--device cpu"];
    let (folder, config) = (model.to_str().unwrap(), config.to_str().unwrap());
    let out = out.to_str().unwrap();
    run(&["compile", folder, "--out", out]).exits(2).says(&refusal);
    run(&["compile", "--shape-only", config, "--out", out]).exits(2).says(&refusal);
    let args = ["generate", folder, "--prompt-ids", "3,4", "--max-tokens", "1", "--device", "vm"];
    run(&args).exits(2).says(&refusal);
}

/// The schedule of each family gives the reference's tokens, beyond its window where it has one.
#[test]
fn schedules_say_the_same_as_the_reference() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("out");
    for name in FAMILIES {
        let folder = format!("tests/checkpoints/{name}");
        let tokens = |device: &str| {
            let ids = "3,4,5,6,7,8,9,10,11,12,13,14,15,16";
            let args = ["generate", &folder, "--prompt-ids", ids, "--max-tokens", "12", "--json"];
            let more = ["--activations", "f32", "--device", device];
            let args = if device == "vm" { [&args[..], &more].concat() } else { args.to_vec() };
            let document = run(&args).exits(0).json();
            assert_eq!(document["device"], device, "{name}");
            document["tokens"].clone()
        };
        let cpu = tokens("cpu");
        assert!(cpu.as_array().is_some_and(|t| !t.is_empty()), "{name}: {cpu}");
        assert_eq!(tokens("vm"), cpu, "{name}");
        let config = format!("{folder}/config.json");
        let to = out.to_str().unwrap();
        run(&["compile", "--shape-only", &config, "--target", "sm_120", "--out", to]).exits(0);
    }
}
