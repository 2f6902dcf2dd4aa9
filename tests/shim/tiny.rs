//! A checkpoint of random numbers, small enough for a thread sanitizer.

use std::collections::BTreeMap;
use std::path::Path;

use amk_models::Checkpoint;

/// Sizes of a tiny model.
#[derive(Clone, Copy, Debug)]
pub struct Tiny {
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub inner: usize,
    pub vocab: usize,
    /// Stored as float32 rather than bf16.
    pub f32: bool,
    /// As Phi 3: fused projections, half of each head rotated, a window of this many positions.
    pub phi3: Option<usize>,
}

impl Default for Tiny {
    fn default() -> Tiny {
        Tiny {
            hidden: 32,
            layers: 2,
            heads: 2,
            kv_heads: 1,
            head_dim: 8,
            inner: 48,
            vocab: 61,
            f32: false,
            phi3: None,
        }
    }
}

/// Numbers from -1 to 1, the same every time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> f32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    }
}

impl Tiny {
    /// Writes config and weights into `folder` and loads them.
    pub fn checkpoint(&self, folder: &Path) -> Checkpoint {
        let (h, i, d) = (self.hidden, self.inner, self.head_dim);
        let mut tensors: Vec<(String, Vec<usize>, f32)> =
            vec![("model.embed_tokens.weight".to_owned(), vec![self.vocab, h], 1.0)];
        for l in 0..self.layers {
            let at = |part: &str| format!("model.layers.{l}.{part}.weight");
            let (q, kv) = (self.heads * d, self.kv_heads * d);
            tensors.push((at("input_layernorm"), vec![h], 1.0));
            if self.phi3.is_some() {
                tensors.extend([
                    (at("self_attn.qkv_proj"), vec![q + 2 * kv, h], 0.5),
                    (at("self_attn.o_proj"), vec![h, q], 0.5),
                    (at("post_attention_layernorm"), vec![h], 1.0),
                    (at("mlp.gate_up_proj"), vec![2 * i, h], 0.5),
                    (at("mlp.down_proj"), vec![h, i], 0.5),
                ]);
                continue;
            }
            tensors.extend([
                (at("self_attn.q_proj"), vec![q, h], 0.5),
                (at("self_attn.k_proj"), vec![kv, h], 0.5),
                (at("self_attn.v_proj"), vec![kv, h], 0.5),
                (at("self_attn.o_proj"), vec![h, q], 0.5),
                (at("post_attention_layernorm"), vec![h], 1.0),
                (at("mlp.gate_proj"), vec![i, h], 0.5),
                (at("mlp.up_proj"), vec![i, h], 0.5),
                (at("mlp.down_proj"), vec![h, i], 0.5),
            ]);
        }
        tensors.push(("model.norm.weight".to_owned(), vec![h], 1.0));
        tensors.push(("lm_head.weight".to_owned(), vec![self.vocab, h], 0.5));
        let mut numbers = Numbers(self.hidden as u64);
        let (mut header, mut data) = (BTreeMap::new(), Vec::new());
        for (name, shape, scale) in tensors {
            let start = data.len();
            let norm = shape.len() == 1;
            for _ in 0..shape.iter().product() {
                let v = if norm { 1.0 + 0.2 * numbers.next() } else { scale * numbers.next() };
                match self.f32 {
                    true => data.extend(v.to_le_bytes()),
                    false => data.extend(half::bf16::from_f32(v).to_le_bytes()),
                }
            }
            let dtype = if self.f32 { "F32" } else { "BF16" };
            let entry = serde_json::json!({
                "dtype": dtype, "shape": shape, "data_offsets": [start, data.len()],
            });
            header.insert(name, entry);
        }
        let mut header = serde_json::to_vec(&header).unwrap();
        header.resize(header.len().next_multiple_of(8), b' ');
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header);
        file.extend(data);
        let mut config = serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": h, "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": d, "intermediate_size": i, "vocab_size": self.vocab,
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "hidden_act": "silu", "attention_bias": false, "mlp_bias": false,
            "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1,
            "torch_dtype": if self.f32 { "float32" } else { "bfloat16" },
        });
        if let Some(window) = self.phi3 {
            config["architectures"] = serde_json::json!(["Phi3ForCausalLM"]);
            config["model_type"] = serde_json::json!("phi3");
            config["partial_rotary_factor"] = serde_json::json!(0.5);
            config["sliding_window"] = serde_json::json!(window);
            for field in ["attention_bias", "mlp_bias"] {
                config.as_object_mut().unwrap().remove(field);
            }
        }
        std::fs::create_dir_all(folder).unwrap();
        std::fs::write(folder.join("model.safetensors"), file).unwrap();
        std::fs::write(folder.join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        Checkpoint::from_folder(folder).unwrap()
    }
}
