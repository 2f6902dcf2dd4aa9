//! `amk inspect`.

use crate::support::run;

#[test]
fn the_embedded_model_is_described() {
    let document = run(&["inspect", "--json"]).exits(0).json();
    assert_eq!(document["source"]["kind"], "embedded");
    assert_eq!(document["config"]["family"], "LlamaForCausalLM");
    assert_eq!(document["config"]["num_layers"], 5);
    assert_eq!(document["parameters"], 951_680);
    assert_eq!(document["weights"]["tied"], true);
    assert_eq!(document["weights"]["dtypes"], serde_json::json!(["bf16"]));
    assert_eq!(document["tokenizer"]["vocab_size"], 1024);
    assert_eq!(document["eos_ids"], serde_json::json!([1]));
    let text = run(&["inspect"]).exits(0).out;
    assert!(text.contains("5 of width 128") && text.contains("512 positions"), "{text}");
}

#[test]
fn a_folder_and_its_config_alone_agree() {
    let folder = run(&["inspect", "models/default", "--json"]).exits(0).json();
    let config = "models/default/config.json";
    let shape = run(&["inspect", "--shape-only", config, "--json"]).exits(0).json();
    assert_eq!(folder["config"], shape["config"]);
    assert_eq!(folder["parameters"], shape["parameters"]);
    assert!(shape["weights"].is_null());
}

#[test]
fn what_is_no_model_is_refused_by_name() {
    run(&["inspect", "./no-such-folder"]).exits(2).says(&["./no-such-folder", "neither a folder"]);
    run(&["inspect", "Cargo.toml"]).exits(2).says(&["Cargo.toml is a file", "folder"]);
    run(&["inspect", "src"]).exits(2).says(&["src", "config.json"]);
    run(&["inspect", "--shape-only", "no.json"]).exits(2).says(&["no.json"]);
    run(&["inspect", "--shape-only", "Cargo.toml"]).exits(2).says(&["Cargo.toml"]);
}

#[test]
fn every_tensor_says_what_it_became_and_the_targets_are_named() {
    let document = run(&["inspect", "tests/checkpoints/phi3-swa-bf16", "--json"]).exits(0).json();
    let tensors = document["weights"]["tensors_became"].as_array().unwrap();
    let find = |became: &str, layer: u64| {
        let is = |t: &&serde_json::Value| t["became"] == became && t["layer"] == layer;
        tensors.iter().find(is).unwrap().clone()
    };
    let key = find("key", 1);
    assert_eq!(key["name"], "model.layers.1.self_attn.qkv_proj.weight[64..128]");
    assert_eq!(key["shape"], serde_json::json!([64, 64]));
    assert_eq!((&key["dtype"], &key["bytes"]), (&"BF16".into(), &8192.into()));
    let all: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(document["weights"]["bytes"], all);
    assert_eq!(document["features"], serde_json::json!(["fused_projections", "window"]));
    assert!(document["targets"].as_array().unwrap().iter().all(|t| t["fits"] == true));
    let gemma = run(&["inspect", "tests/checkpoints/gemma2-bf16", "--json"]).exits(0).json();
    assert!(gemma["targets"].as_array().unwrap().iter().all(|t| t["fits"] == true));
    // Frequencies that depend on the sequence are no hindrance, and stretch the context.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    let config = std::fs::read("models/default/config.json").unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&config).unwrap();
    config["rope_scaling"] = serde_json::json!({"rope_type": "dynamic", "factor": 2.0});
    std::fs::write(&path, config.to_string()).unwrap();
    let dynamic =
        run(&["inspect", "--shape-only", path.to_str().unwrap(), "--json"]).exits(0).json();
    assert!(dynamic["targets"].as_array().unwrap().iter().all(|t| t["fits"] == true));
    let document = run(&["inspect", "--json"]).exits(0).json();
    let targets = document["targets"].as_array().unwrap();
    assert!(targets.len() >= 5 && targets.iter().all(|t| t["fits"] == true), "{targets:?}");
    let kv = document["kv_bytes_per_position_f32"].as_u64().unwrap();
    let weights = document["weights"]["bytes"].as_u64().unwrap();
    assert_eq!(document["memory_bytes_full_context"], weights + 512 * kv);
    let text = run(&["inspect", "tests/checkpoints/qwen3-bf16"]).exits(0).out;
    for part in ["query norm", "norms of query and key heads", "targets", "memory"] {
        assert!(text.contains(part), "{text}");
    }
}

