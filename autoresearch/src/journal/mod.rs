//! The journal: append-only JSON lines, one entry each, on disk before anything depends on them.
//!
//! `entry` says what an entry holds, `chain` how lines are hashed and read back, `file` writes: under an exclusive lock, with
//! an fsync after every line, and going on after a process that was killed. `check` decides whether what a journal says
//! holds together: places, incumbents, and every decision computed anew from its raw samples.
//!
//! What is promised. A line that is in the file was written by a process that held the lock, and is whole. A line cut
//! short by a kill is removed when the journal is opened next, and the entry after says so. Whoever changes, removes or
//! reorders lines is found out by the chain, unless they also hash everything after it anew; then they are found out by
//! whoever noted a later hash before ([`Summary::head`]; reports and stored schedules carry it), and numbers that
//! contradict each other are found out by `check`. A clock set back changes `at_ms` and nothing else.

mod chain;
mod check;
mod entry;
mod file;

pub use chain::{JournalError, Lines, header, seal};
pub use check::{Summary, check};
pub use entry::{Confirmation, Entry, Event, FORMAT, Header, Trial};
pub use file::{Journal, Opened};
