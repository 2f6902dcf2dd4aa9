//! Choices made with a generator.

use crate::vm::rng::Rng;

/// What the rest of the fuzzer asks of [`Rng`].
pub(crate) trait Draw {
    /// A number of `lo..=hi`.
    fn range(&mut self, lo: u64, hi: u64) -> u64;
    /// True in `n` of `of` cases.
    fn chance(&mut self, n: usize, of: usize) -> bool;
    /// One of a list that is not empty.
    fn pick<T: Copy>(&mut self, list: &[T]) -> T;
    /// The first that `f` finds when it walks `0..n` once around from anywhere.
    fn find<T>(&mut self, n: usize, f: impl FnMut(usize) -> Option<T>) -> Option<T>;
}

impl Draw for Rng {
    fn range(&mut self, lo: u64, hi: u64) -> u64 {
        lo + self.below((hi.saturating_sub(lo) + 1) as usize) as u64
    }

    fn chance(&mut self, n: usize, of: usize) -> bool {
        self.below(of) < n
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    fn find<T>(&mut self, n: usize, mut f: impl FnMut(usize) -> Option<T>) -> Option<T> {
        let start = self.below(n);
        (start..n).chain(0..start).find_map(&mut f)
    }
}
