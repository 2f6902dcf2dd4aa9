//! The narrow bridge for outside agents: what they are told, what they may say, and how they learn what to change.
//!
//! An agent names candidates and nothing else. It gets no say in verdicts: its candidates go the one path of every
//! candidate, and it is told what came of them. Words of its own beyond knobs, parent and note are no part of any message,
//! so a claim of having measured something is refused by name.
//!
//! `message.rs` has the messages of the JSON lines form, version [`VERSION`]; `schema.rs` their JSON schemas; `fault.rs`
//! the errors and the advice that goes with a verdict; `lines.rs` is the proposer that speaks it over a pair of pipes;
//! `relay.rs` the one that takes candidates from another thread of the same process, such as an MCP server's.

mod fault;
mod lines;
mod message;
mod relay;
mod schema;

pub use fault::{Fault, faults_of, space_faults};
pub use lines::{LinesOptions, LinesProposer};
pub use message::{
    Answer, AskMessage, FromAgent, Hello, Offered, ToAgent, TrialMessage, answer_of, shape_fault,
};
pub use relay::{Relay, RelayProposer, Submitted, relay};
pub use schema::{candidate_schema, from_agent_schema, to_agent_schema};

/// Version of the messages; each says it.
pub const VERSION: u32 = 1;
/// Longest line an agent may send, bytes.
pub const LONGEST_LINE: usize = 1 << 20;
/// Most candidates of one message.
pub const MOST_CANDIDATES: usize = 256;

#[cfg(test)]
mod tests;
