//! An op whose maths is not known: it touches exactly what it declares. Programs imported from
//! elsewhere and generated test programs use it; the validator judges it, codegen refuses it.

use super::params::{op_params, positive};
use super::{Footprint, OpContext};
use crate::program::{Area, Resources};

op_params! {
    /// Reads all its reads, then writes all its writes.
    pub struct Opaque {
        /// Distinguishes ops of the same shape; 1 to 2^32-1.
        pub tag: u64,
    }
}

impl Opaque {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("tag", self.tag, u64::from(u32::MAX))
    }

    pub(crate) fn footprint(&self, _: OpContext) -> Footprint {
        Footprint::default()
    }

    pub(crate) fn shared(&self, _: OpContext, _: &Resources, _: u64) -> Vec<(Area, u64)> {
        Vec::new()
    }
}
