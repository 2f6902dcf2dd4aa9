//! `generation_config.json`: stop tokens, and what is knowingly not applied.

use super::ConfigError;
use super::fields::{parse_object, short};
use serde::Serialize;
use serde_json::{Map, Value};

/// One token id or a list of them, as configs write it.
pub type TokenIds = Vec<u32>;

/// The generation settings of a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct GenerationConfig {
    /// `bos_token_id`.
    pub bos_token_id: Option<u32>,
    /// `eos_token_id`, one or several.
    pub eos_token_ids: TokenIds,
    /// `pad_token_id`.
    pub pad_token_id: Option<u32>,
    /// Settings in the file that would change what HuggingFace's `generate` does by default and that greedy decoding
    /// here does not apply, as `name=value`.
    pub not_applied: Vec<String>,
}

/// Settings that change `generate`, with the value that changes nothing.
const NEUTRAL: &[(&str, Option<f64>)] = &[
    ("do_sample", Some(0.0)),
    ("num_beams", Some(1.0)),
    ("repetition_penalty", Some(1.0)),
    ("no_repeat_ngram_size", Some(0.0)),
    ("encoder_repetition_penalty", Some(1.0)),
    ("min_new_tokens", Some(0.0)),
    ("min_length", Some(0.0)),
    ("guidance_scale", Some(1.0)),
    ("bad_words_ids", None),
    ("force_words_ids", None),
    ("suppress_tokens", None),
    ("begin_suppress_tokens", None),
    ("forced_bos_token_id", None),
    ("forced_eos_token_id", None),
    ("sequence_bias", None),
    ("penalty_alpha", None),
    ("exponential_decay_length_penalty", None),
];

impl GenerationConfig {
    /// Reads a `generation_config.json`. `file` is the name used in messages.
    pub fn from_slice(file: &str, bytes: &[u8]) -> Result<Self, ConfigError> {
        let object = parse_object(file, bytes)?;
        let not_applied = NEUTRAL
            .iter()
            .filter_map(|(name, neutral)| {
                let value = object.get(*name).filter(|v| !v.is_null())?;
                let number = value.as_bool().map(|b| if b { 1.0 } else { 0.0 }).or(value.as_f64());
                (number.is_none() || number != *neutral).then(|| format!("{name}={}", short(value)))
            })
            .collect();
        Ok(Self {
            bos_token_id: token_ids(file, &object, "bos_token_id")?.first().copied(),
            eos_token_ids: token_ids(file, &object, "eos_token_id")?,
            pad_token_id: token_ids(file, &object, "pad_token_id")?.first().copied(),
            not_applied,
        })
    }
}

/// Reads a token id field: absent, null, a number, or a list of numbers. Negative ids, which some exporters write for
/// "none", count as absent.
pub(super) fn token_ids(
    file: &str,
    object: &Map<String, Value>,
    field: &str,
) -> Result<TokenIds, ConfigError> {
    let bad = |v: &Value| ConfigError::BadValue {
        file: file.to_string(),
        field: field.to_string(),
        value: short(v),
        expected: "a token id or a list of token ids".to_string(),
    };
    let one = |v: &Value| match v.as_i64() {
        Some(n) if n < 0 => Ok(None),
        Some(n) => u32::try_from(n).map(Some).map_err(|_| bad(v)),
        None => Err(bad(v)),
    };
    match object.get(field) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(list)) => {
            Ok(list.iter().map(one).collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
        }
        Some(v) => Ok(one(v)?.into_iter().collect()),
    }
}
