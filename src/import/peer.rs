//! The peer's program JSON as it is written. Fields that are not known are refused: they might mean
//! something.

use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

/// An id: a number, a string, or anything else a file may use.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct Id(Value);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerProgram {
    /// Version of the format, if stated.
    #[serde(default)]
    pub ir_version: Option<String>,
    #[serde(default)]
    pub target: PeerTarget,
    pub buffers: Vec<PeerBuffer>,
    pub counters: Vec<PeerCounter>,
    pub tasks: Vec<PeerTask>,
    /// Pages of shared memory of one SM.
    #[serde(default)]
    pub pages: Option<Vec<PeerPage>>,
}

impl PeerProgram {
    /// Bytes of all pages.
    pub fn page_bytes(&self) -> Option<u64> {
        let pages = self.pages.as_ref()?;
        Some(pages.iter().fold(0u64, |n, p| n.saturating_add(p.bytes)))
    }
}

/// What the program is for: a name, or an object with one.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(transparent)]
pub struct PeerTarget(Value);

impl PeerTarget {
    /// The architecture, if it is stated.
    pub fn arch(&self) -> Option<String> {
        let text = |v: &Value| v.as_str().map(str::to_owned);
        text(&self.0)
            .or_else(|| ["arch", "sm", "name"].iter().find_map(|key| text(self.0.get(key)?)))
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerBuffer {
    pub id: Id,
    #[serde(default)]
    pub name: String,
    pub kind: String,
    pub dtype: String,
    pub shape: Vec<u64>,
    #[serde(default)]
    pub space: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerCounter {
    pub id: Id,
    #[serde(default)]
    pub init: u64,
}

/// Adds 1 to `out_counter` when it is done.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerTask {
    pub id: Id,
    pub op: String,
    #[serde(default)]
    pub inputs: Vec<Id>,
    #[serde(default)]
    pub outputs: Vec<Id>,
    #[serde(default)]
    pub out_counter: Option<Id>,
    #[serde(default)]
    pub waits: Vec<PeerWait>,
    #[serde(default)]
    pub params: Map<String, Value>,
    #[serde(default)]
    pub sm: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerWait {
    pub counter: Id,
    pub threshold: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PeerPage {
    #[serde(default)]
    pub id: Option<Id>,
    pub bytes: u64,
}
