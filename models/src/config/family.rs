//! What a row of the table of families says, and which row a config asks for.

use super::fields::{self, FieldRule};
use super::role::TensorRule;
use super::{Activation, ConfigError, FAMILIES};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

/// How the stored weight of a norm is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum NormWeight {
    /// The factor itself.
    Plain,
    /// The factor less one.
    OnePlus,
}

/// Where the width of a head comes from if `head_dim` is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadDim {
    /// `hidden_size / num_attention_heads`.
    FromHeads,
    /// Nowhere: the class assumes a number, and an assumed number is not accepted.
    Stated,
}

/// Where the gate's activation is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenAct {
    /// The field.
    pub field: &'static str,
    /// What the class takes where it is absent.
    pub default: Option<Activation>,
    /// Whether `"gelu"` means the tanh approximation, as in the first Gemma checkpoints.
    pub gelu_is_tanh: bool,
}

/// Factor of the embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmbeddingScale {
    /// `embedding_multiplier`, 1 where it is absent.
    Field,
    /// `sqrt(hidden_size)`.
    SqrtHidden,
}

/// Factor of the attention scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScoreScale {
    /// `1 / sqrt(head_dim)`.
    HeadDim,
    /// `1 / sqrt(query_pre_attn_scalar)`.
    QueryScalar,
    /// `attention_multiplier`.
    Multiplier,
}

/// Which layers attend to the last `sliding_window` positions alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// None.
    None,
    /// All, if `sliding_window` is a number.
    Every,
    /// Those that `layer_types` names; all where it is absent.
    Listed,
    /// Those that `layer_types` names, else those from layer `max_window_layers` on; none unless `use_sliding_window`.
    FromLayer,
    /// Those that `layer_types` names, else those without rotary embedding; none unless `use_sliding_window`.
    WithoutRope,
    /// Those that `layer_types` names, else all but every n-th.
    Alternating {
        /// The field that has n, if there is one.
        field: Option<&'static str>,
        /// What n is otherwise.
        default: usize,
    },
}

/// What is peculiar to a family's rotary embedding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RopeRule {
    /// The field with the base of windowed layers, where those have one of their own.
    pub local_base: Option<&'static str>,
    /// Whether `partial_rotary_factor` is applied.
    pub partial: bool,
    /// Whether `no_rope_layers` is applied.
    pub skipped_layers: bool,
    /// Whether the class takes longrope, and `su` and `yarn` as names for it.
    pub longrope: bool,
}

/// One model family.
#[derive(Debug, Clone, Copy)]
pub struct Family {
    /// For people.
    pub name: &'static str,
    /// The entry of `architectures`.
    pub architecture: &'static str,
    /// `model_type`.
    pub model_type: &'static str,
    /// Tensors, in the order of the computation within a layer.
    pub tensors: &'static [TensorRule],
    /// Names that may be there besides, with what they must hold: see [`crate::weights`].
    pub inverse_frequencies: &'static str,
    /// Whether an absent `num_key_value_heads` means one per query head, as the model class itself reads it.
    pub kv_heads_default_to_heads: bool,
    /// What an absent `head_dim` means.
    pub head_dim: HeadDim,
    /// Where the gate's activation is named.
    pub hidden_act: HiddenAct,
    /// `tie_word_embeddings` where it is absent.
    pub tie_default: bool,
    /// How norm weights are meant.
    pub norm_weight: NormWeight,
    /// Factor of the embedding.
    pub embedding_scale: EmbeddingScale,
    /// Factor of the attention scores.
    pub score_scale: ScoreScale,
    /// Which layers have a window.
    pub windows: Windows,
    /// Rotary embedding.
    pub rope: RopeRule,
    /// Rules for fields of this family, looked up before the common ones.
    pub fields: &'static [(&'static str, FieldRule)],
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.architecture == other.architecture
    }
}

/// What is supported, in one sentence.
fn supported() -> String {
    let names: Vec<&str> = FAMILIES.iter().map(|f| f.architecture).collect();
    format!("dense decoder-only text models of the architectures {}", names.join(", "))
}

/// What kind of model a config describes, where it is one of the kinds that are not supported.
fn foreign(name: &str, object: &Map<String, Value>) -> &'static str {
    let lower = name.to_lowercase();
    let has = |fields: &[&str]| {
        fields.iter().any(|f| object.get(*f).is_some_and(|v| !v.is_null() && v != &Value::from(0)))
    };
    let one_of = |parts: &[&str]| parts.iter().any(|p| lower.contains(p));
    if has(&["kv_lora_rank", "q_lora_rank"]) || one_of(&["deepseek", "minicpm3", "mla"]) {
        ", a model with multi-head latent attention,"
    } else if has(&["vision_config", "audio_config", "text_config", "image_token_id"])
        || one_of(&[
            "vl",
            "vision",
            "llava",
            "audio",
            "omni",
            "paligemma",
            "imagetext",
            "mllama",
            "gemma3forc",
            "gemma3n",
            "mistral3",
        ])
    {
        ", a multimodal model,"
    } else if has(&[
        "num_local_experts",
        "num_experts",
        "n_routed_experts",
        "moe_intermediate_size",
    ]) || one_of(&["moe", "mixtral", "dbrx", "gptoss"])
    {
        ", a mixture of experts,"
    } else if object.get("is_encoder_decoder") == Some(&Value::Bool(true))
        || one_of(&["t5", "bart", "pegasus", "marian", "whisper", "seq2seq"])
        || name.ends_with("ForConditionalGeneration")
    {
        ", an encoder-decoder model,"
    } else if one_of(&["mamba", "rwkv", "recurrent", "hybrid", "jamba", "zamba"]) {
        ", a recurrent or hybrid model,"
    } else {
        ""
    }
}

/// Finds the family a config names.
pub(super) fn find(
    file: &str,
    object: &Map<String, Value>,
) -> Result<&'static Family, ConfigError> {
    let unsupported = |found: String, name: &str| ConfigError::UnsupportedArchitecture {
        file: file.to_string(),
        found: format!("{found}{}", foreign(name, object)),
        supported: supported(),
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
                .ok_or_else(|| unsupported(format!("of \"model_type\": {t:?}"), t))?
        }
        Some(Value::Array(list)) if list.len() == 1 => {
            let name = list[0].as_str().unwrap_or_default();
            FAMILIES
                .iter()
                .find(|f| f.architecture == name)
                .ok_or_else(|| unsupported(fields::short(&list[0]), name))?
        }
        Some(v) => return Err(unsupported(fields::short(v), "")),
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
