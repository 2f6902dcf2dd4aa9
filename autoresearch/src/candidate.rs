//! Knob values, points of a space, candidates.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The value of a knob: `null` leaves the choice to the lowering, else a whole number or a word.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Left to the lowering.
    #[default]
    Auto,
    Int(u64),
    Word(String),
}

impl Value {
    /// A word.
    pub fn word(text: &str) -> Value {
        Value::Word(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(n: u64) -> Value {
        Value::Int(n)
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Auto => f.write_str("auto"),
            Value::Int(n) => n.fmt(f),
            Value::Word(w) => f.write_str(w),
        }
    }
}

/// A value for each knob, by the knob's dotted name. Knobs that are not named have their default.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(pub BTreeMap<String, Value>);

impl Point {
    /// The value of a knob, if the point names it.
    pub fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// The same point with another value of a knob.
    pub fn with(&self, name: &str, value: impl Into<Value>) -> Point {
        let mut point = self.clone();
        point.0.insert(name.to_owned(), value.into());
        point
    }

    /// What the point is called: a hash of its names and values. Two points of a space are the same candidate iff they
    /// have the same id once they were completed ([`crate::Space::complete`]).
    pub fn id(&self) -> CandidateId {
        let mut hasher = blake3::Hasher::new_derive_key("amk autoresearch point v1");
        for (name, value) in &self.0 {
            let text = match value {
                Value::Auto => "a".to_owned(),
                Value::Int(n) => format!("i{n}"),
                Value::Word(w) => format!("w{w}"),
            };
            for part in [name.as_str(), &text] {
                hasher.update(&(part.len() as u64).to_le_bytes());
                hasher.update(part.as_bytes());
            }
        }
        CandidateId(hasher.finalize().to_hex()[..16].to_owned())
    }

    /// The names whose values differ from another point's, sorted.
    pub fn differs_in(&self, other: &Point) -> Vec<String> {
        let mut names: Vec<String> = self.0.keys().chain(other.0.keys()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|n| self.0.get(n) != other.0.get(n));
        names
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, value)) in self.0.iter().enumerate() {
            let gap = if i == 0 { "" } else { " " };
            write!(f, "{gap}{name}={value}")?;
        }
        Ok(())
    }
}

/// 16 hexadecimal digits of a point's hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CandidateId(pub String);

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What is proposed. Nothing in it is believed: knobs are checked against the space, and whatever else a proposer
/// says is a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Candidate {
    pub knobs: Point,
    /// The candidate it was made from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<CandidateId>,
    /// The proposer's name.
    #[serde(default)]
    pub source: String,
    /// The proposer's own words, for the journal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Candidate {
    /// A candidate without parent or note.
    pub fn new(knobs: Point, source: &str) -> Candidate {
        Candidate { knobs, parent: None, source: source.to_owned(), note: None }
    }

    /// See [`Point::id`].
    pub fn id(&self) -> CandidateId {
        self.knobs.id()
    }
}
