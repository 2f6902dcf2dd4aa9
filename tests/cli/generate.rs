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

/// Text ends before a stop string, streamed or not, and the tokens with the one that completed it.
#[test]
fn stop_strings_end_the_text() {
    let base = ["generate", "--prompt", "In the", "--max-tokens", "12", "--json"];
    let whole = run(&base).exits(0).json();
    let text = whole["text"].as_str().unwrap();
    assert!(text.starts_with(" day of the") && whole["finish_reason"] == "length", "{whole}");
    for stop in ["of t", " day", "f the"] {
        for more in [&["--stop", "nowhere"][..], &["--stream"]] {
            let args = [&base[..], &["--stop", stop], more].concat();
            let done = run(&args).exits(0).documents().pop().unwrap();
            assert_eq!(done["text"], text[..text.find(stop).unwrap()], "{args:?}");
            assert_eq!(done["finish_reason"], "stop");
            let tokens = done["tokens"].as_array().unwrap();
            assert!(tokens.len() < 12 && whole["tokens"].as_array().unwrap().starts_with(tokens));
        }
    }
    // One that never comes takes nothing away.
    let done = run(&[&base[..], &["--stop", "the the the"]].concat()).exits(0).json();
    assert_eq!((&done["text"], &done["finish_reason"]), (&whole["text"], &whole["finish_reason"]));
    let folder = "tests/checkpoints/llama-odd-f32";
    let ids = ["generate", folder, "--prompt-ids", "3", "--stop", "x"];
    run(&ids).exits(2).says(&["llama-odd-f32 has no tokenizer.json", "--stop"]);
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

#[test]
fn a_seed_repeats_on_every_executor_and_greedy_stays_the_default() {
    let args = ["generate", "--prompt", "In the beginning", "--max-tokens", "10", "--json"];
    let with = |more: &[&str]| run(&[&args[..], more].concat()).exits(0).json();
    let greedy = with(&[]);
    assert_eq!(greedy["sampling"]["temperature"], 0.0);
    assert!(greedy["logprobs"].is_null());
    let warm = ["--temperature", "0.9", "--top-k", "40", "--top-p", "0.95", "--min-p", "0.01"];
    let drawn = |seed: &str, more: &[&str]| {
        with(&[&warm[..], &["--repetition-penalty", "1.1", "--seed", seed], more].concat())
    };
    let first = drawn("3", &[]);
    assert_eq!(first["sampling"]["top_k"], 40);
    assert_eq!(first["tokens"], drawn("3", &[])["tokens"]);
    assert_ne!(first["tokens"], greedy["tokens"]);
    assert!((4..8).any(|seed: i32| drawn(&seed.to_string(), &[])["tokens"] != first["tokens"]));
    // The schedule's float32 arithmetic sums in another order; the draws are the same.
    let vm = drawn("3", &["--device", "vm", "--compute", "f32"]);
    assert_eq!((&vm["tokens"], &vm["device"]), (&first["tokens"], &"vm".into()));
    // One token to choose from is greedy.
    assert_eq!(with(&["--temperature", "2", "--top-k", "1"])["tokens"], greedy["tokens"]);
    // A penalty alone changes the choice without drawing.
    let penalised = with(&["--repetition-penalty", "5"]);
    let ids = penalised["tokens"].as_array().unwrap();
    let distinct: std::collections::BTreeSet<String> = ids.iter().map(Value::to_string).collect();
    assert_eq!(distinct.len(), ids.len());
    assert_ne!(penalised["tokens"], greedy["tokens"]);
}

#[test]
fn log_probabilities_are_in_the_document_and_in_the_stream() {
    let args = ["generate", "--prompt", "In the beginning", "--max-tokens", "4", "--json"];
    let document = run(&[&args[..], &["--logprobs", "3"]].concat()).exits(0).json();
    let probs = document["logprobs"].as_array().unwrap();
    assert_eq!(probs.len(), 4);
    for (p, token) in probs.iter().zip(document["tokens"].as_array().unwrap()) {
        // Greedy: the token is the best.
        assert_eq!((&p["top"][0][0], &p["top"][0][1]), (token, &p["chosen"]));
        assert_eq!(p["top"].as_array().unwrap().len(), 3);
        assert!(p["chosen"].as_f64().unwrap() < 0.0);
    }
    let vm = ["--logprobs", "3", "--stream", "--device", "vm", "--compute", "f32"];
    let documents = run(&[&args[..], &vm].concat()).exits(0).documents();
    let (whole, pieces) = documents.split_last().unwrap();
    for (i, piece) in pieces.iter().enumerate() {
        assert_eq!(piece["logprobs"], whole["logprobs"][i]);
        let (a, b) = (&piece["logprobs"]["chosen"], &probs[i]["chosen"]);
        assert!((a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-3);
    }
}

#[test]
fn settings_of_sampling_out_of_range_are_refused() {
    for (option, value, says) in [
        ("--temperature", "-1", "temperature is -1"),
        ("--top-k", "0", "top-k is 0"),
        ("--top-p", "1.5", "top-p is 1.5"),
        ("--min-p", "2", "min-p is 2"),
        ("--repetition-penalty", "0", "repetition penalty is 0"),
    ] {
        let value = format!("{option}={value}");
        run(&["generate", "--prompt", "x", &value]).exits(2).says(&[says]);
    }
}
