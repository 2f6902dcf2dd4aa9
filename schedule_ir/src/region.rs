//! Regions: rectangles of a buffer whose bounds may follow the decode position.
//!
//! A program is checked once for every position of its bucket, so bounds are compared *for all
//! positions at once*: [`Bound::le`] is a decision, not a sample.

use serde::{Deserialize, Serialize};

/// The inclusive range of first positions a step of the program may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bucket {
    /// Smallest `pos` of any step.
    pub first: u64,
    /// Largest `pos` of any step.
    pub last: u64,
}

/// One end of a span, a non-decreasing function of `pos`, the first position of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Bound {
    /// A constant.
    At(u64),
    /// `pos + offset`.
    Pos(i64),
    /// `min(limit, pos)`.
    Clip(u64),
    /// `floor(pos * part / parts)`: the `part`-th of `parts` cuts of the past positions `[0, pos)`.
    Split { part: u32, parts: u32 },
}

impl Bound {
    /// Value at position `pos`. Negative values (`pos-1` at position 0) are possible and are
    /// invariant B's to reject.
    pub fn eval(self, pos: u64) -> i128 {
        let pos = i128::from(pos);
        match self {
            Bound::At(x) => i128::from(x),
            Bound::Pos(o) => pos + i128::from(o),
            Bound::Clip(x) => pos.min(i128::from(x)),
            Bound::Split { part, parts } => match parts {
                0 => 0,
                _ => pos * i128::from(part) / i128::from(parts),
            },
        }
    }

    /// Is `self <= other` at every position of `bucket`?
    ///
    /// Exact, except that `Clip` against `Split` and splits that round to the same numbers within the
    /// bucket may be answered `false` for a relation that holds. Both ends are non-decreasing, and for each pair the difference is
    /// monotone, so one end of the bucket decides; splits of the same whole compare as fractions.
    pub fn le(self, other: Bound, bucket: Bucket) -> bool {
        use Bound::*;
        let (first, last) = (bucket.first, bucket.last);
        match (self, other) {
            (a, b) if a == b => true,
            (a, Clip(x)) => a.le(At(x), bucket) && a.le(Pos(0), bucket),
            // min(x, pos) <= pos + o for o < 0 asks for x <= first + o; At and Pos decide the rest.
            (Clip(x), b) => At(x).le(b, bucket) || Pos(0).le(b, bucket),
            (At(_), _) => self.eval(first) <= other.eval(first),
            (_, At(_)) => self.eval(last) <= other.eval(last),
            (Pos(a), Pos(b)) => a <= b,
            // pos + o - floor(pos*i/s) = ceil(pos*(s-i)/s) + o, non-decreasing for i <= s.
            (Split { part, parts }, Pos(_)) if part <= parts => {
                self.eval(first) <= other.eval(first)
            }
            (Split { .. }, Pos(_)) => self.eval(last) <= other.eval(last),
            (Pos(_), Split { part, parts }) if part <= parts => self.eval(last) <= other.eval(last),
            (Pos(_), Split { .. }) => self.eval(first) <= other.eval(first),
            (Split { part: i, parts: s }, Split { part: j, parts: r }) => {
                u64::from(i) * u64::from(r) <= u64::from(j) * u64::from(s)
                    || first == last && self.eval(first) <= other.eval(first)
            }
        }
    }

    /// Does the value depend on the position?
    pub fn is_symbolic(self) -> bool {
        !matches!(self, Bound::At(_))
    }
}

/// A half-open interval `[lo, hi)` along one dimension; empty where `hi <= lo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Span {
    pub lo: Bound,
    pub hi: Bound,
}

impl Span {
    /// The constant interval `[lo, hi)`.
    pub fn at(lo: u64, hi: u64) -> Span {
        Span { lo: Bound::At(lo), hi: Bound::At(hi) }
    }

    /// The interval `[pos + lo, pos + hi)`.
    pub fn pos(lo: i64, hi: i64) -> Span {
        Span { lo: Bound::Pos(lo), hi: Bound::Pos(hi) }
    }

    /// Concrete interval at `pos`, clamped so that the end is not below the start.
    pub fn eval(self, pos: u64) -> (i128, i128) {
        let lo = self.lo.eval(pos);
        (lo, self.hi.eval(pos).max(lo))
    }

    /// Is the interval empty at every position of the bucket?
    pub fn always_empty(self, bucket: Bucket) -> bool {
        self.hi.le(self.lo, bucket)
    }

    /// Can the two intervals share an element at some position of the bucket? Errs towards `true`.
    pub fn may_overlap(self, other: Span, bucket: Bucket) -> bool {
        !(self.always_empty(bucket)
            || other.always_empty(bucket)
            || self.hi.le(other.lo, bucket)
            || other.hi.le(self.lo, bucket))
    }

    /// Does `self` contain `other` at every position of the bucket? Errs towards `false`.
    pub fn contains(self, other: Span, bucket: Bucket) -> bool {
        other.always_empty(bucket) || self.lo.le(other.lo, bucket) && other.hi.le(self.hi, bucket)
    }

    /// Length of a constant interval; `None` if it follows the position.
    pub fn constant_len(self) -> Option<u64> {
        match (self.lo, self.hi) {
            (Bound::At(lo), Bound::At(hi)) => Some(hi.saturating_sub(lo)),
            _ => None,
        }
    }
}

/// A rectangle of a buffer: one span per dimension, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Region(pub Vec<Span>);

impl Region {
    /// The whole of a buffer of this shape.
    pub fn whole(shape: &[u64]) -> Region {
        Region(shape.iter().map(|&n| Span::at(0, n)).collect())
    }

    /// Rank of the rectangle.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Can the two rectangles share an element at some position? Rectangles of different rank are
    /// taken to overlap, since nothing is known about them.
    pub fn may_overlap(&self, other: &Region, bucket: Bucket) -> bool {
        self.rank() != other.rank()
            || self.0.iter().zip(&other.0).all(|(a, b)| a.may_overlap(*b, bucket))
    }

    /// Does `self` contain `other` at every position of the bucket?
    pub fn contains(&self, other: &Region, bucket: Bucket) -> bool {
        self.rank() == other.rank()
            && self.0.iter().zip(&other.0).all(|(a, b)| a.contains(*b, bucket))
    }

    /// Number of elements at `pos`; `None` on overflow.
    pub fn volume(&self, pos: u64) -> Option<u128> {
        self.0.iter().try_fold(1u128, |acc, s| {
            let (lo, hi) = s.eval(pos);
            acc.checked_mul((hi - lo) as u128)
        })
    }
}
