//! Who does what: row tiles and attention units over SMs.

use amk_schedule_ir::TILE_ROWS;
use amk_schedule_ir::op::Rows;

/// Row tiles of a matrix dealt out to `n` SMs.
#[derive(Clone, Debug)]
pub(super) struct RowTiles {
    /// Output rows.
    rows: u64,
    /// Output rows of one tile.
    tile: u64,
    /// SM `s` takes part `s + shift`.
    shift: u64,
    /// First tile of each part, and behind the last one the number of tiles.
    cuts: Vec<u64>,
}

impl RowTiles {
    /// `rows` in tiles of `tile` for `n` SMs, SM `s` taking part `s + shift`. `weights` are the shares of the SMs, by SM;
    /// empty: all alike.
    pub fn new(rows: u64, tile: u64, n: u64, shift: u64, weights: &[u64]) -> RowTiles {
        let tiles = rows.div_ceil(tile);
        let cuts = match weights.len() as u64 == n {
            false => (0..=n).map(|part| tiles * part / n).collect(),
            true => weighted(tiles, n, shift, weights),
        };
        RowTiles { rows, tile, shift, cuts }
    }

    /// Rows of SM `s`; `None` where it has none. The parts are whole tiles, disjoint, and cover every row; they differ
    /// by at most one tile where all SMs weigh alike.
    pub fn of(&self, s: u64) -> Option<Rows> {
        let n = (self.cuts.len() as u64).saturating_sub(1).max(1);
        let part = ((s + self.shift) % n) as usize;
        let cut = |part: usize| self.cuts.get(part).map_or(self.rows, |t| t * self.tile);
        let rows = Rows { lo: cut(part).min(self.rows), hi: cut(part + 1).min(self.rows) };
        (rows.lo < rows.hi).then_some(rows)
    }
}

/// Cuts by which each SM gets whole tiles in proportion to its weight: its share rounded down, and what is left to the
/// greatest remainders, a tile each (Hamilton's method of apportionment); ties go to the earlier part.
fn weighted(tiles: u64, n: u64, shift: u64, weights: &[u64]) -> Vec<u64> {
    let total: u128 = weights.iter().map(|w| u128::from(*w)).sum::<u128>().max(1);
    // By part.
    let weight = |part: u64| {
        let sm = (part + n - shift % n) % n;
        u128::from(weights.get(sm as usize).copied().unwrap_or(0))
    };
    let share = |part: u64| u128::from(tiles) * weight(part);
    let mut counts: Vec<u64> = (0..n).map(|part| (share(part) / total) as u64).collect();
    let left = tiles.saturating_sub(counts.iter().sum());
    let mut order: Vec<u64> = (0..n).collect();
    order.sort_by_key(|&part| (std::cmp::Reverse(share(part) % total), part));
    for part in order.into_iter().take(left as usize) {
        counts[part as usize] += 1;
    }
    let mut cuts = vec![0];
    let mut at = 0;
    for count in counts {
        at += count;
        cuts.push(at);
    }
    cuts
}

/// Rows cut into pieces of at most `most` tiles, as equal as they can be; whole without a limit.
pub(super) fn pieces(rows: Rows, tile: u64, most: Option<u64>) -> Vec<Rows> {
    let tiles = (rows.hi - rows.lo).div_ceil(tile);
    let n = most.map_or(1, |most| tiles.div_ceil(most.max(1))).max(1);
    let cut = |i: u64| (rows.lo + tiles * i / n * tile).min(rows.hi);
    (0..n).map(|i| Rows { lo: cut(i), hi: cut(i + 1) }).filter(|r| r.lo < r.hi).collect()
}

/// Rows of one tile where an output row is an output row of the matrix.
pub(super) const TILE: u64 = TILE_ROWS;
/// Rows of one tile where an output row takes two rows of the matrix (gate and up).
pub(super) const PAIR_TILE: u64 = TILE_ROWS / 2;

/// SMs of `units` units, `stride` apart, starting at `offset`: each SM once before any SM twice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spread {
    n: u64,
    stride: u64,
    /// Units after which plain steps of `stride` come back to the start.
    cycle: u64,
    offset: u64,
}

impl Spread {
    pub fn new(n: u64, units: u64, stride: Option<u64>, offset: u64) -> Spread {
        let stride = stride.unwrap_or(n / units.max(1)).max(1) % n;
        // gcd(0, n) = n: a stride that is a multiple of n steps by one.
        Spread { n, stride, cycle: n / gcd(stride, n), offset }
    }

    /// The SM of unit `u`.
    pub fn sm(&self, u: u64) -> u64 {
        (u % self.n * self.stride + u % self.n / self.cycle + self.offset) % self.n
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_covered_once() {
        for rows in [1, 7, 8, 9, 60, 509, 1003] {
            for n in [1, 2, 7, 132] {
                for shift in [0, 1, 5, 131] {
                    for weights in [vec![], (0..n).map(|s| 96 + s * 7 % 9).collect()] {
                        let tiles = RowTiles::new(rows, 8, n, shift, &weights);
                        let shares: Vec<_> = (0..n).filter_map(|s| tiles.of(s)).collect();
                        for most in [None, Some(1), Some(3)] {
                            let cut = |r: &Rows| pieces(*r, 8, most);
                            let mut parts: Vec<_> = shares.iter().flat_map(cut).collect();
                            parts.sort_by_key(|r| r.lo);
                            let mut at = 0;
                            for part in parts {
                                assert_eq!(part.lo, at);
                                assert_eq!(part.lo % 8, 0);
                                at = part.hi;
                            }
                            assert_eq!(at, rows);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn who_weighs_more_gets_the_remainders() {
        // 31 tiles for 4 SMs: one of them gets 7.
        let count = |tiles: &RowTiles, s| tiles.of(s).map_or(0, |r| (r.hi - r.lo) / 8);
        for shift in [0, 1, 3] {
            let tiles = RowTiles::new(248, 8, 4, shift, &[100, 100, 96, 100]);
            let counts: Vec<u64> = (0..4).map(|s| count(&tiles, s)).collect();
            assert_eq!(counts, [8, 8, 7, 8], "shift {shift}");
        }
        let none = RowTiles::new(248, 8, 4, 0, &[1, 0, 0, 1]);
        assert_eq!(
            (count(&none, 0), none.of(1), none.of(2), count(&none, 3)),
            (16, None, None, 15)
        );
        assert_eq!(pieces(Rows { lo: 8, hi: 50 }, 8, Some(4)).len(), 2);
    }

    #[test]
    fn units_reach_every_sm_before_any_twice() {
        for n in [1, 2, 6, 7, 12, 132] {
            for stride in [None, Some(1), Some(2), Some(3), Some(4), Some(n), Some(n + 1)] {
                let spread = Spread::new(n, n, stride, 1);
                let mut seen: Vec<u64> = (0..n).map(|u| spread.sm(u)).collect();
                seen.sort_unstable();
                assert_eq!(seen, (0..n).collect::<Vec<_>>(), "n {n} stride {stride:?}");
                assert_eq!(spread.sm(n), spread.sm(0));
            }
        }
    }
}
