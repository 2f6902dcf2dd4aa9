//! The small scope at a small bound: the validator accepts nothing the oracle calls unsafe, and rejects safe
//! programs for known reasons only.

use amk_oracle::Limits;
use amk_oracle::scope::{compare, families};

mod classes;

#[test]
fn validator_and_oracle_agree_on_every_small_program() {
    let summary = compare(&families(0), Limits::default(), classes::judge, |_| {});
    for (name, example) in &summary.false_accept_examples {
        println!("accepted, but {name}:\n{example}");
    }
    assert_eq!(summary.false_accepts, 0);
    assert_eq!(summary.undecided, 0);
    for (class, found) in &summary.false_reject_classes {
        let known = classes::CLASSES.iter().any(|c| c.0 == *class);
        assert!(
            known,
            "{} programs are rejected for `{class}`:\n{}",
            found.programs, found.smallest
        );
    }
    assert!(summary.programs > 300_000 && summary.accepted > 30_000, "{summary:?}");
}
