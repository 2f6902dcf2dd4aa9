//! The crate's integration tests, one module per subject: goldens of the CPU reference (`goldens`), the rule for
//! reduced precision (`reduced`), loading and its refusals (`loading`, `refusals`, `sentences`), text (`text`) and the hub (`hub`).
//! `../fuzz_models.rs` is a program of its own, because it watches every allocation.

#[path = "../common/mod.rs"]
mod common;
mod gguf;
mod goldens;
mod hub;
mod loading;
mod matrix;
mod reduced;
mod refusals;
mod rope;
mod sentences;
mod text;
