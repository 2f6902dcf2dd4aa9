//! Rectangles with numeric corners, and how symbolic regions become such rectangles.
//!
//! The bucket is cut into *pieces* on which the bounds of one dimension of a buffer are ordered the
//! same way at every position; there a bound is its rank in that order. Overlap, containment and
//! coverage of ranks hold at every position of the piece, so a decision over the pieces is a decision
//! over all positions. Dimensions without symbolic bounds keep their numbers.

use std::collections::HashMap;

use amk_schedule_ir::limits::MAX_RANK;
use amk_schedule_ir::text::print_bound;
use amk_schedule_ir::{Bound, Bucket, Region, Span};

/// `[lo, hi)` per dimension; dimensions past the rank are `[0, 1)`. Empty where `hi <= lo`.
pub(crate) type Rect = [[u64; 2]; MAX_RANK];

/// Most pieces of one buffer. Programs cut their past at few places; this bounds memory and time.
const MAX_PIECES: usize = 256;
/// Most symbolic bounds of one dimension of one buffer.
const MAX_SYMBOLIC: usize = 4096;
/// Most pairs of bounds of one buffer that are compared, over all parts of the bucket.
const MAX_COMPARED: usize = 1 << 25;
/// Rectangle operations one coverage question may take.
const MAX_WORK: usize = 1 << 22;

/// The question has no answer within the work allowed.
#[derive(Debug)]
pub(crate) struct TooIrregular;

pub(crate) fn is_empty(r: &Rect) -> bool {
    r.iter().any(|[lo, hi]| hi <= lo)
}

pub(crate) fn intersect(a: &Rect, b: &Rect) -> Rect {
    let mut out = *a;
    for (o, s) in out.iter_mut().zip(b) {
        *o = [o[0].max(s[0]), o[1].min(s[1])];
    }
    out
}

pub(crate) fn overlap(a: &Rect, b: &Rect) -> bool {
    !is_empty(&intersect(a, b))
}

pub(crate) fn contains(a: &Rect, b: &Rect) -> bool {
    is_empty(b) || a.iter().zip(b).all(|(a, b)| a[0] <= b[0] && b[1] <= a[1])
}

pub(crate) fn volume(r: &Rect) -> u128 {
    r.iter().fold(1u128, |acc, [lo, hi]| acc.saturating_mul(u128::from(hi.saturating_sub(*lo))))
}

/// The parts of `q` outside `r`, appended to `out`.
fn subtract(q: &Rect, r: &Rect, out: &mut Vec<Rect>) {
    let cut = intersect(q, r);
    if is_empty(&cut) {
        out.push(*q);
        return;
    }
    let mut rest = *q;
    for d in 0..MAX_RANK {
        if rest[d][0] < cut[d][0] {
            let mut part = rest;
            part[d][1] = cut[d][0];
            out.push(part);
            rest[d][0] = cut[d][0];
        }
        if cut[d][1] < rest[d][1] {
            let mut part = rest;
            part[d][0] = cut[d][1];
            out.push(part);
            rest[d][1] = cut[d][1];
        }
    }
}

/// The part of `q` that no rectangle of `cover` touches, as disjoint rectangles.
pub(crate) fn uncovered(q: &Rect, cover: &mut [Rect]) -> Result<Vec<Rect>, TooIrregular> {
    if is_empty(q) {
        return Ok(Vec::new());
    }
    // In this order tiles eat the rectangle from one end and few pieces are open at a time.
    cover.sort_unstable_by_key(|r| r.map(|s| s[0]));
    let (mut open, mut next, mut work) = (vec![*q], Vec::new(), 0usize);
    for r in cover.iter() {
        work = work.saturating_add(open.len());
        if work > MAX_WORK {
            return Err(TooIrregular);
        }
        next.clear();
        for piece in &open {
            subtract(piece, r, &mut next);
        }
        std::mem::swap(&mut open, &mut next);
        if open.is_empty() {
            break;
        }
    }
    Ok(open)
}

/// Number of elements of the union.
pub(crate) fn union_volume(rects: &[Rect]) -> Result<u128, TooIrregular> {
    let Some(first) = rects.first() else { return Ok(0) };
    let hull = rects.iter().fold(*first, |mut hull, r| {
        for (h, s) in hull.iter_mut().zip(r) {
            *h = [h[0].min(s[0]), h[1].max(s[1])];
        }
        hull
    });
    let rest = uncovered(&hull, &mut rects.to_vec())?;
    Ok(rest.iter().fold(volume(&hull), |v, r| v.saturating_sub(volume(r))))
}

