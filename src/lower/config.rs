//! Shapes from checkpoints and configs.

use amk_models::{Checkpoint, Feature, LayerRope, ModelConfig, NormWeight, Role};
use amk_schedule_ir::DType;
use amk_schedule_ir::op::Activation;

use super::{Caps, Factors, LayerExtras, LayerTensors, Shape, Sizes, TensorInfo};

/// What the ops compute beside the plain Llama block. The rope table is made on the host, so that whatever gives
/// a row per position is supported, also one that depends on the sequence (`crate::rotary`).
pub const FEATURES: &[Feature] = &[
    Feature::TiedHead,
    Feature::GroupedHeads,
    Feature::HeadDim,
    Feature::AttentionBias,
    Feature::MlpBias,
    Feature::FusedProjections,
    Feature::HeadNorm,
    Feature::WideQkNorm,
    Feature::NormOnePlus,
    Feature::OutputNorm,
    Feature::NoInputNorm,
    Feature::Gelu,
    Feature::NoRope,
    Feature::LocalRope,
    Feature::PartialRotary,
    Feature::RopeLinear,
    Feature::RopeLlama3,
    Feature::RopeYarn,
    Feature::RopeDynamic,
    Feature::RopeLong,
    Feature::ScoreScale,
    Feature::ScoreCap,
    Feature::LogitCap,
    Feature::EmbeddingScale,
    Feature::ResidualScale,
    Feature::LogitScale,
    Feature::Window,
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
            let tensor = tensor.ok()?;
            let dtype = match tensor.dtype() {
                amk_models::DType::Bf16 => DType::Bf16,
                amk_models::DType::F16 => DType::F16,
                // Loading refuses other types, so this is float32.
                _ => DType::F32,
            };
            Some(TensorInfo { name: tensor.name().to_owned(), dtype })
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
        Shape::from_config(name, config, |layer, role| {
            let rules = || config.tensor_rules();
            let rule = rules().find(|rule| rule.role == role).or_else(|| {
                // A part of a fused tensor.
                rules().find(|rule| rule.role.parts().iter().any(|(part, _)| *part == role))
            })?;
            let whole = rule.name_for(layer);
            let name = if rule.role == role { whole } else { format!("{whole} {role:?}") };
            Some(TensorInfo { name, dtype })
        })
    }

    /// The model of a config with the tensors that `tensor` gives for a layer (none outside the layers) and a
    /// role.
    pub fn from_config(
        name: &str,
        config: &ModelConfig,
        tensor: impl Fn(Option<usize>, Role) -> Option<TensorInfo>,
    ) -> Shape {
        // A role the family lacks is refused with its feature before its name is asked for.
        let must = |layer: Option<usize>, role: Role| {
            tensor(layer, role)
                .unwrap_or_else(|| TensorInfo { name: String::new(), dtype: DType::F32 })
        };
        let features = config.features();
        let wide = features.contains(&Feature::WideQkNorm);
        let layer = |l: usize| {
            let of = |role| must(Some(l), role);
            let maybe = |role| tensor(Some(l), role);
            let extra = LayerExtras {
                qkv_bias: maybe(Role::QueryBias)
                    .map(|query| [query, of(Role::KeyBias), of(Role::ValueBias)]),
                output_bias: maybe(Role::OutputBias),
                gate_up_bias: maybe(Role::GateBias).map(|gate| [gate, of(Role::UpBias)]),
                down_bias: maybe(Role::DownBias),
                head_norms: maybe(Role::QueryNorm).map(|query| [query, of(Role::KeyNorm)]),
                wide_norm: wide,
                output_norm: maybe(Role::AttentionOutputNorm),
                down_norm: maybe(Role::MlpOutputNorm),
                local_rope: config.local_rope.is_some()
                    && config.layers.get(l).is_some_and(|p| p.rope == LayerRope::Local),
                unrotated: config.layers.get(l).is_some_and(|p| p.rope == LayerRope::None),
                window: config.layers.get(l).and_then(|p| p.window).map(|w| w as u64),
            };
            LayerTensors {
                input_norm: maybe(Role::InputNorm),
                query: of(Role::Query),
                key: of(Role::Key),
                value: of(Role::Value),
                output: of(Role::Output),
                post_norm: maybe(Role::PostNorm),
                gate: of(Role::Gate),
                up: of(Role::Up),
                down: of(Role::Down),
                extra,
            }
        };
        let head = match config.tie_word_embeddings {
            true => Role::Embedding,
            false => Role::LmHead,
        };
        let factor = |x: f32| Some(x).filter(|&x| x != 1.0);
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
                max_positions: config.capacity() as u64,
                eps: config.rms_norm_eps,
                scale: config.attention_scale(),
            },
            embedding: must(None, Role::Embedding),
            layers: (0..config.num_layers).map(layer).collect(),
            final_norm: must(None, Role::FinalNorm),
            head: must(None, head),
            factors: Factors {
                embedding: factor(config.embedding_scale),
                residual: factor(config.residual_scale),
                logits: factor(1.0 / config.logit_divisor),
            },
            one_plus: config.family.norm_weight == NormWeight::OnePlus,
            caps: Caps { scores: config.score_cap, logits: config.logit_cap },
            activation: match config.activation {
                amk_models::Activation::Silu => Activation::Silu,
                amk_models::Activation::Gelu => Activation::Gelu,
                amk_models::Activation::GeluTanh => Activation::GeluTanh,
            },
            rotary: Some(config.rope.rotary_dim(config.head_dim))
                .filter(|&d| d != config.head_dim)
                .map(|d| d as u64),
            unsupported: features.into_iter().filter(|f| !FEATURES.contains(f)).collect(),
        }
    }
}
