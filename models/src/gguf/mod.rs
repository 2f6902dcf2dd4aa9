//! GGUF files: container (`read.rs`), metadata as the config it was made from (`config.rs`), tokenizer
//! (`tokenizer.rs`), models in several files (`split.rs`). This module turns tensors back into what the checkpoint had: names, the pairing of rotary
//! components, and numbers; quantised blocks become float32 on loading.

mod config;
mod read;
pub(crate) mod split;
mod tokenizer;

use crate::checkpoint::CheckpointError;
use crate::config::{ConfigError, ModelConfig, RopeScaling};
use crate::files::{Bytes, FileError, Files};
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{DType, Found, WeightTensor, Weights, WeightsError};
use candle_core::Device;
use candle_core::quantized::{GgmlDType, ggml_file::qtensor_from_ggml};
use config::Kind;
use read::{Contents, Entry};
use serde_json::{Map, Value};
use split::Part;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Why a GGUF file was refused.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    /// The file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a GGUF file, or a damaged one.
    #[error("the GGUF file is not usable: {0}")]
    Damaged(String),
    /// A tensor of a type that is not read.
    #[error("the tensor {tensor} is stored as GGUF type {code}; supported are {supported}")]
    Type {
        /// The tensor.
        tensor: String,
        /// GGUF's number of the type.
        code: u32,
        /// The types there are.
        supported: String,
    },
    /// An architecture that is not read from GGUF.
    #[error(
        "GGUF files of the architecture {found:?} are not supported; supported are {supported}, and all families as safetensors"
    )]
    Architecture {
        /// As the file names it.
        found: String,
        /// Those that are.
        supported: String,
    },
    /// Metadata that may change the maths.
    #[error(
        "the metadata {key} has a value that is not supported or not known; it may change the maths, so the model is refused"
    )]
    Key {
        /// Its name.
        key: String,
    },
    /// One of several files, under a name that does not say so.
    #[error(
        "the GGUF file {file} says that it is one of {parts}, and by its name it is one of {named}; give the parts their names back (name-00001-of-{parts:05}.gguf), or join them with gguf-split --merge"
    )]
    Split {
        /// The file.
        file: String,
        /// Files of the model, as the file says.
        parts: u64,
        /// Files of the model, as its name says.
        named: usize,
    },
    /// One of several files is not there.
    #[error("{folder} has no {part}, one of the parts of the model; download it")]
    MissingPart {
        /// The folder.
        folder: String,
        /// The file.
        part: String,
    },
    /// A folder where the file has to be named.
    #[error(
        "{folder} has several GGUF files ({found}) and no config.json; give the path of one of them"
    )]
    Several {
        /// The folder.
        folder: String,
        /// Names of the files.
        found: String,
    },
    /// Divisors of the rotary frequencies that are none.
    #[error(
        "the tensor {tensor} has {found} numbers, expected half of the head's width ({expected}), all positive, and no other scaling beside them"
    )]
    Factors {
        /// The tensor.
        tensor: String,
        /// Numbers in it.
        found: usize,
        /// Numbers expected.
        expected: usize,
    },
    /// A tensor nobody asked for.
    #[error(
        "the tensor {tensor} has no place in the model; dropping it could change the maths, so the model is refused"
    )]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
    },
    /// A tokenizer that is not read.
    #[error("the tokenizer in the GGUF file is not supported: {0}")]
    Tokenizer(String),
    /// The metadata do not make a config.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The tensors do not make a model.
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// What a GGUF file holds.
pub(crate) struct Parts {
    pub config: ModelConfig,
    pub weights: Weights,
    /// `tokenizer.json` and `tokenizer_config.json`.
    tokenizer: Option<(Vec<u8>, Map<String, Value>)>,
}

impl Parts {
    /// Builds the tokenizer, if the file has one.
    pub fn tokenizer(&self) -> Result<Option<Tokenizer>, TokenizerError> {
        self.tokenizer.as_ref().map(|(json, config)| build(json, config)).transpose()
    }
}

/// The GGUF file of a folder without `config.json`.
pub(crate) fn find(files: &Files) -> Result<Option<String>, GgufError> {
    let found = split::models(files.names().filter(|n| n.ends_with(".gguf")));
    match &found[..] {
        _ if files.has("config.json") => Ok(None),
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Err(GgufError::Several {
            folder: files.label().to_string(),
            found: found.into_iter().take(4).collect::<Vec<_>>().join(", "),
        }),
    }
}

/// Tensors outside the layers and in them, by GGUF's name and the checkpoint's.
const NAMES: &[(&str, &str)] = &[
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];
const PARTS: &[(&str, &str)] = &[
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];
/// Divisors of the rotary frequencies.
const ROPE_FACTORS: &str = "rope_freqs.weight";

