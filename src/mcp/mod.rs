//! The MCP server: a campaign whose proposer is whoever is at the other end.
//!
//! One server is about one model, part and position. What an agent proposes goes the one path of every candidate and into
//! the journal; `validate` and `evaluate` look at a candidate beside the campaign and write nothing down. `session` holds
//! the campaign, which runs in a thread of its own, `tools` what each tool does with its schema, `server` speaks the protocol.

mod screen;
mod server;
mod session;
mod tools;

pub use server::{ServeError, serve};
pub use session::{Session, SessionError, Setup};
pub use tools::{TOOLS, ToolInfo, call};
