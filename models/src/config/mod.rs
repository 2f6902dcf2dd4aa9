//! `config.json` and `generation_config.json`.
//!
//! A model family is a row of data ([`Family`], the table is in `families.rs`): its architecture name, its tensors
//! (`role.rs`), what it assumes where a field is absent, and a rule for every config field it knows. `fields.rs` holds
//! those rules: a field that can change the maths is honoured or refused by name, harmless ones are on an explicit
//! list, and a field nobody knows is refused. `layers.rs` says what differs from layer to layer, `rope_fields.rs` reads
//! both spellings of the rotary parameters, `rope.rs` computes the frequencies, `features.rs` lists what a model does
//! beyond the plain computation, and `generation.rs` reads the generation settings.

mod families;
mod family;
mod features;
mod fields;
mod generation;
mod layers;
mod role;
mod rope;
mod rope_fields;

pub use families::FAMILIES;
pub use family::{
    EmbeddingScale, Family, HeadDim, HiddenAct, NormWeight, RopeRule, ScoreScale, Windows,
};
pub use features::Feature;
pub use fields::FieldRule;
pub(crate) use fields::{parse_object, short};
pub use generation::{GenerationConfig, TokenIds};
pub use layers::{LayerPlan, LayerRope};
pub use role::{Dim, Role, TensorRule, TensorSpec, When};
pub use rope::{Rope, RopeScaling, RopeTable};

use crate::limits;
use serde::Serialize;
use serde_json::{Map, Value};

/// Why a config was refused. Every message names the field, its value, and what is supported.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The bytes are not JSON, or not a JSON object.
    #[error("{file} is not a JSON object: {detail}; download the file again")]
    NotJson {
        /// File name.
        file: String,
        /// What the JSON reader said.
        detail: String,
    },
    /// A field the computation needs is not there; no value is invented.
    #[error(
        "{file} has no \"{field}\": the value is needed and none is assumed; add it as the model's authors published it"
    )]
    Missing {
        /// File name.
        file: String,
        /// Field name.
        field: String,
    },
    /// A field holds something of the wrong type or range.
    #[error("{file}: \"{field}\" is {value}, expected {expected}")]
    BadValue {
        /// File name.
        file: String,
        /// Field name.
        field: String,
        /// The value, as JSON, shortened.
        value: String,
        /// What would have been accepted.
        expected: String,
    },
    /// An architecture outside the supported families.
    #[error("{file}: architecture {found} is not supported; supported are {supported}")]
    UnsupportedArchitecture {
        /// File name.
        file: String,
        /// The architecture named in the file.
        found: String,
        /// The families there are.
        supported: String,
    },
    /// A field that would change the maths in a way this program does not compute.
    #[error(
        "{file}: \"{field}\" is {value}, which {architecture} is not supported with; supported is {supported}"
    )]
    UnsupportedField {
        /// File name.
        file: String,
        /// Architecture.
        architecture: &'static str,
        /// Field name.
        field: String,
        /// The value, as JSON, shortened.
        value: String,
        /// What is supported.
        supported: String,
    },
    /// A field that no rule speaks of.
    #[error(
        "{file}: \"{field}\" (value {value}) is not a field known for {architecture}; it may change the maths, so the model is refused"
    )]
    UnknownField {
        /// File name.
        file: String,
        /// Architecture.
        architecture: &'static str,
        /// Field name.
        field: String,
        /// The value, as JSON, shortened.
        value: String,
    },
    /// Two spellings of one setting disagree.
    #[error("{file}: {first} and {second} disagree; keep the one that is right")]
    Conflict {
        /// File name.
        file: String,
        /// First place and value.
        first: String,
        /// Second place and value.
        second: String,
    },
}

/// The gate's activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `x * Phi(x)`, Phi the distribution function of the normal distribution.
    Gelu,
    /// Its approximation by tanh, `0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    #[serde(rename = "gelu_pytorch_tanh")]
    GeluTanh,
}

