//! The supported families, one table each. What a family does is said by its row and by the tensors it has: a norm, a
//! bias or a fused matrix is applied if and only if it is listed.

use super::Activation;
use super::family::{
    EmbeddingScale, Family, HeadDim, HiddenAct, NormWeight, RopeRule, ScoreScale, Windows,
};
use super::fields::FieldRule::{self, *};
use super::role::{Dim::*, Role, TensorRule, When};

const fn t(role: Role, name: &'static str, shape: &'static [super::Dim], when: When) -> TensorRule {
    TensorRule { role, name, shape, when }
}

const fn attn(role: Role, name: &'static str, shape: &'static [super::Dim]) -> TensorRule {
    t(role, name, shape, When::Always)
}

const EMBEDDING: TensorRule =
    t(Role::Embedding, "model.embed_tokens.weight", &[Vocab, Hidden], When::Always);
const FINAL_NORM: TensorRule = t(Role::FinalNorm, "model.norm.weight", &[Hidden], When::Always);
const HEAD: TensorRule = t(Role::LmHead, "lm_head.weight", &[Vocab, Hidden], When::Untied);

const INPUT_NORM: TensorRule =
    attn(Role::InputNorm, "model.layers.{layer}.input_layernorm.weight", &[Hidden]);
const QUERY: TensorRule =
    attn(Role::Query, "model.layers.{layer}.self_attn.q_proj.weight", &[QWidth, Hidden]);
const KEY: TensorRule =
    attn(Role::Key, "model.layers.{layer}.self_attn.k_proj.weight", &[KvWidth, Hidden]);
const VALUE: TensorRule =
    attn(Role::Value, "model.layers.{layer}.self_attn.v_proj.weight", &[KvWidth, Hidden]);
const OUTPUT: TensorRule =
    attn(Role::Output, "model.layers.{layer}.self_attn.o_proj.weight", &[Hidden, QWidth]);
const QUERY_BIAS: TensorRule = t(
    Role::QueryBias,
    "model.layers.{layer}.self_attn.q_proj.bias",
    &[QWidth],
    When::AttentionBias,
);
const KEY_BIAS: TensorRule =
    t(Role::KeyBias, "model.layers.{layer}.self_attn.k_proj.bias", &[KvWidth], When::AttentionBias);
const VALUE_BIAS: TensorRule = t(
    Role::ValueBias,
    "model.layers.{layer}.self_attn.v_proj.bias",
    &[KvWidth],
    When::AttentionBias,
);
const OUTPUT_BIAS: TensorRule = t(
    Role::OutputBias,
    "model.layers.{layer}.self_attn.o_proj.bias",
    &[Hidden],
    When::AttentionBias,
);
/// The norm before the MLP, under the name it has where it is the only second norm.
const MLP_NORM: TensorRule =
    attn(Role::PostNorm, "model.layers.{layer}.post_attention_layernorm.weight", &[Hidden]);
const GATE: TensorRule =
    attn(Role::Gate, "model.layers.{layer}.mlp.gate_proj.weight", &[Intermediate, Hidden]);
const UP: TensorRule =
    attn(Role::Up, "model.layers.{layer}.mlp.up_proj.weight", &[Intermediate, Hidden]);
const DOWN: TensorRule =
    attn(Role::Down, "model.layers.{layer}.mlp.down_proj.weight", &[Hidden, Intermediate]);
const GATE_BIAS: TensorRule =
    t(Role::GateBias, "model.layers.{layer}.mlp.gate_proj.bias", &[Intermediate], When::MlpBias);
const UP_BIAS: TensorRule =
    t(Role::UpBias, "model.layers.{layer}.mlp.up_proj.bias", &[Intermediate], When::MlpBias);
const DOWN_BIAS: TensorRule =
    t(Role::DownBias, "model.layers.{layer}.mlp.down_proj.bias", &[Hidden], When::MlpBias);
/// Norms of outputs and around the MLP, as Gemma 2 and OLMo 2 name them.
const ATTENTION_OUTPUT_NORM: TensorRule = attn(
    Role::AttentionOutputNorm,
    "model.layers.{layer}.post_attention_layernorm.weight",
    &[Hidden],
);
const PRE_MLP_NORM: TensorRule =
    attn(Role::PostNorm, "model.layers.{layer}.pre_feedforward_layernorm.weight", &[Hidden]);
