//! The kernel text on the CPU: rendered for the host, compiled with the system's C++ compiler, run under
//! a seeded scheduler, plain and under ThreadSanitizer, and compared with the CPU reference.
//!
//! `support.rs` lowers a checkpoint and writes a case, `pack.rs` is a packer of its own, `build.rs` runs
//! the compiler and the result, `ops.rs` tests op variants alone, `sampled.rs` draws tokens, `mutants.rs` makes every synchronisation droppable.

mod build;
mod mutants;
mod ops;
mod pack;
#[path = "../places/mod.rs"]
mod places;
mod sampled;
mod support;
mod tiny;
mod tokens;
mod watched;
