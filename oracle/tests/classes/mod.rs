//! Why the validator rejects: classes of safe programs, by the first fault it reports.

use amk_oracle::scope::Verdict;
use amk_schedule_ir::Program;
use amk_validator::{Invariant, check};

/// (class, letter, part of the message, why such a program is rejected though it is safe).
pub const CLASSES: &[(&str, Invariant, &str, &str)] = &[
    (
        "rows that only the ring makes visible",
        Invariant::K,
        "streams rows",
        "a slot that is released after the append keeps the copy from running too early, but a copy reads \
         through the async proxy, which only a gate fences: K counts gates alone",
    ),
    (
        "old words that another access of the word hides",
        Invariant::E,
        "so it may take an old word for a new one",
        "the reader comes after a write or a read of a later epoch of the same word, after which coherence \
         lets it see nothing older; E asks for the writers of the epoch it waits for",
    ),
    (
        "signals that only packets keep apart",
        Invariant::R,
        "only packets lead from one to the other",
        "a wait has seen the one signal, a packet written after the wait is read, and the other signal follows: \
         the first takes effect before the second, but packets order nothing, so R does not count on it",
    ),
];

/// Rejected for a reason that is none of the classes.
pub const UNEXPLAINED: &str = "unexplained";

/// The validator's verdict.
pub fn judge(p: &Program) -> Verdict {
    let report = check(p, &amk_oracle::scope::target());
    let Some(first) = report.faults.first() else { return Verdict::Accepted };
    let found = CLASSES
        .iter()
        .find(|(_, letter, text, _)| first.invariant == *letter && first.message.contains(text));
    Verdict::Rejected(found.map_or(UNEXPLAINED, |class| class.0))
}
