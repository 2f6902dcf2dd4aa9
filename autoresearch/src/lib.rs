//! Search over schedules: what may be chosen, who proposes, who judges, and what is written down.
//!
//! A candidate is a point of a [`Space`] of knobs, never CUDA text. A [`Proposer`] names candidates; whoever it is, a
//! random number generator or an outside agent, its candidates go one path: lowered, validated, compiled, self-tested,
//! timed against the incumbent. The crate knows schedules and nothing of devices: [`Worker`] is the seam behind which
//! `amk` lowers, compiles, tests and times, and [`CostModel`] the one behind which a time is predicted where there is
//! no device. What came of each candidate is a [`Verdict`] in a journal, whose [`Entry`]s are chained by hash.
//!
//! - [`candidate`]: knob values, points, candidates.
//! - [`space`]: typed knobs that describe themselves.
//! - [`verdict`]: what can come of a candidate.
//! - [`seams`]: what the rest of the program provides.
//! - [`journal`]: entries, the events they hold.

#![forbid(unsafe_code)]

pub mod candidate;
pub mod journal;
pub mod seams;
pub mod space;
pub mod verdict;

pub use candidate::{Candidate, CandidateId, Point, Value};
pub use journal::{Confirmation, Entry, Event, Header, Trial};
pub use seams::{
    Ask, CostModel, Evidence, History, Job, NoProposal, Observer, Prediction, Prepared, Proposal,
    Proposer, Refusal, Tally, Worker,
};
pub use space::{Domain, Knob, Space, SpaceError};
pub use verdict::{Decision, Interval, Measurement, Sample, Stage, Verdict};
