//! Campaigns in a synthetic world: journals, resumption, gates, cheats.

#[path = "../common/mod.rs"]
mod common;

mod cheats;
mod journals;
mod runs;
mod spaces;
