//! Every family on the CPU, and what schedules cannot express refused by the feature's name.

use crate::support::run;

/// Checkpoints, and what their refusal by schedules says; nothing for those that schedules express.
const FAMILIES: &[(&str, &[&str])] = &[
    ("llama-attnbias-f32", &[]),
    ("mistral-swa-bf16", &[]),
    ("qwen2-bf16", &[]),
    ("qwen3-bf16", &[]),
    ("smollm3-nope-bf16", &[]),
    ("phi3-swa-bf16", &[]),
    ("gemma2-bf16", &["norm weights stored less one", "attn_logit_softcapping", "GELU"]),
    ("gemma3-text-bf16", &["a second rotary base"]),
    ("granite-tied-bf16", &[]),
    ("olmo2-f32", &["norms after attention and MLP", "over all heads"]),
];

#[test]
fn the_cpu_reference_is_exact_for_each() {
    for (name, _) in FAMILIES {
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
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("out");
    for (name, says) in FAMILIES.iter().filter(|f| !f.1.is_empty()) {
        let folder = format!("tests/checkpoints/{name}");
        let refusal = [*says, &["cannot express yet", "--device cpu"]].concat();
        let out = out.to_str().unwrap();
        run(&["compile", &folder, "--out", out]).exits(2).says(&refusal);
        run(&["compile", "--shape-only", &format!("{folder}/config.json"), "--out", out])
            .exits(2)
            .says(&refusal);
        let args =
            ["generate", &folder, "--prompt-ids", "3,4", "--max-tokens", "1", "--device", "vm"];
        run(&args).exits(2).says(&refusal);
    }
}

/// The schedule of each other family gives the reference's tokens, beyond its window where it has one.
#[test]
fn schedules_say_the_same_as_the_reference() {
    let out = tempfile::tempdir().unwrap();
    let out = out.path().join("out");
    for (name, _) in FAMILIES.iter().filter(|f| f.1.is_empty()) {
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