const MLP_OUTPUT_NORM: TensorRule =
    attn(Role::MlpOutputNorm, "model.layers.{layer}.post_feedforward_layernorm.weight", &[Hidden]);
const QUERY_NORM: TensorRule =
    attn(Role::QueryNorm, "model.layers.{layer}.self_attn.q_norm.weight", &[super::Dim::HeadDim]);
const KEY_NORM: TensorRule =
    attn(Role::KeyNorm, "model.layers.{layer}.self_attn.k_norm.weight", &[super::Dim::HeadDim]);
const WIDE_QUERY_NORM: TensorRule =
    attn(Role::QueryNorm, "model.layers.{layer}.self_attn.q_norm.weight", &[QWidth]);
const WIDE_KEY_NORM: TensorRule =
    attn(Role::KeyNorm, "model.layers.{layer}.self_attn.k_norm.weight", &[KvWidth]);

const LLAMA: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    OUTPUT,
    OUTPUT_BIAS,
    MLP_NORM,
    GATE,
    GATE_BIAS,
    UP,
    UP_BIAS,
    DOWN,
    DOWN_BIAS,
    FINAL_NORM,
    HEAD,
];
const MISTRAL: &[TensorRule] =
    &[EMBEDDING, INPUT_NORM, QUERY, KEY, VALUE, OUTPUT, MLP_NORM, GATE, UP, DOWN, FINAL_NORM, HEAD];
const QWEN2: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS.always(),
    KEY,
    KEY_BIAS.always(),
    VALUE,
    VALUE_BIAS.always(),
    OUTPUT,
    MLP_NORM,
    GATE,
    UP,
    DOWN,
    FINAL_NORM,
    HEAD,
];
const QWEN3: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    QUERY_NORM,
    KEY_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    MLP_NORM,
    GATE,
    UP,
    DOWN,
    FINAL_NORM,
    HEAD,
];
const PHI3: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    attn(Role::FusedQkv, "model.layers.{layer}.self_attn.qkv_proj.weight", &[QkvWidth, Hidden]),
    OUTPUT,
    MLP_NORM,
    attn(
        Role::FusedGateUp,
        "model.layers.{layer}.mlp.gate_up_proj.weight",
        &[TwoIntermediate, Hidden],
    ),
    DOWN,
    FINAL_NORM,
    HEAD,
];
const GEMMA: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    OUTPUT,
    OUTPUT_BIAS,
    MLP_NORM,
    GATE,
    UP,
    DOWN,
    FINAL_NORM,
    HEAD,
];
const GEMMA2: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    OUTPUT,
    OUTPUT_BIAS,
    ATTENTION_OUTPUT_NORM,
    PRE_MLP_NORM,
    GATE,
    UP,
    DOWN,
    MLP_OUTPUT_NORM,
    FINAL_NORM,
    HEAD,
];
const GEMMA3: &[TensorRule] = &[
    EMBEDDING,
    INPUT_NORM,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    QUERY_NORM,
    KEY_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    ATTENTION_OUTPUT_NORM,
    PRE_MLP_NORM,
    GATE,
    UP,
    DOWN,
    MLP_OUTPUT_NORM,
    FINAL_NORM,
    HEAD,
];
const OLMO2: &[TensorRule] = &[
    EMBEDDING,
    QUERY,
    QUERY_BIAS,
    KEY,
    KEY_BIAS,
    VALUE,
    VALUE_BIAS,
    WIDE_QUERY_NORM,
    WIDE_KEY_NORM,
    OUTPUT,
    OUTPUT_BIAS,
    ATTENTION_OUTPUT_NORM,
    GATE,
    UP,
    DOWN,
    MLP_OUTPUT_NORM,
    FINAL_NORM,
    HEAD,
];

const NO_BIAS: FieldRule = OnlyFalse("false: projections without bias");
const NO_WINDOW: FieldRule = OnlyNull("null: full attention");