/// All that is wrong is said, and what can be told is told.
#[test]
fn every_refusal_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let from = "tests/checkpoints/llama-sharded-bf16";
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config["sliding_window"] = 4096.into();
    config["a_field_of_tomorrow"] = 3.into();
    config["intermediate_size"] = 24.into();
    config["logits_scaling"] = 8.into();
    std::fs::write(&path, config.to_string()).unwrap();
    std::fs::remove_file(folder.path().join("model-00003-of-00004.safetensors")).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let model = folder.path().to_str().unwrap();
    let run = run(&["inspect", model, "--json"]).exits(2);
    let document = run.json();
    assert_eq!(document["ok"], false);
    let refusals = document["refusals"].as_array().unwrap();
    let of = |subject: &str| -> Vec<String> {
        let ours = refusals.iter().filter(|r| r["subject"] == subject);
        let mut names: Vec<String> =
            ours.map(|r| r["name"].as_str().unwrap_or_default().to_owned()).collect();
        names.sort();
        names
    };
    assert_eq!(of("field"), ["a_field_of_tomorrow", "logits_scaling", "sliding_window"]);
    assert_eq!(of("file"), ["model-00003-of-00004.safetensors"]);
    assert_eq!(of("tokenizer"), [""]);
    let tensors = of("tensor");
    assert!(!tensors.is_empty() && tensors.iter().all(|t| t.contains("mlp.")), "{tensors:?}");
    // What is there is described.
    assert_eq!(document["config"]["family"], "LlamaForCausalLM");
    let became = document["weights"]["tensors_became"].as_array().unwrap();
    assert!(became.iter().any(|t| t["became"] == "query" && t["layer"] == 0), "{became:?}");
    assert!(document["memory_bytes_full_context"].as_u64().unwrap() > 0);
    assert!(document["targets"].as_array().unwrap().len() >= 5);
    // The first sentences are on standard error, and how many there are besides.
    let run = run.says(&["a_field_of_tomorrow", "logits_scaling", "sliding_window"]);
    assert!(run.err.lines().count() <= 20, "{}", run.err);
}

#[test]
fn a_refused_family_and_a_refused_config_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, r#"{"architectures": ["MixtralForCausalLM"], "num_local_experts": 8}"#)
        .unwrap();
    let args = ["inspect", "--shape-only", path.to_str().unwrap(), "--json"];
    let document = run(&args).exits(2).says(&["mixture of experts"]).json();
    assert_eq!(document["refusals"][0]["subject"], "family");
    assert!(document["config"].is_null());
    std::fs::write(&path, r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": -1}"#).unwrap();
    let document = run(&args).exits(2).json();
    let named: Vec<&str> = document["refusals"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|r| r["name"].as_str())
        .collect();
    for field in ["hidden_size", "num_hidden_layers", "rms_norm_eps", "vocab_size"] {
        assert!(named.contains(&field), "{named:?}");
    }
    // Numbers whose product no counter holds.
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read("models/default/config.json").unwrap()).unwrap();
    for field in ["hidden_size", "num_attention_heads", "head_dim", "num_key_value_heads"] {
        config[field] = (1u64 << 31).into();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    run(&args).exits(2).says(&["counted in 64 bits"]);
}

#[test]
fn a_gguf_file_is_a_model() {
    let file = "tests/checkpoints/gguf/mixed.gguf";
    let document = run(&["inspect", file, "--json"]).exits(0).json();
    assert_eq!(document["config"]["family"], "LlamaForCausalLM");
    let types: std::collections::BTreeSet<&str> = document["weights"]["tensors_became"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t["dtype"].as_str().unwrap())
        .collect();
    let all = ["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"];
    assert_eq!(types.into_iter().collect::<Vec<_>>(), all);
    let generated =
        run(&["generate", file, "--prompt", "the river", "--max-tokens", "3", "--json"]);
    assert_eq!(generated.exits(0).json()["tokens"].as_array().unwrap().len(), 3);
    let cut = tempfile::tempdir().unwrap();
    let path = cut.path().join("cut.gguf");
    let bytes = std::fs::read(file).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let document =
        run(&["inspect", path.to_str().unwrap(), "--json"]).exits(2).says(&["cut off"]).json();
    assert_eq!(document["refusals"][0]["subject"], "file");
}
