//! An independent judge of small schedules.
//!
//! It interprets the text of [`amk_schedule_ir`]'s page and shares no code with the validator: two people
//! reading one specification. What both say is compared over every program of a small scope ([`scope`]),
//! over the fixtures, and over mutants.
//!
//! - [`predicates`]: what no execution can show, one sentence of the page at a time (`predicates/`);
//! - [`explore()`]: every interleaving of a small program, with the hazards of the page judged by definition
//!   in each (`explore/`).
//!
//! A program is safe if no predicate is broken and no interleaving shows a hazard.

#![forbid(unsafe_code)]

mod breach;
mod explore;
mod predicates;
pub mod scope;

pub use breach::{Breach, Invariant};
pub use explore::{Hazard, Limits, Outcome, Site, Witness, explore};
pub use predicates::predicates;
