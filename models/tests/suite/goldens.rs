//! The CPU reference says what HuggingFace transformers says, in float32: tokens, logits, perplexity, hidden states.

use crate::common;
use amk_models::golden::{
    Golden, GoldenError, HiddenGolden, Limits, VerifyReport, verify_f32, verify_hidden,
};
use amk_models::{Checkpoint, Reference, Want};

fn check(name: &str) {
    let checkpoint = Checkpoint::from_folder(&common::checkpoint(name)).unwrap();
    let golden = Golden::read(&common::golden(&format!("{name}.json"))).unwrap();
    golden.check_files(checkpoint.files()).unwrap();
    let mut reference = Reference::new(&checkpoint).unwrap();
    let report = verify_f32(&golden, &mut reference, Limits::default()).unwrap();
    assert!(report.ok, "{name}: {:?} {:?}", report.failures, report.first_mismatch);
    let prompts = &golden.runs["f32"].prompts;
    let positions: usize = prompts.iter().map(|p| p.generated_ids.len() + p.forced().len()).sum();
    assert_eq!(
        (report.prompts, report.positions, report.exact),
        (prompts.len(), positions, positions)
    );
    assert!(positions >= prompts.len() * 128 && report.max_abs_logit_error <= 1e-3);

    let hidden = HiddenGolden::read(&common::golden(&format!("hidden/{name}.json"))).unwrap();
    assert_eq!(hidden.layers.len(), checkpoint.config().num_layers + 1);
    let report = verify_hidden(&hidden, &mut reference).unwrap();
    assert!(report.ok, "{name}: {:?}", report.relative_errors);
}

