//! A writer of GGUF files with chosen faults, and checkpoints of the other format written as such.

use amk_models::{Checkpoint, DType};

/// A metadata value.
#[derive(Clone)]
pub enum Meta {
    U32(u32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Text(String),
    /// A list of numbers of 32 bits.
    List(Vec<u32>),
    /// Type and bytes as they are.
    Raw(u32, Vec<u8>),
}

/// One tensor; dimensions with the fastest first, as in the file.
#[derive(Clone)]
pub struct Entry {
    pub name: String,
    pub dimensions: Vec<u64>,
    pub code: u32,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// A file to write.
#[derive(Clone)]
pub struct Gguf {
    pub version: u32,
    pub metadata: Vec<(String, Meta)>,
    pub tensors: Vec<Entry>,
    /// What the header says, where it is not what is there.
    pub tensor_count: Option<u64>,
    pub value_count: Option<u64>,
}

const ALIGNMENT: usize = 32;

impl Gguf {
    pub fn new(metadata: &[(&str, Meta)]) -> Self {
        let metadata = metadata.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        Self { version: 3, metadata, tensors: Vec::new(), tensor_count: None, value_count: None }
    }

    pub fn set(&mut self, key: &str, value: Meta) {
        self.metadata.retain(|(k, _)| k != key);
        self.metadata.push((key.to_string(), value));
    }

    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(k, _)| k != key);
    }

    /// Adds a tensor behind the others.
    pub fn tensor(&mut self, name: &str, shape: &[usize], code: u32, bytes: Vec<u8>) {
        let end = self.tensors.last().map_or(0, |t| t.offset as usize + t.bytes.len());
        let offset = end.next_multiple_of(ALIGNMENT) as u64;
        let dimensions = shape.iter().rev().map(|d| *d as u64).collect();
        self.tensors.push(Entry { name: name.to_string(), dimensions, code, offset, bytes });
    }

    pub fn find(&mut self, name: &str) -> &mut Entry {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let text = |s: &str| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat();
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend(self.tensor_count.unwrap_or(self.tensors.len() as u64).to_le_bytes());
        out.extend(self.value_count.unwrap_or(self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            out.extend(text(key));
            let (kind, bytes) = match value {
                Meta::U32(n) => (4, n.to_le_bytes().to_vec()),
                Meta::U64(n) => (10, n.to_le_bytes().to_vec()),
                Meta::F32(x) => (6, x.to_le_bytes().to_vec()),
                Meta::Bool(b) => (7, vec![u8::from(*b)]),
                Meta::Text(s) => (8, text(s)),
                Meta::List(list) => {
                    let mut bytes = 4u32.to_le_bytes().to_vec();
                    bytes.extend((list.len() as u64).to_le_bytes());
                    list.iter().for_each(|n| bytes.extend(n.to_le_bytes()));
                    (9, bytes)
                }
                Meta::Raw(kind, bytes) => (*kind, bytes.clone()),
            };
            out.extend(u32::to_le_bytes(kind));
            out.extend(bytes);
        }
        for t in &self.tensors {
            out.extend(text(&t.name));
            out.extend((t.dimensions.len() as u32).to_le_bytes());
            t.dimensions.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.code.to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        let base = out.len();
        for t in &self.tensors {
            let at = base + usize::try_from(t.offset).unwrap_or(0).min(1 << 20);
            out.resize(out.len().max(at + t.bytes.len()), 0);
            out[at..at + t.bytes.len()].copy_from_slice(&t.bytes);
        }
        out
    }
}

/// What converters make of a checkpoint: other names, rows of q and k in another order for Llama.
pub fn convert(checkpoint: &Checkpoint) -> Gguf {
    let c = checkpoint.config();
    let arch = c.family.model_type;
    let number = |n: usize| Meta::U32(u32::try_from(n).unwrap());
    let key = |part: &str| format!("{arch}.{part}");
    let mut out = Gguf::new(&[("general.architecture", Meta::Text(arch.to_string()))]);
    out.set(&key("embedding_length"), number(c.hidden_size));
    out.set(&key("block_count"), number(c.num_layers));
    out.set(&key("feed_forward_length"), number(c.intermediate_size));
    out.set(&key("attention.head_count"), number(c.num_heads));
    out.set(&key("attention.head_count_kv"), number(c.num_kv_heads));
    out.set(&key("attention.key_length"), number(c.head_dim));
    out.set(&key("attention.value_length"), number(c.head_dim));
    out.set(&key("rope.dimension_count"), number(c.head_dim));
    out.set(&key("attention.layer_norm_rms_epsilon"), Meta::F32(c.rms_norm_eps));
    out.set(&key("context_length"), number(c.max_position_embeddings));
    out.set(&key("rope.freq_base"), Meta::F32(c.rope.theta as f32));
    out.set(&key("vocab_size"), number(c.vocab_size));
    let parts = [
        ("model.embed_tokens", "token_embd"),
        ("model.norm", "output_norm"),
        ("lm_head", "output"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("self_attn.q_norm", "attn_q_norm"),
        ("self_attn.k_norm", "attn_k_norm"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    for t in checkpoint.weights().iter() {
        let name = parts.iter().fold(t.name().to_string(), |n, (hf, gguf)| n.replace(hf, gguf));
        let code = match t.dtype() {
            DType::F16 => 1,
            DType::Bf16 => 30,
            _ => 0,
        };
        let heads = match (arch, name.rsplit('.').nth(1)) {
            ("llama", Some("attn_q")) => Some(c.num_heads),
            ("llama", Some("attn_k")) => Some(c.num_kv_heads),
            _ => None,
        };
        let bytes = match heads {
            None => t.bytes().to_vec(),
            Some(heads) => {
                let head = t.rows() / heads;
                let row = |r: usize| {
                    let (h, r) = (r / head, r % head);
                    h * head + (r % 2) * (head / 2) + r / 2
                };
                (0..t.rows()).flat_map(|r| t.row_bytes(row(r)..row(r) + 1).to_vec()).collect()
            }
        };
        out.tensor(&name, t.shape(), code, bytes);
    }
    out
}
