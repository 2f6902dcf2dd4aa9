//! Every family on the CPU, and what schedules cannot express refused by the feature's name.

use crate::support::run;

const FAMILIES: &[(&str, &[&str])] = &[
    ("llama-attnbias-f32", &["biases in attention"]),
    ("mistral-swa-bf16", &["attention windows", "sliding_window"]),
    ("qwen2-bf16", &["biases in attention"]),
    ("qwen3-bf16", &["norms of query and key heads"]),
    ("smollm3-nope-bf16", &["layers without rotary embedding", "no_rope_layers"]),
    ("phi3-swa-bf16", &["fused projections", "attention windows"]),
    ("gemma2-bf16", &["norm weights stored less one", "attn_logit_softcapping", "GELU"]),
    ("gemma3-text-bf16", &["a second rotary base", "norms of query and key heads"]),
    ("granite-tied-bf16", &["embedding_multiplier", "residual_multiplier", "logits_scaling"]),
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
    for (name, says) in FAMILIES {
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
