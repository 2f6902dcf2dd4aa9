//! Rotary position parameters and the frequencies they give.

use serde::Serialize;

/// How the base frequencies are stretched for longer contexts.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "rope_type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// A larger base for sequences longer than the model was made for ("NTK-aware"); the base grows with the sequence.
    Dynamic {
        /// How far the context stretches.
        factor: f64,
        /// Sequences up to this length have the plain frequencies: `max_position_embeddings`.
        plain_positions: u64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a smooth passage between (Llama 3.1).
    Llama3 {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original_max_position_embeddings / low_freq_factor` are divided.
        low_freq_factor: f64,
        /// Wavelengths below `original_max_position_embeddings / high_freq_factor` are kept.
        high_freq_factor: f64,
        /// Context length of pre-training.
        original_max_position_embeddings: u64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a linear passage between, cosines and sines multiplied by
    /// `attention_factor` (YaRN, arXiv 2309.00071).
    Yarn {
        /// Divisor of the low frequencies.
        factor: f64,
        /// Rotations over the original context above which a frequency is kept.
        beta_fast: f64,
        /// Rotations below which it is divided.
        beta_slow: f64,
        /// Whether the ends of the passage are rounded to whole components.
        truncate: bool,
        /// Context length of pre-training.
        original_max_position_embeddings: u64,
        /// Factor of cosines and sines, as given or as it follows from `factor`, `mscale` and `mscale_all_dim`.
        attention_factor: f64,
    },
    /// Every frequency divided by a factor of its own, whatever the length: how GGUF files carry Llama 3's scaling.
    Factors {
        /// Divisors.
        factors: Vec<f32>,
    },
    /// Every frequency divided by a factor of its own; one list for sequences up to the original context, another for
    /// longer ones (Phi 3).
    LongRope {
        /// Divisors up to `original_max_position_embeddings`.
        short_factor: Vec<f32>,
        /// Divisors beyond it.
        long_factor: Vec<f32>,
        /// Context length of pre-training.
        original_max_position_embeddings: u64,
        /// Factor of cosines and sines.
        attention_factor: f64,
    },
}

impl RopeScaling {
    /// Its name in a config.
    pub fn name(&self) -> &'static str {
        match self {
            RopeScaling::Default => "default",
            RopeScaling::Linear { .. } => "linear",
            RopeScaling::Dynamic { .. } => "dynamic",
            RopeScaling::Llama3 { .. } => "llama3",
            RopeScaling::Yarn { .. } => "yarn",
            RopeScaling::LongRope { .. } => "longrope",
            RopeScaling::Factors { .. } => "factors",
        }
    }
}

/// Rotary position parameters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Rope {
    /// Base of the geometric series of frequencies.
    pub theta: f64,
    /// Part of each head that is rotated, its first components; 1 for all.
    pub partial_rotary_factor: f64,
    /// Scaling.
    #[serde(flatten)]
    pub scaling: RopeScaling,
}

/// Frequencies for sequences of some length.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// Inverse frequencies, half as many as components are rotated.
    pub inv_freq: Vec<f32>,
    /// Factor of cosines and sines.
    pub scale: f32,
}

impl RopeTable {
    /// Cosine and sine at one position: element `i` belongs to components `i` and `i + inv_freq.len()` of a head.
    ///
    /// The angle is rounded to float32, as HuggingFace's is; its cosine and sine are taken in float64.
    pub fn cos_sin(&self, position: usize) -> (Vec<f32>, Vec<f32>) {
        self.inv_freq
            .iter()
            .map(|f| {
                let angle = f64::from(position as f32 * f);
                (angle.cos() as f32 * self.scale, angle.sin() as f32 * self.scale)
            })
            .unzip()
    }
}

/// The power of a float32 base, rounded once.
fn power(base: f32, exponent: f32) -> f32 {
    f64::from(base).powf(f64::from(exponent)) as f32
}

impl Rope {
    /// Components of a head that are rotated.
    pub fn rotary_dim(&self, head_dim: usize) -> usize {
        (head_dim as f64 * self.partial_rotary_factor) as usize
    }

    /// Whether frequencies depend on the length of the sequence.
    pub fn depends_on_length(&self) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { .. } | RopeScaling::LongRope { .. })
    }

    /// Whether a sequence that grows from one length to another changes from short to long frequencies.
    pub fn switches(&self, from: usize, to: usize) -> bool {
        match self.scaling {
            RopeScaling::LongRope { original_max_position_embeddings: n, .. } => {
                (from as u64 > n) != (to as u64 > n)
            }
            _ => false,
        }
    }

    /// Whether sequences of these two lengths have the same frequencies.
    pub fn alike(&self, a: usize, b: usize) -> bool {
        match self.scaling {
            RopeScaling::Dynamic { plain_positions: n, .. } => {
                (a as u64).max(n) == (b as u64).max(n)
            }
            _ => !self.switches(a, b),
        }
    }

    /// Inverse frequencies of short sequences, `rotary_dim / 2` of them.
    pub fn inv_freq(&self, head_dim: usize) -> Vec<f32> {
        self.table(head_dim, 0).inv_freq
    }

    /// The frequencies of a sequence of `length` positions, computed in float32 in the order of operations of
    /// HuggingFace transformers (`modeling_rope_utils`), so that angles agree to the last bits at large positions.
    pub fn table(&self, head_dim: usize, length: usize) -> RopeTable {
        let dim = self.rotary_dim(head_dim);
        let base = self.theta as f32;
        let exponents = (0..dim / 2).map(|i| (2 * i) as f32 / dim as f32);
        let plain = |base: f32| exponents.clone().map(move |e| 1.0f32 / power(base, e));
        let (inv_freq, scale) = match &self.scaling {
            RopeScaling::Default => (plain(base).collect(), 1.0),
            RopeScaling::Linear { factor } => {
                (plain(base).map(|f| f / *factor as f32).collect(), 1.0)
            }
            RopeScaling::Factors { factors } => {
                (plain(base).zip(factors).map(|(f, by)| f / by).collect(), 1.0)
            }
            RopeScaling::Dynamic { factor, plain_positions } => (
                plain(self.dynamic_base(dim, length as u64, *factor, *plain_positions)).collect(),
                1.0,
            ),
            RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            } => {
                let context = *original_max_position_embeddings as f32;
                let (factor, low, high) =
                    (*factor as f32, *low_freq_factor as f32, *high_freq_factor as f32);
                let stretch = |plain: f32| {
                    let wavelength = 2.0 * std::f32::consts::PI / plain;
                    if wavelength > context / low {
                        plain / factor
                    } else if wavelength < context / high {
                        plain
                    } else {
                        let smooth = (context / wavelength - low) / (high - low);
                        (1.0 - smooth) * plain / factor + smooth * plain
                    }
                };
                (plain(base).map(stretch).collect(), 1.0)
            }
            RopeScaling::Yarn {
                factor,
                beta_fast,
                beta_slow,
                truncate,
                original_max_position_embeddings,
                attention_factor,
            } => {
                let context = *original_max_position_embeddings as f64;
                // The component whose wavelength makes that many rotations over the original context.
                let component = |rotations: f64| {
                    dim as f64 * (context / (rotations * 2.0 * std::f64::consts::PI)).ln()
                        / (2.0 * self.theta.ln())
                };
                let (mut low, mut high) = (component(*beta_fast), component(*beta_slow));
                if *truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                let low = low.max(0.0);
                let mut high = high.min(dim as f64 - 1.0);
                if low == high {
                    high += 0.001;
                }
                let frequencies = exponents.clone().enumerate().map(|(i, e)| {
                    let period = power(base, e);
                    let kept = 1.0f32 / period;
                    let divided = 1.0f32 / (*factor as f32 * period);
                    let ramp = (i as f32 - low as f32) / (high - low) as f32;
                    let keep = 1.0 - ramp.clamp(0.0, 1.0);
                    divided * (1.0 - keep) + kept * keep
                });
                (frequencies.collect(), *attention_factor as f32)
            }
            RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor,
            } => {
                let long = length as u64 > *original_max_position_embeddings;
                let factors = if long { long_factor } else { short_factor };
                let frequencies =
                    exponents.clone().zip(factors).map(|(e, f)| 1.0f32 / (f * power(base, e)));
                (frequencies.collect(), *attention_factor as f32)
            }
        };
        RopeTable { inv_freq, scale }
    }

    /// The base for a sequence of `length` positions. Within the plain positions HuggingFace computes it in float64,
    /// beyond them from a float32 tensor.
    fn dynamic_base(&self, dim: usize, length: u64, factor: f64, plain: u64) -> f32 {
        let exponent = dim as f64 / (dim as f64 - 2.0);
        if length <= plain {
            let stretch = factor * plain as f64 / plain as f64 - (factor - 1.0);
            return (self.theta * stretch.powf(exponent)) as f32;
        }
        let stretch = factor as f32 * length as f32 / plain as f32 - (factor - 1.0) as f32;
        self.theta as f32 * power(stretch, exponent as f32)
    }
}
