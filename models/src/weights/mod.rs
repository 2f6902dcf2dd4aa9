//! Weights: safetensors files, mapped and never copied.
//!
//! `file.rs` reads one safetensors file and turns what is wrong with it into a sentence; `index.rs` reads the index of
//! a sharded checkpoint; `tensor.rs` is the view of one tensor's bytes. This module puts them together: every tensor
//! the config asks for must be there with its shape and a supported type, and every tensor that is there must be asked
//! for, or the load is refused by name, the first fault or, for reports, all of them. Each tensor keeps the type it was stored in.

mod file;
mod index;
mod tensor;

pub use tensor::{DType, WeightTensor};

use crate::config::{ModelConfig, Role, TensorSpec};
use crate::files::{FileError, Files};
use file::SafetensorsFile;
use std::collections::{BTreeMap, BTreeSet};

/// Why weights were refused.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a safetensors file, or a damaged one.
    #[error("{file}: {what}")]
    BadFile {
        /// File name.
        file: String,
        /// What is wrong and what to do.
        what: String,
    },
    /// The folder has weights in a format that is not read.
    #[error(
        "{folder} has weights only as {found}, a format that is not supported; convert them to safetensors, for example by loading the model in transformers and calling save_pretrained"
    )]
    UnsupportedFormat {
        /// The folder.
        folder: String,
        /// Names of the files found.
        found: String,
    },
    /// A GGUF file and a config that is not its own.
    #[error(
        "{folder} has config.json and its only weights are {file}, a GGUF file, which brings a config of its own; give the path of the file itself"
    )]
    GgufBesideConfig {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
    },
    /// The folder has no weights at all.
    #[error(
        "{folder} has neither model.safetensors nor model.safetensors.index.json; put the weights beside config.json"
    )]
    NoWeights {
        /// The folder.
        folder: String,
    },
    /// The index names a shard that is not in the folder.
    #[error("model.safetensors.index.json names the shard {shard}, which is not in {folder}{hint}")]
    MissingShard {
        /// The shard.
        shard: String,
        /// The folder.
        folder: String,
        /// What may have happened.
        hint: String,
    },
    /// The index itself is unusable.
    #[error("model.safetensors.index.json: {what}")]
    BadIndex {
        /// What is wrong.
        what: String,
    },
    /// The index puts a tensor in a shard that does not hold it.
    #[error(
        "model.safetensors.index.json puts the tensor {tensor} in {shard}, which does not hold it; the index is of another version of the checkpoint, download it again"
    )]
    NotInShard {
        /// The tensor.
        tensor: String,
        /// The shard.
        shard: String,
    },
    /// A tensor the config asks for is not there.
    #[error("the tensor {tensor} is missing{hint}")]
    MissingTensor {
        /// The tensor.
        tensor: String,
        /// Why it is needed.
        hint: String,
    },
    /// A tensor nobody asked for.
    #[error(
        "the tensor {tensor} (shape {shape:?}, in {file}) has no place in {architecture}; dropping it could change the maths, so the model is refused"
    )]
    UnexpectedTensor {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The file that holds it.
        file: String,
        /// Architecture.
        architecture: &'static str,
    },
    /// A tensor of another shape than the config says.
    #[error("the tensor {tensor} has shape {found:?}, but config.json gives it {expected:?}")]
    BadShape {
        /// The tensor.
        tensor: String,
        /// Shape in the file.
        found: Vec<usize>,
        /// Shape by the config.
        expected: Vec<usize>,
    },
    /// A tensor of a type that is not read.
    #[error("the tensor {tensor} is stored as {found}; supported are BF16, F16 and F32")]
    BadDType {
        /// The tensor.
        tensor: String,
        /// Type in the file.
        found: String,
    },
    /// Asked for a tensor this model does not have.
    #[error("this model has no {role:?} tensor{place}")]
    NoSuchTensor {
        /// The role asked for.
        role: Role,
        /// Where.
        place: String,
    },
}

