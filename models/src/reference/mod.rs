//! The CPU reference: a float32 forward pass with a KV cache, one function per op.
//!
//! It is plain on purpose: what it computes is what HuggingFace transformers computes with eager attention in float32,
//! and every other executor is measured against it. Weights keep the type they were stored in and are widened inside
//! the products; every activation and every sum is float32. Tensors are candle's; the ops (in `ops/`, one file each)
//! run on the threads of rayon's pool. A position's result does not depend on how many positions are computed at once,
//! nor on the number of threads, nor on the vector width of the machine: the order of every sum is fixed.

mod cache;
mod ops;

use crate::checkpoint::Checkpoint;
use crate::config::{LayerRope, ModelConfig, NormWeight, Role, RopeTable};
use crate::weights::{Weights, WeightsError};
use cache::KvCache;
use candle_core::{Device, Tensor};
pub use ops::activate;
use ops::{Attention, Linear};
use std::fmt;

/// Why the reference stopped.
#[derive(Debug, thiserror::Error)]
pub enum ReferenceError {
    /// A weight is missing; cannot happen with a loaded checkpoint.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A token outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size}; check the prompt ids")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// A position that does not continue the cache.
    #[error(
        "position {position} does not follow the {cached} positions in the KV cache; feed the tokens in order"
    )]
    Position {
        /// The position asked for.
        position: usize,
        /// Positions in the cache.
        cached: usize,
    },
    /// The model's context is full.
    #[error(
        "position {position} is beyond the model's {capacity} positions (max_position_embeddings); use a shorter prompt or fewer tokens"
    )]
    Capacity {
        /// The position asked for.
        position: usize,
        /// Positions there are.
        capacity: usize,
    },
    /// A computation gave NaN.
    #[error(
        "{place}: {op} gave NaN at position {position}; the weights or the activations of this model overflow"
    )]
    Nan {
        /// Layer, or the part outside the layers.
        place: Place,
        /// The op.
        op: &'static str,
        /// Position in the sequence.
        position: usize,
    },
    /// The tensor library refused; a fault of this program.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
}

/// A part of the model, for messages and observers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The embedding: the residual stream before the first layer.
    Embedding,
    /// A decoder layer: the residual stream after it.
    Layer(usize),
    /// The final norm: its output.
    FinalNorm,
    /// The output head.
    LmHead,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Embedding => f.write_str("embedding"),
            Place::Layer(n) => write!(f, "layer {n}"),
            Place::FinalNorm => f.write_str("final norm"),
            Place::LmHead => f.write_str("output head"),
        }
    }
}

/// Sees the residual stream as it passes through the model.
pub trait Observer {
    /// The residual stream of one position after `place` ([`Place::Embedding`], each [`Place::Layer`], and the output
    /// of [`Place::FinalNorm`]); `hidden_size` values.
    fn hidden(&mut self, place: Place, position: usize, values: &[f32]);
}

/// Which positions' logits are wanted of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Want {
    /// Those of the last position.
    Last,
    /// Those of every position.
    All,
}

struct Layer {
    input_norm: Option<Tensor>,
    query: Linear,
    key: Linear,
    value: Linear,
    query_norm: Option<Tensor>,
    key_norm: Option<Tensor>,
    output: Linear,
    attention_output_norm: Option<Tensor>,
    post_norm: Option<Tensor>,
    gate: Linear,
    up: Linear,
    down: Linear,
    mlp_output_norm: Option<Tensor>,
}

/// The frequencies in use: the model's, and those of windowed layers where they differ.
struct Ropes {
    /// Length of the sequence they are for; meaningless where they do not depend on it.
    length: usize,
    main: RopeTable,
    local: Option<RopeTable>,
}

impl Ropes {
    fn new(config: &ModelConfig, length: usize) -> Self {
        let table = |r: &crate::config::Rope| r.table(config.head_dim, length);
        Self { length, main: table(&config.rope), local: config.local_rope.as_ref().map(table) }
    }

    fn of(&self, layer: LayerRope) -> Option<&RopeTable> {
        match layer {
            LayerRope::None => None,
            LayerRope::Main => Some(&self.main),
            LayerRope::Local => Some(self.local.as_ref().unwrap_or(&self.main)),
        }
    }
}

/// A model ready to run on the CPU, with the KV cache of one sequence.
pub struct Reference {
    config: ModelConfig,
    embedding: Linear,
    layers: Vec<Layer>,
    final_norm: Tensor,
    lm_head: Linear,
    ropes: Ropes,
    cache: KvCache,
    /// The tokens in the cache, kept where another length of the sequence means other keys.
    tokens: Vec<u32>,
}

/// Positions computed at once in a longer pass; bounds the memory of activations and logits.
const CHUNK: usize = 64;

