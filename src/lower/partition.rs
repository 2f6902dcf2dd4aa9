//! Who does what: row tiles and attention units over SMs.

use amk_schedule_ir::TILE_ROWS;
use amk_schedule_ir::op::Rows;

/// Row tiles of a matrix dealt out to `n` SMs.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowTiles {
    /// Output rows.
    pub rows: u64,
    /// Output rows of one tile.
    pub tile: u64,
    /// SMs.
    pub n: u64,
    /// SM `s` takes part `s + shift`.
    pub shift: u64,
}

impl RowTiles {
    /// Rows of SM `s`; `None` where it has none. The parts are whole tiles, disjoint, differ by at
    /// most one tile and cover every row.
    pub fn of(&self, s: u64) -> Option<Rows> {
        let tiles = self.rows.div_ceil(self.tile);
        let part = (s + self.shift) % self.n;
        let cut = |part: u64| (tiles * part / self.n * self.tile).min(self.rows);
        let rows = Rows { lo: cut(part), hi: cut(part + 1) };
        (rows.lo < rows.hi).then_some(rows)
    }
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
                    let tiles = RowTiles { rows, tile: 8, n, shift };
                    let mut parts: Vec<_> = (0..n).filter_map(|s| tiles.of(s)).collect();
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
