//! The fuzzer on a small number of programs, and what it says about the validator's own checks.

mod bytes;
mod run;