/// Everything the computation needs to know about a model, read from `config.json` alone.
///
/// Sizes are element counts. Obtained by [`ModelConfig::from_slice`]; holding one means every field of the file was
/// honoured or known to be harmless.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ModelConfig {
    /// The family whose rules were applied.
    #[serde(serialize_with = "family::serialize_name")]
    pub family: &'static Family,
    /// Rows of the embedding and of the output head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gate and up projections.
    pub intermediate_size: usize,
    /// Decoder layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: usize,
    /// Width of one head; even. Not necessarily `hidden_size / num_heads`.
    pub head_dim: usize,
    /// Positions the model was made for: the greatest sequence length served.
    pub max_position_embeddings: usize,
    /// Epsilon inside the RMS norm.
    pub rms_norm_eps: f32,
    /// Rotary position parameters.
    pub rope: Rope,
    /// Those of windowed layers, where the family has two.
    pub local_rope: Option<Rope>,
    /// Window and rotary embedding of each layer.
    pub layers: Vec<LayerPlan>,
    /// Whether the output head is the embedding matrix.
    pub tie_word_embeddings: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Whether the attention's projections have biases, where the family leaves it to the config.
    pub attention_bias: bool,
    /// Whether the MLP's projections have biases.
    pub mlp_bias: bool,
    /// Factor of the embedding.
    pub embedding_scale: f32,
    /// Factor of what attention and MLP add to the residual.
    pub residual_scale: f32,
    /// Factor of the attention scores, where it is not `1 / sqrt(head_dim)`.
    pub score_scale: Option<f32>,
    /// Soft cap of the scores: `cap * tanh(score / cap)`.
    pub score_cap: Option<f32>,
    /// Soft cap of the logits.
    pub logit_cap: Option<f32>,
    /// Divisor of the logits.
    pub logit_divisor: f32,
    /// `dtype` / `torch_dtype` as written; the tensors' own types are what counts.
    pub stated_dtype: Option<String>,
    /// `bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id`, one or several.
    pub eos_token_ids: Vec<u32>,
}

impl ModelConfig {
    /// Reads a `config.json`. `file` is the name used in messages.
    pub fn from_slice(file: &str, bytes: &[u8]) -> Result<Self, ConfigError> {
        let object = fields::parse_object(file, bytes)?;
        Self::from_object(file, &object)
    }

    /// Reads a parsed `config.json`.
    pub fn from_object(file: &str, object: &Map<String, Value>) -> Result<Self, ConfigError> {
        let (config, refused) = Self::survey(file, object);
        match (config, refused.into_iter().next()) {
            (_, Some(refusal)) => Err(refusal),
            (Some(config), None) => Ok(config),
            (None, None) => Err(ConfigError::NotJson {
                file: file.to_string(),
                detail: "it describes no model".to_string(),
            }),
        }
    }

    /// Reads what can be read and says everything that is wrong. There is a config where every number it needs could
    /// be read, be it with fields that are refused: good for reports, and for nothing else unless nothing was refused.
    pub fn survey(file: &str, object: &Map<String, Value>) -> (Option<Self>, Vec<ConfigError>) {
        let family = match family::find(file, object) {
            Ok(family) => family,
            Err(refusal) => return (None, vec![refusal]),
        };
        let reader = fields::Reader { file, object, family };
        let mut refused = reader.check_fields();
        let config = Self::read(&reader, &mut refused);
        // A field may be looked at twice.
        let mut seen = std::collections::BTreeSet::new();
        refused.retain(|r| seen.insert(r.to_string()));
        (config, refused)
    }