/// Rectangles that can be asked which of them meet an interval: sorted by their start along the
/// dimension that tells them apart best, with a tree of the largest ends.
pub(crate) struct Index {
    dim: usize,
    /// (start, item), sorted.
    starts: Vec<(u64, u32)>,
    /// Binary tree over `starts` in heap order; leaves from `width` on.
    ends: Vec<u64>,
    width: usize,
}

impl Index {
    pub fn new(items: &[(u32, Rect)]) -> Index {
        let distinct = |d: usize| {
            let mut lows: Vec<u64> = items.iter().map(|(_, r)| r[d][0]).collect();
            lows.sort_unstable();
            lows.dedup();
            lows.len()
        };
        let dim = (0..MAX_RANK).max_by_key(|&d| distinct(d)).unwrap_or(0);
        let mut sorted: Vec<(u64, u64, u32)> =
            items.iter().map(|(i, r)| (r[dim][0], r[dim][1], *i)).collect();
        sorted.sort_unstable();
        let width = sorted.len().next_power_of_two();
        let mut ends = vec![0; 2 * width];
        for (slot, s) in ends[width..].iter_mut().zip(&sorted) {
            *slot = s.1;
        }
        for i in (1..width).rev() {
            ends[i] = ends[2 * i].max(ends[2 * i + 1]);
        }
        Index { dim, starts: sorted.iter().map(|s| (s.0, s.2)).collect(), ends, width }
    }

    /// Calls `found` for every item whose interval along the index's dimension meets that of `q`.
    /// `stack` is working space.
    pub fn query(
        &self,
        q: &Rect,
        stack: &mut Vec<(usize, usize, usize)>,
        mut found: impl FnMut(u32),
    ) {
        let [lo, hi] = q[self.dim];
        let limit = self.starts.partition_point(|s| s.0 < hi);
        // Node, first leaf below it, number of leaves below it.
        stack.clear();
        stack.push((1, 0, self.width));
        while let Some((node, first, leaves)) = stack.pop() {
            if first >= limit || self.ends.get(node).is_none_or(|&end| end <= lo) {
                continue;
            }
            if leaves == 1 {
                if let Some(s) = self.starts.get(first) {
                    found(s.1);
                }
                continue;
            }
            let half = leaves / 2;
            stack.push((2 * node + 1, first + half, half));
            stack.push((2 * node, first, half));
        }
    }
}

/// A part of the bucket with the order of the symbolic dimensions.
#[derive(Clone)]
pub(crate) struct Piece {
    pub bucket: Bucket,
    /// Per dimension, the bounds by rank; empty for dimensions that keep their numbers.
    ranks: Vec<Vec<Bound>>,
    lookup: Vec<HashMap<Bound, u64>>,
}

impl Piece {
    /// The whole bucket, for buffers no bound of which follows the position.
    pub fn of_numbers(bucket: Bucket) -> Piece {
        Piece { bucket, ranks: Vec::new(), lookup: Vec::new() }
    }

    fn bound(&self, dim: usize, b: Bound) -> u64 {
        match (self.lookup.get(dim), b) {
            (Some(ranks), _) if !ranks.is_empty() => ranks.get(&b).copied().unwrap_or(0),
            (_, Bound::At(x)) => x,
            _ => 0,
        }
    }

    /// The rectangle of a region all of whose bounds were given to [`pieces`].
    pub fn rect(&self, region: &Region) -> Rect {
        let mut out = [[0, 1]; MAX_RANK];
        for (d, (o, s)) in out.iter_mut().zip(&region.0).enumerate() {
            *o = [self.bound(d, s.lo), self.bound(d, s.hi)];
        }
        out
    }

    /// The bounds of one dimension that stand for the ranks, in order; empty if it keeps its numbers.
    pub fn order(&self, dim: usize) -> &[Bound] {
        self.ranks.get(dim).map_or(&[], |r| r)
    }

    /// Does some dimension count in ranks?
    pub fn is_symbolic(&self) -> bool {
        self.ranks.iter().any(|r| !r.is_empty())
    }

    /// A rectangle of this piece as text.
    pub fn describe(&self, rect: &Rect, rank: usize) -> String {
        let spans: Vec<String> = rect
            .iter()
            .take(rank)
            .enumerate()
            .map(|(d, s)| {
                let one = |x: u64| match self.ranks.get(d) {
                    Some(r) if !r.is_empty() => {
                        r.get(x as usize).map_or_else(|| "?".to_owned(), |&b| print_bound(b))
                    }
                    _ => x.to_string(),
                };
                format!("{}..{}", one(s[0]), one(s[1]))
            })
            .collect();
        format!("[{}]", spans.join(", "))
    }
}

