//! Rules for config fields, and typed access to them.

use super::{Activation, ConfigError, Family};
use crate::limits;
use serde_json::{Map, Value};

/// What to do with a field that is present.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FieldRule {
    /// Read by the config reader.
    Honoured,
    /// Does not change the maths of greedy decoding.
    Harmless,
    /// Accepted only as null or absent; the text says what is supported.
    OnlyNull(&'static str),
    /// Read by the config reader, and must be there, be it null: what the class assumes otherwise is no neutral value.
    Stated(&'static str),
    /// Accepted only as false, null or absent.
    OnlyFalse(&'static str),
    /// Accepted only as this number, null or absent.
    OnlyNumber(f64, &'static str),
    /// Accepted only as this text, null or absent.
    OnlyText(&'static str),
    /// Accepted only as what another field holds, null or absent.
    SameAs(&'static str),
    /// Accepted only as an empty list or object, null or absent.
    OnlyEmpty(&'static str),
    /// Accepted only as a list of `"full_attention"`, null or absent.
    OnlyFullAttention,
}

use FieldRule::*;

/// Rules common to all families. What is not listed here or in the family is refused unless it is null.
const COMMON: &[(&str, FieldRule)] = &[
    ("architectures", Honoured),
    ("model_type", Honoured),
    ("vocab_size", Honoured),
    ("hidden_size", Honoured),
    ("intermediate_size", Honoured),
    ("num_hidden_layers", Honoured),
    ("num_attention_heads", Honoured),
    ("num_key_value_heads", Honoured),
    ("head_dim", Honoured),
    ("max_position_embeddings", Honoured),
    ("rms_norm_eps", Honoured),
    ("rope_theta", Honoured),
    ("rope_scaling", Honoured),
    ("rope_parameters", Honoured),
    ("tie_word_embeddings", Honoured),
    ("hidden_act", Honoured),
    ("bos_token_id", Honoured),
    ("eos_token_id", Honoured),
    ("dtype", Honoured),
    ("torch_dtype", Honoured),
    // Changes the maths; only the neutral value is computed.
    ("partial_rotary_factor", OnlyNumber(1.0, "1.0: rotary embedding over the whole head")),
    ("layer_types", OnlyFullAttention),
    ("original_max_position_embeddings", Honoured),
    ("use_sliding_window", OnlyFalse("false: full attention")),
    ("max_window_layers", OnlyNull("null: full attention")),
    ("no_rope_layers", OnlyNull("null: rotary embedding in every layer")),
    ("no_rope_layer_interval", OnlyNull("null: rotary embedding in every layer")),
    ("attn_logit_softcapping", OnlyNull("null: no softcap")),
    ("final_logit_softcapping", OnlyNull("null: no softcap")),
    ("query_pre_attn_scalar", OnlyNull("null: scores scaled by 1/sqrt(head_dim)")),
    ("attention_multiplier", OnlyNull("null: scores scaled by 1/sqrt(head_dim)")),
    ("embedding_multiplier", OnlyNumber(1.0, "1.0")),
    ("residual_multiplier", OnlyNumber(1.0, "1.0")),
    ("logits_scaling", OnlyNumber(1.0, "1.0")),
    ("quantization_config", OnlyNull("null: weights in bf16, f16 or f32")),
    ("compression_config", OnlyNull("null: weights in bf16, f16 or f32")),
    ("auto_map", OnlyNull("null: no custom model code")),
    ("pruned_heads", OnlyEmpty("an empty object: no pruned heads")),
    ("is_encoder_decoder", OnlyFalse("false: a decoder alone")),
    ("add_cross_attention", OnlyFalse("false: a decoder alone")),
    ("cross_attention_hidden_size", OnlyNull("null: a decoder alone")),
    ("tie_encoder_decoder", OnlyFalse("false: a decoder alone")),
    ("chunk_size_feed_forward", OnlyNumber(0.0, "0")),
    ("use_bfloat16", OnlyFalse("false")),
    // Matters to training, to export or to sampling, not to greedy decoding.
    ("_name_or_path", Harmless),
    ("name_or_path", Harmless),
    ("transformers_version", Harmless),
    ("transformers.js_config", Harmless),
    ("initializer_range", Harmless),
    ("attention_dropout", Harmless),
    ("hidden_dropout", Harmless),
    ("hidden_dropout_prob", Harmless),
    ("attention_probs_dropout_prob", Harmless),
    ("resid_pdrop", Harmless),
    ("embd_pdrop", Harmless),
    ("use_cache", Harmless),
    ("pad_token_id", Harmless),
    ("sep_token_id", Harmless),
    ("decoder_start_token_id", Harmless),
    ("is_decoder", Harmless),
    ("is_llama_config", Harmless),
    ("rope_interleaved", OnlyFalse("false: halves paired")),
    ("output_attentions", Harmless),
    ("output_hidden_states", Harmless),
    ("output_scores", Harmless),
    ("return_dict", Harmless),
    ("return_dict_in_generate", Harmless),
    ("torchscript", Harmless),
    ("tf_legacy_loss", Harmless),
    ("finetuning_task", Harmless),
    ("id2label", Harmless),
    ("label2id", Harmless),
    ("problem_type", Harmless),
    ("tokenizer_class", Harmless),
    ("prefix", Harmless),
    ("task_specific_params", Harmless),
    ("unsloth_version", Harmless),
    ("unsloth_fixed", Harmless),
    ("attn_implementation", Harmless),
    ("_attn_implementation", Harmless),
    ("_attn_implementation_autoset", Harmless),
    ("_flash_attn_2_enabled", Harmless),
    ("max_length", Harmless),
    ("min_length", Harmless),
    ("do_sample", Harmless),
    ("early_stopping", Harmless),
    ("num_beams", Harmless),
    ("num_beam_groups", Harmless),
    ("diversity_penalty", Harmless),
    ("temperature", Harmless),
    ("top_k", Harmless),
    ("top_p", Harmless),
    ("typical_p", Harmless),
    ("num_return_sequences", Harmless),
    ("remove_invalid_values", Harmless),
    ("exponential_decay_length_penalty", Harmless),
    ("length_penalty", Harmless),
    // These would change greedy output where old configs carry them beside the model.
    ("repetition_penalty", OnlyNumber(1.0, "1.0: no penalty")),
    ("no_repeat_ngram_size", OnlyNumber(0.0, "0: no constraint")),
    ("encoder_no_repeat_ngram_size", OnlyNumber(0.0, "0: no constraint")),
    ("bad_words_ids", OnlyNull("null: no constraint")),
    ("suppress_tokens", OnlyNull("null: no constraint")),
    ("begin_suppress_tokens", OnlyNull("null: no constraint")),
    ("forced_bos_token_id", OnlyNull("null: no constraint")),
    ("forced_eos_token_id", OnlyNull("null: no constraint")),
];

/// Parses a JSON object.
pub(crate) fn parse_object(file: &str, bytes: &[u8]) -> Result<Map<String, Value>, ConfigError> {
    let error = |detail: String| ConfigError::NotJson { file: file.to_string(), detail };
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Object(map)) => Ok(map),
        Ok(other) => Err(error(format!("it holds {}", short(&other)))),
        Err(e) => Err(error(e.to_string())),
    }
}

/// A value as JSON, shortened to what a sentence can carry.
pub(crate) fn short(value: &Value) -> String {
    let mut text = value.to_string();
    if text.chars().count() > 60 {
        text = text.chars().take(57).collect::<String>() + "...";
    }
    text
}

/// Typed access to the fields of one config.
pub(super) struct Reader<'a> {
    pub file: &'a str,
    pub object: &'a Map<String, Value>,
    pub family: &'static Family,
}

impl Reader<'_> {
    /// Applies the rules: every field is honoured, harmless, or refused by name.
    pub fn check_fields(&self) -> Vec<ConfigError> {
        let stated = self.family.fields.iter().filter_map(|(name, rule)| match rule {
            Stated(expected) if !self.object.contains_key(*name) => {
                let supported = format!("{expected}, written out");
                Some(self.unsupported_text(name, "absent", &supported))
            }
            _ => None,
        });
        let present = self.object.iter().filter_map(|(name, value)| self.check(name, value));
        stated.chain(present).collect()
    }

    /// What is wrong with a field that is there.
    fn check(&self, name: &str, value: &Value) -> Option<ConfigError> {
        let rules = self.family.fields.iter().chain(COMMON);
        let rule = rules.clone().find(|(n, _)| *n == name).map(|(_, rule)| *rule);
        let (accepted, supported) = match rule {
            _ if value.is_null() => (true, ""),
            None => {
                return Some(ConfigError::UnknownField {
                    file: self.file.to_string(),
                    architecture: self.family.architecture,
                    field: name.to_string(),
                    value: short(value),
                });
            }
            Some(Honoured | Harmless | Stated(_)) => (true, ""),
            Some(OnlyNull(s)) => (false, s),
            Some(OnlyText(s)) => (value == s, s),
            Some(SameAs(other)) => (self.object.get(other) == Some(value), other),
            Some(OnlyFalse(s)) => (value == &Value::Bool(false), s),
            Some(OnlyNumber(n, s)) => (value.as_f64() == Some(n), s),
            Some(OnlyEmpty(s)) => (
                value.as_object().is_some_and(|o| o.is_empty())
                    || value.as_array().is_some_and(|a| a.is_empty()),
                s,
            ),
            Some(OnlyFullAttention) => (
                value.as_array().is_some_and(|a| a.iter().all(|v| v == "full_attention")),
                "\"full_attention\" in every layer",
            ),
        };
        (!accepted).then(|| self.unsupported_text(name, &short(value), supported))
    }

    pub fn get(&self, field: &str) -> Option<&Value> {
        self.object.get(field).filter(|v| !v.is_null())
    }

    pub fn missing(&self, field: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.to_string(), field: field.to_string() }
    }

    pub fn bad(&self, field: &str, expected: &str) -> ConfigError {
        let value = self.object.get(field).map(short).unwrap_or_else(|| "absent".to_string());
        self.bad_text(field, &value, expected)
    }

    pub fn bad_text(&self, field: &str, value: &str, expected: &str) -> ConfigError {
        ConfigError::BadValue {
            file: self.file.to_string(),
            field: field.to_string(),
            value: value.to_string(),
            expected: expected.to_string(),
        }
    }

    pub fn unsupported_text(&self, field: &str, value: &str, supported: &str) -> ConfigError {
        ConfigError::UnsupportedField {
            file: self.file.to_string(),
            architecture: self.family.architecture,
            field: field.to_string(),
            value: value.to_string(),
            supported: supported.to_string(),
        }
    }

    /// A size that may be absent or null.
    pub fn optional_size(&self, field: &str) -> Result<Option<usize>, ConfigError> {
        let Some(value) = self.get(field) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..=limits::MAX_DIMENSION).contains(&n) => Ok(Some(n as usize)),
            _ => {
                Err(self.bad(field, &format!("a whole number from 1 to {}", limits::MAX_DIMENSION)))
            }
        }
    }

    /// A size that must be there.
    pub fn size(&self, field: &str) -> Result<usize, ConfigError> {
        self.optional_size(field)?.ok_or_else(|| self.missing(field))
    }

    /// A positive finite number that must be there.
    pub fn positive(&self, field: &str) -> Result<f64, ConfigError> {
        let value = self.get(field).ok_or_else(|| self.missing(field))?;
        positive_number(value).ok_or_else(|| self.bad(field, "a positive number"))
    }

    /// A boolean that may be absent or null.
    pub fn flag(&self, field: &str) -> Result<Option<bool>, ConfigError> {
        match self.get(field) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(self.bad(field, "true or false")),
        }
    }

    /// A positive finite number that may be absent or null.
    pub fn optional_positive(&self, field: &str) -> Result<Option<f64>, ConfigError> {
        match self.get(field) {
            None => Ok(None),
            Some(_) => self.positive(field).map(Some),
        }
    }

    /// The gate's activation, from the field in which the family has it.
    pub fn activation(&self) -> Result<Activation, ConfigError> {
        let rule = self.family.hidden_act;
        let Some(value) = self.get(rule.field) else {
            return rule.default.ok_or_else(|| self.missing(rule.field));
        };
        match value.as_str() {
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new") => Ok(Activation::GeluTanh),
            Some("gelu") if rule.gelu_is_tanh => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::Gelu),
            _ => Err(self.unsupported_text(
                rule.field,
                &short(value),
                "\"silu\", \"gelu\" or \"gelu_pytorch_tanh\"",
            )),
        }
    }

    /// `dtype` or `torch_dtype`, as text.
    pub fn stated_dtype(&self) -> Result<Option<String>, ConfigError> {
        for field in ["dtype", "torch_dtype"] {
            match self.get(field) {
                None => {}
                Some(Value::String(s)) => return Ok(Some(s.clone())),
                Some(_) => return Err(self.bad(field, "the name of a type, such as \"bfloat16\"")),
            }
        }
        Ok(None)
    }
}

/// A number that is finite, positive, and stays so in float32.
pub(super) fn positive_number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|x| x.is_finite() && (*x as f32) > 0.0 && (*x as f32).is_finite())
}
