//! The search's seams, filled by amk: what the crate `amk-autoresearch` asks for is done here.
//!
//! `subject` is what schedules are searched for, `space` its knobs, `cost` the model of cost. `request` is the form in which one
//! candidate goes to another process and its verdict comes back, `evaluate` what that process does, `time` and `device` how it
//! tests and times on a CUDA device. `child` runs a process so that its crash or hang is an answer, `worker` does all of
//! that for a campaign. `stored` gives other commands the best schedules there are.

mod balance;
pub mod child;
mod cost;
mod device;
pub mod evaluate;
pub mod request;
mod space;
pub mod stored;
mod subject;
pub mod time;
mod variants;
mod worker;

pub use balance::{BalanceError, profiles, speeds};
pub use cost::cost_model;
pub use device::fingerprint;
pub use space::{FIXED, PRESETS, knobs_of, point_of, preset, space};
pub use subject::{Made, Subject, SubjectError};
pub use variants::failing;
pub use worker::{Patience, Processes, device_of};
