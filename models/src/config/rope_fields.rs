//! Reading the rotary parameters: `rope_theta` with `rope_scaling`, or `rope_parameters`, or both if they agree.

use super::fields::{Reader, positive_number, short};
use super::{ConfigError, Rope, RopeScaling};
use serde_json::{Map, Value};

/// What else of the config bears on the rotary parameters.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub head_dim: usize,
    pub max_position_embeddings: usize,
}

/// The model's rotary parameters, and those of windowed layers where the family has two.
pub(super) fn read(reader: &Reader<'_>, sizes: Sizes) -> Result<(Rope, Option<Rope>), ConfigError> {
    let mut main = Found::new(reader, "rope_theta", sizes)?;
    let Some(local_base) = reader.family.rope.local_base else {
        for field in ["rope_scaling", "rope_parameters"] {
            if let Some(value) = reader.get(field) {
                main.block(field, value)?;
            }
        }
        return Ok((main.finish()?, None));
    };
    let mut local = Found::new(reader, local_base, sizes)?;
    // The older spelling scales the unwindowed layers alone.
    if let Some(value) = reader.get("rope_scaling") {
        main.block("rope_scaling", value)?;
    }
    if let Some(value) = reader.get("rope_parameters") {
        let object =
            value.as_object().ok_or_else(|| reader.bad("rope_parameters", "an object or null"))?;
        for (key, value) in object.iter().filter(|(_, v)| !v.is_null()) {
            match key.as_str() {
                "full_attention" => main.block("rope_parameters.full_attention", value)?,
                "sliding_attention" => local.block("rope_parameters.sliding_attention", value)?,
                _ => {
                    return Err(reader.unsupported_text(
                        &format!("rope_parameters.{key}"),
                        &short(value),
                        "one object for \"full_attention\" and one for \"sliding_attention\"",
                    ));
                }
            }
        }
    }
    Ok((main.finish()?, Some(local.finish()?)))
}

/// What was found so far, and where.
struct Found<'a> {
    reader: &'a Reader<'a>,
    sizes: Sizes,
    theta_field: &'static str,
    theta: Option<(String, f64)>,
    partial: Option<(String, f64)>,
    scaling: Option<(String, RopeScaling)>,
}

impl<'a> Found<'a> {
    fn new(
        reader: &'a Reader<'a>,
        theta_field: &'static str,
        sizes: Sizes,
    ) -> Result<Self, ConfigError> {
        let quoted = |field: &str, value: f64| (format!("\"{field}\""), value);
        let partial = reader.optional_positive("partial_rotary_factor")?;
        Ok(Self {
            reader,
            sizes,
            theta_field,
            theta: reader.optional_positive(theta_field)?.map(|t| quoted(theta_field, t)),
            partial: partial.map(|p| quoted("partial_rotary_factor", p)),
            scaling: None,
        })
    }

    /// Takes in one object of parameters.
    fn block(&mut self, field: &str, value: &Value) -> Result<(), ConfigError> {
        let object =
            value.as_object().ok_or_else(|| self.reader.bad(field, "an object or null"))?;
        let block = Block { reader: self.reader, field, object, sizes: self.sizes };
        for (key, place) in
            [("rope_theta", &mut self.theta), ("partial_rotary_factor", &mut self.partial)]
        {
            let Some(value) = block.optional(key)? else { continue };
            let path = format!("\"{field}.{key}\"");
            if let Some((other, first)) = place.as_ref().filter(|(_, first)| *first != value) {
                return Err(
                    block.conflict(format!("{other} ({first})"), format!("{path} ({value})"))
                );
            }
            *place = Some((path, value));
        }
        let partial = self.partial.as_ref().map_or(1.0, |(_, p)| *p);
        let found = block.scaling(partial)?;
        if let Some((other, first)) = self.scaling.as_ref().filter(|(_, first)| *first != found) {
            let describe = |s: &RopeScaling| serde_json::to_string(s).unwrap_or_default();
            return Err(block.conflict(
                format!("\"{other}\" ({})", describe(first)),
                format!("\"{field}\" ({})", describe(&found)),
            ));
        }
        self.scaling = Some((field.to_string(), found));
        Ok(())
    }

