//! Shapes from checkpoints and configs.

use amk_models::{Checkpoint, Feature, ModelConfig, Role};
use amk_schedule_ir::DType;

use super::{LayerTensors, Shape, Sizes, TensorInfo};

/// What the ops compute beside the plain Llama block. The rope table is made on the host, so that whatever gives
/// one table for all sequences is supported.
pub const FEATURES: &[Feature] = &[
    Feature::TiedHead,
    Feature::GroupedHeads,
    Feature::HeadDim,
    Feature::RopeLinear,
    Feature::RopeLlama3,
    Feature::RopeYarn,
    Feature::ScoreScale,
];

impl Shape {
    /// The model of a loaded checkpoint, every tensor with the type it is stored in.
    pub fn of(checkpoint: &Checkpoint) -> Shape {
        let weights = checkpoint.weights();
        Shape::from_config(&checkpoint.name(), checkpoint.config(), |layer, role| {
            let tensor = match layer {
                Some(l) => weights.layer(l, role),
                None => weights.shared(role),
            };
            match tensor.map(|t| t.dtype()) {
                Ok(amk_models::DType::Bf16) => DType::Bf16,
                Ok(amk_models::DType::F16) => DType::F16,
                // Loading refuses other types and missing tensors, so this is float32.
                _ => DType::F32,
            }
        })
    }

    /// A model of which only the config is known: every tensor in the type the config states, else
    /// bf16.
    pub fn of_config(name: &str, config: &ModelConfig) -> Shape {
        let dtype = match config.stated_dtype.as_deref() {
            Some("float16") => DType::F16,
            Some("float32") => DType::F32,
            _ => DType::Bf16,
        };
        Shape::from_config(name, config, |_, _| dtype)
    }

    /// The model of a config with tensors of the type `dtype` gives for a layer (none outside the
    /// layers) and a role.
    pub fn from_config(
        name: &str,
        config: &ModelConfig,
        dtype: impl Fn(Option<usize>, Role) -> DType,
    ) -> Shape {
        let tensor = |layer: Option<usize>, role: Role| TensorInfo {
            // A role the family lacks is refused with its feature before its name is asked for.
            name: config
                .family
                .tensors
                .iter()
                .find(|rule| rule.role == role)
                .map(|rule| rule.name_for(layer))
                .unwrap_or_default(),
            dtype: dtype(layer, role),
        };
        let layer = |l: usize| {
            let of = |role| tensor(Some(l), role);
            LayerTensors {
                input_norm: of(Role::InputNorm),
                query: of(Role::Query),
                key: of(Role::Key),
                value: of(Role::Value),
                output: of(Role::Output),
                post_norm: of(Role::PostNorm),
                gate: of(Role::Gate),
                up: of(Role::Up),
                down: of(Role::Down),
            }
        };
        let head = match config.tie_word_embeddings {
            true => Role::Embedding,
            false => Role::LmHead,
        };
        Shape {
            name: name.to_owned(),
            sizes: Sizes {
                hidden: config.hidden_size as u64,
                layers: config.num_layers as u64,
                heads: config.num_heads as u64,
                kv_heads: config.num_kv_heads as u64,
                head_dim: config.head_dim as u64,
                inner: config.intermediate_size as u64,
                vocab: config.vocab_size as u64,
                max_positions: config.max_position_embeddings as u64,
                eps: config.rms_norm_eps,
                scale: config.attention_scale(),
            },
            embedding: tensor(None, Role::Embedding),
            layers: (0..config.num_layers).map(layer).collect(),
            final_norm: tensor(None, Role::FinalNorm),
            head: tensor(None, head),
            unsupported: config.features().into_iter().filter(|f| !FEATURES.contains(f)).collect(),
        }
    }
}
