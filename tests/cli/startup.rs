//! The binary answers at once: nothing is loaded before it is needed.

use std::time::{Duration, Instant};

use crate::support::run;

#[test]
fn starts_in_less_than_fifty_milliseconds() {
    // The best of several runs: the machine may be busy with other tests, the program may not.
    let best = (0..20)
        .map(|_| {
            let start = Instant::now();
            run(&["--version"]).exits(0);
            start.elapsed()
        })
        .min()
        .unwrap();
    assert!(best < Duration::from_millis(50), "{best:?}");
}
