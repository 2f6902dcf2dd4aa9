//! Lowering and packing, from the outside: shapes of every kind, every knob, every shape file.
//! `common.rs` makes shapes and targets and holds what every lowering must satisfy.

mod common;
mod features;
mod graphs;
mod knobs;
mod properties;
mod recipes;
mod scale;
