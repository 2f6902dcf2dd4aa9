//! Grids of cells. The cuts of a dimension do not decrease at any position of the part, so cells are
//! disjoint at every position, and a region whose ends are cuts is a block of whole cells.

use std::collections::HashMap;

use amk_schedule_ir::{Bound, Bucket, Program, Region};

use super::Refusal;
use crate::certificate::{Grid, GridPart};

/// Most cells of one buffer.
const MAX_CELLS: usize = 1 << 26;

/// A checked part of a grid.
pub(super) struct Cells {
    /// Where each bound of the buffer's regions stands among the cuts, per dimension.
    at: Vec<HashMap<Bound, usize>>,
    /// Cells along each dimension.
    pub extent: Vec<usize>,
    pub count: usize,
}

/// The parts tile the bucket.
pub(super) fn tiles_bucket(p: &Program, grid: &Grid) -> bool {
    let mut next = Some(p.bucket.first);
    for part in &grid.parts {
        if next != Some(part.first) || part.last < part.first {
            return false;
        }
        next = part.last.checked_add(1);
    }
    next == p.bucket.last.checked_add(1)
}

impl Cells {
    /// Checks the cuts of a part against the regions that will be asked for.
    pub fn new<'r>(
        buffer: usize,
        part: &GridPart,
        regions: impl Iterator<Item = &'r Region>,
    ) -> Result<Cells, Refusal> {
        let refuse = |why: String| Err(Refusal::Grid { buffer, why });
        let bucket = Bucket { first: part.first, last: part.last };
        for cuts in &part.cuts {
            if cuts.windows(2).any(|w| !matches!(w, [a, b] if a.le(*b, bucket))) {
                return refuse(format!(
                    "its cuts are not in order at {}..={}",
                    part.first, part.last
                ));
            }
        }
        let extent: Vec<usize> = part.cuts.iter().map(|c| c.len().saturating_sub(1)).collect();
        let count = extent.iter().try_fold(1usize, |n, &e| n.checked_mul(e));
        let Some(count) = count.filter(|&n| n <= MAX_CELLS) else {
            return refuse(format!("it has more than {MAX_CELLS} cells"));
        };
        let mut at: Vec<HashMap<Bound, usize>> = vec![HashMap::new(); part.cuts.len()];
        for region in regions {
            if region.rank() != at.len() {
                return refuse(format!("it has {} dimensions", at.len()));
            }
            for ((known, cuts), span) in at.iter_mut().zip(&part.cuts).zip(&region.0) {
                for b in [span.lo, span.hi] {
                    if known.contains_key(&b) {
                        continue;
                    }
                    let i = cuts.partition_point(|c| c.le(b, bucket)).checked_sub(1);
                    match i.and_then(|i| Some((i, *cuts.get(i)?))) {
                        Some((i, cut)) if b.le(cut, bucket) => known.insert(b, i),
                        _ => return refuse(format!("{b:?} is no cut")),
                    };
                }
            }
        }
        Ok(Cells { at, extent, count })
    }

    /// First and end cell of a region along each dimension.
    pub fn block(&self, region: &Region) -> Vec<(usize, usize)> {
        let of = |d: usize, b: Bound| self.at.get(d).and_then(|m| m.get(&b)).copied().unwrap_or(0);
        region.0.iter().enumerate().map(|(d, s)| (of(d, s.lo), of(d, s.hi))).collect()
    }

    /// Calls `each` with the number of every cell of the block, until one fails.
    pub fn each(
        &self,
        block: &[(usize, usize)],
        mut each: impl FnMut(usize) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if block.iter().any(|(lo, hi)| lo >= hi) {
            return Ok(());
        }
        // An odometer over the block, last dimension fastest.
        let mut at: Vec<usize> = block.iter().map(|b| b.0).collect();
        loop {
            each(at.iter().zip(&self.extent).fold(0, |n, (i, e)| n * e + i))?;
            let mut d = at.len();
            loop {
                let Some(below) = d.checked_sub(1) else { return Ok(()) };
                d = below;
                let (Some(i), Some(&(lo, hi))) = (at.get_mut(d), block.get(d)) else {
                    return Ok(());
                };
                *i += 1;
                if *i < hi {
                    break;
                }
                *i = lo;
            }
        }
    }
}
