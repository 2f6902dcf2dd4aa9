//! How long the stages of a step take, by the model of cost that the search uses too: a simulation of the schedule
//! ([`amk_autoresearch::cost`]). For reports; every figure from here is *predicted*.

use std::collections::HashMap;

use amk_autoresearch::cost::{Calibration, Options, simulate, stage_times};
use amk_schedule_ir::Target;
use amk_schedule_ir::program::Program;
use petgraph::graph::DiGraph;
use serde::Serialize;

use crate::codegen::RenderOptions;
use crate::graph::{StageEdge, StageNode};
use crate::lower::Knobs;

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

/// Chunks that the kernel's warps take into registers: by the knobs the program says it was made with, else as many as by
/// default.
fn taken(program: &Program) -> u32 {
    let knobs = program.meta.get("knobs").and_then(|text| serde_json::from_str(text).ok());
    let knobs: Knobs = knobs.unwrap_or_default();
    knobs.render_options(RenderOptions::default()).taken
}

/// Fills in the predicted times of every stage at the last position of the bucket; returns the time of a step and of
/// reading its bytes once, both in microseconds. A program whose step never ends has no times but that of reading.
pub(crate) fn predict(
    graph: &mut DiGraph<StageNode, StageEdge>,
    program: &Program,
    target: &Target,
) -> (f64, f64) {
    let total_rate = target.bandwidth() / 1e6;
    let rate = total_rate / f64::from(target.sm_count.max(1));
    let mut bytes = 0f64;
    for stage in graph.node_weights_mut() {
        let read = (stage.weight_bytes + stage.kv_bytes) as f64;
        let active = rate * stage.sms.max(1) as f64;
        stage.predicted.read_us = read / active.min(total_rate);
        bytes += read;
    }
    let read_us = bytes / total_rate;
    let options =
        Options { position: program.bucket.last, steps: 1, stamps: true, taken: taken(program) };
    let calibration = Calibration::for_target(target);
    let Ok(simulation) = simulate(program, target, &calibration, options) else {
        return (read_us, read_us);
    };
    let stages = stage_times(program, &simulation.stamps);
    let times: HashMap<(&str, &str), (f64, f64)> =
        stages.iter().map(|s| ((s.op, s.label.as_str()), (s.start_us, s.end_us))).collect();
    let last = stages.iter().map(|s| s.end_us).fold(0.0, f64::max);
    for stage in graph.node_weights_mut() {
        // The boundary leaves no stamp: it is what comes after every other stage.
        let boundary = (last, simulation.launch_us);
        let (start, end) =
            times.get(&(stage.op, stage.label.as_str())).copied().unwrap_or(boundary);
        stage.predicted.start_us = start;
        stage.predicted.end_us = end;
    }
    (simulation.launch_us.max(read_us), read_us)
}
