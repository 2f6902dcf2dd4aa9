//! Every family on the CPU and by its schedules.

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

/// Frequencies that depend on the length of the sequence: past the plain positions of dynamic scaling, and across the
/// original context of longrope, with prompts on both sides.
#[test]
fn schedules_rotate_as_the_length_of_the_sequence_asks() {
    let temporary = tempfile::tempdir().unwrap();
    let list = |by: f64| (0..8).map(|i| 1.0 + by * f64::from(i)).collect::<Vec<_>>();
    let longrope = serde_json::json!(
        {"type": "longrope", "short_factor": list(0.1), "long_factor": list(0.7)}
    );
    let dynamic = serde_json::json!({"rope_type": "dynamic", "factor": 2.0});
    for (name, scaling, plain) in [("llama-gqa-bf16", dynamic, 12), ("phi3-swa-bf16", longrope, 64)]
    {
        let model = temporary.path().join(name);
        std::fs::create_dir(&model).unwrap();
        for entry in std::fs::read_dir(format!("tests/checkpoints/{name}")).unwrap() {
            let entry = entry.unwrap();
            std::fs::copy(entry.path(), model.join(entry.file_name())).unwrap();
        }
        let path = model.join("config.json");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        config["rope_scaling"] = scaling;
        config["max_position_embeddings"] = plain.into();
        if name.starts_with("phi3") {
            config["original_max_position_embeddings"] = 12.into();
        }
        std::fs::write(&path, config.to_string()).unwrap();
        let folder = model.to_str().unwrap();
        for ids in ["3,4,5,6,7,8,9,10", "3,4,5,6,7,8,9,10,11,12,13,14,15"] {
            let tokens = |more: &[&str]| {
                let args = ["generate", folder, "--prompt-ids", ids, "--max-tokens", "9", "--json"];
                let document = run(&[&args[..], more].concat()).exits(0).json();
                document["tokens"].clone()
            };
            let cpu = tokens(&["--device", "cpu"]);
            assert_eq!(tokens(&["--device", "vm", "--activations", "f32"]), cpu, "{name} {ids}");
        }
        let out = temporary.path().join("out");
        run(&["compile", folder, "--target", "sm_90a", "--out", out.to_str().unwrap()]).exits(0);
    }
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