/// All weights of one model.
#[derive(Debug, Clone)]
pub struct Weights {
    shared: BTreeMap<Role, WeightTensor>,
    layers: Vec<BTreeMap<Role, WeightTensor>>,
    tied: bool,
    files: Vec<String>,
}

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The first refusal, if there is one.
fn first(refused: Vec<WeightsError>) -> Result<(), WeightsError> {
    refused.into_iter().next().map_or(Ok(()), Err)
}

/// Tensors by name, as they lie in the files.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub tensors: BTreeMap<String, WeightTensor>,
    /// Names of the files.
    pub files: Vec<String>,
    /// Tensors of files that are refused.
    absent: BTreeSet<String>,
}

impl Found {
    /// Tensors of one file.
    pub fn in_file(file: &str, tensors: BTreeMap<String, WeightTensor>) -> Self {
        Self { tensors, files: vec![file.to_string()], absent: BTreeSet::new() }
    }

    /// The tensors of a folder's files.
    fn gather(files: &Files, refused: &mut Vec<WeightsError>) -> Self {
        if files.has(SINGLE) {
            return match SafetensorsFile::open(files, SINGLE) {
                Ok(file) => Self::in_file(SINGLE, file.into_tensors()),
                Err(refusal) => {
                    refused.push(refusal);
                    Self::default()
                }
            };
        }
        if !files.has(INDEX) {
            refused.push(index::no_weights(files));
            return Self::default();
        }
        let map = match index::read(files) {
            Ok(map) => map,
            Err(refusal) => {
                refused.push(refusal);
                return Self::default();
            }
        };
        let mut all = Self::default();
        let mut shards: BTreeMap<&str, Vec<&String>> = BTreeMap::new();
        for (tensor, shard) in &map {
            shards.entry(shard).or_default().push(tensor);
        }
        for (shard, listed) in shards {
            match all.shard(files, shard, &listed, &map) {
                Ok(()) => all.files.push(shard.to_string()),
                Err(refusal) => {
                    refused.push(refusal);
                    all.absent.extend(listed.into_iter().cloned());
                }
            }
        }
        all
    }

    /// Takes in the tensors of a shard, which are those that the index lists and no others.
    fn shard(
        &mut self,
        files: &Files,
        shard: &str,
        listed: &[&String],
        map: &BTreeMap<String, String>,
    ) -> Result<(), WeightsError> {
        if !files.has(shard) {
            return Err(index::missing_shard(files, shard));
        }
        let tensors = SafetensorsFile::open(files, shard)?.into_tensors();
        if let Some(tensor) = listed.iter().find(|t| !tensors.contains_key(**t)) {
            let (tensor, shard) = (tensor.to_string(), shard.to_string());
            return Err(WeightsError::NotInShard { tensor, shard });
        }
        for name in tensors.keys() {
            let what = match map.get(name) {
                Some(s) if s == shard => continue,
                Some(s) => {
                    format!("the tensor {name} is in {shard} as well as in {s}; keep one of them")
                }
                None => format!(
                    "the tensor {name} of {shard} is not listed; the index is of another version of the checkpoint"
                ),
            };
            return Err(WeightsError::BadIndex { what });
        }
        self.tensors.extend(tensors);
        Ok(())
    }
}

impl Weights {
    /// Maps the weight files and checks every tensor against the config. Nothing is copied.
    pub fn load(files: &Files, config: &ModelConfig) -> Result<Self, WeightsError> {
        let mut refused = Vec::new();
        let found = Found::gather(files, &mut refused);
        first(refused)?;
        Self::assemble(found, config)
    }

    /// Puts a model together from tensors by name.
    pub(crate) fn assemble(found: Found, config: &ModelConfig) -> Result<Self, WeightsError> {
        let mut refused = Vec::new();
        let weights = Self::put_together(found, config, &mut refused);
        first(refused)?;
        Ok(weights)
    }

