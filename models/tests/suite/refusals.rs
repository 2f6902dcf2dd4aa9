//! Models outside the supported families are refused in a sentence that names what is at fault and what is supported.

use crate::common;
use amk_models::{ModelConfig, shape_only};
use serde_json::{Value, json};

const SUPPORTED: &str = "supported are dense decoder-only text models of the architectures LlamaForCausalLM, \
                         MistralForCausalLM, MinistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, \
                         SmolLM3ForCausalLM, Phi3ForCausalLM, GemmaForCausalLM, Gemma2ForCausalLM, \
                         Gemma3ForCausalLM, GraniteForCausalLM, Olmo2ForCausalLM";

#[test]
fn other_kinds_of_model_are_refused_by_name() {
    for (architecture, extra, kind) in [
        ("MixtralForCausalLM", json!({"num_local_experts": 8}), ", a mixture of experts,"),
        ("Qwen3MoeForCausalLM", json!({"num_experts": 128}), ", a mixture of experts,"),
        ("GraniteMoeForCausalLM", json!({}), ", a mixture of experts,"),
        ("PhimoeForCausalLM", json!({}), ", a mixture of experts,"),
        (
            "DeepseekV3ForCausalLM",
            json!({"kv_lora_rank": 512, "n_routed_experts": 256}),
            ", a model with multi-head latent attention,",
        ),
        (
            "T5ForConditionalGeneration",
            json!({"is_encoder_decoder": true}),
            ", an encoder-decoder model,",
        ),
        ("BartForConditionalGeneration", json!({}), ", an encoder-decoder model,"),
        (
            "Qwen2_5_VLForConditionalGeneration",
            json!({"vision_config": {}}),
            ", a multimodal model,",
        ),
        (
            "Gemma3ForConditionalGeneration",
            json!({"vision_config": {}, "text_config": {}}),
            ", a multimodal model,",
        ),
        ("LlavaForConditionalGeneration", json!({}), ", a multimodal model,"),
        ("Gemma3ForConditionalGeneration", json!({}), ", a multimodal model,"),
        ("MambaForCausalLM", json!({}), ", a recurrent or hybrid model,"),
        ("StableLmForCausalLM", json!({}), ""),
        ("Ministral3ForCausalLM", json!({}), ""),
    ] {
        let mut config = json!({"architectures": [architecture]});
        config.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        assert_eq!(
            refused(&config),
            format!(
                "config.json: architecture \"{architecture}\"{kind} is not supported; {SUPPORTED}"
            )
        );
    }
}

#[test]
fn every_fixture_is_supported() {
    let mut n = 0;
    for entry in std::fs::read_dir(common::checkpoint("")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path.join("config.json").is_file() {
            n += 1;
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(common::load(&path).is_ok(), common::SUPPORTED.contains(&name), "{name}");
        }
    }
    assert_eq!(n, 20);
}

fn refused(config: &Value) -> String {
    ModelConfig::from_slice("config.json", config.to_string().as_bytes()).unwrap_err().to_string()
}

fn with(edits: &[(&str, Value)]) -> Value {
    let mut config = common::small_config();
    for (field, value) in edits {
        config[*field] = value.clone();
    }
    config
}

