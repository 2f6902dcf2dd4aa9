//! Two graphs, both on petgraph. [`ModelGraph`] is what is computed: the fused stages of every layer
//! with their shapes and bytes, and the tensors between them; the lowering walks it.
//! [`DependenceGraph`] is what a program makes of it: instructions gathered by stage, with predicted
//! times, the critical path, and DOT for reports.

mod dependence;
mod model;

pub use dependence::{DependenceGraph, Link, StageEdge, StageNode};
pub use model::{Class, Matrix, ModelGraph, Stage, StageKind, Value, ValueId};
