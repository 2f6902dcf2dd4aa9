//! Checkpoints: config, weights, tokenizer, chat template, and the CPU reference they are checked with.
//!
//! A [`Checkpoint`] is what the rest of the program works on. It comes from a folder, from a hub, or from the program
//! itself, and holding one means that every config field was honoured or known to be harmless and that every tensor was
//! asked for; anything else is refused by name.
//!
//! ```no_run
//! use amk_models::{Checkpoint, Reference, Role, greedy};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let checkpoint = Checkpoint::open(Some("path/to/folder"), false)?;
//! let query = checkpoint.weights().layer(0, Role::Query)?;     // zero-copy: query.bytes(), query.dtype()
//! let rows: Vec<f32> = query.rows_f32(0..8);                   // widened exactly
//! # let _ = rows;
//!
//! let mut reference = Reference::new(&checkpoint)?;
//! let logits = reference.forward(1, 0)?;                       // token 1 at position 0
//! let next = greedy(&logits);
//! # let _ = next;
//! # Ok(())
//! # }
//! ```
//!
//! - [`config`]: `config.json` to [`ModelConfig`], model families as data; [`shape_only`] reads a config alone.
//! - [`weights`]: safetensors, mapped, each tensor in its stored type; [`gguf`]: GGUF files as the same.
//! - [`Survey`]: all that is wrong with a checkpoint rather than the first fault.
//! - [`hub`]: what a MODEL argument means, and the hub client.
//! - [`tokenizer`]: text to ids and back, streaming, chat templates.
//! - [`reference`]: the float32 forward pass with KV cache.
//! - [`sampling`]: a token from logits, greedily or at random.
//! - [`golden`]: outputs of HuggingFace transformers, and the comparison of any executor with them.
//! - [`files`], [`limits`]: reading files, and how much of them.

#[cfg(target_endian = "big")]
compile_error!(
    "weights are stored little-endian and read in place; big-endian machines are not supported"
);

mod checkpoint;
pub mod config;
mod embedded;
pub mod files;
pub mod gguf;
pub mod golden;
pub mod hub;
pub mod limits;
pub mod reference;
pub mod sampling;
mod survey;
pub mod tokenizer;
pub mod weights;

pub use checkpoint::{Checkpoint, CheckpointError, shape_only};
pub use config::{
    Activation, Feature, GenerationConfig, LayerPlan, LayerRope, ModelConfig, NormWeight, Role,
    Rope, RopeScaling, RopeTable, TensorSpec,
};
pub use embedded::NAME as EMBEDDED_NAME;
pub use hub::{Hub, Source, Spec};
pub use reference::{Observer, Place, Reference, ReferenceError, Want, activate, greedy};
pub use sampling::{Sampler, Sampling};
pub use survey::{Refusal, Subject, Survey};
pub use tokenizer::{Message, Tokenizer};
pub use weights::{DType, WeightTensor, Weights};
