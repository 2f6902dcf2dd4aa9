//! Model families as data.

use super::fields::{self, FieldRule};
use super::{Activation, ConfigError};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding, `[vocab, hidden]`.
    Embedding,
    /// Norm before attention, `[hidden]`.
    InputNorm,
    /// Query projection, `[heads * head_dim, hidden]`.
    Query,
    /// Key projection, `[kv_heads * head_dim, hidden]`.
    Key,
    /// Value projection, `[kv_heads * head_dim, hidden]`.
    Value,
    /// Output projection of attention, `[hidden, heads * head_dim]`.
    Output,
    /// Norm before the MLP, `[hidden]`.
    PostNorm,
    /// Gate projection, `[intermediate, hidden]`.
    Gate,
    /// Up projection, `[intermediate, hidden]`.
    Up,
    /// Down projection, `[hidden, intermediate]`.
    Down,
    /// Norm before the output head, `[hidden]`.
    FinalNorm,
    /// Output head, `[vocab, hidden]`; absent where it is tied to the embedding.
    LmHead,
}

impl Role {
    /// Whether every decoder layer has one of these.
    pub fn is_per_layer(self) -> bool {
        !matches!(self, Role::Embedding | Role::FinalNorm | Role::LmHead)
    }
}

/// A symbolic size in a tensor's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// Vocabulary.
    Vocab,
    /// Residual width.
    Hidden,
    /// MLP width.
    Intermediate,
    /// All query heads.
    QWidth,
    /// All key/value heads.
    KvWidth,
}

/// Name and shape of one kind of tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorRule {
    /// What it is for.
    pub role: Role,
    /// Name in the checkpoint; `{layer}` stands for the layer number.
    pub name: &'static str,
    /// Shape, rows first.
    pub shape: &'static [Dim],
}

impl TensorRule {
    /// The tensor's name in a given layer.
    pub fn name_for(&self, layer: Option<usize>) -> String {
        match layer {
            Some(n) => self.name.replace("{layer}", &n.to_string()),
            None => self.name.to_string(),
        }
    }
}

/// One model family.
#[derive(Debug)]
pub struct Family {
    /// The entry of `architectures`.
    pub architecture: &'static str,
    /// `model_type`.
    pub model_type: &'static str,
    /// What is supported, for messages.
    pub summary: &'static str,
    /// Tensors, in the order of the computation within a layer.
    pub tensors: &'static [TensorRule],
    /// Names that may be there besides, with what they must hold: see [`crate::weights`].
    pub inverse_frequencies: &'static str,
    /// Whether an absent `num_key_value_heads` means one per query head, as the model class itself reads it.
    pub kv_heads_default_to_heads: bool,
    /// Activation where `hidden_act` is absent.
    pub activation_default: Activation,
    /// `tie_word_embeddings` where it is absent.
    pub tie_default: bool,
    /// Rules for fields of this family, looked up before the common ones.
    pub fields: &'static [(&'static str, FieldRule)],
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

const LLAMA_TENSORS: &[TensorRule] = {
    use Dim::*;
    const fn t(role: Role, name: &'static str, shape: &'static [Dim]) -> TensorRule {
        TensorRule { role, name, shape }
    }
    &[
        t(Role::Embedding, "model.embed_tokens.weight", &[Vocab, Hidden]),
        t(Role::InputNorm, "model.layers.{layer}.input_layernorm.weight", &[Hidden]),
        t(Role::Query, "model.layers.{layer}.self_attn.q_proj.weight", &[QWidth, Hidden]),
        t(Role::Key, "model.layers.{layer}.self_attn.k_proj.weight", &[KvWidth, Hidden]),
        t(Role::Value, "model.layers.{layer}.self_attn.v_proj.weight", &[KvWidth, Hidden]),
        t(Role::Output, "model.layers.{layer}.self_attn.o_proj.weight", &[Hidden, QWidth]),
        t(Role::PostNorm, "model.layers.{layer}.post_attention_layernorm.weight", &[Hidden]),
        t(Role::Gate, "model.layers.{layer}.mlp.gate_proj.weight", &[Intermediate, Hidden]),
        t(Role::Up, "model.layers.{layer}.mlp.up_proj.weight", &[Intermediate, Hidden]),
        t(Role::Down, "model.layers.{layer}.mlp.down_proj.weight", &[Hidden, Intermediate]),
        t(Role::FinalNorm, "model.norm.weight", &[Hidden]),
        t(Role::LmHead, "lm_head.weight", &[Vocab, Hidden]),
    ]
};

