//! Refusals in the whole sentence that a user sees. For configs a row is a checkpoint, what is changed in its
//! `config.json`, and the sentence; settings, chat templates and files follow.

use crate::common;
use amk_models::config::GenerationConfig;
use amk_models::golden::{Golden, Limits, verify_f32};
use amk_models::tokenizer::ChatTemplate;
use amk_models::{ModelConfig, Reference, Sampling};
use serde_json::{Value, json};

/// Changes the config of a checkpoint and reads it; a field that is set to `"-"` is removed.
fn refusal(name: &str, edits: &Value) -> String {
    let path = common::checkpoint(name).join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let config = config.as_object_mut().unwrap();
    for (field, value) in edits.as_object().unwrap() {
        match value == "-" {
            true => drop(config.remove(field)),
            false => drop(config.insert(field.clone(), value.clone())),
        }
    }
    let text = Value::Object(config.clone()).to_string();
    match ModelConfig::from_slice("config.json", text.as_bytes()) {
        Ok(_) => format!("{name} was accepted with {edits}"),
        Err(e) => e.to_string(),
    }
}

/// Holds every row against what is said.
#[track_caller]
fn check(rows: &[(&str, Value, &str)]) {
    let wrong: Vec<String> = rows
        .iter()
        .map(|(name, edits, expected)| (refusal(name, edits), format!("config.json: {expected}")))
        .filter(|(found, expected)| found != expected)
        .map(|(found, expected)| format!("found    {found}\nexpected {expected}"))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

const LLAMA: &str = "llama-mha-f32";
const MISTRAL: &str = "mistral-full-bf16";
const QWEN2: &str = "qwen2-bf16";
const SMOLLM3: &str = "smollm3-nope-bf16";
const PHI3: &str = "phi3-swa-bf16";
const GEMMA2: &str = "gemma2-bf16";
const GEMMA3: &str = "gemma3-text-bf16";

/// Fields that one value alone is computed for, in every family that does not say otherwise.
#[test]
fn values_that_are_not_computed() {
    let rows = [
        ("partial_rotary_factor", json!(0.5), "1.0: rotary embedding over the whole head"),
        ("layer_types", json!(["sliding_attention"]), "\"full_attention\" in every layer"),
        ("use_sliding_window", json!(true), "false: full attention"),
        ("max_window_layers", json!(2), "null: full attention"),
        ("no_rope_layers", json!([0]), "null: rotary embedding in every layer"),
        ("no_rope_layer_interval", json!(4), "null: rotary embedding in every layer"),
        ("attn_logit_softcapping", json!(50.0), "null: no softcap"),
        ("final_logit_softcapping", json!(30.0), "null: no softcap"),
        ("query_pre_attn_scalar", json!(24), "null: scores scaled by 1/sqrt(head_dim)"),
        ("attention_multiplier", json!(0.5), "null: scores scaled by 1/sqrt(head_dim)"),
        ("embedding_multiplier", json!(12.0), "1.0"),
        ("residual_multiplier", json!(0.22), "1.0"),
        ("logits_scaling", json!(8.0), "1.0"),
        ("quantization_config", json!({"bits": 4}), "null: weights in bf16, f16 or f32"),
        ("compression_config", json!({"bits": 4}), "null: weights in bf16, f16 or f32"),
        ("auto_map", json!({"AutoConfig": "x.Y"}), "null: no custom model code"),
        ("pruned_heads", json!({"0": [1]}), "an empty object: no pruned heads"),
        ("is_encoder_decoder", json!(true), "false: a decoder alone"),
        ("add_cross_attention", json!(true), "false: a decoder alone"),
        ("cross_attention_hidden_size", json!(64), "null: a decoder alone"),
        ("tie_encoder_decoder", json!(true), "false: a decoder alone"),
        ("chunk_size_feed_forward", json!(2), "0"),
        ("use_bfloat16", json!(true), "false"),
        ("rope_interleaved", json!(true), "false: halves paired"),
        ("repetition_penalty", json!(1.1), "1.0: no penalty"),
        ("no_repeat_ngram_size", json!(3), "0: no constraint"),
        ("encoder_no_repeat_ngram_size", json!(3), "0: no constraint"),
        ("bad_words_ids", json!([[5]]), "null: no constraint"),
        ("suppress_tokens", json!([5]), "null: no constraint"),
        ("begin_suppress_tokens", json!([5]), "null: no constraint"),
        ("forced_bos_token_id", json!(5), "null: no constraint"),
        ("forced_eos_token_id", json!(5), "null: no constraint"),
        ("sliding_window", json!(16), "null: full attention"),
        ("hidden_act", json!("relu"), "\"silu\", \"gelu\" or \"gelu_pytorch_tanh\""),
    ];
    for (field, value, supported) in rows {
        let expected = format!(
            "config.json: \"{field}\" is {value}, which LlamaForCausalLM is not supported with; supported is {supported}"
        );
        assert_eq!(refusal(LLAMA, &json!({field: value})), expected);
    }
    assert_eq!(
        refusal(LLAMA, &json!({"a_field_of_tomorrow": {"a": 1}})),
        "config.json: \"a_field_of_tomorrow\" (value {\"a\":1}) is not a field known for LlamaForCausalLM; it may change the maths, so the model is refused"
    );
}

/// What single families do not compute, or want written out.
#[test]
fn values_that_a_family_does_not_compute() {
    let with = |field: &str, value: &str, class: &str, supported: &str| {
        format!(
            "config.json: \"{field}\" is {value}, which {class} is not supported with; supported is {supported}"
        )
    };
    for (name, class) in [
        (MISTRAL, "MistralForCausalLM"),
        (QWEN2, "Qwen2ForCausalLM"),
        ("qwen3-bf16", "Qwen3ForCausalLM"),
        (PHI3, "Phi3ForCausalLM"),
        (GEMMA2, "Gemma2ForCausalLM"),
        (GEMMA3, "Gemma3ForCausalLM"),
        ("olmo2-f32", "Olmo2ForCausalLM"),
    ] {
        assert_eq!(
            refusal(name, &json!({"mlp_bias": true})),
            with("mlp_bias", "true", class, "false: projections without bias")
        );
    }
    for (name, class) in [(MISTRAL, "MistralForCausalLM"), (PHI3, "Phi3ForCausalLM")] {
        assert_eq!(
            refusal(name, &json!({"attention_bias": true})),
            with("attention_bias", "true", class, "false: projections without bias")
        );
    }
    for (name, class) in [(GEMMA2, "Gemma2ForCausalLM"), (GEMMA3, "Gemma3ForCausalLM")] {
        let edits = json!({"use_bidirectional_attention": true});
        let expected =
            with("use_bidirectional_attention", "true", class, "false: causal attention");
        assert_eq!(refusal(name, &edits), expected);
        let expected = with(
            "hidden_activation",
            "\"relu\"",
            class,
            "\"silu\", \"gelu\" or \"gelu_pytorch_tanh\"",
        );
        assert_eq!(refusal(name, &json!({"hidden_activation": "relu"})), expected);
    }
    for name in ["granite-tied-bf16", "olmo2-f32"] {
        let class = if name.starts_with('g') { "GraniteForCausalLM" } else { "Olmo2ForCausalLM" };
        assert_eq!(
            refusal(name, &json!({"sliding_window": 8})),
            with("sliding_window", "8", class, "null: full attention")
        );
    }
    check(&[
        (
            QWEN2,
            json!({"attention_bias": false}),
            "\"attention_bias\" is false, which Qwen2ForCausalLM is not supported with; supported is null: the class has biases in q, k and v whatever it says",
        ),
        (
            MISTRAL,
            json!({"sliding_window": "-"}),
            "\"sliding_window\" is absent, which MistralForCausalLM is not supported with; supported is a number of positions, or null for full attention, written out",
        ),
        (
            GEMMA2,
            json!({"attn_logit_softcapping": "-"}),
            "\"attn_logit_softcapping\" is absent, which Gemma2ForCausalLM is not supported with; supported is a number, or null for none, written out",
        ),
        (
            GEMMA2,
            json!({"final_logit_softcapping": "-"}),
            "\"final_logit_softcapping\" is absent, which Gemma2ForCausalLM is not supported with; supported is a number, or null for none, written out",
        ),
        (
            GEMMA2,
            json!({"sliding_window_size": 7}),
            "\"sliding_window_size\" is 7, which Gemma2ForCausalLM is not supported with; supported is sliding_window",
        ),
    ]);
}

/// Values that are none of their field's.
#[test]
fn values_out_of_their_range() {
    check(&[
        (
            LLAMA,
            json!({"model_type": 5}),
            "\"model_type\" is 5, expected a string such as \"llama\"",
        ),
        (
            LLAMA,
            json!({"hidden_size": 0}),
            "\"hidden_size\" is 0, expected a whole number from 1 to 2147483648",
        ),
        (
            LLAMA,
            json!({"rms_norm_eps": -1e-5}),
            "\"rms_norm_eps\" is -0.00001, expected a positive number",
        ),
        (LLAMA, json!({"mlp_bias": 1}), "\"mlp_bias\" is 1, expected true or false"),
        (
            LLAMA,
            json!({"tie_word_embeddings": "yes"}),
            "\"tie_word_embeddings\" is \"yes\", expected true or false",
        ),
        (
            LLAMA,
            json!({"dtype": 16}),
            "\"dtype\" is 16, expected the name of a type, such as \"bfloat16\"",
        ),
        (
            LLAMA,
            json!({"eos_token_id": [2, "x"]}),
            "\"eos_token_id\" is \"x\", expected a token id or a list of token ids",
        ),
        (
            LLAMA,
            json!({"head_dim": 15}),
            "\"head_dim\" is 15, expected an even number, since rotary embedding pairs its halves",
        ),
        (
            LLAMA,
            json!({"num_key_value_heads": 3}),
            "\"num_key_value_heads\" is 3, expected a divisor of num_attention_heads (4)",
        ),
        (
            LLAMA,
            json!({"num_hidden_layers": 5000}),
            "\"num_hidden_layers\" is 5000, expected at most 4096",
        ),
        (
            LLAMA,
            json!({"hidden_size": 1u64 << 31, "vocab_size": 1u64 << 31, "intermediate_size": 1u64 << 31}),
            "\"hidden_size\" is 2147483648, expected sizes whose product can be counted in 64 bits",
        ),
    ]);
    let generation = |text: &str| {
        GenerationConfig::from_slice("generation_config.json", text.as_bytes())
            .unwrap_err()
            .to_string()
    };
    assert_eq!(
        generation("{\"eos_token_id\": 2.5}"),
        "generation_config.json: \"eos_token_id\" is 2.5, expected a token id or a list of token ids"
    );
    assert_eq!(
        generation("[1]"),
        "generation_config.json is not a JSON object: it holds [1]; download the file again"
    );
}

/// Layers: which rotate, which have a window.
#[test]
fn plans_of_layers() {
    let rotating =
        "expected a list of 4 numbers, 1 for a layer with rotary embedding and 0 for one without";
    check(&[
        (
            SMOLLM3,
            json!({"no_rope_layers": [1, 0]}),
            &format!("\"no_rope_layers\" is [1,0], {rotating}"),
        ),
        (
            SMOLLM3,
            json!({"no_rope_layers": [1, 1, 2, 0]}),
            &format!("\"no_rope_layers\" is [1,1,2,0], {rotating}"),
        ),
        (
            SMOLLM3,
            json!({"use_sliding_window": false, "sliding_window": 8, "layer_types": ["full_attention", "full_attention", "full_attention", "sliding_attention"]}),
            "\"layer_types\" is [\"full_attention\",\"full_attention\",\"full_attention\",\"slid..., which SmolLM3ForCausalLM is not supported with; supported is \"full_attention\" in every layer unless \"use_sliding_window\" is true",
        ),
        (
            QWEN2,
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": "two", "layer_types": null}),
            "\"max_window_layers\" is \"two\", expected a number of layers",
        ),
        (
            GEMMA3,
            json!({"layer_types": ["full_attention"]}),
            "\"layer_types\" is [\"full_attention\"], expected a list of 6 kinds, one for each layer",
        ),
        (
            PHI3,
            json!({"layer_types": ["full_attention", "sliding_attention", "chunked_attention"]}),
            "\"layer_types\" is \"chunked_attention\", which Phi3ForCausalLM is not supported with; supported is \"full_attention\" and \"sliding_attention\"",
        ),
        (
            PHI3,
            json!({"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
            "\"layer_types\" is [\"full_attention\",\"sliding_attention\",\"sliding_attention\"], which Phi3ForCausalLM is not supported with; supported is the same kind in every layer, as \"sliding_window\" says",
        ),
        (
            GEMMA3,
            json!({"_sliding_window_pattern": 2}),
            "\"_sliding_window_pattern\" is 2, expected 3, as the class reads it, or a list of layer_types",
        ),
    ]);
    for (name, edits, field) in [
        (SMOLLM3, json!({"no_rope_layers": "-", "no_rope_layer_interval": "-"}), "no_rope_layers"),
        (QWEN2, json!({"use_sliding_window": true, "sliding_window": null}), "sliding_window"),
        (
            QWEN2,
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": "-"}),
            "max_window_layers",
        ),
        (GEMMA2, json!({"sliding_window": "-"}), "sliding_window"),
        (GEMMA2, json!({"query_pre_attn_scalar": "-"}), "query_pre_attn_scalar"),
        (GEMMA3, json!({"head_dim": "-"}), "head_dim"),
        (GEMMA3, json!({"rope_local_base_freq": "-"}), "rope_local_base_freq"),
        ("granite-tied-bf16", json!({"attention_multiplier": "-"}), "attention_multiplier"),
        ("qwen3-bf16", json!({"head_dim": "-"}), "head_dim"),
        (QWEN2, json!({"num_key_value_heads": "-"}), "num_key_value_heads"),
    ] {
        assert_eq!(
            refusal(name, &edits),
            format!(
                "config.json has no \"{field}\": the value is needed and none is assumed; add it as the model's authors published it"
            )
        );
    }
}

/// Rotary parameters of every kind.
#[test]
fn rotary_parameters() {
    let scaled = |scaling: Value| json!({"rope_scaling": scaling});
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64});
    let yarn = |key: &str, value: Value| {
        let mut yarn =
            json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
        yarn[key] = value;
        json!({"rope_scaling": yarn})
    };
    let long = |edit: Value, more: Value| {
        let mut scaling = json!({"rope_type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]});
        scaling.as_object_mut().unwrap().extend(edit.as_object().unwrap().clone());
        let mut out = json!({"rope_scaling": scaling, "original_max_position_embeddings": 64});
        out.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        out
    };
    check(&[
        (LLAMA, scaled(json!([1])), "\"rope_scaling\" is [1], expected an object or null"),
        (
            GEMMA3,
            json!({"rope_parameters": 3}),
            "\"rope_parameters\" is 3, expected an object or null",
        ),
        (
            GEMMA3,
            json!({"rope_parameters": {"global": {"rope_theta": 1e6}}}),
            "\"rope_parameters.global\" is {\"rope_theta\":1000000.0}, which Gemma3ForCausalLM is not supported with; supported is one object for \"full_attention\" and one for \"sliding_attention\"",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": "linear", "factor": "x"})),
            "\"rope_scaling.factor\" is \"x\", expected a positive number",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": 3})),
            "\"rope_scaling.rope_type\" is 3, expected the name of a rope type",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": "linear", "type": "dynamic", "factor": 2.0})),
            "\"rope_scaling.rope_type\" (\"linear\") and \"rope_scaling.type\" (\"dynamic\") disagree; keep the one that is right",
        ),
        (
            LLAMA,
            json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "linear", "factor": 3.0}}),
            "\"rope_scaling\" ({\"rope_type\":\"linear\",\"factor\":2.0}) and \"rope_parameters\" ({\"rope_type\":\"linear\",\"factor\":3.0}) disagree; keep the one that is right",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": "linear", "factor": 2.0, "beta_fast": 3.0})),
            "\"rope_scaling.beta_fast\" is 3.0, which LlamaForCausalLM is not supported with; supported is rope type \"linear\" without it",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": "longrope"})),
            "\"rope_scaling.rope_type\" is \"longrope\", which LlamaForCausalLM is not supported with; supported is \"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\"",
        ),
        (
            PHI3,
            scaled(json!({"rope_type": "linear", "factor": 2.0})),
            "\"rope_scaling.rope_type\" is \"linear\", which Phi3ForCausalLM is not supported with; supported is \"default\" or \"longrope\"",
        ),
        (
            LLAMA,
            scaled(llama3),
            "\"rope_scaling.high_freq_factor\" is 4.0, expected more than low_freq_factor (4)",
        ),
        (
            LLAMA,
            scaled(json!({"rope_type": "dynamic", "factor": 0.5})),
            "\"rope_scaling.factor\" is 0.5, expected 1 or more",
        ),
        (
            LLAMA,
            json!({"head_dim": 2, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
            "\"head_dim\" is 2, expected more than 2 for dynamic rope",
        ),
        (LLAMA, yarn("factor", json!(0.5)), "\"rope_scaling.factor\" is 0.5, expected 1 or more"),
        (
            LLAMA,
            yarn("truncate", json!(1)),
            "\"rope_scaling.truncate\" is 1, expected true or false",
        ),
        (
            LLAMA,
            yarn("beta_fast", json!(0.5)),
            "\"rope_scaling.beta_fast\" is 0.5, expected at least beta_slow (1)",
        ),
        (
            LLAMA,
            yarn("original_max_position_embeddings", json!(64.5)),
            "\"rope_scaling.original_max_position_embeddings\" is 64.5, expected a whole positive number",
        ),
        (
            LLAMA,
            yarn("rope_theta", json!(1.0)),
            "\"rope_theta\" (10000) and \"rope_scaling.rope_theta\" (1) disagree; keep the one that is right",
        ),
        (
            LLAMA,
            json!({"rope_theta": 1.0, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}),
            "\"rope_theta\" is 1, expected more than 1 for yarn",
        ),
        (
            GEMMA3,
            json!({"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "truncate": false}}}),
            "\"rope_parameters.full_attention.truncate\" is false, expected true: the class reads it outside the layer types",
        ),
        (
            LLAMA,
            json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}),
            "\"partial_rotary_factor\" is 0.5, which LlamaForCausalLM is not supported with; supported is 1.0: rotary embedding over the whole head",
        ),
        (
            PHI3,
            json!({"partial_rotary_factor": 0.2}),
            "\"partial_rotary_factor\" is 0.2, which Phi3ForCausalLM is not supported with; supported is a part of head_dim (16) that is an even number",
        ),
        (
            PHI3,
            long(json!({"short_factor": [1.0, 2.0]}), json!({})),
            "\"rope_scaling.short_factor\" is [1.0,2.0], expected a list of 8 positive numbers, half as many as components are rotated",
        ),
        (
            PHI3,
            long(json!({"long_factor": [1, 1, 1, 1, 1, 1, 1, 0]}), json!({})),
            "\"rope_scaling.long_factor\" is [1,1,1,1,1,1,1,0], expected a list of 8 positive numbers, half as many as components are rotated",
        ),
        (
            PHI3,
            long(json!({"original_max_position_embeddings": 32}), json!({})),
            "\"original_max_position_embeddings\" (64) and \"rope_scaling.original_max_position_embeddings\" (32) disagree; keep the one that is right",
        ),
        (
            PHI3,
            long(json!({}), json!({"original_max_position_embeddings": 1})),
            "\"original_max_position_embeddings\" is 1, expected more than 1",
        ),
    ]);
    for (edits, field) in [
        (json!({"rope_scaling": {"factor": 2.0}}), "rope_scaling.rope_type"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "rope_scaling.factor"),
        (
            json!({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}),
            "rope_scaling.original_max_position_embeddings",
        ),
        (json!({"rope_theta": "-"}), "rope_theta"),
    ] {
        let expected = format!(
            "config.json has no \"{field}\": the value is needed and none is assumed; add it as the model's authors published it"
        );
        assert_eq!(refusal(LLAMA, &edits), expected);
    }
    for (edits, field) in [
        (
            long(json!({}), json!({"original_max_position_embeddings": "-"})),
            "original_max_position_embeddings",
        ),
        (long(json!({"short_factor": null}), json!({})), "rope_scaling.short_factor"),
    ] {
        let text = refusal(PHI3, &edits);
        assert!(text.starts_with(&format!("config.json has no \"{field}\": ")), "{text}");
    }
}

/// Settings of sampling.
#[test]
fn sampling() {
    let greedy = Sampling::default();
    for (sampling, expected) in [
        (
            Sampling { temperature: -1.0, ..greedy },
            "temperature is -1, expected 0 (greedy) or more",
        ),
        (
            Sampling { temperature: f64::NAN, ..greedy },
            "temperature is NaN, expected 0 (greedy) or more",
        ),
        (Sampling { top_k: Some(0), ..greedy }, "top-k is 0, expected 1 or more"),
        (Sampling { top_p: Some(0.0), ..greedy }, "top-p is 0, expected more than 0 and at most 1"),
        (
            Sampling { top_p: Some(1.5), ..greedy },
            "top-p is 1.5, expected more than 0 and at most 1",
        ),
        (Sampling { min_p: Some(-0.1), ..greedy }, "min-p is -0.1, expected 0 to 1"),
        (
            Sampling { repetition_penalty: 0.0, ..greedy },
            "repetition penalty is 0, expected more than 0 (1 for none)",
        ),
    ] {
        assert_eq!(sampling.check().unwrap_err().to_string(), expected);
    }
    greedy.check().unwrap();
}

/// Chat templates: what is refused in them, in whole sentences.
#[test]
fn chat_templates() {
    let says = |source: &str| {
        let template = ChatTemplate::new(source.to_string());
        template.render_at(&[], false, &Default::default(), 0).unwrap_err().to_string()
    };
    let mut wrong = Vec::new();
    for (source, expected) in [
        ("{{ [1] | tojson(indent=65) }}", "invalid operation: tojson: an indent of at most 64"),
        (
            "{{ [1] | tojson(indent='x', nope=1) }}",
            "too many arguments: unknown keyword argument 'nope'",
        ),
        ("{{ nothing | tojson }}", "invalid operation: tojson: cannot write a undefined"),
        ("{{ 'x'.zfill(5000) }}", "invalid operation: zfill: a width of at most 4096"),
        ("{{ '{:>5000}'.format(1) }}", "invalid operation: format: a width of at most 4096"),
        ("{{ 'x'.center(9, 'ab') }}", "invalid operation: center fills with one character"),
        ("{{ 'x'.split('') }}", "invalid operation: empty separator"),
        ("{{ 'x'.split(1) }}", "invalid operation: the argument is not a string"),
        ("{{ 'x'.index('y') }}", "invalid operation: substring not found"),
        ("{{ [1].index(2) }}", "invalid operation: the list has no such item"),
        (
            "{{ 'x'.startswith(1) }}",
            "invalid operation: startswith takes a string or a tuple of strings",
        ),
        ("{{ 'x'.nope() }}", "unknown method: string has no method named nope"),
        ("{{ nothing.attribute }}", "undefined value"),
    ] {
        let (found, expected) =
            (says(source), format!("the chat template failed: {expected} (in chat:1)"));
        if found != expected {
            wrong.push(format!("{source}\n  found    {found}\n  expected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Neither for ever nor into all memory.
    for hostile in [
        "{% for i in range(100000) %}{% for i in range(100000) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{{ 'a' | indent(100000000000) }}",
        "{{ 'a\\nb' | indent(100000000000) }}",
        "{{ '%100000000000d' | format(1) }}",
        "{{ '{:>100000000000}'.format(1) }}",
        "{{ '{:>{}}'.format(1, 100000000000) }}",
        "{{ ['x'] * 100000000000 }}",
        "{{ (['x'] * 100000000000) | tojson }}",
        "{{ ('x' * 1000000).splitlines() * 100000000000 }}",
    ] {
        let text = says(hostile);
        assert!(text.starts_with("the chat template failed: "), "{hostile}: {text}");
    }
    assert_eq!(
        says("{% macro a(x, y=x) %}{% endmacro %}"),
        "the chat template failed: the default of y in the macro a names another argument, which is not supported; give it a value of its own"
    );
    assert_eq!(
        says("{{ raise_exception('no system message, please') }}"),
        "the chat template refuses these messages: no system message, please"
    );
}

/// Files that hold nothing of their kind.
#[test]
fn indexes_and_goldens() {
    let folder = common::copy("llama-sharded-bf16");
    std::fs::write(folder.path().join("model.safetensors.index.json"), "{\"weight_map\": ")
        .unwrap();
    assert_eq!(
        common::refusal(folder.path()),
        "model.safetensors.index.json: not JSON (EOF while parsing a value at line 1 column 15); download the file again"
    );
    let checkpoint = common::load(&common::checkpoint("llama-odd-f32")).unwrap();
    let golden = Golden::read(&common::golden("llama-odd-f32.json")).unwrap();
    let mut reference = Reference::new(&checkpoint).unwrap();
    let none = Limits { prompts: 0, perplexity: false, ..Limits::default() };
    let report = verify_f32(&golden, &mut reference, none).unwrap();
    assert!(!report.ok);
    assert_eq!(report.failures, ["nothing was compared"]);
}
