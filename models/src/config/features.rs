//! What a model does beyond the plain Llama computation, as data: for executors that do not do all of it, for reports,
//! and for the table of what is verified.

use super::family::NormWeight;
use super::{Activation, LayerRope, ModelConfig, Role, RopeScaling};
use serde::Serialize;

/// One departure from the plain computation: RMS norm before attention and before the MLP, separate projections
/// without biases, SiLU, full attention with scores scaled by `1 / sqrt(head_dim)`, rotary embedding of the whole head
/// in every layer with frequencies that do not depend on the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    /// Biases in attention projections.
    AttentionBias,
    /// Biases in the MLP.
    MlpBias,
    /// Query, key and value, or gate and up, stored as one matrix.
    FusedProjections,
    /// Norms of each query and key head.
    HeadNorm,
    /// Norms of all queries, and of all keys, together.
    WideQkNorm,
    /// Norm weights stored less one.
    NormOnePlus,
    /// Norms of what attention and MLP put out, before it joins the residual.
    OutputNorm,
    /// No norm before attention and MLP.
    NoInputNorm,
    /// GELU, exact or by tanh.
    Gelu,
    /// Layers that see the last positions alone.
    Window,
    /// Layers without rotary embedding.
    NoRope,
    /// A second rotary base for windowed layers.
    LocalRope,
    /// Rotary embedding of part of the head.
    PartialRotary,
    /// Linear rope scaling.
    RopeLinear,
    /// Llama 3 rope scaling.
    RopeLlama3,
    /// YaRN.
    RopeYarn,
    /// Frequencies that grow with the sequence.
    RopeDynamic,
    /// Two sets of frequencies, for short and for long sequences.
    RopeLong,
    /// Scores scaled by another factor.
    ScoreScale,
    /// Soft cap of the scores.
    ScoreCap,
    /// Soft cap of the logits.
    LogitCap,
    /// Factor of the embedding.
    EmbeddingScale,
    /// Factor of what joins the residual.
    ResidualScale,
    /// Divisor of the logits.
    LogitScale,
    /// Output head tied to the embedding.
    TiedHead,
    /// Heads whose width is not `hidden_size / num_attention_heads`.
    HeadDim,
    /// Several query heads to a key/value head.
    GroupedHeads,
}

impl Feature {
    /// Every feature, in the order of reports.
    pub const ALL: &[Feature] = {
        use Feature::*;
        &[
            TiedHead,
            GroupedHeads,
            HeadDim,
            AttentionBias,
            MlpBias,
            FusedProjections,
            HeadNorm,
            WideQkNorm,
            NormOnePlus,
            OutputNorm,
            NoInputNorm,
            Gelu,
            Window,
            NoRope,
            LocalRope,
            PartialRotary,
            RopeLinear,
            RopeLlama3,
            RopeYarn,
            RopeDynamic,
            RopeLong,
            ScoreScale,
            ScoreCap,
            LogitCap,
            EmbeddingScale,
            ResidualScale,
            LogitScale,
        ]
    };

    /// What it is, and the config field or tensor that asks for it.
    pub fn describe(self) -> &'static str {
        match self {
            Feature::AttentionBias => "biases in attention (the tensors self_attn.*.bias)",
            Feature::MlpBias => "biases in the MLP (\"mlp_bias\")",
            Feature::FusedProjections => {
                "fused projections (the tensors qkv_proj and gate_up_proj)"
            }
            Feature::HeadNorm => "norms of query and key heads (the tensors q_norm and k_norm)",
            Feature::WideQkNorm => {
                "norms of queries and keys over all heads (the tensors q_norm and k_norm)"
            }
            Feature::NormOnePlus => "norm weights stored less one (as Gemma has them)",
            Feature::OutputNorm => {
                "norms after attention and MLP (the tensors post_feedforward_layernorm)"
            }
            Feature::NoInputNorm => "no norm before attention and MLP (no tensor input_layernorm)",
            Feature::Gelu => "GELU (\"hidden_act\" or \"hidden_activation\")",
            Feature::Window => "attention windows (\"sliding_window\")",
            Feature::NoRope => "layers without rotary embedding (\"no_rope_layers\")",
            Feature::LocalRope => {
                "a second rotary base (\"rope_local_base_freq\" or \"rope_parameters.sliding_attention\")"
            }
            Feature::PartialRotary => "partial rotary embedding (\"partial_rotary_factor\")",
            Feature::RopeLinear => "linear rope scaling",
            Feature::RopeLlama3 => "llama3 rope scaling",
            Feature::RopeYarn => "yarn rope scaling",
            Feature::RopeDynamic => "dynamic rope scaling (\"rope_type\")",
            Feature::RopeLong => "longrope scaling (\"rope_type\")",
            Feature::ScoreScale => {
                "another scale of scores (\"query_pre_attn_scalar\" or \"attention_multiplier\")"
            }
            Feature::ScoreCap => "soft cap of scores (\"attn_logit_softcapping\")",
            Feature::LogitCap => "soft cap of logits (\"final_logit_softcapping\")",
            Feature::EmbeddingScale => {
                "scaled embedding (\"embedding_multiplier\", or Gemma's square root)"
            }
            Feature::ResidualScale => "scaled residual (\"residual_multiplier\")",
            Feature::LogitScale => "scaled logits (\"logits_scaling\")",
            Feature::TiedHead => "tied output head (\"tie_word_embeddings\")",
            Feature::HeadDim => "head width of its own (\"head_dim\")",
            Feature::GroupedHeads => "grouped key/value heads (\"num_key_value_heads\")",
        }
    }
}

