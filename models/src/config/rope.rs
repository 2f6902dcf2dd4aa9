//! Rotary position parameters: both spellings, three kinds, and the frequencies they give.

use super::ConfigError;
use super::fields::{Reader, positive_number, short};
use serde::Serialize;
use serde_json::{Map, Value};

/// How the base frequencies are stretched for longer contexts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f32,
    },
    /// Low frequencies divided by `factor`, high ones kept, a smooth passage between (Llama 3.1).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f32,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f32,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f32,
        /// Context length of pre-training.
        original_max_position_embeddings: u32,
    },
}

/// Rotary position parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Scaling.
    #[serde(flatten)]
    pub scaling: RopeScaling,
}

impl Rope {
    /// Inverse frequencies, `head_dim / 2` of them, computed in float32 in the order of operations of HuggingFace
    /// transformers (`modeling_rope_utils`), so that angles agree to the last bits at large positions.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        let base = self.theta as f32;
        (0..head_dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f32 / head_dim as f32;
                let plain = 1.0f32 / f64::from(base).powf(f64::from(exponent)) as f32;
                match self.scaling {
                    RopeScaling::Default => plain,
                    RopeScaling::Linear { factor } => plain / factor,
                    RopeScaling::Llama3 {
                        factor,
                        low_freq_factor: low,
                        high_freq_factor: high,
                        original_max_position_embeddings,
                    } => {
                        let context = original_max_position_embeddings as f32;
                        let wavelength = 2.0 * std::f32::consts::PI / plain;
                        if wavelength > context / low {
                            plain / factor
                        } else if wavelength < context / high {
                            plain
                        } else {
                            let smooth = (context / wavelength - low) / (high - low);
                            (1.0 - smooth) * plain / factor + smooth * plain
                        }
                    }
                }
            })
            .collect()
    }

    /// Cosine and sine of the angles at one position: element `i` belongs to components `i` and `i + head_dim/2`.
    pub fn cos_sin(inv_freq: &[f32], position: usize) -> (Vec<f32>, Vec<f32>) {
        inv_freq
            .iter()
            .map(|f| {
                let angle = f64::from(position as f32 * f);
                (angle.cos() as f32, angle.sin() as f32)
            })
            .unzip()
    }
}

/// Reads `rope_theta`, `rope_scaling` and `rope_parameters`, whichever are there, and lets no two of them disagree.
pub(super) fn read(reader: &Reader<'_>) -> Result<Rope, ConfigError> {
    let mut theta: Option<(String, f64)> = None;
    let mut scaling: Option<(String, RopeScaling)> = None;
    if reader.get("rope_theta").is_some() {
        theta = Some(("\"rope_theta\"".into(), reader.positive("rope_theta")?));
    }
    for field in ["rope_scaling", "rope_parameters"] {
        let Some(value) = reader.get(field) else { continue };
        let object = value.as_object().ok_or_else(|| reader.bad(field, "an object or null"))?;
        let block = Block { reader, field, object };
        if let Some(t) = block.optional("rope_theta")? {
            let place = format!("\"{field}.rope_theta\"");
            if let Some((other, first)) = theta.as_ref().filter(|(_, first)| *first != t) {
                return Err(block.conflict(format!("{other} ({first})"), format!("{place} ({t})")));
            }
            theta = Some((place, t));
        }
        let found = block.scaling()?;
        if let Some((other, first)) = scaling.as_ref().filter(|(_, first)| *first != found) {
            let describe = |s: &RopeScaling| serde_json::to_string(s).unwrap_or_default();
            return Err(block.conflict(
                format!("\"{other}\" ({})", describe(first)),
                format!("\"{field}\" ({})", describe(&found)),
            ));
        }
        scaling = Some((field.to_string(), found));
    }
    let Some((_, theta)) = theta else { return Err(reader.missing("rope_theta")) };
    Ok(Rope { theta, scaling: scaling.map_or(RopeScaling::Default, |(_, s)| s) })
}

struct Block<'a> {
    reader: &'a Reader<'a>,
    field: &'a str,
    object: &'a Map<String, Value>,
}

impl Block<'_> {
    fn conflict(&self, first: String, second: String) -> ConfigError {
        ConfigError::Conflict { file: self.reader.file.to_string(), first, second }
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.field)
    }

    fn optional(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.object.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(v) => match positive_number(v) {
                Some(x) => Ok(Some(x)),
                None => Err(self.reader.bad_text(&self.path(key), &short(v), "a positive number")),
            },
        }
    }

    fn number(&self, key: &str) -> Result<f32, ConfigError> {
        self.optional(key)?.map(|x| x as f32).ok_or_else(|| self.reader.missing(&self.path(key)))
    }

    /// `rope_type`, or the older `type`.
    fn kind(&self) -> Result<&str, ConfigError> {
        let mut found: Option<(&str, &str)> = None;
        for key in ["rope_type", "type"] {
            match self.object.get(key) {
                None | Some(Value::Null) => {}
                Some(Value::String(s)) => match found {
                    Some((other, first)) if first != s => {
                        return Err(self.conflict(
                            format!("\"{}\" ({first:?})", self.path(other)),
                            format!("\"{}\" ({s:?})", self.path(key)),
                        ));
                    }
                    _ => found = Some((key, s)),
                },
                Some(v) => {
                    return Err(self.reader.bad_text(
                        &self.path(key),
                        &short(v),
                        "the name of a rope type",
                    ));
                }
            }
        }
        match found {
            Some((_, kind)) => Ok(kind),
            // The newer spelling may carry the base alone.
            None if self.field == "rope_parameters" => Ok("default"),
            None => Err(self.reader.missing(&self.path("rope_type"))),
        }
    }

    fn scaling(&self) -> Result<RopeScaling, ConfigError> {
        let kind = self.kind()?;
        let used: &[&str] = match kind {
            "default" => &[],
            "linear" => &["factor"],
            "llama3" => &[
                "factor",
                "low_freq_factor",
                "high_freq_factor",
                "original_max_position_embeddings",
            ],
            other => {
                return Err(self.reader.unsupported_text(
                    &self.path("rope_type"),
                    &format!("{other:?}"),
                    "\"default\", \"linear\" or \"llama3\"",
                ));
            }
        };
        for (key, value) in self.object {
            let known = used.contains(&key.as_str())
                || matches!(key.as_str(), "rope_type" | "type" | "rope_theta");
            let neutral =
                value.is_null() || (key == "partial_rotary_factor" && value.as_f64() == Some(1.0));
            if !known && !neutral {
                return Err(self.reader.unsupported_text(
                    &self.path(key),
                    &short(value),
                    &format!("rope type {kind:?} without it"),
                ));
            }
        }
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor: self.number("factor")? }),
            "llama3" => {
                let key = "original_max_position_embeddings";
                let original = match self.object.get(key) {
                    None | Some(Value::Null) => return Err(self.reader.missing(&self.path(key))),
                    Some(v) => {
                        match v.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| *n > 0) {
                            Some(n) => n,
                            None => {
                                return Err(self.reader.bad_text(
                                    &self.path(key),
                                    &short(v),
                                    "a whole positive number",
                                ));
                            }
                        }
                    }
                };
                let (low, high) =
                    (self.number("low_freq_factor")?, self.number("high_freq_factor")?);
                if high <= low {
                    return Err(self.reader.bad_text(
                        &self.path("high_freq_factor"),
                        &high.to_string(),
                        &format!("more than low_freq_factor ({low})"),
                    ));
                }
                Ok(RopeScaling::Llama3 {
                    factor: self.number("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original,
                })
            }
            _ => Ok(RopeScaling::Default),
        }
    }
}
