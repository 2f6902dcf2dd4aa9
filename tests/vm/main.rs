//! The reference VM from outside: `faults.rs` runs hand-written programs, right and wrong ones;
//! `decode.rs` decodes checkpoints through their lowered schedules; `broken.rs` breaks such schedules;
//! `sampled.rs` draws the tokens; `positions.rs` runs a context to its end; `scale.rs` runs large ones without numbers. `support.rs` is what they share.

mod broken;
mod decode;
mod faults;
mod positions;
mod sampled;
mod scale;
mod support;
