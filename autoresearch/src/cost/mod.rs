//! A model of cost: how long a step takes, by simulating the schedule event by event, SM by SM.
//!
//! An SM's producer issues the chunks of its stream in order. A chunk waits for a free slot of the ring and for room in
//! the window of its run, then for its turn at the memory, one queue that all SMs share, and lands a latency later.
//! An SM's consumers run their queue in order: they reach an instruction, wait until what it reads was published and
//! has arrived, read it, multiply chunk by chunk as the chunks land, and publish. While they wait they take the first
//! chunks into registers, where the kernel is made so, and free their slots. A packet is there one hop after it
//! was published, a counter's data two. A hop queues behind the weights in flight, so it takes longer the more of them
//! there are, and a reader waits for the last of its writers. One boundary ends the step.
//!
//! Every figure is *predicted*. It orders candidates where nothing is measured and is never compared with a
//! measurement. What it may promise without measuring: no step is faster than reading its bytes once at the part's
//! bandwidth, nor than any one SM can read its own.
//!
//! `calibration.rs` has the parameters, one record per part, with their provenance; `layout.rs` flattens a program;
//! `simulate.rs` runs it; `stages.rs` gathers what it stamped; `rank.rs` compares predictions with measurements.

mod calibration;
mod layout;
mod rank;
mod simulate;
mod stages;

use amk_schedule_ir::{Program, Target};

pub use calibration::{Calibration, CalibrationError, OpCost, Provenance};
pub use layout::Floor;
pub use rank::{Measured, MeasuredError, MeasuredRows, Ranked, rank, spearman};
pub use simulate::{Options, Simulation, Stamp, simulate};
pub use stages::{StageTimes, stage_times};

use crate::seams::{CostModel, Prediction};

/// Why a program has no predicted time.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// A schedule that the validator refuses may well be one.
    #[error(
        "the step never ends: SM {sm} waits at queue entry {queue_index}; `amk validate` says why"
    )]
    Stuck { sm: usize, queue_index: usize },
    #[error("{what}; only a schedule the validator accepts can be simulated")]
    Malformed { what: String },
    #[error("the program streams {chunks} chunks a step; at most {limit} are simulated")]
    TooLarge { chunks: u64, limit: u64 },
}

/// The simulation with the parameters of one part.
#[derive(Clone, Debug)]
pub struct Simulated {
    calibration: Calibration,
    name: String,
}

impl Simulated {
    /// With these parameters.
    pub fn new(calibration: Calibration) -> Simulated {
        let name = format!("simulation 2, {}", calibration.name);
        Simulated { calibration, name }
    }

    /// With the parameters shipped for a part, or the nearest there are.
    pub fn for_target(target: &Target) -> Simulated {
        Simulated::new(Calibration::for_target(target))
    }

    /// The parameters.
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }
}

/// What a program is said to take that cannot be simulated: longer than anything that can.
const NEVER_US: f64 = 1e12;

/// The simulation with the parameters shipped for whichever part is asked about.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shipped;

impl CostModel for Shipped {
    fn name(&self) -> &str {
        "simulation 2"
    }

    fn predict(&self, program: &Program, target: &Target, position: u64, taken: u32) -> Prediction {
        Simulated::for_target(target).predict(program, target, position, taken)
    }
}

impl CostModel for Simulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn predict(&self, program: &Program, target: &Target, position: u64, taken: u32) -> Prediction {
        let options = Options { position, steps: 1, stamps: false, taken };
        let tokens = f64::from(program.tokens.max(1));
        let (us, floor_us) = match simulate(program, target, &self.calibration, options) {
            Ok(s) => (s.launch_us / tokens, s.floor.us() / tokens),
            Err(_) => (NEVER_US, 0.0),
        };
        Prediction { us, floor_us, model: self.name.clone() }
    }
}

#[cfg(test)]
mod tests;