impl ModelConfig {
    /// What this model does beyond the plain computation, sorted.
    pub fn features(&self) -> Vec<Feature> {
        let has = |role: Role| self.tensor_rules().any(|r| r.role == role);
        let head_norm = self.qk_norm_width().is_some_and(|w| w == self.head_dim);
        let layer = |f: &dyn Fn(&super::LayerPlan) -> bool| self.layers.iter().any(f);
        let rope = |f: &dyn Fn(&RopeScaling) -> bool| {
            f(&self.rope.scaling) || self.local_rope.as_ref().is_some_and(|r| f(&r.scaling))
        };
        let usual_scale = 1.0 / (self.head_dim as f64).sqrt();
        let partial = self.rope.rotary_dim(self.head_dim) != self.head_dim;
        let found = |feature: &Feature| match feature {
            Feature::AttentionBias => {
                [Role::QueryBias, Role::KeyBias, Role::ValueBias, Role::OutputBias]
                    .into_iter()
                    .any(has)
            }
            Feature::MlpBias => has(Role::GateBias),
            Feature::FusedProjections => has(Role::FusedQkv) || has(Role::FusedGateUp),
            Feature::HeadNorm => has(Role::QueryNorm) && head_norm,
            Feature::WideQkNorm => has(Role::QueryNorm) && !head_norm,
            Feature::NormOnePlus => self.family.norm_weight == NormWeight::OnePlus,
            Feature::OutputNorm => has(Role::AttentionOutputNorm),
            Feature::NoInputNorm => !has(Role::InputNorm),
            Feature::Gelu => self.activation != Activation::Silu,
            Feature::Window => layer(&|l| l.window.is_some()),
            Feature::NoRope => layer(&|l| l.rope == LayerRope::None),
            Feature::LocalRope => layer(&|l| l.rope == LayerRope::Local),
            Feature::PartialRotary => partial,
            Feature::RopeLinear => rope(&|s| matches!(s, RopeScaling::Linear { .. })),
            Feature::RopeLlama3 => {
                rope(&|s| matches!(s, RopeScaling::Llama3 { .. } | RopeScaling::Factors { .. }))
            }
            Feature::RopeYarn => rope(&|s| matches!(s, RopeScaling::Yarn { .. })),
            Feature::RopeDynamic => rope(&|s| matches!(s, RopeScaling::Dynamic { .. })),
            Feature::RopeLong => rope(&|s| matches!(s, RopeScaling::LongRope { .. })),
            Feature::ScoreScale => {
                (f64::from(self.attention_scale()) / usual_scale - 1.0).abs() > 1e-6
            }
            Feature::ScoreCap => self.score_cap.is_some(),
            Feature::LogitCap => self.logit_cap.is_some(),
            Feature::EmbeddingScale => self.embedding_scale != 1.0,
            Feature::ResidualScale => self.residual_scale != 1.0,
            Feature::LogitScale => self.logit_divisor != 1.0,
            Feature::TiedHead => self.tie_word_embeddings,
            Feature::HeadDim => self.head_dim * self.num_heads != self.hidden_size,
            Feature::GroupedHeads => self.num_kv_heads != self.num_heads,
        };
        let mut all: Vec<Feature> = Feature::ALL.iter().filter(|f| found(f)).copied().collect();
        all.sort_unstable();
        all
    }

    /// Elements over which queries are normalised; none where they are not.
    fn qk_norm_width(&self) -> Option<usize> {
        let rule = self.tensor_rules().find(|r| r.role == Role::QueryNorm)?;
        self.shape_of(rule).first().copied()
    }
}