/// The checkpoint's name of a tensor.
fn name_of(gguf: &str) -> Option<String> {
    if let Some((_, name)) = NAMES.iter().find(|(g, _)| *g == gguf) {
        return Some((*name).to_string());
    }
    let (layer, rest) = gguf.strip_prefix("blk.")?.split_once('.')?;
    let layer: usize = layer.parse().ok()?;
    let (part, suffix) = rest.rsplit_once('.')?;
    let (_, part) = PARTS.iter().find(|(g, _)| *g == part)?;
    matches!(suffix, "weight" | "bias").then(|| format!("model.layers.{layer}.{part}.{suffix}"))
}

/// Reads a GGUF file.
pub(crate) fn open(files: &Files, name: &str) -> Result<Parts, GgufError> {
    let (parts, contents) = split::open(files, name)?;
    let kind = contents.kind()?;
    let (object, refused) = config_of(&contents, kind);
    refused.into_iter().next().map_or(Ok(()), Err)?;
    let mut config = ModelConfig::from_object(name, &object)?;
    let mut found = BTreeMap::new();
    for t in &contents.tensors {
        let Part { storage, name: file } = &parts[t.part];
        if t.name == ROPE_FACTORS {
            config.rope.scaling = factors(storage, t, &config)?;
            continue;
        }
        let name = place_of(t, &found)?;
        let heads = match t.name.rsplit('.').nth(1) {
            Some("attn_q") if kind.permuted => Some(config.num_heads),
            Some("attn_k") if kind.permuted => Some(config.num_kv_heads),
            _ => None,
        };
        found.insert(name.clone(), tensor(storage, t, name, file, heads)?);
    }
    let tokenizer = tokenizer::tokenizer(&contents)?;
    let weights = Weights::assemble(Found::in_file(name, found), &config)?;
    Ok(Parts { config, weights, tokenizer })
}

/// What a GGUF file is, as far as that can be told, and every reason against it.
pub(crate) struct Surveyed {
    pub config: Option<ModelConfig>,
    /// Under the checkpoint's names where they have a place, with their bytes as they are stored.
    pub tensors: Vec<WeightTensor>,
    pub refused: Vec<GgufError>,
}

/// Looks at a GGUF file without dequantising anything.
pub(crate) fn survey(files: &Files, name: &str) -> Surveyed {
    let mut out = Surveyed { config: None, tensors: Vec::new(), refused: Vec::new() };
    if let Err(refusal) = look(files, name, &mut out) {
        out.refused.push(refusal);
    }
    out
}

fn look(files: &Files, name: &str, out: &mut Surveyed) -> Result<(), GgufError> {
    let (parts, contents) = split::open(files, name)?;
    let stored = |t: &Entry, name: String| {
        let Part { storage, name: file } = &parts[t.part];
        let (storage, range, shape) = (storage.clone(), t.range.clone(), t.shape.clone());
        // Blocks are no elements of any type here.
        let dtype = if t.stored.block > 1 { DType::Other } else { dtype_of(t) };
        WeightTensor::from_parts(storage, range, name, file.clone(), dtype, t.stored.name, shape)
    };
    let mut found = BTreeMap::new();
    for t in contents.tensors.iter().filter(|t| t.name != ROPE_FACTORS) {
        match place_of(t, &found) {
            Ok(name) => drop(found.insert(name.clone(), stored(t, name))),
            Err(refusal) => {
                out.tensors.push(stored(t, t.name.clone()));
                out.refused.push(refusal);
            }
        }
    }
    out.tensors.extend(found.values().cloned());
    if let Err(refusal) = tokenizer::tokenizer(&contents) {
        out.refused.push(refusal);
    }
    let (object, refused) = config_of(&contents, contents.kind()?);
    out.refused.extend(refused);
    let (config, refused) = ModelConfig::survey(name, &object);
    out.refused.extend(refused.into_iter().map(GgufError::from));
    if let Some(config) = &config {
        let refused = Weights::refusals(Found::in_file(name, found), config);
        // Quantised tensors have a type that loading gives them.
        let refused = refused.into_iter().filter(|r| !matches!(r, WeightsError::BadDType { .. }));
        out.refused.extend(refused.map(GgufError::from));
        let rope = contents.tensors.iter().find(|t| t.name == ROPE_FACTORS);
        out.refused.extend(rope.and_then(|t| factors(&parts[t.part].storage, t, config).err()));
    }
    out.config = config;
    Ok(())
}

/// The config in the metadata, and what speaks against it.
fn config_of(contents: &Contents, kind: &Kind) -> (Map<String, Value>, Vec<GgufError>) {
    let entry = |name: &str| contents.tensors.iter().find(|t| t.name == name);
    let vocabulary = entry("token_embd.weight").map_or(0, |t| t.shape[0]);
    config::config(contents, kind, vocabulary, entry("output.weight").is_none())
}

