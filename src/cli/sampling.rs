//! The options of sampling, for every command that draws tokens.

use amk_models::{Sampler, Sampling};
use clap::Args;

use super::Failure;

/// How tokens are chosen; without any of these greedily.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Divide logits by this before drawing; 0 is greedy.
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    temperature: f64,
    /// Draw among the K best tokens alone.
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Draw among the fewest best tokens whose probabilities reach P together.
    #[arg(long, value_name = "P")]
    top_p: Option<f64>,
    /// Draw among tokens at least P times as probable as the best.
    #[arg(long, value_name = "P")]
    min_p: Option<f64>,
    /// Divide positive logits of tokens already there by this, multiply negative ones; 1 is none.
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    repetition_penalty: f64,
    /// The same seed gives the same tokens.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
}

impl SamplingArgs {
    /// The sampler they describe.
    pub fn sampler(&self) -> Result<Sampler, Failure> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: self.seed,
        };
        Sampler::new(sampling).map_err(Failure::input)
    }

    /// Whether the best logit wins as it is, so that nobody needs to see the others.
    pub fn is_plain(&self) -> bool {
        self.temperature == 0.0 && self.repetition_penalty == 1.0
    }
}