    /// Everything that keeps tensors from being a model.
    pub(crate) fn refusals(found: Found, config: &ModelConfig) -> Vec<WeightsError> {
        let mut refused = Vec::new();
        Self::put_together(found, config, &mut refused);
        refused
    }

    /// Everything that is wrong with the weights of a folder, and every tensor there is.
    pub(crate) fn survey(
        files: &Files,
        config: Option<&ModelConfig>,
    ) -> (Vec<WeightTensor>, Vec<WeightsError>) {
        let mut refused = Vec::new();
        let found = Found::gather(files, &mut refused);
        let tensors = found.tensors.values().cloned().collect();
        if let Some(config) = config
            && !found.tensors.is_empty()
        {
            Self::put_together(found, config, &mut refused);
        }
        (tensors, refused)
    }

    fn put_together(found: Found, config: &ModelConfig, refused: &mut Vec<WeightsError>) -> Self {
        let Found { tensors: mut found, files, absent } = found;
        let mut shared = BTreeMap::new();
        let mut layers = vec![BTreeMap::new(); config.num_layers.min(found.len())];
        // Refuse what nobody asked for first: a bias or an extra norm explains a model better than its consequences.
        // One layer more than there are tensors is found out, whatever the config claims.
        let there = found.len() + absent.len();
        let specs = config.specs_of_layers(config.num_layers.min(there + 1));
        {
            let wanted: BTreeSet<&str> = specs.iter().map(|s| s.name.as_str()).collect();
            let extra: Vec<String> =
                found.keys().filter(|n| !wanted.contains(n.as_str())).cloned().collect();
            for name in extra {
                let tensor = &found[&name];
                if !is_redundant(&name, tensor, &found, config) {
                    refused.push(WeightsError::UnexpectedTensor {
                        tensor: name.clone(),
                        shape: tensor.shape().to_vec(),
                        file: tensor.file().to_string(),
                        architecture: config.family.architecture,
                    });
                }
                found.remove(&name);
            }
        }
        for TensorSpec { name, role, layer, shape } in specs {
            let Some(tensor) = found.remove(&name) else {
                if absent.contains(&name) {
                    continue;
                }
                let hint = if role == Role::LmHead {
                    ", and \"tie_word_embeddings\" is false in config.json: either the file is incomplete or the config should say true".to_string()
                } else {
                    format!(
                        ": config.json asks for {} layers of {}; download the weights again",
                        config.num_layers, config.family.architecture
                    )
                };
                refused.push(WeightsError::MissingTensor { tensor: name, hint });
                continue;
            };
            if tensor.shape() != shape {
                refused.push(WeightsError::BadShape {
                    tensor: name,
                    found: tensor.shape().to_vec(),
                    expected: shape,
                });
                continue;
            }
            if tensor.dtype() == DType::Other {
                refused.push(WeightsError::BadDType {
                    tensor: name,
                    found: tensor.stored_dtype().to_string(),
                });
                continue;
            }
            // More layers than tensors: the tensor cannot have been found.
            let map = match layer.map(|l| layers.get_mut(l)) {
                None => &mut shared,
                Some(Some(map)) => map,
                Some(None) => continue,
            };
            let mut row = 0;
            for (part, rows) in role.parts() {
                let rows = config.size_of(*rows);
                map.insert(*part, tensor.part(row..row + rows));
                row += rows;
            }
            if row == 0 {
                map.insert(role, tensor);
            }
        }
        Self { shared, layers, tied: config.tie_word_embeddings, files }
    }

    /// A tensor of one decoder layer.
    pub fn layer(&self, layer: usize, role: Role) -> Result<&WeightTensor, WeightsError> {
        self.layers
            .get(layer)
            .and_then(|l| l.get(&role))
            .ok_or_else(|| WeightsError::NoSuchTensor { role, place: format!(" in layer {layer}") })
    }