/// The checkpoint's name of a tensor that is not there yet.
fn place_of(t: &Entry, found: &BTreeMap<String, WeightTensor>) -> Result<String, GgufError> {
    // Numbers of layers have several spellings.
    let name = name_of(&t.name).filter(|name| !found.contains_key(name));
    name.ok_or_else(|| GgufError::UnexpectedTensor { tensor: t.name.clone() })
}

/// The scaling that divisors of the rotary frequencies stand for.
fn factors(storage: &Bytes, t: &Entry, config: &ModelConfig) -> Result<RopeScaling, GgufError> {
    let factors = floats(storage, t)?;
    let positive = factors.iter().all(|f| *f > 0.0 && f.is_finite());
    let expected = config.head_dim / 2;
    let alone = config.rope.scaling == RopeScaling::Default;
    if factors.len() != expected || !positive || !alone {
        let (tensor, found) = (t.name.clone(), factors.len());
        return Err(GgufError::Factors { tensor, found, expected });
    }
    Ok(RopeScaling::Factors { factors })
}

/// The type in which a tensor is handed on.
fn dtype_of(t: &Entry) -> DType {
    match t.stored.name {
        "F16" => DType::F16,
        "BF16" => DType::Bf16,
        _ => DType::F32,
    }
}

/// A tensor as the checkpoint had it: in place where it can be.
fn tensor(
    storage: &Arc<Bytes>,
    t: &Entry,
    name: String,
    file: &Arc<str>,
    heads: Option<usize>,
) -> Result<WeightTensor, GgufError> {
    let dtype = dtype_of(t);
    let rows = if t.shape.len() < 2 { t.shape.iter().product() } else { t.shape[0] };
    let heads = heads.filter(|h| rows.is_multiple_of(2 * h));
    let (storage, range) = match (t.stored.block > 1, heads) {
        (false, None) => (storage.clone(), t.range.clone()),
        (false, Some(heads)) => {
            let bytes = regroup(&storage[t.range.clone()], rows, heads);
            (Arc::new(Bytes::aligned_copy(&bytes)), 0..bytes.len())
        }
        (true, heads) => {
            let mut values = floats(storage, t)?;
            if let Some(heads) = heads {
                values = regroup(&values, rows, heads);
            }
            (Arc::new(Bytes::of_f32(&values)), 0..4 * values.len())
        }
    };
    let shape = t.shape.clone();
    Ok(WeightTensor::from_parts(storage, range, name, file.clone(), dtype, t.stored.name, shape))
}

/// Undoes the order of rows that pairs neighbours for rotation: row `2 i + j` of a head goes to `j * half + i`.
fn regroup<T: Copy>(elements: &[T], rows: usize, heads: usize) -> Vec<T> {
    let (width, head) = (elements.len() / rows, rows / heads);
    let half = head / 2;
    let mut out = Vec::with_capacity(elements.len());
    for row in 0..rows {
        let (h, r) = (row / head, row % head);
        let (j, i) = (r / half, r % half);
        let from = h * head + 2 * i + j;
        out.extend_from_slice(&elements[from * width..(from + 1) * width]);
    }
    out
}

/// The numbers a tensor stands for.
fn floats(storage: &Bytes, t: &Entry) -> Result<Vec<f32>, GgufError> {
    let kind = match t.stored.name {
        "F32" => GgmlDType::F32,
        "F16" => GgmlDType::F16,
        "BF16" => GgmlDType::BF16,
        "Q4_0" => GgmlDType::Q4_0,
        "Q4_1" => GgmlDType::Q4_1,
        "Q8_0" => GgmlDType::Q8_0,
        "Q4_K" => GgmlDType::Q4K,
        _ => GgmlDType::Q6K,
    };
    // Blocks are read as structures of halves, which have to be aligned.
    let aligned = Bytes::aligned_copy(&storage[t.range.clone()]);
    let failed = |e: candle_core::Error| GgufError::Damaged(format!("{}: {e}", t.name));
    let elements = t.shape.iter().product::<usize>();
    let quantised =
        qtensor_from_ggml(kind, &aligned, vec![elements], &Device::Cpu).map_err(failed)?;
    let values = quantised.dequantize(&Device::Cpu).map_err(failed)?;
    values.to_vec1::<f32>().map_err(failed)
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Reads the tokenizer of a GGUF file and nothing else; none where the file has none.
///
/// # Errors
/// The file is no GGUF file, or its tokenizer is not read.
pub fn tokenizer(bytes: &[u8]) -> Result<Option<Tokenizer>, CheckpointError> {
    let parts = tokenizer::tokenizer(&read::read(bytes)?)?;
    Ok(parts.map(|(json, config)| build(&json, &config)).transpose()?)
}

/// The tokenizer of its two files.
fn build(json: &[u8], config: &Map<String, Value>) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_parts(json, config, &Map::new(), None)
}