    fn finish(self) -> Result<Rope, ConfigError> {
        let reader = self.reader;
        let Some((_, theta)) = self.theta else { return Err(reader.missing(self.theta_field)) };
        let partial = self.partial.map_or(1.0, |(_, p)| p);
        let rope = Rope {
            theta,
            partial_rotary_factor: partial,
            scaling: self.scaling.map_or(RopeScaling::Default, |(_, s)| s),
        };
        let dim = rope.rotary_dim(self.sizes.head_dim);
        let allowed = partial == 1.0 || reader.family.rope.partial;
        if !allowed || dim > self.sizes.head_dim || dim < 2 || !dim.is_multiple_of(2) {
            let expected = match reader.family.rope.partial {
                true => {
                    format!("a part of head_dim ({}) that is an even number", self.sizes.head_dim)
                }
                false => "1.0: rotary embedding over the whole head".to_string(),
            };
            return Err(reader.unsupported_text(
                "partial_rotary_factor",
                &partial.to_string(),
                &expected,
            ));
        }
        if matches!(rope.scaling, RopeScaling::Dynamic { .. }) && dim == 2 {
            return Err(reader.bad_text("head_dim", "2", "more than 2 for dynamic rope"));
        }
        if matches!(rope.scaling, RopeScaling::Yarn { .. }) && theta <= 1.0 {
            return Err(reader.bad_text(
                self.theta_field,
                &theta.to_string(),
                "more than 1 for yarn",
            ));
        }
        Ok(rope)
    }
}

struct Block<'a> {
    reader: &'a Reader<'a>,
    field: &'a str,
    object: &'a Map<String, Value>,
    sizes: Sizes,
}

