//! Why a model could not be lowered.

use amk_models::Feature;

/// Errors of [`super::lower`]. Every one is the caller's to mend: another model, target or knob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LowerError {
    /// A size no schedule can be made for.
    #[error("the model's {what} is {value}, but must be {expected}")]
    Shape { what: &'static str, value: u64, expected: String },
    /// The model computes what no op does.
    #[error(
        "the model has {}, which schedules cannot express yet; the CPU reference runs it \
         (`--device cpu`)",
        features.iter().map(|f| f.describe()).collect::<Vec<_>>().join("; ")
    )]
    Features { features: Vec<Feature> },
    /// A tensor stored in a type that is not read.
    #[error(
        "the tensor {name} is stored in a type that has no bf16 terms; store it as bf16, f16 or f32"
    )]
    Tensor { name: String },
    /// A knob out of range for this model and target.
    #[error("the knob `{knob}` is {value}, but must be {expected}")]
    Knob { knob: &'static str, value: String, expected: String },
    /// The bucket does not fit the model or the cache.
    #[error(
        "positions {first} to {last} with {tokens} per step reach {end}, but {what} {limit}; \
         lower a smaller bucket or raise the limit"
    )]
    Bucket { first: u64, last: u64, tokens: u64, end: u64, what: &'static str, limit: u64 },
    /// The shared memory of a block is too small.
    #[error(
        "{target}: a block has {available} bytes of shared memory; staging takes {staging} and {slots} ring slots \
         of {slot_bytes} bytes take {ring}; lower `slot_bytes`, `consumer_warps` or `q_heads_per_unit`, or \
         choose a target with more shared memory"
    )]
    SharedMemory {
        target: String,
        available: u64,
        /// Bytes of every area but the ring and its barriers.
        staging: u64,
        /// Fewest slots that work.
        slots: u64,
        slot_bytes: u64,
        /// Bytes of those slots and their barriers.
        ring: u64,
    },
    /// An op refuses the parameters that follow from the model.
    #[error("{op} of this model: {message}")]
    Op { op: &'static str, message: String },
    /// The model needs more ids of one kind than there are.
    #[error("the program needs more than 2^32 {what}; use a smaller grid or model")]
    TooMany { what: &'static str },
}

impl LowerError {
    pub(crate) fn shape(what: &'static str, value: u64, expected: String) -> LowerError {
        LowerError::Shape { what, value, expected }
    }

    pub(crate) fn knob(
        knob: &'static str,
        value: impl ToString,
        expected: impl Into<String>,
    ) -> LowerError {
        LowerError::Knob { knob, value: value.to_string(), expected: expected.into() }
    }
}