    fn read(reader: &fields::Reader<'_>, refused: &mut Vec<ConfigError>) -> Option<Self> {
        let (family, file, object) = (reader.family, reader.file, reader.object);
        let num_heads = keep(refused, reader.size("num_attention_heads"));
        let num_kv_heads = num_heads.and_then(|n| keep(refused, kv_heads(reader, n)));
        let hidden_size = keep(refused, reader.size("hidden_size"));
        let head_dim = match (hidden_size, num_heads) {
            (Some(hidden), Some(heads)) => keep(refused, head_dim(reader, hidden, heads)),
            _ => None,
        };
        let num_layers = keep(refused, layer_count(reader));
        let eps = keep(refused, reader.positive("rms_norm_eps"));
        let max_position_embeddings = keep(refused, reader.size("max_position_embeddings"));
        let ropes = match (head_dim, max_position_embeddings) {
            (Some(head_dim), Some(max_position_embeddings)) => {
                let sizes = rope_fields::Sizes { head_dim, max_position_embeddings };
                keep(refused, rope_fields::read(reader, sizes))
            }
            _ => None,
        };
        let scaled = |field: &str| Ok(Some(reader.positive(field)?));
        let score_scale = match family.score_scale {
            ScoreScale::HeadDim => Ok(None),
            ScoreScale::QueryScalar => {
                scaled("query_pre_attn_scalar").map(|x| x.map(|x| x.powf(-0.5) as f32))
            }
            ScoreScale::Multiplier => scaled("attention_multiplier").map(|x| x.map(|x| x as f32)),
        };
        let score_scale = keep(refused, score_scale);
        let vocab_size = keep(refused, reader.size("vocab_size"));
        let intermediate_size = keep(refused, reader.size("intermediate_size"));
        let mut flag = |field: &str, default: bool| {
            keep(refused, reader.flag(field)).map(|flag| flag.unwrap_or(default))
        };
        let tie_word_embeddings = flag("tie_word_embeddings", family.tie_default);
        let (attention_bias, mlp_bias) = (flag("attention_bias", false), flag("mlp_bias", false));
        let activation = keep(refused, reader.activation());
        let mut number = |field: &str| {
            keep(refused, reader.optional_positive(field)).map(|x| x.map(|x| x as f32))
        };
        let embedding_multiplier = match family.embedding_scale {
            EmbeddingScale::Field => number("embedding_multiplier").map(|x| x.unwrap_or(1.0)),
            EmbeddingScale::SqrtHidden => hidden_size.map(|h| (h as f64).sqrt() as f32),
        };
        let residual_scale = number("residual_multiplier");
        let score_cap = number("attn_logit_softcapping");
        let logit_cap = number("final_logit_softcapping");
        let logit_divisor = number("logits_scaling");
        let stated_dtype = keep(refused, reader.stated_dtype());
        let bos = keep(refused, generation::token_ids(file, object, "bos_token_id"));
        let eos_token_ids = keep(refused, generation::token_ids(file, object, "eos_token_id"));
        let (rope, local_rope) = ropes?;
        let mut config = Self {
            family,
            vocab_size: vocab_size?,
            hidden_size: hidden_size?,
            intermediate_size: intermediate_size?,
            num_layers: num_layers?,
            num_heads: num_heads?,
            num_kv_heads: num_kv_heads?,
            head_dim: head_dim?,
            max_position_embeddings: max_position_embeddings?,
            rms_norm_eps: eps? as f32,
            rope,
            local_rope,
            layers: Vec::new(),
            tie_word_embeddings: tie_word_embeddings?,
            activation: activation?,
            attention_bias: attention_bias?,
            mlp_bias: mlp_bias?,
            embedding_scale: embedding_multiplier?,
            residual_scale: residual_scale?.unwrap_or(1.0),
            score_scale: score_scale?,
            score_cap: score_cap?,
            logit_cap: logit_cap?,
            logit_divisor: logit_divisor?.unwrap_or(1.0),
            stated_dtype: stated_dtype?,
            bos_token_id: bos?.first().copied(),
            eos_token_ids: eos_token_ids?,
        };
        config.layers = keep(refused, layers::read(reader, config.num_layers, config.capacity()))?;
        if config.parameter_count().is_none() {
            let expected = "sizes whose product can be counted in 64 bits";
            refused.push(reader.bad("hidden_size", expected));
            return None;
        }
        Some(config)
    }

