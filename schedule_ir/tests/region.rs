//! Bounds compared for all positions at once agree with their values at every position.

use amk_schedule_ir::{Bound, Bucket};

fn bounds() -> Vec<Bound> {
    let mut all = Vec::new();
    for x in [0, 1, 3, 5, 8, 20] {
        all.extend([Bound::At(x), Bound::Clip(x)]);
    }
    all.extend([-3, -1, 0, 1, 4].map(Bound::Pos));
    for parts in 1..6 {
        all.extend((0..=parts).map(|part| Bound::Split { part, parts }));
    }
    all
}

#[test]
fn le_is_sound_everywhere_and_exact_but_for_clip_against_split() {
    for first in 0..10 {
        for last in first..24 {
            let bucket = Bucket { first, last };
            for a in bounds() {
                for b in bounds() {
                    let truth = (first..=last).all(|pos| a.eval(pos) <= b.eval(pos));
                    let said = a.le(b, bucket);
                    assert!(truth || !said, "{a:?} <= {b:?} does not hold in {bucket:?}");
                    let mixed = matches!(
                        (a, b),
                        (Bound::Clip(_), Bound::Split { .. })
                            | (Bound::Split { .. }, Bound::Clip(_))
                            | (Bound::Split { .. }, Bound::Split { .. })
                    );
                    assert!(mixed || said == truth, "{a:?} <= {b:?} in {bucket:?}");
                }
            }
        }
    }
}

#[test]
fn bounds_do_not_decrease() {
    for b in bounds() {
        for pos in 0..40 {
            assert!(b.eval(pos) <= b.eval(pos + 1), "{b:?} at {pos}");
        }
    }
}