/// `0/n` and `n/n` of the past are constants of the other forms; what is left is told apart by value.
fn plain(b: Bound, bucket: Bucket) -> Bound {
    match b {
        Bound::Split { part: 0, .. } => Bound::At(0),
        Bound::Split { part, parts } if part == parts => Bound::Pos(0),
        Bound::Clip(x) if bucket.first >= x => Bound::At(x),
        Bound::Clip(x) if bucket.last <= x => Bound::Pos(0),
        b => b,
    }
}

/// Where the order of two bounds without clips turns over within the bucket; their difference is
/// monotone, or they are splits, whose order is that of the fractions everywhere.
fn turn(a: Bound, b: Bound, bucket: Bucket) -> Option<u64> {
    if a.le(b, bucket) || b.le(a, bucket) {
        return None;
    }
    let below = |pos: u64| a.eval(pos) <= b.eval(pos);
    let start = below(bucket.first);
    let (mut lo, mut hi) = (bucket.first, bucket.last);
    while hi - lo > 1 {
        let mid = lo + (hi - lo) / 2;
        if below(mid) == start { lo = mid } else { hi = mid }
    }
    Some(hi)
}

/// Cuts the bucket for the regions of one buffer of this rank. `None` if there are too many bounds
/// or turns to be decided.
pub(crate) fn pieces<'r>(
    regions: impl Iterator<Item = &'r Region>,
    rank: usize,
    bucket: Bucket,
) -> Option<Vec<Piece>> {
    let mut bounds: Vec<Vec<Bound>> = vec![Vec::new(); rank];
    for region in regions {
        for (list, Span { lo, hi }) in bounds.iter_mut().zip(&region.0) {
            list.extend([*lo, *hi]);
        }
    }
    for list in &mut bounds {
        if list.iter().any(|b| b.is_symbolic()) {
            let mut seen = std::collections::HashSet::new();
            list.retain(|b| seen.insert(*b));
        } else {
            list.clear();
        }
    }
    let mut cuts = vec![bucket.first];
    for list in &bounds {
        if list.iter().filter(|b| b.is_symbolic()).count() > MAX_SYMBOLIC {
            return None;
        }
        for b in list {
            if let Bound::Clip(x) = b
                && *x > bucket.first
                && *x < bucket.last
            {
                cuts.push(*x);
            }
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    let pairs = bounds.iter().fold(0usize, |n, list| {
        let symbolic = list.iter().filter(|b| b.is_symbolic()).count();
        n.saturating_add(symbolic.saturating_mul(list.len()))
    });
    if cuts.len() > MAX_PIECES || pairs.saturating_mul(cuts.len()) > MAX_COMPARED {
        return None;
    }
    for part in parts(&cuts, bucket) {
        for list in &bounds {
            let list: Vec<Bound> = list.iter().map(|&b| plain(b, part)).collect();
            for (i, &a) in list.iter().enumerate().filter(|(_, a)| a.is_symbolic()) {
                for (j, &b) in list.iter().enumerate() {
                    if i < j || !b.is_symbolic() {
                        cuts.extend(turn(a, b, part));
                    }
                }
                if cuts.len() > 4 * MAX_PIECES {
                    cuts.sort_unstable();
                    cuts.dedup();
                    if cuts.len() > MAX_PIECES {
                        return None;
                    }
                }
            }
        }
    }
    cuts.sort_unstable();
    cuts.dedup();
    if cuts.len() > MAX_PIECES {
        return None;
    }
    Some(parts(&cuts, bucket).map(|part| piece(&bounds, part)).collect())
}

fn parts(cuts: &[u64], bucket: Bucket) -> impl Iterator<Item = Bucket> + use<> {
    let cuts = cuts.to_vec();
    (0..cuts.len()).map(move |i| Bucket {
        first: cuts[i],
        last: cuts.get(i + 1).map_or(bucket.last, |next| next - 1),
    })
}

fn piece(bounds: &[Vec<Bound>], bucket: Bucket) -> Piece {
    // Bounds ordered the same way everywhere are ordered by their values at both ends; splits that
    // agree there may still differ in between and are ordered as fractions.
    let key = |b: Bound| {
        let (first, last) = (b.eval(bucket.first), b.eval(bucket.last));
        let fraction = match b {
            Bound::Split { part, parts } if first != last => (u64::from(part), u64::from(parts)),
            _ => (0, 1),
        };
        (first, last, fraction)
    };
    let compare = |a: Bound, b: Bound| {
        let ((f, l, p), (g, m, q)) = (key(a), key(b));
        f.cmp(&g).then(l.cmp(&m)).then((p.0 * q.1).cmp(&(q.0 * p.1)))
    };
    let (mut ranks, mut lookup) = (Vec::new(), Vec::new());
    for list in bounds {
        let mut sorted: Vec<(Bound, Bound)> = list.iter().map(|&b| (plain(b, bucket), b)).collect();
        sorted.sort_by(|a, b| compare(a.0, b.0));
        let mut names: Vec<Bound> = Vec::new();
        let mut map = HashMap::new();
        for (reduced, original) in sorted {
            if names.last().is_none_or(|&n| compare(n, reduced).is_ne()) {
                // A number where there is one: it compares with everything.
                let (first, last) = (reduced.eval(bucket.first), reduced.eval(bucket.last));
                names.push(match u64::try_from(first) {
                    Ok(x) if first == last => Bound::At(x),
                    _ => reduced,
                });
            }
            map.insert(original, (names.len() - 1) as u64);
        }
        ranks.push(names);
        lookup.push(map);
    }
    Piece { bucket, ranks, lookup }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rect(a: [u64; 2], b: [u64; 2]) -> Rect {
        [a, b, [0, 1], [0, 1]]
    }

    #[test]
    fn uncovered_is_exact() {
        let q = rect([0, 2], [0, 10]);
        let mut tiles: Vec<Rect> = (0..10).rev().map(|i| rect([0, 2], [i, i + 1])).collect();
        assert!(uncovered(&q, &mut tiles).unwrap().is_empty());
        tiles.retain(|t| t[1][0] != 4);
        assert_eq!(uncovered(&q, &mut tiles).unwrap(), vec![rect([0, 2], [4, 5])]);
        assert_eq!(union_volume(&tiles).unwrap(), 18);
        assert_eq!(union_volume(&[q, q, rect([1, 3], [0, 1])]).unwrap(), 21);
    }

    #[test]
    fn index_finds_exactly_the_overlaps() {
        let items: Vec<(u32, Rect)> = (0..50u32)
            .map(|i| {
                let lo = u64::from(i * 37 % 50);
                (i, rect([lo, lo + u64::from(i % 7)], [0, 1]))
            })
            .collect();
        let index = Index::new(&items);
        for lo in 0..56 {
            for hi in lo..57 {
                let q = rect([lo, hi], [0, 1]);
                let mut got = Vec::new();
                index.query(&q, &mut Vec::new(), |i| got.push(i));
                got.retain(|&i| overlap(&items[i as usize].1, &q));
                got.sort_unstable();
                let want: Vec<u32> =
                    items.iter().filter(|(_, r)| overlap(r, &q)).map(|(i, _)| *i).collect();
                assert_eq!(got, want);
            }
        }
    }

    /// Ranks agree with the values at every position of every piece.
    #[test]
    fn pieces_order_bounds_as_their_values() {
        let all = [
            Bound::At(0),
            Bound::At(7),
            Bound::At(40),
            Bound::Pos(0),
            Bound::Pos(1),
            Bound::Pos(-2),
            Bound::Clip(9),
            Bound::Clip(16),
            Bound::Split { part: 1, parts: 3 },
            Bound::Split { part: 2, parts: 3 },
            Bound::Split { part: 2, parts: 5 },
            Bound::Split { part: 3, parts: 3 },
        ];
        for first in 0..12 {
            for last in first..50 {
                let bucket = Bucket { first, last };
                let region = Region(vec![Span { lo: Bound::At(0), hi: Bound::At(1) }]);
                let mut regions = vec![region];
                regions.extend(all.map(|b| Region(vec![Span { lo: b, hi: b }])));
                let pieces = pieces(regions.iter(), 1, bucket).unwrap();
                assert_eq!(pieces[0].bucket.first, first);
                assert_eq!(pieces[pieces.len() - 1].bucket.last, last);
                for p in &pieces {
                    for a in all {
                        for b in all {
                            let below = p.bound(0, a) <= p.bound(0, b);
                            for pos in p.bucket.first..=p.bucket.last {
                                assert!(
                                    !below || a.eval(pos) <= b.eval(pos),
                                    "{a:?} {b:?} at {pos} in {:?}",
                                    p.bucket
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}
