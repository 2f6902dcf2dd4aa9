//! The gated activation of the MLP.

use super::elements;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

struct SiluMul;

/// `gate * sigmoid(gate) * up`, elementwise.
pub fn silu_mul(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2_no_bwd(up, &SiluMul)
}

impl CustomOp2 for SiluMul {
    fn name(&self) -> &'static str {
        "silu-mul"
    }

    fn cpu_fwd(
        &self,
        gs: &CpuStorage,
        gl: &Layout,
        us: &CpuStorage,
        ul: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (elements(gs, gl)?, elements(us, ul)?);
        let out = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
        Ok((CpuStorage::F32(out), gl.shape().clone()))
    }
}
