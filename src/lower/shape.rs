//! What the lowering needs to know about a model: its sizes, and the name and storage type of every
//! tensor. No weights.

use amk_models::Feature;
use amk_schedule_ir::DType;
use amk_schedule_ir::op::Activation;
use serde::{Deserialize, Serialize};

use super::LowerError;

/// Largest hidden or MLP width, and largest width of all heads together.
const MAX_WIDTH: u64 = 1 << 24;
/// Most decoder layers.
const MAX_LAYERS: u64 = 4096;

/// A tensor of the checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the checkpoint.
    pub name: String,
    /// Storage type: `Bf16`, `F16` or `F32`.
    pub dtype: DType,
}

/// Sizes of a Llama-family model, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sizes {
    /// Width of the residual stream, even.
    pub hidden: u64,
    /// Decoder layers.
    pub layers: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads; divides `heads`.
    pub kv_heads: u64,
    /// Width of a head, even, 8 to 256; not necessarily `hidden / heads`.
    pub head_dim: u64,
    /// Width of the gate and up projections.
    pub inner: u64,
    /// Rows of the embedding and of the head.
    pub vocab: u64,
    /// Positions the model was made for.
    pub max_positions: u64,
    /// Epsilon inside the RMS norm.
    pub eps: f32,
    /// Factor of the attention scores.
    pub scale: f32,
}

impl Sizes {
    /// Width of all query heads together.
    pub fn q_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Rows of the fused query, key and value matrix.
    pub fn qkv_width(&self) -> u64 {
        (self.heads + 2 * self.kv_heads) * self.head_dim
    }

    /// Query heads that share one kv head.
    pub fn group(&self) -> u64 {
        self.heads / self.kv_heads
    }
}

/// Tensors of one decoder layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerTensors {
    /// Norm before attention; none: there is none.
    pub input_norm: Option<TensorInfo>,
    pub query: TensorInfo,
    pub key: TensorInfo,
    pub value: TensorInfo,
    pub output: TensorInfo,
    /// Norm before the MLP; none: there is none.
    pub post_norm: Option<TensorInfo>,
    pub gate: TensorInfo,
    pub up: TensorInfo,
    pub down: TensorInfo,
    pub extra: LayerExtras,
}

/// What some families have in a layer beside its matrices and norms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerExtras {
    /// Biases of queries, keys and values.
    pub qkv_bias: Option<[TensorInfo; 3]>,
    pub output_bias: Option<TensorInfo>,
    /// Biases of gate and up.
    pub gate_up_bias: Option<[TensorInfo; 2]>,
    pub down_bias: Option<TensorInfo>,
    /// Norms of query and key heads: of each, or with [`LayerExtras::wide_norm`] of all together.
    pub head_norms: Option<[TensorInfo; 2]>,
    /// Are the norms of query and key heads over all heads together?
    pub wide_norm: bool,
    /// Norm of what attention adds to the residual.
    pub output_norm: Option<TensorInfo>,
    /// Norm of what the MLP adds to the residual.
    pub down_norm: Option<TensorInfo>,
    /// Are heads rotated by the second table?
    pub local_rope: bool,
    /// Are heads left as they are, not rotated?
    pub unrotated: bool,
    /// Positions a position sees, itself among them; none: all before it.
    pub window: Option<u64>,
}

/// Numbers some families multiply by.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Factors {
    /// Of the embedding.
    pub embedding: Option<f32>,
    /// Of what attention and MLP add to the residual.
    pub residual: Option<f32>,
    /// Of the logits.
    pub logits: Option<f32>,
}

/// Soft caps: `x` becomes `cap * tanh(x / cap)`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Caps {
    /// Of the attention scores.
    pub scores: Option<f32>,
    /// Of the logits.
    pub logits: Option<f32>,
}

/// A model as the lowering sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct Shape {
    /// For people.
    pub name: String,
    pub sizes: Sizes,
    pub embedding: TensorInfo,
    pub layers: Vec<LayerTensors>,
    pub final_norm: TensorInfo,
    /// Output head; the embedding's tensor where the model ties them.
    pub head: TensorInfo,
    pub factors: Factors,
    /// Are norm weights stored less one?
    pub one_plus: bool,
    pub caps: Caps,
    /// What the gate of the MLP goes through.
    pub activation: Activation,
    /// Components of a head that are rotated; none: all.
    pub rotary: Option<u64>,
    /// What the model does that no op here computes; [`Shape::check`] refuses it.
    pub unsupported: Vec<Feature>,
}

