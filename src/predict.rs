//! A small estimate of how long a step takes, for reports and for ordering candidates before anything
//! is measured. Every figure from here is *predicted*.
//!
//! The model: an SM streams at its share of the bandwidth; its ring lets it run at most a ring ahead
//! of its consumers; a stage starts on an SM when the SM is free and every stage it reads from has
//! ended everywhere, plus one hop. With `p` the bytes consumed when stage `j` starts at `s_j`, `R` the
//! bytes of the ring and `b` the bandwidth, the byte at `e` lands no earlier than
//! `e/b + max(0, max_j (s_j - (p_j + R)/b))`, and a stage ends when its last byte has landed.

use amk_schedule_ir::Target;
use amk_schedule_ir::program::Program;
use petgraph::Direction;
use petgraph::graph::DiGraph;
use petgraph::visit::EdgeRef;
use serde::Serialize;

use crate::graph::{Link, StageEdge, StageNode};

/// One hop of a packet with weights streaming beside it, microseconds.
const PACKET_US: f64 = 1.7;
/// Signal and data behind it: a counter's two hops.
const COUNTER_US: f64 = 2.0 * PACKET_US;
/// Arrival of every SM at the boundary and the way back.
const BOUNDARY_US: f64 = 2.5;
/// From the last product of a stage to its published outputs.
const STAGE_US: f64 = 0.3;
/// Attention of one unit over a few positions, beside reading its past.
const ATTENTION_US: f64 = 1.0;

/// Predicted times of a stage within its step, microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Predicted {
    /// First SM starts.
    pub start_us: f64,
    /// Last SM has ended.
    pub end_us: f64,
    /// Reading the stage's bytes at the bandwidth of the SMs that take part.
    pub read_us: f64,
}

#[derive(Clone, Copy, Default)]
struct SmState {
    /// Bytes consumed so far.
    bytes: f64,
    /// How far the stream is behind an unhindered one, microseconds.
    behind: f64,
    /// When the consumers are free.
    free: f64,
}

/// Fills in the predicted times of every stage; returns the time of a step and of reading its bytes
/// once, both in microseconds.
pub(crate) fn predict(
    graph: &mut DiGraph<StageNode, StageEdge>,
    program: &Program,
    target: &Target,
) -> (f64, f64) {
    let total_rate = target.bandwidth() / 1e6;
    let rate = total_rate / f64::from(target.sm_count.max(1));
    let ring = program.resources.ring_slots as f64 * program.resources.slot_bytes as f64;
    let mut sms = vec![SmState::default(); program.sms.len()];
    let mut step = 0f64;
    let mut bytes = 0f64;
    // Edges lead from earlier to later nodes.
    for node in graph.node_indices().collect::<Vec<_>>() {
        let ready = graph
            .edges_directed(node, Direction::Incoming)
            .map(|e| {
                let hop = match e.weight().link {
                    Link::Local => 0.0,
                    Link::Packet => PACKET_US,
                    Link::Counter => COUNTER_US,
                    Link::Boundary => BOUNDARY_US,
                };
                // A local value is there as soon as its own SM is free.
                match e.weight().link {
                    Link::Local => 0.0,
                    _ => graph[e.source()].predicted.end_us + hop,
                }
            })
            .fold(0.0, f64::max);
        let stage = &mut graph[node];
        let read = (stage.weight_bytes + stage.kv_bytes) as f64;
        let past = stage.kv_bytes as f64 / stage.instructions.max(1) as f64 / rate;
        let fixed = STAGE_US + if stage.op == "attention" { ATTENTION_US + past } else { 0.0 };
        let (mut start, mut end) = (f64::INFINITY, ready);
        for (&sm, &weights) in &stage.sm_bytes {
            let Some(s) = sms.get_mut(sm) else { continue };
            let begin = ready.max(s.free);
            s.behind = s.behind.max(begin - (s.bytes + ring) / rate);
            s.bytes += weights as f64;
            let landed = if weights > 0 { s.bytes / rate + s.behind } else { 0.0 };
            s.free = begin.max(landed) + fixed;
            start = start.min(begin);
            end = end.max(s.free);
        }
        let active = rate * stage.sms.max(1) as f64;
        stage.predicted = Predicted {
            start_us: if start.is_finite() { start } else { ready },
            end_us: end,
            read_us: read / active.min(total_rate),
        };
        step = step.max(end);
        bytes += read;
    }
    (step, bytes / total_rate)
}
