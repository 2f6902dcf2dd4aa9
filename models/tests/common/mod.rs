//! Shared by the integration tests: where the fixtures lie, and a writer of small checkpoints with chosen faults.
#![allow(dead_code)]

pub mod gguf;
pub mod noise;
pub mod ordered;

use amk_models::{Checkpoint, CheckpointError, Feature};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The checkpoints that are supported.
pub const SUPPORTED: &[&str] = &[
    "llama-mha-f32",
    "llama-odd-f32",
    "llama-gqa-bf16",
    "llama-gqa-tied-bf16",
    "llama-headdim-bf16",
    "llama-rope-linear-f16",
    "llama-rope-llama3-bf16",
    "llama-sharded-bf16",
    "llama-v5config-bf16",
    "mistral-full-bf16",
    "mistral-swa-bf16",
    "llama-attnbias-f32",
    "qwen2-bf16",
    "qwen3-bf16",
    "smollm3-nope-bf16",
    "phi3-swa-bf16",
    "gemma2-bf16",
    "gemma3-text-bf16",
    "granite-tied-bf16",
    "olmo2-f32",
];

/// The features that schedules express; a test of the root package holds the lowering to it.
pub const SCHEDULED: &[Feature] = &[
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

/// A page of the documentation.
pub fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs").join(name)
}

fn tests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests")
}

/// Folder of a fixture checkpoint.
pub fn checkpoint(name: &str) -> PathBuf {
    tests().join("checkpoints").join(name)
}

/// A file among the goldens.
pub fn golden(name: &str) -> PathBuf {
    tests().join("goldens/hf").join(name)
}

/// Config of a well-known model.
pub fn shape(name: &str) -> PathBuf {
    tests().join("shapes").join(name)
}

/// Copies a fixture checkpoint, so that it can be spoilt.
pub fn copy(name: &str) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(checkpoint(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}

/// The error of loading a folder, as the sentence a user sees.
pub fn refusal(folder: &Path) -> String {
    match Checkpoint::from_folder(folder) {
        Ok(c) => panic!("{} was loaded: {:?}", folder.display(), c.config()),
        Err(e) => e.to_string(),
    }
}

/// Changes fields of a folder's config.json; null removes a field unless `keep_null`.
pub fn edit_config(folder: &Path, edits: &[(&str, Value)]) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (field, value) in edits {
        config[*field] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
}

/// Removes a field of a folder's config.json.
pub fn remove_field(folder: &Path, field: &str) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config.as_object_mut().unwrap().remove(field);
    std::fs::write(&path, config.to_string()).unwrap();
}

/// One tensor to write: name, type, shape, bytes.
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A bf16 tensor of small reproducible values; norms are near one.
    pub fn bf16(name: &str, shape: &[usize]) -> Self {
        let n: usize = shape.iter().product();
        let mut s = name.bytes().fold(17u32, |a, b| a.wrapping_mul(31).wrapping_add(u32::from(b)));
        let centre = if name.contains("norm") { 1.0 } else { 0.0 };
        let bytes = (0..n)
            .flat_map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let v = centre + ((s >> 8) as f32 / 8_388_608.0 - 1.0) * 0.3;
                ((v.to_bits() >> 16) as u16).to_le_bytes()
            })
            .collect();
        Self { name: name.to_string(), dtype: "BF16", shape: shape.to_vec(), bytes }
    }

    /// An f32 tensor of given values.
    pub fn f32(name: &str, shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { name: name.to_string(), dtype: "F32", shape: shape.to_vec(), bytes }
    }
}

/// A safetensors file of these tensors.
pub fn safetensors(tensors: &[Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut data = Vec::new();
    for t in tensors {
        let start = data.len();
        data.extend(&t.bytes);
        header.insert(
            t.name.clone(),
            json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]}),
        );
    }
    with_header(&Value::Object(header).to_string(), &data)
}

/// A safetensors file of this header and data.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.as_bytes());
    out.extend(data);
    out
}

/// Config of the smallest model the tests write: hidden 40, 4 heads of 16, 2 kv heads.
pub fn small_config() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": 40, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 50, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "bos_token_id": 1, "eos_token_id": 2
    })
}

/// The tensors of [`small_config`], without an output head.
pub fn small_tensors() -> Vec<Tensor> {
    let layer =
        |name: &str, shape: &[usize]| Tensor::bf16(&format!("model.layers.0.{name}.weight"), shape);
    vec![
        Tensor::bf16("model.embed_tokens.weight", &[50, 40]),
        layer("input_layernorm", &[40]),
        layer("self_attn.q_proj", &[64, 40]),
        layer("self_attn.k_proj", &[32, 40]),
        layer("self_attn.v_proj", &[32, 40]),
        layer("self_attn.o_proj", &[40, 64]),
        layer("post_attention_layernorm", &[40]),
        layer("mlp.gate_proj", &[24, 40]),
        layer("mlp.up_proj", &[24, 40]),
        layer("mlp.down_proj", &[40, 24]),
        Tensor::bf16("model.norm.weight", &[40]),
    ]
}

/// Writes a checkpoint folder.
pub fn write(config: &Value, tensors: &[Tensor]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), safetensors(tensors)).unwrap();
    folder
}

/// Loads a folder.
pub fn load(folder: &Path) -> Result<Checkpoint, CheckpointError> {
    Checkpoint::from_folder(folder)
}
