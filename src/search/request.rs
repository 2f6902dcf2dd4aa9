//! One candidate in, one verdict out: the form of `amk evaluate`, which any process on any machine may be asked in.

use std::path::PathBuf;

use amk_autoresearch::{Candidate, Evidence, Job, Point, Prepared, Refusal, Verdict};
use serde::{Deserialize, Serialize};

use crate::lower::Mode;
use crate::target::Target;

/// Position a token is timed at unless another is named.
pub const POSITION: u64 = 16;

fn position() -> u64 {
    POSITION
}

fn yes() -> bool {
    true
}

/// A part: a name, or a whole record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Part {
    Name(String),
    Record(Box<Target>),
}

/// What is asked. Nothing is remembered from one request to the next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// A checkpoint folder or a hub id; absent: the embedded model.
    #[serde(default)]
    pub model: Option<String>,
    /// Instead of a model, the shapes of a config.json: everything is predicted.
    #[serde(default)]
    pub shape_only: Option<PathBuf>,
    /// Absent: the device's own part, or where there is no device h200.
    #[serde(default)]
    pub target: Option<Part>,
    /// Type of activations and cache; absent: bf16 for bf16 weights, else f32.
    #[serde(default)]
    pub mode: Option<Mode>,
    #[serde(default = "position")]
    pub position: u64,
    /// The NVRTC library, or its folder.
    #[serde(default)]
    pub nvrtc: Option<PathBuf>,
    /// The device, as the driver counts.
    #[serde(default)]
    pub ordinal: usize,
    /// Is the candidate compiled where there is a compiler and no device? Where there is a device it always is.
    #[serde(default = "yes")]
    pub compile: bool,
    /// Shares of the SMs that may be chosen, from measured speeds: values of the knob `balance`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub balance: Vec<String>,
    pub task: Task,
}

impl Request {
    /// About the embedded model, with everything else left open.
    pub fn new(task: Task) -> Request {
        Request {
            model: None,
            shape_only: None,
            target: None,
            mode: None,
            position: POSITION,
            nvrtc: None,
            ordinal: 0,
            compile: true,
            balance: Vec::new(),
            task,
        }
    }
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "task", rename_all = "snake_case", deny_unknown_fields)]
pub enum Task {
    /// Say what device there is.
    Device,
    /// Lower, validate, render, predict.
    Prepare { point: Point },
    /// And compile.
    Compile { point: Point },
    /// Self-test and time against an incumbent: raw samples.
    Measure { job: Job },
    /// Everything, to a verdict. Absent, the incumbent is the default schedule.
    Evaluate {
        candidate: Candidate,
        #[serde(default)]
        incumbent: Option<Point>,
    },
}

/// A device and the part it is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceReply {
    /// Name, capability, SMs, driver.
    pub fingerprint: String,
    pub target: Target,
}

/// What comes back.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    Device {
        device: Option<DeviceReply>,
    },
    Prepared {
        prepared: Prepared,
    },
    /// Key of the image; absent without a compiler.
    Compiled {
        image: Option<String>,
    },
    Measured {
        evidence: Evidence,
    },
    Evaluated {
        prepared: Option<Prepared>,
        verdict: Verdict,
    },
    Refused {
        refusal: Refusal,
    },
}

impl Reply {
    /// Is the answer a yes?
    pub fn ok(&self) -> bool {
        match self {
            Reply::Refused { .. } => false,
            Reply::Evaluated { verdict, .. } => {
                matches!(verdict, Verdict::Measured(_) | Verdict::Predicted { .. })
            }
            _ => true,
        }
    }
}
