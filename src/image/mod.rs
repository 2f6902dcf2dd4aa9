//! Compiled images: reading a cubin, judging its resources against a target, and the cache that
//! keeps images between runs.
//!
//! `elf` reads registers, stack, shared and constant memory, instruction counts and named symbols
//! out of a cubin; `budget` says whether a kernel with those resources fits a target; `key` derives
//! the cache key; `cache` stores images under it and trusts nothing it reads back.

mod budget;
mod cache;
mod elf;
mod key;

pub use budget::{Budget, BudgetFault, Occupancy, check_budget};
pub use cache::{BuildError, CacheError, CacheWarning, Image, ImageCache, Provenance};
pub use elf::{CubinInfo, ElfError, KernelInfo, inspect, symbol_bytes};
pub use key::{ImageKey, KeyInputs};