/// What most families share; each row below says what differs.
const BASE: Family = Family {
    name: "Llama",
    architecture: "LlamaForCausalLM",
    model_type: "llama",
    tensors: LLAMA,
    inverse_frequencies: "model.layers.{layer}.self_attn.rotary_emb.inv_freq",
    kv_heads_default_to_heads: true,
    head_dim: HeadDim::FromHeads,
    hidden_act: HiddenAct {
        field: "hidden_act",
        default: Some(Activation::Silu),
        gelu_is_tanh: false,
    },
    tie_default: false,
    norm_weight: NormWeight::Plain,
    embedding_scale: EmbeddingScale::Field,
    score_scale: ScoreScale::HeadDim,
    windows: Windows::None,
    rope: RopeRule { local_base: None, partial: false, skipped_layers: false, longrope: false },
    fields: &[
        ("attention_bias", Honoured),
        ("mlp_bias", Honoured),
        ("pretraining_tp", Harmless),
        ("sliding_window", NO_WINDOW),
    ],
};

const QWEN_FIELDS: &[(&str, FieldRule)] = &[
    ("attention_bias", Honoured),
    ("mlp_bias", NO_BIAS),
    ("sliding_window", Honoured),
    ("use_sliding_window", Honoured),
    ("max_window_layers", Honoured),
    ("layer_types", Honoured),
];

const GEMMA_ACT: HiddenAct = HiddenAct {
    field: "hidden_activation",
    default: Some(Activation::GeluTanh),
    gelu_is_tanh: false,
};

