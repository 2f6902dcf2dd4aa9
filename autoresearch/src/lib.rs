//! Search over schedules: what may be chosen, who proposes, who judges, and what is written down.
//!
//! A candidate is a point of a [`Space`] of knobs, never CUDA text. A [`Proposer`] names candidates; whoever it is, a
//! random number generator or an outside agent, its candidates go one path: lowered, validated, compiled, self-tested,
//! timed against the incumbent. The crate knows schedules and nothing of devices: [`Worker`] is the seam behind which
//! `amk` lowers, compiles, tests and times, and [`CostModel`] the one behind which a time is predicted where there is
//! no device. What came of each candidate is a [`Verdict`] in a journal, whose [`Entry`]s are chained by hash.
//!
//! - [`candidate`]: knob values, points, candidates. [`space`]: typed knobs that describe themselves.
//! - [`verdict`]: what can come of a candidate. [`judge`]: evidence to verdict, and the sequential test.
//! - [`seams`]: what the rest of the program provides. [`proposers`]: those that are built in.
//! - [`journal`]: what is written down. [`history`]: what it says so far. [`campaign`]: the loop.
//! - [`cost`]: a model of cost by simulation of the schedule. [`store`]: the best schedules, kept for other commands.

#![forbid(unsafe_code)]

pub mod bridge;
pub mod campaign;
pub mod candidate;
pub mod cost;
pub mod history;
pub mod journal;
pub mod judge;
pub mod proposers;
pub mod report;
pub mod rng;
pub mod seams;
pub mod space;
pub mod store;
pub mod verdict;

pub use campaign::{CampaignError, Limits, Outcome, Parts, begin, resume};
pub use candidate::{Candidate, CandidateId, Point, Value};
pub use history::History;
pub use journal::{Confirmation, Entry, Event, Header, Journal, JournalError, Trial};
pub use seams::{
    Ask, CostModel, Evidence, Job, NoProposal, Observer, Prediction, Prepared, Proposal, Proposer,
    Refusal, Tally, Worker,
};
pub use space::{Domain, Knob, Space, SpaceError};
pub use verdict::{Decision, Interval, Measurement, Sample, Stage, Verdict};
