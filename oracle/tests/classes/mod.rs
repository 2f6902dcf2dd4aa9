//! Why the validator rejects: classes of safe programs, by the first fault it reports.

use amk_oracle::scope::Verdict;
use amk_schedule_ir::Program;
use amk_validator::{Invariant, check};

/// (class, letter, part of the message, why such a program is rejected though it is safe).
pub const CLASSES: &[(&str, Invariant, &str, &str)] =
    &[("other", Invariant::S, "", "not explained")];

/// The validator's verdict.
pub fn judge(p: &Program) -> Verdict {
    let report = check(p, &amk_oracle::scope::target());
    let Some(first) = report.faults.first() else { return Verdict::Accepted };
    let found = CLASSES
        .iter()
        .find(|(_, letter, text, _)| first.invariant == *letter && first.message.contains(text));
    match found {
        Some(class) => Verdict::Rejected(class.0),
        None => {
            let msg = format!("{:?} {}", first.invariant, shape(&first.message));
            Verdict::Rejected(Box::leak(msg.into_boxed_str()))
        }
    }
}

fn shape(m: &str) -> String {
    let s: String = m.chars().filter(|c| !c.is_ascii_digit()).collect();
    s.chars().rev().take(110).collect::<String>().chars().rev().collect()
}
