//! Typed knobs that describe themselves.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json, json};

use crate::candidate::{Point, Value};

/// What values a knob has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "domain", rename_all = "snake_case")]
pub enum Domain {
    /// These, in a sensible order: neighbours are alike.
    Choices { values: Vec<Value> },
    /// Whole multiples of `step` from `low` to `high`, and `auto` too where the lowering can choose.
    Range { low: u64, high: u64, step: u64, auto: bool },
}

impl Domain {
    /// Is the value one of the domain?
    pub fn has(&self, value: &Value) -> bool {
        match (self, value) {
            (Domain::Choices { values }, v) => values.contains(v),
            (Domain::Range { auto, .. }, Value::Auto) => *auto,
            (Domain::Range { low, high, step, .. }, Value::Int(n)) => {
                (*low..=*high).contains(n) && n.is_multiple_of((*step).max(1))
            }
            (Domain::Range { .. }, Value::Word(_)) => false,
        }
    }

    /// How many values.
    pub fn len(&self) -> u64 {
        match self {
            Domain::Choices { values } => values.len() as u64,
            Domain::Range { low, high, step, auto } => {
                let step = (*step).max(1);
                let first = low.div_ceil(step);
                (high / step + 1).saturating_sub(first) + u64::from(*auto)
            }
        }
    }

    /// Has it no value at all?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value at an index below [`Domain::len`]: `auto` first, then upwards.
    pub fn at(&self, index: u64) -> Option<Value> {
        match self {
            Domain::Choices { values } => values.get(usize::try_from(index).ok()?).cloned(),
            Domain::Range { auto: true, .. } if index == 0 => Some(Value::Auto),
            Domain::Range { low, step, auto, .. } => {
                let step = (*step).max(1);
                let n = (low.div_ceil(step) + index - u64::from(*auto)) * step;
                (index < self.len()).then_some(Value::Int(n))
            }
        }
    }

    /// The index of a value; see [`Domain::at`].
    pub fn index(&self, value: &Value) -> Option<u64> {
        match (self, value) {
            (Domain::Choices { values }, v) => values.iter().position(|x| x == v).map(|i| i as u64),
            (Domain::Range { low, step, auto, .. }, Value::Int(n)) if self.has(value) => {
                let step = (*step).max(1);
                Some(n / step - low.div_ceil(step) + u64::from(*auto))
            }
            (Domain::Range { auto: true, .. }, Value::Auto) => Some(0),
            _ => None,
        }
    }

    /// In words, for errors.
    pub fn describe(&self) -> String {
        match self {
            Domain::Choices { values } => {
                let words: Vec<String> = values.iter().map(ToString::to_string).collect();
                format!("one of {}", words.join(", "))
            }
            Domain::Range { low, high, step, auto } => {
                let multiple =
                    if *step > 1 { format!("a multiple of {step} ") } else { String::new() };
                let auto = if *auto { "null, or " } else { "" };
                format!("{auto}{multiple}from {low} to {high}")
            }
        }
    }

    fn schema(&self) -> Json {
        match self {
            Domain::Choices { values } => json!({ "enum": values }),
            Domain::Range { low, high, step, auto } => {
                let kind = if *auto { json!(["integer", "null"]) } else { json!("integer") };
                json!({ "type": kind, "minimum": low, "maximum": high, "multipleOf": step })
            }
        }
    }
}

/// One thing that may be chosen. Every knob changes the emitted program or the kernel's text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knob {
    /// Dotted, as in the JSON of schedule parameters.
    pub name: String,
    /// What it does, for a person or an agent.
    pub about: String,
    #[serde(flatten)]
    pub domain: Domain,
    pub default: Value,
}

/// The knobs of one model on one target at one bucket of positions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Space {
    /// What the space is for: model, target, bucket.
    pub title: String,
    pub knobs: Vec<Knob>,
}

/// Why a point is none of a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    #[error("there is no knob {name:?}; the knobs are {known}")]
    Unknown { name: String, known: String },
    #[error("{name} is {value}; it must be {expected}")]
    Value { name: String, value: String, expected: String },
}

impl Space {
    /// A knob by name.
    pub fn knob(&self, name: &str) -> Option<&Knob> {
        self.knobs.iter().find(|k| k.name == name)
    }

    /// Every knob at its default.
    pub fn default_point(&self) -> Point {
        Point(self.knobs.iter().map(|k| (k.name.clone(), k.default.clone())).collect())
    }

    /// Checks a point and gives every knob it does not name its default.
    ///
    /// # Errors
    /// Every knob that is unknown or has a value outside its domain.
    pub fn complete(&self, point: &Point) -> Result<Point, Vec<SpaceError>> {
        let mut errors = Vec::new();
        let mut whole = self.default_point();
        for (name, value) in &point.0 {
            match self.knob(name) {
                None => {
                    let names: Vec<&str> = self.knobs.iter().map(|k| k.name.as_str()).collect();
                    let known = names.join(", ");
                    errors.push(SpaceError::Unknown { name: name.clone(), known });
                }
                Some(knob) if !knob.domain.has(value) => errors.push(SpaceError::Value {
                    name: name.clone(),
                    value: value.to_string(),
                    expected: knob.domain.describe(),
                }),
                Some(_) => {
                    whole.0.insert(name.clone(), value.clone());
                }
            }
        }
        if errors.is_empty() { Ok(whole) } else { Err(errors) }
    }

    /// JSON schema (2020-12) of a point's JSON object.
    pub fn schema(&self) -> Json {
        let property = |knob: &Knob| {
            let mut schema = knob.domain.schema();
            if let Some(object) = schema.as_object_mut() {
                object.insert("description".to_owned(), json!(knob.about));
                object.insert("default".to_owned(), json!(knob.default));
            }
            (knob.name.clone(), schema)
        };
        let properties: Map<String, Json> = self.knobs.iter().map(property).collect();
        json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": self.title,
            "type": "object",
            "properties": properties,
            "additionalProperties": false,
        })
    }

    /// Hash of the knobs and their domains, hexadecimal.
    pub fn hash(&self) -> String {
        let mut hasher = blake3::Hasher::new_derive_key("amk autoresearch space v1");
        for knob in &self.knobs {
            let text = format!("{}\n{:?}\n{:?}", knob.name, knob.domain, knob.default);
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }

    /// How many points there are, as a power of ten.
    pub fn log10_size(&self) -> f64 {
        self.knobs.iter().map(|k| (k.domain.len().max(1) as f64).log10()).sum()
    }
}
