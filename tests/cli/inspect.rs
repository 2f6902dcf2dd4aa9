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
