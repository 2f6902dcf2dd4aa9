//! The gated activation of the MLP.

use super::elements;
use crate::config::Activation;
use candle_core::cpu::erf::erf_f32;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

struct Gated {
    activation: Activation,
}

/// `activation(gate) * up`, elementwise.
pub fn gated(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
    gate.apply_op2_no_bwd(up, &Gated { activation })
}

/// The activation function.
pub fn activate(activation: Activation, x: f32) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Gelu => 0.5 * x * (1.0 + erf_f32(x * std::f32::consts::FRAC_1_SQRT_2)),
        Activation::GeluTanh => {
            // sqrt(2/pi)
            const BETA: f32 = std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::FRAC_1_SQRT_2;
            0.5 * x * (1.0 + (BETA * (x + 0.044715 * x * x * x)).tanh())
        }
    }
}

impl CustomOp2 for Gated {
    fn name(&self) -> &'static str {
        "gated"
    }

    fn cpu_fwd(
        &self,
        gs: &CpuStorage,
        gl: &Layout,
        us: &CpuStorage,
        ul: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (gate, up) = (elements(gs, gl)?, elements(us, ul)?);
        let out = gate.iter().zip(up).map(|(g, u)| activate(self.activation, *g) * u).collect();
        Ok((CpuStorage::F32(out), gl.shape().clone()))
    }
}
