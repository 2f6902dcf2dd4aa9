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
    for target in document["targets"].as_array().unwrap() {
        assert_eq!(target["fits"], false);
        assert!(target["reason"].as_str().unwrap().contains("fused projections"), "{target}");
    }
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