impl Reference {
    /// Prepares a checkpoint. The matrices stay where they are mapped; the norm vectors are copied.
    pub fn new(checkpoint: &Checkpoint) -> Result<Self, ReferenceError> {
        Self::from_weights(checkpoint.config(), checkpoint.weights())
    }

    /// Prepares a model from its parts.
    pub fn from_weights(config: &ModelConfig, weights: &Weights) -> Result<Self, ReferenceError> {
        let one_plus = config.family.norm_weight == NormWeight::OnePlus;
        let vector = |t: &crate::weights::WeightTensor| {
            let mut values = t.to_f32();
            if one_plus {
                values.iter_mut().for_each(|w| *w += 1.0);
            }
            Tensor::from_vec(values, t.cols(), &Device::Cpu)
        };
        let norm =
            |layer: usize, role: Role| weights.layer(layer, role).ok().map(vector).transpose();
        let matrix = |layer: usize, role: Role, bias: Role| {
            let weight = Linear::new(weights.layer(layer, role)?);
            Ok::<_, ReferenceError>(weight.with_bias(weights.layer(layer, bias).ok()))
        };
        let layers = (0..config.num_layers)
            .map(|i| {
                Ok(Layer {
                    input_norm: norm(i, Role::InputNorm)?,
                    query: matrix(i, Role::Query, Role::QueryBias)?,
                    key: matrix(i, Role::Key, Role::KeyBias)?,
                    value: matrix(i, Role::Value, Role::ValueBias)?,
                    query_norm: norm(i, Role::QueryNorm)?,
                    key_norm: norm(i, Role::KeyNorm)?,
                    output: matrix(i, Role::Output, Role::OutputBias)?,
                    attention_output_norm: norm(i, Role::AttentionOutputNorm)?,
                    post_norm: norm(i, Role::PostNorm)?,
                    gate: matrix(i, Role::Gate, Role::GateBias)?,
                    up: matrix(i, Role::Up, Role::UpBias)?,
                    down: matrix(i, Role::Down, Role::DownBias)?,
                    mlp_output_norm: norm(i, Role::MlpOutputNorm)?,
                })
            })
            .collect::<Result<Vec<_>, ReferenceError>>()?;
        Ok(Self {
            embedding: Linear::new(weights.shared(Role::Embedding)?),
            layers,
            final_norm: vector(weights.shared(Role::FinalNorm)?)?,
            lm_head: Linear::new(weights.shared(Role::LmHead)?),
            ropes: Ropes::new(config, 0),
            cache: KvCache::new(config),
            tokens: Vec::new(),
            config: config.clone(),
        })
    }

    /// The model's config.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Positions in the KV cache.
    pub fn cached(&self) -> usize {
        self.cache.len()
    }

    /// Empties the KV cache.
    pub fn reset(&mut self) {
        self.cache.truncate(0);
    }

    /// Puts `rows` positions of given keys and values into a layer's cache, each `[rows, kv_heads * head_dim]`, as if
    /// they had been computed. The sequence counts as `rows` long once every layer was given.
    ///
    /// # Errors
    /// The values do not have that many elements.
    pub fn preload(
        &mut self,
        layer: usize,
        rows: usize,
        keys: Vec<f32>,
        values: Vec<f32>,
    ) -> Result<(), ReferenceError> {
        let width = self.config.kv_width();
        let tensor = |v: Vec<f32>| Tensor::from_vec(v, (rows, width), &Device::Cpu);
        self.cache.append(layer, 0, &tensor(keys)?, &tensor(values)?)?;
        self.tokens.clear();
        if layer + 1 == self.config.num_layers {
            self.cache.commit(rows);
        }
        Ok(())
    }

    /// Keys and values of the first `rows` positions as a layer's cache holds them, each `[rows, kv_heads * head_dim]`: what
    /// [`Reference::preload`] takes.
    ///
    /// # Errors
    /// The cache does not hold that many positions.
    pub fn cached_rows(
        &self,
        layer: usize,
        rows: usize,
    ) -> Result<(Vec<f32>, Vec<f32>), ReferenceError> {
        let (keys, values) = self.cache.view(layer, rows)?;
        let flat = |t: Tensor| t.flatten_all()?.to_vec1::<f32>();
        Ok((flat(keys)?, flat(values)?))
    }

    /// One step: the logits after `token` at `position`, `vocab_size` of them. The position continues the cache or
    /// goes back in it; what lay behind is forgotten.
    pub fn forward(&mut self, token: u32, position: usize) -> Result<Vec<f32>, ReferenceError> {
        let mut logits = Vec::new();
        self.run(&[token], position, Want::Last, None, &mut |_, l| logits = l.to_vec())?;
        Ok(logits)
    }

