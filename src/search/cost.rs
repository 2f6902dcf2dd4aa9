//! The model of cost the search predicts with.

use amk_autoresearch::CostModel;
use amk_autoresearch::cost::Shipped;

/// The simulation, with the parameters shipped for the part.
pub fn cost_model() -> Box<dyn CostModel> {
    Box::new(Shipped)
}
