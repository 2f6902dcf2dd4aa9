//! `amk generate`, on the embedded model and its golden.

use serde_json::Value;

use crate::support::{golden_prompt, run};

#[test]
fn says_what_huggingface_says() {
    let prompt = golden_prompt("models/default/golden.json", 0);
    let args = ["generate", "--prompt", prompt.text.as_str(), "--ignore-eos", "--json"];
    let document = run(&args).exits(0).json();
    assert_eq!(document["tokens"], prompt.generated);
    assert_eq!(document["prompt_tokens"], prompt.ids.len());
    assert_eq!(document["finish_reason"], "length");
    assert_eq!(document["device"], "cpu");
    assert!(document["timings"]["decode_seconds"].as_f64().unwrap() > 0.0);
    let text = document["text"].as_str().unwrap();
    assert!(text.is_ascii() && text.split_whitespace().count() > 20, "{text}");

    // Ids instead of text, and lines for people instead of a document.
    let ids: Vec<String> = prompt.ids.iter().map(u32::to_string).collect();
    let same = run(&["generate", "--prompt-ids", &ids.join(","), "--ignore-eos"]).exits(0);
    assert_eq!(same.out, format!("{text}\n"));
    assert!(same.err.contains("64 tokens"), "{}", same.err);
}

#[test]
fn a_stream_is_documents_and_the_last_is_the_whole() {
    let args = ["generate", "--prompt", "And the king", "--max-tokens", "9", "--stream"];
    let documents = run(&[&args[..], &["--json"]].concat()).exits(0).documents();
    let (whole, pieces) = documents.split_last().unwrap();
    assert_eq!(pieces.len(), 9);
    let tokens: Vec<Value> = pieces.iter().map(|p| p["token"].clone()).collect();
    assert_eq!(whole["tokens"], Value::Array(tokens));
    let plain = run(&args).exits(0);
    assert_eq!(plain.out, format!("{}\n", whole["text"].as_str().unwrap()));
}

#[test]
fn an_end_of_sequence_token_stops_unless_it_is_ignored() {
    // A blessing is where the embedded model ends a chapter.
    let prompt = "And all the brethren that are with me greet you. Farewell, and peace be with your spirit. Amen.\n";
    let stopped = run(&["generate", "--prompt", prompt, "--json"]).exits(0).json();
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["tokens"], serde_json::json!([1]));
    let args = ["generate", "--prompt", prompt, "--ignore-eos", "--max-tokens", "5", "--json"];
    let on = run(&args).exits(0).json();
    assert_eq!(on["finish_reason"], "length");
    assert_eq!(on["tokens"].as_array().unwrap().len(), 5);
}

#[test]
fn the_context_is_filled_and_not_overrun() {
    let ids = |n: usize| vec!["300"; n].join(",");
    let args = |n: usize| {
        let ids = ids(n);
        run(&["generate", "--prompt-ids", &ids, "--ignore-eos", "--max-tokens", "9", "--json"])
    };
    let full = args(510).exits(0).says(&["context of 512 positions is full after 3 tokens"]).json();
    assert_eq!(full["finish_reason"], "capacity");
    assert_eq!(full["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(args(512).exits(0).json()["tokens"].as_array().unwrap().len(), 1);
    args(513).exits(2).says(&["513 tokens", "512"]);
}

#[test]
fn wrong_prompts_are_refused_with_a_sentence() {
    run(&["generate"]).exits(2).says(&["--prompt", "--prompt-ids"]);
    run(&["generate", "--prompt", "x", "--prompt-ids", "1"])
        .exits(2)
        .says(&["cannot be used with"]);
    run(&["generate", "--prompt-ids", "1,x"]).exits(2).says(&["'x'"]);
    run(&["generate", "--prompt-ids", "1024"]).exits(2).says(&["1024", "vocabulary"]);
    run(&["generate", "--prompt-ids", "1", "--chat"]).exits(2).says(&["--chat", "cannot"]);
    run(&["generate", "--prompt", "x", "--chat"]).exits(2).says(&["chat template"]);
}

#[test]
fn an_empty_prompt_is_the_bos_token() {
    let document =
        run(&["generate", "--prompt", "", "--max-tokens", "1", "--json"]).exits(0).json();
    assert_eq!(document["prompt_tokens"], 1);
}

#[test]
fn the_schedule_on_the_vm_says_the_same() {
    let args = ["generate", "--prompt", "In the beginning", "--max-tokens", "12", "--json"];
    let cpu = run(&args).exits(0).json();
    for compute in ["f32", "bf16"] {
        let vm = run(&[&args[..], &["--device", "vm", "--compute", compute]].concat());
        let vm = vm.exits(0).json();
        assert_eq!(vm["device"], "vm");
        assert_eq!(vm["tokens"], cpu["tokens"], "{compute}");
    }
    run(&["generate", "--prompt", "x", "--compute", "bf16"]).exits(2).says(&["--device vm"]);
}

#[test]
fn the_vm_goes_on_into_the_next_bucket() {
    let ids = vec!["297"; 250].join(",");
    let args = ["generate", "--prompt-ids", &ids, "--max-tokens", "12", "--ignore-eos", "--json"];
    let cpu = run(&args).exits(0).json();
    let vm = run(&[&args[..], &["--device", "vm", "--compute", "f32"]].concat()).exits(0).json();
    assert_eq!(vm["tokens"], cpu["tokens"]);
}
