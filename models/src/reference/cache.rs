//! The KV cache of one sequence: per layer a tensor of keys and one of values, `[room, kv_heads * head_dim]`, that
//! grows with the sequence.

use crate::config::ModelConfig;
use candle_core::{DType, Device, Result, Tensor};

pub(super) struct KvCache {
    width: usize,
    capacity: usize,
    len: usize,
    layers: Vec<Option<(Tensor, Tensor)>>,
}

/// Positions a cache begins with.
const FIRST: usize = 128;

impl KvCache {
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            width: config.kv_width(),
            capacity: config.capacity(),
            len: 0,
            layers: vec![None; config.num_layers],
        }
    }

    /// Positions all layers hold.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Forgets what lies behind `len` positions.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// States that every layer holds `len` positions now.
    pub fn commit(&mut self, len: usize) {
        self.len = len;
    }

    /// Writes keys and values `[n, width]` of a layer at `position`.
    pub fn append(
        &mut self,
        layer: usize,
        position: usize,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<()> {
        let need = position + keys.dim(0)?;
        let held = match &self.layers[layer] {
            Some((k, _)) => k.dim(0)?,
            None => 0,
        };
        if need > held {
            let room = need.next_power_of_two().max(FIRST).min(self.capacity.max(need));
            let grow = |old: Option<&Tensor>| -> Result<Tensor> {
                let new = Tensor::zeros((room, self.width), DType::F32, &Device::Cpu)?;
                if let Some(old) = old {
                    new.slice_set(old, 0, 0)?;
                }
                Ok(new)
            };
            let old = self.layers[layer].take();
            self.layers[layer] =
                Some((grow(old.as_ref().map(|o| &o.0))?, grow(old.as_ref().map(|o| &o.1))?));
        }
        if let Some((k, v)) = &self.layers[layer] {
            k.slice_set(&keys.contiguous()?, 0, position)?;
            v.slice_set(&values.contiguous()?, 0, position)?;
        }
        Ok(())
    }

    /// Keys and values of the first `len` positions, `[len, width]`.
    pub fn view(&self, layer: usize, len: usize) -> Result<(Tensor, Tensor)> {
        match &self.layers[layer] {
            Some((k, v)) => Ok((k.narrow(0, 0, len)?, v.narrow(0, 0, len)?)),
            None => candle_core::bail!("the cache of layer {layer} is empty"),
        }
    }
}
