//! The built program, run as a user runs it: exit codes, sentences, JSON fields and files.
//!
//! One module per command, `cases` has what docs/cases.md asks for besides, `support` runs the binary.

mod cases;
mod chat;
mod check;
mod compile;
mod completions;
mod device;
mod families;
mod generate;
mod hostile;
mod inspect;
mod smollm2;
mod startup;
mod support;
mod toolchain;
mod usage;
mod validate;
mod verify;