#[test]
fn fields_that_change_the_maths_are_refused_by_name() {
    for (field, value) in [
        ("sliding_window", json!(4096)),
        ("use_sliding_window", json!(true)),
        ("layer_types", json!(["sliding_attention"])),
        ("partial_rotary_factor", json!(0.5)),
        ("no_rope_layers", json!([1, 0])),
        ("final_logit_softcapping", json!(30.0)),
        ("attn_logit_softcapping", json!(50.0)),
        ("query_pre_attn_scalar", json!(24)),
        ("attention_multiplier", json!(0.0625)),
        ("embedding_multiplier", json!(12.0)),
        ("residual_multiplier", json!(0.22)),
        ("logits_scaling", json!(8.0)),
        ("quantization_config", json!({"quant_method": "awq"})),
        ("auto_map", json!({"AutoModelForCausalLM": "modeling.Custom"})),
        ("pruned_heads", json!({"0": [1]})),
        ("is_encoder_decoder", json!(true)),
        ("rope_interleaved", json!(true)),
        ("repetition_penalty", json!(1.2)),
        ("hidden_act", json!("relu2")),
        (
            "rope_scaling",
            json!({"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}),
        ),
        ("rope_scaling", json!({"rope_type": "proportional", "factor": 4.0})),
        ("rope_scaling", json!({"rope_type": "linear", "factor": 4.0, "attention_factor": 1.1})),
        ("rope_parameters", json!({"rope_type": "longrope", "rope_theta": 10000.0})),
        ("a_field_of_tomorrow", json!(3)),
    ] {
        let text = refused(&with(&[(field, value)]));
        assert!(
            text.contains(&format!("\"{field}")) && text.contains("LlamaForCausalLM"),
            "{text}"
        );
    }
}

#[test]
fn neutral_and_harmless_fields_are_accepted() {
    let config = with(&[
        ("attention_bias", json!(false)),
        ("mlp_bias", json!(null)),
        ("sliding_window", json!(null)),
        ("layer_types", json!(["full_attention"])),
        ("partial_rotary_factor", json!(1.0)),
        ("logits_scaling", json!(1)),
        ("quantization_config", json!(null)),
        ("a_field_of_tomorrow", json!(null)),
        ("attention_dropout", json!(0.1)),
        ("pretraining_tp", json!(1)),
        ("transformers_version", json!("9.9")),
        ("rope_scaling", json!(null)),
        ("hidden_act", json!("swish")),
    ]);
    ModelConfig::from_slice("config.json", config.to_string().as_bytes()).unwrap();
}

#[test]
fn values_out_of_range_are_refused() {
    for (field, value) in [
        ("hidden_size", json!(0)),
        ("hidden_size", json!(-4)),
        ("hidden_size", json!(40.5)),
        ("hidden_size", json!("40")),
        ("vocab_size", json!(u64::MAX)),
        ("num_hidden_layers", json!(100_000)),
        ("num_key_value_heads", json!(3)),
        ("num_key_value_heads", json!(8)),
        ("head_dim", json!(15)),
        ("rms_norm_eps", json!(0)),
        ("rms_norm_eps", json!(-1e-5)),
        ("rms_norm_eps", json!("1e-5")),
        ("rope_theta", json!(0)),
        ("rope_theta", json!(1e300)),
        ("eos_token_id", json!("</s>")),
        ("eos_token_id", json!([2, 2.5])),
        ("tie_word_embeddings", json!("yes")),
        ("torch_dtype", json!(16)),
        ("model_type", json!(5)),
    ] {
        let text = refused(&with(&[(field, value.clone())]));
        assert!(text.contains(&format!("\"{field}\"")), "{field} {value}: {text}");
    }
    // Without head_dim the width must divide.
    let mut config = with(&[("hidden_size", json!(42))]);
    config.as_object_mut().unwrap().remove("head_dim");
    assert!(
        refused(&config)
            .contains("a multiple of num_attention_heads (4), since head_dim is not given")
    );
    // Each size is small enough, the product is not.
    let huge = json!(1u64 << 31);
    assert!(
        refused(&with(&[
            ("hidden_size", huge.clone()),
            ("vocab_size", huge.clone()),
            ("intermediate_size", huge)
        ]))
        .contains("counted in 64 bits")
    );
}

#[test]
fn architecture_is_named_once_and_agrees_with_model_type() {
    assert!(
        refused(&with(&[("architectures", json!(["LlamaForCausalLM", "X"]))]))
            .contains("is not supported")
    );
    assert!(refused(&with(&[("architectures", json!([]))])).contains("is not supported"));
    assert!(refused(&with(&[("model_type", json!("mistral"))])).contains(
        "\"architectures\" (LlamaForCausalLM) and \"model_type\" (\"mistral\") disagree"
    ));
    let bare =
        |model_type: Value| with(&[("architectures", json!(null)), ("model_type", model_type)]);
    assert!(
        refused(&bare(json!("olmo")))
            .contains("architecture of \"model_type\": \"olmo\" is not supported")
    );
    assert!(refused(&bare(json!(null))).contains("has no \"architectures\""));
    ModelConfig::from_slice("c", bare(json!("llama")).to_string().as_bytes()).unwrap();
}

#[test]
fn shapes_are_read_from_a_config_alone() {
    let config = shape_only(&common::shape("llama-3.1-70b.json")).unwrap();
    assert_eq!((config.num_layers, config.hidden_size, config.group_size()), (80, 8192, 8));
    assert_eq!(config.parameter_count(), Some(70_553_706_496));
    assert_eq!(config.tensor_specs().len(), 80 * 9 + 3);
    let config = shape_only(&common::shape("qwen3-0.6b.json")).unwrap();
    assert_eq!(config.parameter_count(), Some(596_049_920));
    for name in [
        "llama-3.1-8b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "smollm2-1.7b",
        "smollm2-360m",
        "tinyllama-1.1b",
    ] {
        let config = shape_only(&common::shape(&format!("{name}.json"))).unwrap();
        let has_head = config.tensor_specs().iter().any(|t| t.name == "lm_head.weight");
        assert_eq!(has_head, !config.tie_word_embeddings, "{name}");
    }
    assert!(
        shape_only(&common::shape("nowhere.json"))
            .unwrap_err()
            .to_string()
            .contains("nowhere.json")
    );
}
