//! Metadata as the `config.json` it was made from, so that the same rules apply to it.

use super::GgufError;
use super::read::{Contents, Meta};
use serde_json::{Map, Value, json};

/// A supported architecture: its name in GGUF, the class, and whether q and k are stored for the other pairing of
/// rotary components.
pub(super) struct Kind {
    pub name: &'static str,
    architecture: &'static str,
    model_type: &'static str,
    pub permuted: bool,
}

const KINDS: &[Kind] = &[
    Kind { name: "llama", architecture: "LlamaForCausalLM", model_type: "llama", permuted: true },
    Kind { name: "qwen2", architecture: "Qwen2ForCausalLM", model_type: "qwen2", permuted: false },
    Kind { name: "qwen3", architecture: "Qwen3ForCausalLM", model_type: "qwen3", permuted: false },
];

impl Contents {
    pub fn unsigned(&self, key: &str) -> Option<u64> {
        match self.metadata.get(key)? {
            Meta::Unsigned(n) => Some(*n),
            Meta::Signed(n) => u64::try_from(*n).ok(),
            _ => None,
        }
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        match self.metadata.get(key)? {
            Meta::Text(s) => Some(s),
            _ => None,
        }
    }

    pub fn flag(&self, key: &str) -> Option<bool> {
        match self.metadata.get(key)? {
            Meta::Bool(b) => Some(*b),
            _ => None,
        }
    }

    /// The architecture.
    pub fn kind(&self) -> Result<&'static Kind, GgufError> {
        let name = self.text("general.architecture").unwrap_or("unnamed");
        KINDS.iter().find(|k| k.name == name).ok_or_else(|| GgufError::Architecture {
            found: name.to_string(),
            supported: KINDS.iter().map(|k| k.name).collect::<Vec<_>>().join(", "),
        })
    }
}

/// Keys below the architecture's name, and the field each becomes; none for those dealt with apart or harmless.
const KEYS: &[(&str, Option<&str>)] = &[
    ("embedding_length", Some("hidden_size")),
    ("block_count", Some("num_hidden_layers")),
    ("feed_forward_length", Some("intermediate_size")),
    ("attention.head_count", Some("num_attention_heads")),
    ("attention.head_count_kv", Some("num_key_value_heads")),
    ("attention.key_length", Some("head_dim")),
    ("attention.layer_norm_rms_epsilon", Some("rms_norm_eps")),
    ("context_length", Some("max_position_embeddings")),
    ("rope.freq_base", Some("rope_theta")),
    ("vocab_size", None),
    ("attention.value_length", None),
    ("rope.dimension_count", None),
    ("rope.scaling.type", None),
    ("rope.scaling.factor", None),
    ("rope.scaling.original_context_length", None),
    // Says how the model was made.
    ("rope.scaling.finetuned", None),
];

/// The config, and what speaks against it. `vocabulary` is the number of rows of the embedding, `tied` whether the head
/// is absent.
pub(super) fn config(
    contents: &Contents,
    kind: &Kind,
    vocabulary: usize,
    tied: bool,
) -> (Map<String, Value>, Vec<GgufError>) {
    let mut refused = Vec::new();
    let mut refuse = |key: &str| refused.push(GgufError::Key { key: key.to_string() });
    let mut out = Map::new();
    out.insert("architectures".into(), json!([kind.architecture]));
    out.insert("model_type".into(), kind.model_type.into());
    out.insert("vocab_size".into(), vocabulary.into());
    out.insert("tie_word_embeddings".into(), tied.into());
    let prefix = format!("{}.", kind.name);
    for (key, value) in &contents.metadata {
        let Some(part) = key.strip_prefix(&prefix) else { continue };
        let neutral = part == "expert_count" && *value == Meta::Unsigned(0);
        let rule = KEYS.iter().find(|(k, _)| *k == part);
        let Some((_, field)) = rule.or(neutral.then_some(&("", None))) else {
            refuse(key);
            continue;
        };
        let Some(field) = field else { continue };
        let number = match value {
            Meta::Unsigned(n) => json!(n),
            Meta::Signed(n) => json!(n),
            Meta::Float(x) => json!(x),
            // A list, say, of one number for each layer.
            _ => {
                refuse(key);
                continue;
            }
        };
        out.insert((*field).into(), number);
    }
    let at = |part: &str| format!("{prefix}{part}");
    let heads = contents.unsigned(&at("attention.head_count")).unwrap_or(0).max(1);
    let width = contents.unsigned(&at("embedding_length")).unwrap_or(0) / heads;
    let head_dim = contents.unsigned(&at("attention.key_length")).unwrap_or(width);
    for part in ["attention.value_length", "rope.dimension_count"] {
        if contents.unsigned(&at(part)).is_some_and(|n| n != head_dim) {
            refuse(&at(part));
        }
    }
    out.insert("head_dim".into(), head_dim.into());
    let scaling = contents.text(&at("rope.scaling.type")).unwrap_or("none");
    let factor = contents.metadata.get(&at("rope.scaling.factor"));
    match (scaling, factor) {
        ("none", _) => {}
        ("linear", Some(Meta::Float(f))) => {
            out.insert("rope_scaling".into(), json!({"rope_type": "linear", "factor": f}));
        }
        ("yarn", Some(Meta::Float(f))) => {
            let original = contents.unsigned(&at("rope.scaling.original_context_length"));
            let scaling = json!({"rope_type": "yarn", "factor": f, "original_max_position_embeddings": original});
            out.insert("rope_scaling".into(), scaling);
        }
        _ => refuse(&at("rope.scaling.type")),
    }
    if let Some(id) = contents.unsigned("tokenizer.ggml.bos_token_id") {
        out.insert("bos_token_id".into(), id.into());
    }
    // The ends of a text, of a turn and of a message.
    let ends = ["eos", "eot", "eom"].map(|e| format!("tokenizer.ggml.{e}_token_id"));
    let ends: Vec<u64> = ends.iter().filter_map(|key| contents.unsigned(key)).collect();
    out.insert("eos_token_id".into(), ends.into());
    (out, refused)
}
