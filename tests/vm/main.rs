//! The reference VM from outside: `faults.rs` runs hand-written programs, right and wrong ones;
//! `decode.rs` decodes checkpoints through their lowered schedules; `broken.rs` breaks such schedules;
//! `scale.rs` runs large ones without numbers. `support.rs` is what they share.

mod broken;
mod decode;
mod faults;
mod scale;
mod support;