/// The keys each kind reads beside the base.
fn keys(kind: &str) -> &'static [&'static str] {
    match kind {
        "linear" | "dynamic" => &["factor"],
        "llama3" => {
            &["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
        }
        "yarn" => &[
            "factor",
            "original_max_position_embeddings",
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "mscale",
            "mscale_all_dim",
            "truncate",
        ],
        "longrope" => &[
            "short_factor",
            "long_factor",
            "factor",
            "attention_factor",
            "original_max_position_embeddings",
        ],
        _ => &[],
    }
}

impl Block<'_> {
    fn conflict(&self, first: String, second: String) -> ConfigError {
        ConfigError::Conflict { file: self.reader.file.to_string(), first, second }
    }

    fn path(&self, key: &str) -> String {
        format!("{}.{key}", self.field)
    }

    fn get(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|v| !v.is_null())
    }

    fn bad(&self, key: &str, expected: &str) -> ConfigError {
        let value = self.get(key).map_or_else(|| "absent".to_string(), short);
        self.reader.bad_text(&self.path(key), &value, expected)
    }

    fn optional(&self, key: &str) -> Result<Option<f64>, ConfigError> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => {
                positive_number(v).map(Some).ok_or_else(|| self.bad(key, "a positive number"))
            }
        }
    }

    fn number(&self, key: &str) -> Result<f64, ConfigError> {
        self.optional(key)?.ok_or_else(|| self.reader.missing(&self.path(key)))
    }

    /// `rope_type`, or the older `type`.
    fn kind(&self) -> Result<&str, ConfigError> {
        let mut found: Option<(&str, &str)> = None;
        for key in ["rope_type", "type"] {
            match self.get(key) {
                None => {}
                Some(Value::String(s)) => match found {
                    Some((other, first)) if first != s => {
                        return Err(self.conflict(
                            format!("\"{}\" ({first:?})", self.path(other)),
                            format!("\"{}\" ({s:?})", self.path(key)),
                        ));
                    }
                    _ => found = Some((key, s)),
                },
                Some(_) => return Err(self.bad(key, "the name of a rope type")),
            }
        }
        match found {
            Some((_, "su" | "yarn")) if self.reader.family.rope.longrope => Ok("longrope"),
            Some((_, kind)) => Ok(kind),
            // The newer spelling may carry the base alone.
            None if self.field.starts_with("rope_parameters") => Ok("default"),
            None => Err(self.reader.missing(&self.path("rope_type"))),
        }
    }

    /// The context of pre-training, which some configs have beside the object rather than in it.
    fn original(&self) -> Result<u64, ConfigError> {
        let key = "original_max_position_embeddings";
        let inside = match self.get(key) {
            None => None,
            Some(v) => match v.as_u64().filter(|n| *n > 0) {
                Some(n) => Some(n),
                None => return Err(self.bad(key, "a whole positive number")),
            },
        };
        let beside = self.reader.optional_size(key)?.map(|n| n as u64);
        match (inside, beside) {
            (Some(a), Some(b)) if a != b => {
                Err(self
                    .conflict(format!("\"{key}\" ({b})"), format!("\"{}\" ({a})", self.path(key))))
            }
            (Some(n), _) | (None, Some(n)) => Ok(n),
            (None, None) => Err(self.reader.missing(&self.path(key))),
        }
    }

    fn list(&self, key: &str, partial: f64) -> Result<Vec<f32>, ConfigError> {
        let n = (self.sizes.head_dim as f64 * partial) as usize / 2;
        let expected =
            format!("a list of {n} positive numbers, half as many as components are rotated");
        let list = self.get(key).ok_or_else(|| self.reader.missing(&self.path(key)))?;
        let list = list.as_array().filter(|l| l.len() == n);
        let list = list.ok_or_else(|| self.bad(key, &expected))?;
        list.iter()
            .map(|v| positive_number(v).map(|x| x as f32).ok_or_else(|| self.bad(key, &expected)))
            .collect()
    }

    fn scaling(&self, partial: f64) -> Result<RopeScaling, ConfigError> {
        let kind = self.kind()?;
        let longrope = self.reader.family.rope.longrope;
        let known = match longrope {
            true => matches!(kind, "default" | "longrope"),
            false => matches!(kind, "default" | "linear" | "dynamic" | "llama3" | "yarn"),
        };
        if !known {
            let supported = match longrope {
                true => "\"default\" or \"longrope\"",
                false => "\"default\", \"linear\", \"dynamic\", \"llama3\" or \"yarn\"",
            };
            return Err(self.reader.unsupported_text(
                &self.path("rope_type"),
                &format!("{kind:?}"),
                supported,
            ));
        }
        let used = keys(kind);
        for (key, value) in self.object {
            let known = used.contains(&key.as_str())
                || matches!(
                    key.as_str(),
                    "rope_type" | "type" | "rope_theta" | "partial_rotary_factor"
                );
            if !known && !value.is_null() {
                return Err(self.reader.unsupported_text(
                    &self.path(key),
                    &short(value),
                    &format!("rope type {kind:?} without it"),
                ));
            }
        }
        match kind {
            "linear" => Ok(RopeScaling::Linear { factor: self.number("factor")? }),
            "dynamic" => Ok(RopeScaling::Dynamic {
                factor: self.factor()?,
                plain_positions: self.sizes.max_position_embeddings as u64,
            }),
            "llama3" => {
                let original = self.original()?;
                let (low, high) =
                    (self.number("low_freq_factor")?, self.number("high_freq_factor")?);
                if high <= low {
                    return Err(
                        self.bad("high_freq_factor", &format!("more than low_freq_factor ({low})"))
                    );
                }
                Ok(RopeScaling::Llama3 {
                    factor: self.number("factor")?,
                    low_freq_factor: low,
                    high_freq_factor: high,
                    original_max_position_embeddings: original,
                })
            }
            "yarn" => self.yarn(),
            "longrope" => self.longrope(partial),
            _ => Ok(RopeScaling::Default),
        }
    }

    /// A factor that stretches.
    fn factor(&self) -> Result<f64, ConfigError> {
        let factor = self.number("factor")?;
        match factor >= 1.0 {
            true => Ok(factor),
            false => Err(self.bad("factor", "1 or more")),
        }
    }

    fn yarn(&self) -> Result<RopeScaling, ConfigError> {
        let factor = self.factor()?;
        // Section 3.4 of the YaRN paper.
        let magnitude = |m: f64| 1.0 + 0.1 * m * factor.ln();
        let given = self.optional("attention_factor")?;
        let scales = (self.optional("mscale")?, self.optional("mscale_all_dim")?);
        let attention_factor = match (given, scales) {
            (Some(given), _) => given,
            (None, (Some(m), Some(all))) => magnitude(m) / magnitude(all),
            (None, _) => magnitude(1.0),
        };
        let truncate = match self.get("truncate") {
            None => true,
            Some(Value::Bool(b)) if self.field.ends_with("_attention") && !b => {
                return Err(
                    self.bad("truncate", "true: the class reads it outside the layer types")
                );
            }
            Some(Value::Bool(b)) => *b,
            Some(_) => return Err(self.bad("truncate", "true or false")),
        };
        // The class takes the paper's 32 and 1 where they are absent, and no others exist in practice.
        let (fast, slow) = (
            self.optional("beta_fast")?.unwrap_or(32.0),
            self.optional("beta_slow")?.unwrap_or(1.0),
        );
        if fast < slow {
            return Err(self.bad("beta_fast", &format!("at least beta_slow ({slow})")));
        }
        Ok(RopeScaling::Yarn {
            factor,
            beta_fast: fast,
            beta_slow: slow,
            truncate,
            original_max_position_embeddings: self.original()?,
            attention_factor,
        })
    }

    fn longrope(&self, partial: f64) -> Result<RopeScaling, ConfigError> {
        // The class reads the length beside the object and assumes 4096 where it is absent.
        if self.reader.get("original_max_position_embeddings").is_none() {
            return Err(self.reader.missing("original_max_position_embeddings"));
        }
        let original = self.original()?;
        let stretch = self.sizes.max_position_embeddings as f64 / original as f64;
        let factor = self.optional("factor")?.unwrap_or(stretch);
        let attention_factor = match self.optional("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None if original == 1 => {
                return Err(self.reader.bad("original_max_position_embeddings", "more than 1"));
            }
            None => (1.0 + factor.ln() / (original as f64).ln()).sqrt(),
        };
        Ok(RopeScaling::LongRope {
            short_factor: self.list("short_factor", partial)?,
            long_factor: self.list("long_factor", partial)?,
            original_max_position_embeddings: original,
            attention_factor,
        })
    }
}
