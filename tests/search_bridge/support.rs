//! What the tests share.

use std::path::{Path, PathBuf};

use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk::target::{Target, resolve};
use amk_models::shape_only;
use amk_schedule_ir::Program;

/// A file of this repository.
pub fn path(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

pub fn h200() -> Target {
    resolve("h200").unwrap().target
}

/// A shape of `tests/shapes`.
pub fn shape(name: &str) -> Shape {
    let file = path(&format!("tests/shapes/{name}.json"));
    Shape::of_config(name, &shape_only(&file).unwrap())
}

/// A program for an H200.
pub fn program(shape: &Shape, knobs: &Knobs, position: u64, mode: Mode) -> Program {
    lower_for(shape, &h200(), knobs, position, mode).unwrap().program
}
