//! What tensors are for, and the rules that name them.

use serde::Serialize;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding, `[vocab, hidden]`.
    Embedding,
    /// Norm before attention, `[hidden]`; absent where a family normalises outputs alone.
    InputNorm,
    /// Query, key and value projections in one matrix, rows in that order: `[(heads + 2 * kv_heads) * head_dim, hidden]`.
    /// Split on loading.
    FusedQkv,
    /// Query projection, `[heads * head_dim, hidden]`.
    Query,
    /// Its bias, `[heads * head_dim]`.
    QueryBias,
    /// Key projection, `[kv_heads * head_dim, hidden]`.
    Key,
    /// Its bias, `[kv_heads * head_dim]`.
    KeyBias,
    /// Value projection, `[kv_heads * head_dim, hidden]`.
    Value,
    /// Its bias, `[kv_heads * head_dim]`.
    ValueBias,
    /// Norm of the queries before rotation: `[head_dim]`, per head, or `[heads * head_dim]`, over all heads together.
    QueryNorm,
    /// Norm of the keys before rotation: `[head_dim]` or `[kv_heads * head_dim]`.
    KeyNorm,
    /// Output projection of attention, `[hidden, heads * head_dim]`.
    Output,
    /// Its bias, `[hidden]`.
    OutputBias,
    /// Norm of the attention's output before it joins the residual, `[hidden]`.
    AttentionOutputNorm,
    /// Norm before the MLP, `[hidden]`; absent where a family normalises outputs alone.
    PostNorm,
    /// Gate and up projections in one matrix, rows in that order: `[2 * intermediate, hidden]`. Split on loading.
    FusedGateUp,
    /// Gate projection, `[intermediate, hidden]`.
    Gate,
    /// Its bias, `[intermediate]`.
    GateBias,
    /// Up projection, `[intermediate, hidden]`.
    Up,
    /// Its bias, `[intermediate]`.
    UpBias,
    /// Down projection, `[hidden, intermediate]`.
    Down,
    /// Its bias, `[hidden]`.
    DownBias,
    /// Norm of the MLP's output before it joins the residual, `[hidden]`.
    MlpOutputNorm,
    /// Norm before the output head, `[hidden]`.
    FinalNorm,
    /// Output head, `[vocab, hidden]`; absent where it is tied to the embedding.
    LmHead,
}

impl Role {
    /// Whether every decoder layer has one of these.
    pub fn is_per_layer(self) -> bool {
        !matches!(self, Role::Embedding | Role::FinalNorm | Role::LmHead)
    }

    /// The roles a fused matrix is split into, with the size of each one's rows, in order; empty for all others.
    pub fn parts(self) -> &'static [(Role, Dim)] {
        match self {
            Role::FusedQkv => &[
                (Role::Query, Dim::QWidth),
                (Role::Key, Dim::KvWidth),
                (Role::Value, Dim::KvWidth),
            ],
            Role::FusedGateUp => &[(Role::Gate, Dim::Intermediate), (Role::Up, Dim::Intermediate)],
            _ => &[],
        }
    }
}

/// A symbolic size in a tensor's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// Vocabulary.
    Vocab,
    /// Residual width.
    Hidden,
    /// MLP width.
    Intermediate,
    /// Gate and up together.
    TwoIntermediate,
    /// One head.
    HeadDim,
    /// All query heads.
    QWidth,
    /// All key/value heads.
    KvWidth,
    /// Query, key and value heads together.
    QkvWidth,
}

/// When a model of a family has a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// If `attention_bias` is true.
    AttentionBias,
    /// If `mlp_bias` is true.
    MlpBias,
    /// Unless the output head is tied to the embedding.
    Untied,
}

/// Name and shape of one kind of tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TensorRule {
    /// What it is for.
    pub role: Role,
    /// Name in the checkpoint; `{layer}` stands for the layer number.
    pub name: &'static str,
    /// Shape, rows first.
    pub shape: &'static [Dim],
    /// When it is there.
    pub when: When,
}

impl TensorRule {
    /// The tensor's name in a given layer.
    pub fn name_for(&self, layer: Option<usize>) -> String {
        match layer {
            Some(n) => self.name.replace("{layer}", &n.to_string()),
            None => self.name.to_string(),
        }
    }

    /// The same rule under another condition.
    pub const fn always(self) -> Self {
        Self { when: When::Always, ..self }
    }
}

/// One tensor a model of some config must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorSpec {
    /// Name in the checkpoint.
    pub name: String,
    /// What it is for.
    pub role: Role,
    /// Decoder layer, or none for the tensors outside the layers.
    pub layer: Option<usize>,
    /// Shape, rows first; a matrix is `[out_features, in_features]`.
    pub shape: Vec<usize>,
}
