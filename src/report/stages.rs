//! The stages of a schedule for people: the dependence graph as lists, and one row per op.

use amk_schedule_ir::Op;
use petgraph::visit::EdgeRef;
use serde::Serialize;

use crate::graph::{DependenceGraph, Link, StageNode};

/// The dependence graph, with predicted times.
#[derive(Clone, Debug, Serialize)]
pub struct Dependences {
    /// In an order of execution.
    pub stages: Vec<StageNode>,
    pub edges: Vec<Edge>,
    /// Stages of the predicted critical path, by index.
    pub critical_path: Vec<usize>,
    /// Predicted time of a step at the last position of the bucket, microseconds.
    pub predicted_step_us: f64,
    /// Predicted time of reading every byte of a step once at full bandwidth, microseconds.
    pub predicted_read_us: f64,
}

/// Values that go from one stage to another.
#[derive(Clone, Debug, Serialize)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    pub buffers: Vec<String>,
    pub link: Link,
}

impl Dependences {
    /// The graph as lists.
    pub fn of(graph: &DependenceGraph) -> Self {
        Self {
            stages: graph.graph.node_weights().cloned().collect(),
            edges: graph
                .graph
                .edge_references()
                .map(|e| Edge {
                    from: e.source().index(),
                    to: e.target().index(),
                    buffers: e.weight().buffers.clone(),
                    link: e.weight().link,
                })
                .collect(),
            critical_path: graph.critical_path().iter().map(|n| n.index()).collect(),
            predicted_step_us: graph.step_us,
            predicted_read_us: graph.read_us,
        }
    }
}

/// All stages of one op in a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpRow {
    pub op: &'static str,
    pub stages: usize,
    pub instructions: usize,
    /// Most SMs that one stage runs on.
    pub sms: usize,
    pub weight_bytes: u64,
    /// KV bytes at the last position of the bucket.
    pub kv_bytes: u64,
    /// Predicted, not measured: reading these bytes at the bandwidth of the SMs that take part, microseconds.
    pub predicted_read_us: f64,
}

/// One row per op, in the order a model runs them.
pub fn op_rows(graph: &DependenceGraph) -> Vec<OpRow> {
    let row = |op: &&'static str| {
        let stages: Vec<&StageNode> = graph.graph.node_weights().filter(|s| s.op == *op).collect();
        OpRow {
            op,
            stages: stages.len(),
            instructions: stages.iter().map(|s| s.instructions).sum(),
            sms: stages.iter().map(|s| s.sms).max().unwrap_or(0),
            weight_bytes: stages.iter().map(|s| s.weight_bytes).sum(),
            kv_bytes: stages.iter().map(|s| s.kv_bytes).sum(),
            predicted_read_us: stages.iter().map(|s| s.predicted.read_us).sum(),
        }
    };
    Op::NAMES.iter().map(row).filter(|r| r.stages > 0).collect()
}
