//! An SM's arrival at the step boundary, the last entry of its queue. The accesses made on behalf of
//! all SMs are declared once, in [`crate::Program::boundary`].

use super::params::op_params;
use super::{Footprint, OpContext};
use crate::program::{Area, Resources};

op_params! {
    /// Arrive, wait for the step's token word, go on to the next step or stop.
    pub struct BoundaryArrive {}
}

impl BoundaryArrive {
    pub(crate) fn check(&self) -> Result<(), String> {
        Ok(())
    }

    pub(crate) fn footprint(&self, _: OpContext) -> Footprint {
        Footprint::default()
    }

    pub(crate) fn shared(&self, _: OpContext, _: &Resources, _: u64) -> Vec<(Area, u64)> {
        Vec::new()
    }
}
