//! The model of cost the search predicts with.

use amk_autoresearch::{CostModel, Prediction};
use amk_schedule_ir::{Program, Target};

use crate::graph::DependenceGraph;

/// Stage by stage over the dependence graph; see [`crate::predict`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Graph;

impl CostModel for Graph {
    fn name(&self) -> &str {
        "stage graph 1"
    }

    fn predict(&self, program: &Program, target: &Target, _position: u64) -> Prediction {
        let graph = DependenceGraph::new(program, target);
        Prediction {
            us: graph.step_us,
            // Of the whole bucket's cache; the floor of the position is the caller's.
            floor_us: 0.0,
            model: self.name().to_owned(),
        }
    }
}

/// The model that is used.
pub fn cost_model() -> Box<dyn CostModel> {
    Box::new(Graph)
}
