//! The model graph, on petgraph. [`ModelGraph`] is what is computed: the fused stages of every layer
//! with their shapes and bytes, and the tensors between them; the lowering walks it.

mod model;

pub use model::{Class, Matrix, ModelGraph, Stage, StageKind, Value, ValueId};