impl Shape {
    /// A model with the tensor names of `LlamaForCausalLM`, all stored as `dtype`.
    pub fn llama(name: &str, sizes: Sizes, tied: bool, dtype: DType) -> Shape {
        let tensor = |name: String| TensorInfo { name, dtype };
        let embedding = tensor("model.embed_tokens.weight".to_owned());
        let layer = |l: u64| {
            let at = |part: &str| tensor(format!("model.layers.{l}.{part}.weight"));
            LayerTensors {
                input_norm: Some(at("input_layernorm")),
                query: at("self_attn.q_proj"),
                key: at("self_attn.k_proj"),
                value: at("self_attn.v_proj"),
                output: at("self_attn.o_proj"),
                post_norm: Some(at("post_attention_layernorm")),
                gate: at("mlp.gate_proj"),
                up: at("mlp.up_proj"),
                down: at("mlp.down_proj"),
                extra: LayerExtras::default(),
            }
        };
        Shape {
            name: name.to_owned(),
            sizes,
            layers: (0..sizes.layers).map(layer).collect(),
            final_norm: tensor("model.norm.weight".to_owned()),
            head: if tied { embedding.clone() } else { tensor("lm_head.weight".to_owned()) },
            embedding,
            factors: Factors::default(),
            one_plus: false,
            caps: Caps::default(),
            activation: Activation::default(),
            rotary: None,
            unsupported: Vec::new(),
        }
    }

    /// Refuses what no op computes and sizes no schedule can be made for.
    ///
    /// # Errors
    /// [`LowerError::Features`], naming them, or [`LowerError::Shape`], naming the size.
    pub fn check(&self) -> Result<(), LowerError> {
        if !self.unsupported.is_empty() {
            return Err(LowerError::Features { features: self.unsupported.clone() });
        }
        let s = &self.sizes;
        let range = |what: &'static str, value: u64, limit: u64| {
            if value == 0 || value > limit {
                return Err(LowerError::shape(what, value, format!("1 to {limit}")));
            }
            Ok(())
        };
        range("hidden size", s.hidden, MAX_WIDTH)?;
        range("intermediate size", s.inner, MAX_WIDTH)?;
        range("number of layers", s.layers, MAX_LAYERS)?;
        range("vocabulary size", s.vocab, u64::from(u32::MAX))?;
        range("number of positions", s.max_positions, u64::from(u32::MAX))?;
        range("number of heads", s.heads, MAX_WIDTH / 256)?;
        range("number of kv heads", s.kv_heads, s.heads)?;
        if !s.hidden.is_multiple_of(2) {
            return Err(LowerError::shape(
                "hidden size",
                s.hidden,
                "even, since the residual travels as pairs of bf16".to_owned(),
            ));
        }
        if !s.heads.is_multiple_of(s.kv_heads) {
            return Err(LowerError::shape(
                "number of kv heads",
                s.kv_heads,
                format!("a divisor of the number of heads ({})", s.heads),
            ));
        }
        if !(8..=256).contains(&s.head_dim) || !s.head_dim.is_multiple_of(2) {
            return Err(LowerError::shape("head width", s.head_dim, "even, 8 to 256".to_owned()));
        }
        if self.layers.len() as u64 != s.layers {
            return Err(LowerError::shape(
                "number of layers",
                s.layers,
                format!("the number of layers with tensors ({})", self.layers.len()),
            ));
        }
        let all = self.layers.iter().flat_map(LayerTensors::all);
        for t in all.chain([&self.embedding, &self.final_norm, &self.head]) {
            if !matches!(t.dtype, DType::Bf16 | DType::F16 | DType::F32) {
                return Err(LowerError::Tensor { name: t.name.clone() });
            }
        }
        Ok(())
    }
}

impl LayerTensors {
    fn all(&self) -> Vec<&TensorInfo> {
        let e = &self.extra;
        let mut all = vec![
            &self.query,
            &self.key,
            &self.value,
            &self.output,
            &self.gate,
            &self.up,
            &self.down,
        ];
        all.extend(self.input_norm.iter().chain(&self.post_norm));
        all.extend(e.output_norm.iter().chain(&e.down_norm));
        all.extend(e.qkv_bias.iter().flatten());
        all.extend(e.gate_up_bias.iter().flatten());
        all.extend(e.head_norms.iter().flatten());
        all.extend(e.output_bias.iter().chain(&e.down_bias));
        all
    }
}

/// The type of one matrix fused from tensors of these types: the one with most bf16 terms, so that
/// every part stays exact.
pub fn widest(tensors: &[&TensorInfo]) -> DType {
    tensors.iter().map(|t| t.dtype).max_by_key(|d| d.terms()).unwrap_or(DType::F32)
}