    /// Width of all query heads together, the input width of the output projection.
    pub fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.num_kv_heads * self.head_dim
    }

    /// Query heads that share one key/value head.
    pub fn group_size(&self) -> usize {
        self.num_heads / self.num_kv_heads
    }

    /// Scale of the attention scores: `1 / sqrt(head_dim)`, unless the family says otherwise.
    pub fn attention_scale(&self) -> f32 {
        self.score_scale.unwrap_or_else(|| (self.head_dim as f32).sqrt().recip())
    }

    /// Positions that can be served: `max_position_embeddings`, and with dynamic rope as many more as its factor
    /// stretches them to.
    pub fn capacity(&self) -> usize {
        match self.rope.scaling {
            RopeScaling::Dynamic { factor, .. } => {
                let stretched = factor * self.max_position_embeddings as f64;
                stretched.min(limits::MAX_DIMENSION as f64) as usize
            }
            _ => self.max_position_embeddings,
        }
    }

    /// Whether rotary frequencies depend on the length of the sequence, in any layer.
    pub fn depends_on_length(&self) -> bool {
        let local = self.local_rope.as_ref();
        self.rope.depends_on_length() || local.is_some_and(Rope::depends_on_length)
    }

    /// The rules of the tensors this model has: those of its family whose condition holds.
    pub fn tensor_rules(&self) -> impl Iterator<Item = &'static TensorRule> + '_ {
        self.family.tensors.iter().filter(|rule| match rule.when {
            When::Always => true,
            When::AttentionBias => self.attention_bias,
            When::MlpBias => self.mlp_bias,
            When::Untied => !self.tie_word_embeddings,
        })
    }

    /// A symbolic size of this model.
    pub fn size_of(&self, dim: Dim) -> usize {
        match dim {
            Dim::Vocab => self.vocab_size,
            Dim::Hidden => self.hidden_size,
            Dim::Intermediate => self.intermediate_size,
            Dim::TwoIntermediate => 2 * self.intermediate_size,
            Dim::HeadDim => self.head_dim,
            Dim::QWidth => self.q_width(),
            Dim::KvWidth => self.kv_width(),
            Dim::QkvWidth => self.q_width() + 2 * self.kv_width(),
        }
    }

    /// Shape of a tensor of this role.
    pub fn shape_of(&self, rule: &TensorRule) -> Vec<usize> {
        rule.shape.iter().map(|d| self.size_of(*d)).collect()
    }

    /// Every tensor the checkpoint must hold, in the order of the computation. A tied model has no output head.
    pub fn tensor_specs(&self) -> Vec<TensorSpec> {
        self.specs_of_layers(self.num_layers)
    }

    /// [`ModelConfig::tensor_specs`] of the first `count` layers: enough to find fault with a checkpoint of fewer
    /// tensors than the config has layers.
    pub(crate) fn specs_of_layers(&self, count: usize) -> Vec<TensorSpec> {
        let spec = |rule: &TensorRule, layer: Option<usize>| TensorSpec {
            name: rule.name_for(layer),
            role: rule.role,
            layer,
            shape: self.shape_of(rule),
        };
        let (per_layer, shared): (Vec<&TensorRule>, Vec<&TensorRule>) =
            self.tensor_rules().partition(|r| r.role.is_per_layer());
        let mut out = Vec::with_capacity(shared.len() + per_layer.len() * count);
        out.extend(shared.iter().filter(|r| r.role == Role::Embedding).map(|r| spec(r, None)));
        for layer in 0..count {
            out.extend(per_layer.iter().map(|r| spec(r, Some(layer))));
        }
        out.extend(shared.iter().filter(|r| r.role != Role::Embedding).map(|r| spec(r, None)));
        out
    }

    /// Bytes of the keys and values of one position in float32, or none if they do not fit 64 bits.
    pub fn kv_bytes_f32(&self) -> Option<u64> {
        let width = (self.num_kv_heads as u64).checked_mul(self.head_dim as u64)?;
        width.checked_mul(self.num_layers as u64)?.checked_mul(8)
    }

    /// Number of parameters (a tied head counts once), or none if it does not fit 64 bits.
    pub fn parameter_count(&self) -> Option<u64> {
        let mut total = 0u64;
        for rule in self.tensor_rules() {
            let one = self.shape_of(rule).iter().try_fold(1u64, |a, &d| a.checked_mul(d as u64))?;
            let times = if rule.role.is_per_layer() { self.num_layers as u64 } else { 1 };
            total = total.checked_add(one.checked_mul(times)?)?;
        }
        Some(total)
    }
}

/// The value, or none with the reason put to the others.
fn keep<T>(refused: &mut Vec<ConfigError>, read: Result<T, ConfigError>) -> Option<T> {
    read.map_err(|refusal| refused.push(refusal)).ok()
}

fn kv_heads(reader: &fields::Reader<'_>, num_heads: usize) -> Result<usize, ConfigError> {
    let field = "num_key_value_heads";
    let found = match reader.optional_size(field)? {
        Some(n) => n,
        // `null` is written by old exporters and read as "every head has its own" by all families.
        None if reader.family.kv_heads_default_to_heads || reader.object.contains_key(field) => {
            num_heads
        }
        None => return Err(reader.missing(field)),
    };
    match num_heads.is_multiple_of(found) {
        true => Ok(found),
        false => Err(reader.bad(field, &format!("a divisor of num_attention_heads ({num_heads})"))),
    }
}

fn head_dim(
    reader: &fields::Reader<'_>,
    hidden_size: usize,
    num_heads: usize,
) -> Result<usize, ConfigError> {
    let found = match reader.optional_size("head_dim")? {
        Some(n) => n,
        None if reader.family.head_dim == HeadDim::Stated => {
            return Err(reader.missing("head_dim"));
        }
        None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
        None => {
            let expected = format!(
                "a multiple of num_attention_heads ({num_heads}), since head_dim is not given"
            );
            return Err(reader.bad("hidden_size", &expected));
        }
    };
    match found.is_multiple_of(2) {
        true => Ok(found),
        false => Err(reader.bad_text(
            "head_dim",
            &found.to_string(),
            "an even number, since rotary embedding pairs its halves",
        )),
    }
}

fn layer_count(reader: &fields::Reader<'_>) -> Result<usize, ConfigError> {
    let found = reader.size("num_hidden_layers")?;
    match found > limits::MAX_LAYERS {
        true => Err(reader.bad("num_hidden_layers", &format!("at most {}", limits::MAX_LAYERS))),
        false => Ok(found),
    }
}