    /// A tensor outside the layers: embedding, final norm or output head. The output head of a tied model is its
    /// embedding.
    pub fn shared(&self, role: Role) -> Result<&WeightTensor, WeightsError> {
        let role = if role == Role::LmHead && self.tied { Role::Embedding } else { role };
        self.shared.get(&role).ok_or(WeightsError::NoSuchTensor { role, place: String::new() })
    }

    /// The tensor of a spec made by [`ModelConfig::tensor_specs`]. A fused matrix is not held whole: ask for its parts.
    pub fn of(&self, spec: &TensorSpec) -> Result<&WeightTensor, WeightsError> {
        match spec.layer {
            Some(layer) => self.layer(layer, spec.role),
            None => self.shared(spec.role),
        }
    }

    /// Whether the output head is the embedding.
    pub fn is_tied(&self) -> bool {
        self.tied
    }

    /// Number of decoder layers.
    pub fn num_layers(&self) -> usize {
        self.layers.len()
    }

    /// Names of the weight files.
    pub fn files(&self) -> &[String] {
        &self.files
    }

    /// Every tensor with its layer and what it became, in the order of [`Weights::iter`].
    pub fn roles(&self) -> impl Iterator<Item = (Option<usize>, Role, &WeightTensor)> {
        let layers = self.layers.iter().enumerate();
        let layers = layers.flat_map(|(i, l)| l.iter().map(move |(role, t)| (Some(i), *role, t)));
        layers.chain(self.shared.iter().map(|(role, t)| (None, *role, t)))
    }

    /// Every tensor: layers in order, then those outside.
    pub fn iter(&self) -> impl Iterator<Item = &WeightTensor> {
        self.layers.iter().flat_map(|l| l.values()).chain(self.shared.values())
    }

    /// Bytes of all tensors as stored.
    pub fn bytes(&self) -> u64 {
        self.iter().map(|t| t.bytes().len() as u64).sum()
    }

    /// The storage types that occur, each once.
    pub fn dtypes(&self) -> Vec<DType> {
        self.iter().map(WeightTensor::dtype).collect::<BTreeSet<_>>().into_iter().collect()
    }
}

/// Whether a tensor the config does not ask for repeats what is known already: the output head of a tied model, byte
/// for byte the embedding; or rotary frequencies that old exporters stored, equal to those the config gives.
fn is_redundant(
    name: &str,
    tensor: &WeightTensor,
    found: &BTreeMap<String, WeightTensor>,
    config: &ModelConfig,
) -> bool {
    let named = |role: Role| config.family.tensors.iter().find(|t| t.role == role).map(|t| t.name);
    if config.tie_word_embeddings && Some(name) == named(Role::LmHead) {
        let embedding = named(Role::Embedding).and_then(|n| found.get(n));
        return embedding.is_some_and(|e| {
            e.shape() == tensor.shape()
                && e.stored_dtype() == tensor.stored_dtype()
                && e.bytes() == tensor.bytes()
        });
    }
    let Some((head, tail)) = config.family.inverse_frequencies.split_once("{layer}") else {
        return false;
    };
    let layer = name
        .strip_prefix(head)
        .and_then(|n| n.strip_suffix(tail))
        .and_then(|n| n.parse::<usize>().ok());
    // The table has the size that the config says, so the tensor must have it first.
    let components = config.rope.rotary_dim(config.head_dim) / 2;
    if layer.is_none_or(|l| l >= config.num_layers) || tensor.shape() != [components] {
        return false;
    }
    let expected = config.rope.inv_freq(config.head_dim);
    let tolerance = match tensor.dtype() {
        DType::F32 => 1e-6,
        DType::F16 => 1e-3,
        DType::Bf16 => 1e-2,
        DType::Other => return false,
    };
    let stored = tensor.rows_f32(0..1);
    stored.len() == expected.len()
        && stored.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= tolerance * b.abs().max(1e-4))
}
