//! What the lowering hands on: a program, and where the contents of its read-only buffers come from.
//! Packing, the reference VM and the runtime all fill buffers through these recipes.

use amk_schedule_ir::Program;

/// Where the contents of a weight or constant buffer come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recipe {
    /// The rows of these checkpoint tensors, one tensor after another. A vector counts as one
    /// tensor of rows of width 1.
    Concat(Vec<String>),
    /// Row `2r` is row `r` of the first tensor, row `2r + 1` is row `r` of the second.
    Interleave(String, String),
    /// One more than the elements of this vector.
    OnePlus(String),
    /// The RoPE table `[max_positions, n]`, `n` the components of a head that are rotated: the cosines of
    /// the `n / 2` frequencies at that position, then their sines.
    Rope,
    /// The same of the layers that have a rotary base of their own.
    LocalRope,
}

/// A lowered model.
#[derive(Clone, Debug)]
pub struct Lowered {
    pub program: Program,
    /// By buffer id; `None` for buffers the host or the program itself fills.
    pub recipes: Vec<Option<Recipe>>,
}
