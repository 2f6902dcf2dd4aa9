//! Making moves at once that commute with all others loses nothing: with and without it the verdict is the
//! same, on programs from all over the small scope.

use amk_oracle::scope::{enumerate, families, program};
use amk_oracle::{Limits, Outcome, explore};

#[test]
fn the_reduction_changes_no_verdict() {
    let (mut compared, mut safe) = (0, 0);
    for family in families(0) {
        let mut codes = Vec::new();
        enumerate(&family, |code| codes.push(code));
        for code in codes.iter().step_by(codes.len() / 120 + 1) {
            let p = program(&family, code);
            let reduced = explore(&p, Limits::default());
            let whole = explore(&p, Limits { reduce: false, steps: 2, ..Limits::default() });
            if matches!(whole, Outcome::TooBig(_)) {
                continue;
            }
            // Two steps may be too few for a hazard of the third.
            let two = explore(&p, Limits { steps: 2, ..Limits::default() });
            let verdict = |o: &Outcome| matches!(o, Outcome::Safe);
            assert_eq!(
                verdict(&two),
                verdict(&whole),
                "{two:?} {whole:?}\n{}",
                amk_schedule_ir::text::print(&p)
            );
            assert!(verdict(&two) || !verdict(&reduced), "{two:?} {reduced:?}");
            compared += 1;
            safe += usize::from(verdict(&whole));
        }
    }
    assert!(compared > 3000 && safe > 600, "{compared} compared, {safe} safe");
}
