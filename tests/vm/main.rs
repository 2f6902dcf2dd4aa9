//! The reference VM from outside: `faults.rs` runs hand-written programs, right and wrong ones.

mod faults;