macro_rules! goldens {
    ($($test:ident $name:literal)*) => {
        $(#[test] fn $test() { check($name); })*

        #[test]
        fn every_supported_checkpoint_has_a_test() {
            assert_eq!(common::SUPPORTED, [$($name),*]);
        }
    };
}

goldens! {
    llama_mha_f32 "llama-mha-f32"
    llama_odd_f32 "llama-odd-f32"
    llama_gqa_bf16 "llama-gqa-bf16"
    llama_gqa_tied_bf16 "llama-gqa-tied-bf16"
    llama_headdim_bf16 "llama-headdim-bf16"
    llama_rope_linear_f16 "llama-rope-linear-f16"
    llama_rope_llama3_bf16 "llama-rope-llama3-bf16"
    llama_sharded_bf16 "llama-sharded-bf16"
    llama_v5config_bf16 "llama-v5config-bf16"
    mistral_full_bf16 "mistral-full-bf16"
    mistral_swa_bf16 "mistral-swa-bf16"
    llama_attnbias_f32 "llama-attnbias-f32"
    qwen2_bf16 "qwen2-bf16"
    qwen3_bf16 "qwen3-bf16"
    smollm3_nope_bf16 "smollm3-nope-bf16"
    phi3_swa_bf16 "phi3-swa-bf16"
    gemma2_bf16 "gemma2-bf16"
    gemma3_text_bf16 "gemma3-text-bf16"
    granite_tied_bf16 "granite-tied-bf16"
    olmo2_f32 "olmo2-f32"
}

#[test]
fn the_embedded_model_matches_its_golden_and_is_opened_without_an_argument() {
    let checkpoint = Checkpoint::open(None, false).unwrap();
    let golden = amk_models::golden::embedded().unwrap();
    golden.check_files(checkpoint.files()).unwrap();
    let mut reference = Reference::new(&checkpoint).unwrap();
    let report = verify_f32(&golden, &mut reference, Limits::default()).unwrap();
    assert!(report.ok, "{:?} {:?}", report.failures, report.first_mismatch);
    let p = &golden.runs["f32"].prompts[0];
    let tokenizer = checkpoint.tokenizer().unwrap().unwrap();
    assert_eq!(tokenizer.encode_prompt(p.text.as_ref().unwrap()).unwrap(), p.prompt_ids);

    let hidden = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("default/hidden.json");
    let report = verify_hidden(&HiddenGolden::read(&hidden).unwrap(), &mut reference).unwrap();
    assert!(report.ok, "{:?}", report.relative_errors);
}

#[test]
fn the_golden_of_another_checkpoint_is_refused_before_anything_runs() {
    let checkpoint = Checkpoint::from_folder(&common::checkpoint("llama-gqa-bf16")).unwrap();
    let golden = Golden::read(&common::golden("llama-gqa-tied-bf16.json")).unwrap();
    let error = golden.check_files(checkpoint.files()).unwrap_err();
    assert!(matches!(&error, GoldenError::OtherCheckpoint { .. }));
    let text = error.to_string();
    assert!(text.starts_with("config.json of the checkpoint is not the file the golden llama-gqa-tied-bf16 was made from"), "{text}");

    // A file the golden speaks of and the folder lacks.
    let folder = common::copy("llama-mha-f32");
    std::fs::remove_file(folder.path().join("generation_config.json")).unwrap();
    let golden = Golden::read(&common::golden("llama-mha-f32.json")).unwrap();
    let text =
        golden.check_files(common::load(folder.path()).unwrap().files()).unwrap_err().to_string();
    assert!(text.contains("generation_config.json") && text.contains("sha256 none"), "{text}");
}

#[test]
fn a_wrong_epsilon_or_theta_is_caught() {
    for (field, value) in [("rms_norm_eps", 1e-3), ("rope_theta", 10_001.0)] {
        let folder = common::copy("llama-mha-f32");
        common::edit_config(folder.path(), &[(field, value.into())]);
        let checkpoint = common::load(folder.path()).unwrap();
        let golden = Golden::read(&common::golden("llama-mha-f32.json")).unwrap();
        assert!(golden.check_files(checkpoint.files()).is_err());
        let mut reference = Reference::new(&checkpoint).unwrap();
        let report = verify_f32(&golden, &mut reference, Limits::default()).unwrap();
        assert!(!report.ok && report.mismatched > 0, "{field}");
        let first = report.first_mismatch.clone().unwrap();
        assert_eq!(first.prompt, golden.runs["f32"].prompts[0].label);
        assert!(
            (first.expected_logit - first.actual_logit).abs() > 1e-3
                || first.expected_token != first.actual_token
        );
        assert!(report.failures[0].contains("positions differ"));
        assert!(!VerifyReport::new(vec![report]).ok);
    }
}

#[test]
fn decode_prefill_and_rewinding_agree_bit_for_bit() {
    let checkpoint = Checkpoint::from_folder(&common::checkpoint("llama-headdim-bf16")).unwrap();
    let mut r = Reference::new(&checkpoint).unwrap();
    // More tokens than one chunk of a pass and than the cache's first room.
    let tokens: Vec<u32> = (0..150u32).map(|i| 3 + (i * 37) % 500).collect();
    let stepped: Vec<Vec<f32>> =
        tokens.iter().enumerate().map(|(i, t)| r.forward(*t, i).unwrap()).collect();
    r.reset();
    assert_eq!(r.prefill(&tokens, 0, Want::All).unwrap(), stepped);
    assert_eq!(r.cached(), 150);
    assert_eq!(r.forward(tokens[70], 70).unwrap(), stepped[70]);
    assert_eq!(r.cached(), 71);
    assert_eq!(r.prefill(&tokens[71..], 71, Want::Last).unwrap(), [stepped[149].clone()]);
}

#[test]
fn positions_tokens_and_capacity_are_checked() {
    let checkpoint = Checkpoint::from_folder(&common::checkpoint("llama-odd-f32")).unwrap();
    let mut r = Reference::new(&checkpoint).unwrap();
    let text = r.forward(3, 1).unwrap_err().to_string();
    assert_eq!(
        text,
        "position 1 does not follow the 0 positions in the KV cache; feed the tokens in order"
    );
    let text = r.forward(509, 0).unwrap_err().to_string();
    assert_eq!(text, "token 509 is outside the vocabulary of 509; check the prompt ids");
    let all = vec![3u32; 512];
    r.prefill(&all, 0, Want::Last).unwrap();
    let text = r.forward(3, 512).unwrap_err().to_string();
    assert!(text.starts_with("position 512 is beyond the model's 512 positions"), "{text}");
    r.reset();
    assert!(r.prefill(&vec![3u32; 513], 0, Want::Last).is_err());
    assert!(r.prefill(&[], 0, Want::Last).unwrap().is_empty());
}

#[test]
fn nan_is_an_error_that_names_layer_and_op() {
    let mut tensors = common::small_tensors();
    let down = tensors.iter_mut().find(|t| t.name.contains("down_proj")).unwrap();
    down.bytes[..2].copy_from_slice(&0x7fc0u16.to_le_bytes());
    let folder = common::write(&common::small_config(), &tensors);
    let mut r = Reference::new(&common::load(folder.path()).unwrap()).unwrap();
    let text = r.forward(3, 0).unwrap_err().to_string();
    assert!(text.starts_with("layer 0: down projection gave NaN at position 0"), "{text}");
    assert_eq!(r.cached(), 0);
}

#[test]
fn golden_files_are_checked_for_form() {
    let bad = |bytes: &[u8]| Golden::from_slice("g.json", bytes).unwrap_err().to_string();
    assert_eq!(
        bad(b"{\"schema\": 2}"),
        "g.json has format version 2; this program reads version 1"
    );
    assert!(bad(b"{}").contains("no \"schema\""));
    assert!(bad(b"[").starts_with("g.json is not a golden file"));
    let good = std::fs::read_to_string(common::golden("llama-odd-f32.json")).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&good).unwrap();
    json["runs"]["f32"]["prompts"][0]["top2_ids"].as_array_mut().unwrap().pop();
    assert!(bad(json.to_string().as_bytes()).contains("top2_ids has 63 entries instead of 64"));
    let golden = Golden::from_slice("g.json", good.as_bytes()).unwrap();
    let text = golden.run("bf16").unwrap_err().to_string();
    assert_eq!(text, "the golden llama-odd-f32 has no bf16 run; it has f32");
}