    /// Several positions in one pass (prompt, or a teacher-forced sequence), beginning at `position`. Gives the logits
    /// of each, or of the last.
    pub fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        want: Want,
    ) -> Result<Vec<Vec<f32>>, ReferenceError> {
        let mut out = Vec::new();
        self.run(tokens, position, want, None, &mut |_, l| out.push(l.to_vec()))?;
        Ok(out)
    }

    /// The general pass: `logits` is called with each wanted position and its logits, in order; the observer sees the
    /// residual stream of every position. Nothing is called after an error.
    ///
    /// Where frequencies depend on the length of the sequence, those of its length after this pass are used, as
    /// HuggingFace's classes do; keys in the cache keep the ones they were made with (dynamic), or are made anew when
    /// the sequence outgrows the original context (longrope), unless they were preloaded.
    pub fn run(
        &mut self,
        tokens: &[u32],
        position: usize,
        want: Want,
        observer: Option<&mut dyn Observer>,
        logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ReferenceError> {
        self.check(tokens, position)?;
        self.cache.truncate(position);
        if self.config.depends_on_length() {
            self.tokens.truncate(position);
            // Keys that were preloaded are of no kind and stay.
            let computed = self.tokens.len() == position;
            let length = position + tokens.len();
            // All cached keys are of the kind that the last pass's length asked for.
            let switches = self.config.rope.switches(self.ropes.length, length);
            if length != self.ropes.length {
                self.ropes = Ropes::new(&self.config, length);
            }
            if switches && position > 0 && computed {
                let cached = std::mem::take(&mut self.tokens);
                self.cache.truncate(0);
                self.pass(&cached, 0, Want::Last, None, &mut |_, _| {})?;
                self.tokens = cached;
            }
            if computed {
                self.tokens.extend_from_slice(tokens);
            }
        }
        self.pass(tokens, position, want, observer, logits)
    }

    /// Refuses what cannot be fed.
    fn check(&self, tokens: &[u32], position: usize) -> Result<(), ReferenceError> {
        if position > self.cache.len() {
            return Err(ReferenceError::Position { position, cached: self.cache.len() });
        }
        let capacity = self.config.capacity();
        if tokens.len() > capacity.saturating_sub(position) {
            return Err(ReferenceError::Capacity { position: capacity.max(position), capacity });
        }
        if let Some(&token) = tokens.iter().find(|t| **t as usize >= self.config.vocab_size) {
            return Err(ReferenceError::Token { token, vocab_size: self.config.vocab_size });
        }
        Ok(())
    }

    fn pass(
        &mut self,
        tokens: &[u32],
        position: usize,
        want: Want,
        mut observer: Option<&mut dyn Observer>,
        logits: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ReferenceError> {
        let chunks = tokens.chunks(CHUNK).collect::<Vec<_>>();
        let mut at = position;
        for (i, chunk) in chunks.iter().enumerate() {
            let keep = match want {
                Want::All => chunk.len(),
                Want::Last if i + 1 == chunks.len() => 1,
                Want::Last => 0,
            };
            // `as_deref_mut` through a trait object needs the reborrow spelled out.
            let observer = observer.as_mut().map(|o| &mut **o as &mut dyn Observer);
            let out = self.chunk(chunk, at, keep, observer);
            let out = match out {
                Ok(out) => out,
                Err(e) => {
                    self.cache.truncate(position);
                    return Err(e);
                }
            };
            if let Some(out) = out {
                let first = at + chunk.len() - keep;
                let values = out.flatten_all()?.to_vec1::<f32>()?;
                for (k, row) in values.chunks(self.config.vocab_size).enumerate() {
                    logits(first + k, row);
                }
            }
            at += chunk.len();
        }
        Ok(())
    }

    /// A pass over at most [`CHUNK`] tokens; logits `[keep, vocab]` of the last `keep` positions.
    fn chunk(
        &mut self,
        tokens: &[u32],
        position: usize,
        keep: usize,
        mut observer: Option<&mut dyn Observer>,
    ) -> Result<Option<Tensor>, ReferenceError> {
        let mut see = |place: Place, x: &Tensor| -> Result<(), ReferenceError> {
            if let Some(o) = observer.as_mut() {
                for (t, row) in x.to_vec2::<f32>()?.iter().enumerate() {
                    o.hidden(place, position + t, row);
                }
            }
            Ok(())
        };
        let c = &self.config;
        let eps = c.rms_norm_eps;
        let norm = |x: &Tensor, weight: &Option<Tensor>| match weight {
            Some(weight) => ops::rms_norm(x, weight, eps),
            None => Ok(x.clone()),
        };
        let scaled = |x: Tensor, factor: f32| match factor {
            1.0 => Ok(x),
            factor => x * f64::from(factor),
        };
        let x = scaled(ops::embedding(&self.embedding, tokens)?, c.embedding_scale)?;
        let mut x = sound(x, Place::Embedding, "embedding", position)?;
        see(Place::Embedding, &x)?;
        for (i, (layer, plan)) in self.layers.iter().zip(&c.layers).enumerate() {
            let here = Place::Layer(i);
            let rotate = |x: Tensor| match self.ropes.of(plan.rope) {
                Some(table) => ops::rope(&x, table, c.head_dim, position),
                None => Ok(x),
            };
            let n = sound(norm(&x, &layer.input_norm)?, here, "input norm", position)?;
            let q = rotate(norm(&ops::linear(&n, &layer.query)?, &layer.query_norm)?)?;
            let k = rotate(norm(&ops::linear(&n, &layer.key)?, &layer.key_norm)?)?;
            let v = ops::linear(&n, &layer.value)?;
            self.cache.append(i, position, &k, &v)?;
            let (keys, values) = self.cache.view(i, position + tokens.len())?;
            let q = sound(q, here, "query projection", position)?;
            let how = Attention {
                head_dim: c.head_dim,
                position,
                scale: c.attention_scale(),
                cap: c.score_cap,
                window: plan.window,
            };
            let a = sound(ops::attention(&q, &keys, &values, how)?, here, "attention", position)?;
            let o = sound(ops::linear(&a, &layer.output)?, here, "output projection", position)?;
            let o = norm(&o, &layer.attention_output_norm)?;
            x = ops::add(&x, &scaled(o, c.residual_scale)?)?;
            let n = sound(norm(&x, &layer.post_norm)?, here, "post-attention norm", position)?;
            let (gate, up) = (ops::linear(&n, &layer.gate)?, ops::linear(&n, &layer.up)?);
            let h = ops::gated(&gate, &up, c.activation)?;
            let h = sound(h, here, "gate and up projections", position)?;
            let d = sound(ops::linear(&h, &layer.down)?, here, "down projection", position)?;
            let d = norm(&d, &layer.mlp_output_norm)?;
            x = ops::add(&x, &scaled(d, c.residual_scale)?)?;
            see(here, &x)?;
        }
        self.cache.commit(position + tokens.len());
        if keep == 0 && observer.is_none() {
            return Ok(None);
        }
        let n = ops::rms_norm(&x, &self.final_norm, eps)?;
        let n = sound(n, Place::FinalNorm, "norm", position)?;
        if let Some(o) = observer.as_mut() {
            for (t, row) in n.to_vec2::<f32>()?.iter().enumerate() {
                o.hidden(Place::FinalNorm, position + t, row);
            }
        }
        if keep == 0 {
            return Ok(None);
        }
        let n = n.narrow(0, tokens.len() - keep, keep)?;
        let mut logits = ops::linear(&n, &self.lm_head)?;
        if c.logit_divisor != 1.0 {
            logits = (logits / f64::from(c.logit_divisor))?;
        }
        if let Some(cap) = c.logit_cap {
            logits = ops::softcap(&logits, cap)?;
        }
        let first = position + tokens.len() - keep;
        Ok(Some(sound(logits, Place::LmHead, "logits", first)?))
    }
}

/// Passes a tensor `[positions, width]` on if no element of it is NaN.
fn sound(
    x: Tensor,
    place: Place,
    op: &'static str,
    position: usize,
) -> Result<Tensor, ReferenceError> {
    match ops::first_nan(&x)? {
        None => Ok(x),
        Some(row) => Err(ReferenceError::Nan { place, op, position: position + row }),
    }
}

/// The token of the greatest logit; the lowest id where several are equal. None if there is a NaN or nothing at all.
pub fn greedy(logits: &[f32]) -> Option<u32> {
    let mut best = (0usize, *logits.first()?);
    for (i, &l) in logits.iter().enumerate() {
        if l.is_nan() {
            return None;
        }
        if l > best.1 {
            best = (i, l);
        }
    }
    u32::try_from(best.0).ok()
}

#[cfg(test)]
mod tests {
    use super::greedy;

    #[test]
    fn ties_go_to_the_lowest_id_and_nan_is_no_token() {
        assert_eq!(greedy(&[1.0, 3.0, 3.0, 2.0]), Some(1));
        assert_eq!(greedy(&[f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(0));
        assert_eq!(greedy(&[0.0, -0.0]), Some(0));
        assert_eq!(greedy(&[5.0, f32::NAN]), None);
        assert_eq!(greedy(&[f32::NAN, 5.0]), None);
        assert_eq!(greedy(&[]), None);
    }
}
