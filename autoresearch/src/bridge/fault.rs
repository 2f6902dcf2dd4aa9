//! Errors for agents: what is wrong, where, and what to change.

use serde::{Deserialize, Serialize};

use crate::candidate::Point;
use crate::space::{Space, SpaceError};
use crate::verdict::{Decision, Stage, Verdict};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// One of a fixed list, for programs: `not_json`, `unknown_field`, `wrong_type`, `version`, `unknown_type`, `stale`,
    /// `too_long`, `too_many`, `nothing`, `unknown_knob`, `bad_value`, `repeated`, or a stage's name.
    pub code: String,
    /// What is wrong, a sentence.
    pub message: String,
    /// Where in what was said, such as `candidates[0].knobs.rotation`; empty where it is all of it.
    pub at: String,
    /// What to change, a sentence.
    pub fix: String,
}

impl Fault {
    /// A fault of a whole message.
    pub fn new(code: &str, message: impl Into<String>, fix: impl Into<String>) -> Fault {
        let (message, fix) = (message.into(), fix.into());
        Fault { code: code.to_owned(), message, at: String::new(), fix }
    }

    /// The same at a place.
    pub fn at(mut self, place: impl Into<String>) -> Fault {
        self.at = place.into();
        self
    }
}

/// What a space has against a point; `place` is where its knobs stand.
pub fn space_faults(space: &Space, point: &Point, place: &str) -> Vec<Fault> {
    let errors = space.complete(point).err().unwrap_or_default();
    errors.iter().map(|e| space_fault(e, place)).collect()
}

fn space_fault(error: &SpaceError, place: &str) -> Fault {
    let message = error.to_string();
    match error {
        SpaceError::Unknown { name, known } => {
            let fix = match nearest(name, known) {
                Some(near) => format!("leave {name:?} out, or did you mean {near:?}?"),
                None => format!("leave {name:?} out; ask for the space to see what there is"),
            };
            Fault::new("unknown_knob", message, fix).at(format!("{place}.{name}"))
        }
        SpaceError::Value { name, expected, .. } => {
            Fault::new("bad_value", message, format!("set {name} to {expected}"))
                .at(format!("{place}.{name}"))
        }
    }
}

/// The known name that looks most like one.
fn nearest<'a>(name: &str, known: &'a str) -> Option<&'a str> {
    let last = |n: &str| n.rsplit('.').next().unwrap_or(n).to_owned();
    let distance = |known: &str| {
        let (a, b) = (last(name), last(known));
        edits(&a, &b).min(edits(name, known))
    };
    let (near, far) = known.split(", ").map(|k| (k, distance(k))).min_by_key(|(_, d)| *d)?;
    (far <= name.len() / 3).then_some(near)
}

/// Letters to insert, remove or replace to turn one word into the other.
fn edits(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().take(64).enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = before + usize::from(x != *y);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// What an agent can do about a verdict: nothing about a kept candidate, one fault otherwise.
pub fn faults_of(verdict: &Verdict) -> Vec<Fault> {
    let fault = |code: &str, fix: &str| vec![Fault::new(code, verdict.reason(), fix)];
    match verdict {
        Verdict::Rejected { stage, .. } => fault(stage.name(), fix_of(*stage)),
        Verdict::Repeated { .. } => fault(
            "repeated",
            "change a knob that changes the program: these values mean what an earlier candidate's did",
        ),
        Verdict::Quarantined { .. } => fault(
            "quarantined",
            "nothing: the result cannot be true, and a person has to look at it",
        ),
        Verdict::Crashed { stage, .. } => fault(
            stage.name(),
            "change the knobs the reason speaks of, or stay nearer to a point that ran",
        ),
        Verdict::TimedOut { stage, .. } => fault(
            stage.name(),
            "stay nearer to a point that ran: fewer chunks, fewer counters, more slots",
        ),
        Verdict::Measured(_) | Verdict::Predicted { .. } => match verdict.decision() {
            Some(Decision::Kept) | None => Vec::new(),
            Some(Decision::NotFaster) => {
                fault("not_faster", "try another direction from the incumbent")
            }
            Some(Decision::Undecided) => {
                fault("undecided", "the gain is within the noise: change more at once")
            }
        },
    }
}

fn fix_of(stage: Stage) -> &'static str {
    match stage {
        Stage::Proposal => "set the knobs the reason names to values of the space",
        Stage::Lower => {
            "change the knob the reason names: the model cannot be scheduled with it on this part"
        }
        Stage::Validate => {
            "change the knobs back: the schedule is not free of deadlock and races, which is a fault of amk worth reporting"
        }
        Stage::Render => {
            "change the knob the reason names: the templates cannot run such a schedule"
        }
        Stage::Predict => {
            "stay nearer to the incumbent: the model of cost thinks it far too slow to compile"
        }
        Stage::Compile => {
            "change the knob the reason names: the compiler or the lint refuses the kernel"
        }
        Stage::Spills => {
            "allow more registers, or use fewer consumer warps, accumulators, fragments or heads per unit: the compiled kernel must not spill"
        }
        Stage::Load => "use fewer ring slots or smaller chunks: the image does not fit the device",
        Stage::SelfTest => {
            "change the knobs back: the kernel computes something else than the reference"
        }
        Stage::Time => "propose it again, or stay nearer to a point that ran",
        Stage::Reply => "nothing: the worker's reply does not hold together",
    }
}