/// The supported families.
pub const FAMILIES: &[Family] = &[
    BASE,
    Family {
        name: "Mistral",
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        tensors: MISTRAL,
        // The class assumes 8 here; an assumed head count is not accepted.
        kv_heads_default_to_heads: false,
        windows: Windows::Every,
        fields: &[
            // Absent means 4096 to the model class, so null has to be written.
            ("sliding_window", Stated("a number of positions, or null for full attention")),
            ("layer_types", Honoured),
            ("attention_bias", NO_BIAS),
            ("mlp_bias", NO_BIAS),
        ],
        ..BASE
    },
    Family {
        name: "Ministral",
        architecture: "MinistralForCausalLM",
        model_type: "ministral",
        tensors: MISTRAL,
        kv_heads_default_to_heads: false,
        head_dim: HeadDim::Stated,
        windows: Windows::Listed,
        fields: &[
            ("sliding_window", Stated("a number of positions, or null for full attention")),
            ("layer_types", Honoured),
            ("attention_bias", NO_BIAS),
            ("mlp_bias", NO_BIAS),
        ],
        ..BASE
    },
    Family {
        name: "Qwen 2, 2.5",
        architecture: "Qwen2ForCausalLM",
        model_type: "qwen2",
        tensors: QWEN2,
        kv_heads_default_to_heads: false,
        windows: Windows::FromLayer,
        fields: &[
            (
                "attention_bias",
                OnlyNull("null: the class has biases in q, k and v whatever it says"),
            ),
            ("mlp_bias", NO_BIAS),
            ("sliding_window", Honoured),
            ("use_sliding_window", Honoured),
            ("max_window_layers", Honoured),
            ("layer_types", Honoured),
        ],
        ..BASE
    },
    Family {
        name: "Qwen 3",
        architecture: "Qwen3ForCausalLM",
        model_type: "qwen3",
        tensors: QWEN3,
        kv_heads_default_to_heads: false,
        head_dim: HeadDim::Stated,
        windows: Windows::FromLayer,
        fields: QWEN_FIELDS,
        ..BASE
    },
    Family {
        name: "SmolLM 3",
        architecture: "SmolLM3ForCausalLM",
        model_type: "smollm3",
        kv_heads_default_to_heads: false,
        tie_default: true,
        windows: Windows::WithoutRope,
        rope: RopeRule { skipped_layers: true, ..BASE.rope },
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", Honoured),
            ("pretraining_tp", Harmless),
            ("no_rope_layers", Honoured),
            ("no_rope_layer_interval", Honoured),
            ("sliding_window", Honoured),
            ("use_sliding_window", Honoured),
            ("layer_types", Honoured),
            // Read by no code of the class.
            ("max_window_layers", Harmless),
        ],
        ..BASE
    },
    Family {
        name: "Phi 3",
        architecture: "Phi3ForCausalLM",
        model_type: "phi3",
        tensors: PHI3,
        windows: Windows::Every,
        rope: RopeRule { partial: true, longrope: true, ..BASE.rope },
        fields: &[
            ("attention_bias", NO_BIAS),
            ("mlp_bias", NO_BIAS),
            ("sliding_window", Honoured),
            ("layer_types", Honoured),
            ("partial_rotary_factor", Honoured),
            ("original_max_position_embeddings", Honoured),
            // The first checkpoints bring the class along that transformers has built in since.
            ("auto_map", Harmless),
        ],
        ..BASE
    },
    Family {
        name: "Gemma",
        architecture: "GemmaForCausalLM",
        model_type: "gemma",
        tensors: GEMMA,
        kv_heads_default_to_heads: false,
        head_dim: HeadDim::Stated,
        hidden_act: HiddenAct {
            field: "hidden_act",
            default: Some(Activation::GeluTanh),
            gelu_is_tanh: true,
        },
        tie_default: true,
        norm_weight: NormWeight::OnePlus,
        embedding_scale: EmbeddingScale::SqrtHidden,
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", NO_BIAS),
            ("sliding_window", NO_WINDOW),
            ("hidden_activation", OnlyText("gelu_pytorch_tanh")),
            ("use_bidirectional_attention", OnlyFalse("false: causal attention")),
        ],
        ..BASE
    },
    Family {
        name: "Gemma 2",
        architecture: "Gemma2ForCausalLM",
        model_type: "gemma2",
        tensors: GEMMA2,
        kv_heads_default_to_heads: false,
        head_dim: HeadDim::Stated,
        hidden_act: GEMMA_ACT,
        tie_default: true,
        norm_weight: NormWeight::OnePlus,
        embedding_scale: EmbeddingScale::SqrtHidden,
        score_scale: ScoreScale::QueryScalar,
        windows: Windows::Alternating { field: None, default: 2 },
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", NO_BIAS),
            // The class reads `hidden_activation` alone.
            ("hidden_act", Harmless),
            ("hidden_activation", Honoured),
            ("query_pre_attn_scalar", Honoured),
            ("attn_logit_softcapping", Stated("a number, or null for none")),
            ("final_logit_softcapping", Stated("a number, or null for none")),
            ("sliding_window", Honoured),
            ("sliding_window_size", SameAs("sliding_window")),
            ("layer_types", Honoured),
            ("cache_implementation", Harmless),
            ("use_bidirectional_attention", OnlyFalse("false: causal attention")),
        ],
        ..BASE
    },
    Family {
        name: "Gemma 3 text",
        architecture: "Gemma3ForCausalLM",
        model_type: "gemma3_text",
        tensors: GEMMA3,
        kv_heads_default_to_heads: false,
        head_dim: HeadDim::Stated,
        hidden_act: GEMMA_ACT,
        tie_default: true,
        norm_weight: NormWeight::OnePlus,
        embedding_scale: EmbeddingScale::SqrtHidden,
        score_scale: ScoreScale::QueryScalar,
        windows: Windows::Alternating { field: Some("sliding_window_pattern"), default: 6 },
        rope: RopeRule { local_base: Some("rope_local_base_freq"), ..BASE.rope },
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", NO_BIAS),
            ("hidden_act", Harmless),
            ("hidden_activation", Honoured),
            ("query_pre_attn_scalar", Honoured),
            ("attn_logit_softcapping", Honoured),
            ("final_logit_softcapping", Honoured),
            ("sliding_window", Honoured),
            ("sliding_window_pattern", Honoured),
            ("_sliding_window_pattern", Honoured),
            ("layer_types", Honoured),
            ("rope_local_base_freq", Honoured),
            ("cache_implementation", Harmless),
            ("use_bidirectional_attention", OnlyFalse("false: causal attention")),
        ],
        ..BASE
    },
    Family {
        name: "Granite",
        architecture: "GraniteForCausalLM",
        model_type: "granite",
        score_scale: ScoreScale::Multiplier,
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", Honoured),
            ("sliding_window", NO_WINDOW),
            ("embedding_multiplier", Honoured),
            ("residual_multiplier", Honoured),
            ("attention_multiplier", Honoured),
            ("logits_scaling", Honoured),
        ],
        ..BASE
    },
    Family {
        name: "OLMo 2",
        architecture: "Olmo2ForCausalLM",
        model_type: "olmo2",
        tensors: OLMO2,
        fields: &[
            ("attention_bias", Honoured),
            ("mlp_bias", NO_BIAS),
            ("sliding_window", NO_WINDOW),
        ],
        ..BASE
    },
];