const INVERSE_FREQUENCIES: &str = "model.layers.{layer}.self_attn.rotary_emb.inv_freq";

/// The supported families.
pub const FAMILIES: &[Family] = &[
    Family {
        architecture: "LlamaForCausalLM",
        model_type: "llama",
        summary: "LlamaForCausalLM (full attention, no biases, rope default, linear or llama3)",
        tensors: LLAMA_TENSORS,
        inverse_frequencies: INVERSE_FREQUENCIES,
        kv_heads_default_to_heads: true,
        activation_default: Activation::Silu,
        tie_default: false,
        fields: &[
            ("attention_bias", FieldRule::OnlyFalse("false: projections without bias")),
            ("mlp_bias", FieldRule::OnlyFalse("false: projections without bias")),
            ("pretraining_tp", FieldRule::Harmless),
            ("sliding_window", FieldRule::OnlyNull("null: full attention")),
        ],
    },
    Family {
        architecture: "MistralForCausalLM",
        model_type: "mistral",
        summary: "MistralForCausalLM with \"sliding_window\": null (full attention)",
        tensors: LLAMA_TENSORS,
        inverse_frequencies: INVERSE_FREQUENCIES,
        // The class assumes 8 here; an assumed head count is not accepted.
        kv_heads_default_to_heads: false,
        activation_default: Activation::Silu,
        tie_default: false,
        fields: &[
            // Absent means 4096 to the model class, so the null has to be written.
            ("sliding_window", FieldRule::ExplicitNull("null, written out: full attention")),
            ("attention_bias", FieldRule::OnlyFalse("false: projections without bias")),
            ("mlp_bias", FieldRule::OnlyFalse("false: projections without bias")),
        ],
    },
];

/// Finds the family a config names.
pub(super) fn find(
    file: &str,
    object: &Map<String, Value>,
) -> Result<&'static Family, ConfigError> {
    let unsupported = |found: String| ConfigError::UnsupportedArchitecture {
        file: file.to_string(),
        found,
        supported: FAMILIES.iter().map(|f| f.summary).collect::<Vec<_>>().join(" and "),
    };
    let model_type = match object.get("model_type") {
        None | Some(Value::Null) => None,
        Some(Value::String(s)) => Some(s.as_str()),
        Some(v) => {
            return Err(ConfigError::BadValue {
                file: file.to_string(),
                field: "model_type".into(),
                value: fields::short(v),
                expected: "a string such as \"llama\"".into(),
            });
        }
    };
    let family = match object.get("architectures") {
        None | Some(Value::Null) => {
            let Some(t) = model_type else {
                return Err(ConfigError::Missing {
                    file: file.to_string(),
                    field: "architectures".into(),
                });
            };
            FAMILIES
                .iter()
                .find(|f| f.model_type == t)
                .ok_or_else(|| unsupported(format!("of \"model_type\": {t:?}")))?
        }
        Some(Value::Array(list)) if list.len() == 1 => {
            let name = list[0].as_str().unwrap_or_default();
            FAMILIES
                .iter()
                .find(|f| f.architecture == name)
                .ok_or_else(|| unsupported(fields::short(&list[0])))?
        }
        Some(v) => return Err(unsupported(fields::short(v))),
    };
    match model_type {
        Some(t) if t != family.model_type => Err(ConfigError::Conflict {
            file: file.to_string(),
            first: format!("\"architectures\" ({})", family.architecture),
            second: format!("\"model_type\" ({t:?})"),
        }),
        _ => Ok(family),
    }
}

pub(super) fn serialize_name<S: Serializer>(
    family: &&'static Family,
    s: S,
) -> Result<S::Ok, S::Error> {
    s.serialize_str(family.architecture)
}
