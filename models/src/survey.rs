//! Everything that is wrong with a checkpoint, where loading it would stop at the first fault.

use crate::checkpoint::{CONFIG, CheckpointError, GENERATION};
use crate::config::{ConfigError, GenerationConfig, ModelConfig, Role, parse_object};
use crate::files::Files;
use crate::gguf::{self, GgufError};
use crate::limits;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{WeightTensor, Weights, WeightsError};
use serde::Serialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::Path;

/// What a refusal is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Subject {
    /// The kind of model.
    Family,
    /// A field of `config.json`, or metadata of a GGUF file.
    Field,
    /// A tensor.
    Tensor,
    /// A file: damaged, absent, or not of the checkpoint.
    File,
    /// The tokenizer.
    Tokenizer,
}

/// One reason why a checkpoint is not loaded.
#[derive(Debug, Clone, Serialize)]
pub struct Refusal {
    /// What it is about.
    pub subject: Subject,
    /// The field, tensor or file, where there is one.
    pub name: Option<String>,
    /// The sentence that loading ends with.
    pub message: String,
}

/// What a checkpoint is, as far as that can be told, and every reason against it.
#[derive(Debug)]
pub struct Survey {
    /// The config, where its numbers could be read; some of its fields may be refused.
    pub config: Option<ModelConfig>,
    /// Tensors with what they would become; none for those without a place.
    pub tensors: Vec<(WeightTensor, Option<Role>)>,
    /// Reasons, in the order in which loading finds them.
    pub refusals: Vec<Refusal>,
}

impl Survey {
    /// Looks at a folder's files, or at a single GGUF file.
    ///
    /// # Errors
    /// There is nothing to look at: no config, or one that is no JSON object.
    pub fn of_files(files: &Files) -> Result<Self, CheckpointError> {
        if let Some(name) = gguf::find(files)? {
            return Ok(Self::of_gguf(files, &name));
        }
        let bytes = files.read(CONFIG, limits::MAX_CONFIG_BYTES)?;
        let mut out = Self::of_object(CONFIG, &parse_object(CONFIG, &bytes)?);
        if files.has(GENERATION) {
            let bytes = files.read(GENERATION, limits::MAX_CONFIG_BYTES)?;
            let refused = GenerationConfig::from_slice(GENERATION, &bytes).err();
            out.refusals.extend(refused.iter().map(of_config));
        }
        let (tensors, refused) = Weights::survey(files, out.config.as_ref());
        out.refusals.extend(refused.iter().map(of_weights));
        out.tensors = with_roles(tensors, out.config.as_ref());
        if let Err(refusal) = Tokenizer::load(files) {
            out.refusals.push(of_tokenizer(&refusal));
        }
        Ok(out)
    }

    /// Looks at a config alone.
    ///
    /// # Errors
    /// The file cannot be read, or is no JSON object.
    pub fn of_config(path: &Path) -> Result<Self, CheckpointError> {
        let (name, bytes) = crate::checkpoint::config_file(path)?;
        Ok(Self::of_object(&name, &parse_object(&name, &bytes)?))
    }

    fn of_object(name: &str, object: &Map<String, Value>) -> Self {
        let (config, refused) = ModelConfig::survey(name, object);
        let refusals = refused.iter().map(of_config).collect();
        Self { config, tensors: Vec::new(), refusals }
    }

    fn of_gguf(files: &Files, name: &str) -> Self {
        let found = gguf::survey(files, name);
        let refusals = found.refused.iter().map(|r| of_gguf(r, name)).collect();
        let tensors = with_roles(found.tensors, found.config.as_ref());
        Self { config: found.config, tensors, refusals }
    }
}

/// Tensors with what they would become.
fn with_roles(
    tensors: Vec<WeightTensor>,
    config: Option<&ModelConfig>,
) -> Vec<(WeightTensor, Option<Role>)> {
    let count = tensors.len() + 1;
    let specs = config.map(|c| c.specs_of_layers(c.num_layers.min(count))).unwrap_or_default();
    let roles: BTreeMap<&str, Role> = specs.iter().map(|s| (s.name.as_str(), s.role)).collect();
    let with_role = |t: WeightTensor| {
        let role = roles.get(t.name()).copied();
        (t, role)
    };
    tensors.into_iter().map(with_role).collect()
}

fn of_config(refusal: &ConfigError) -> Refusal {
    let (subject, name) = match refusal {
        ConfigError::UnsupportedArchitecture { .. } => (Subject::Family, None),
        ConfigError::NotJson { file, .. } => (Subject::File, Some(file)),
        ConfigError::Conflict { first, .. } => (Subject::Field, Some(first)),
        ConfigError::Missing { field, .. }
        | ConfigError::BadValue { field, .. }
        | ConfigError::UnsupportedField { field, .. }
        | ConfigError::UnknownField { field, .. } => (Subject::Field, Some(field)),
    };
    Refusal { subject, name: name.cloned(), message: refusal.to_string() }
}

fn of_weights(refusal: &WeightsError) -> Refusal {
    let (subject, name) = match refusal {
        WeightsError::MissingTensor { tensor, .. }
        | WeightsError::UnexpectedTensor { tensor, .. }
        | WeightsError::BadShape { tensor, .. }
        | WeightsError::BadDType { tensor, .. } => (Subject::Tensor, Some(tensor)),
        WeightsError::MissingShard { shard, .. } | WeightsError::NotInShard { shard, .. } => {
            (Subject::File, Some(shard))
        }
        WeightsError::BadFile { file, .. } | WeightsError::GgufBesideConfig { file, .. } => {
            (Subject::File, Some(file))
        }
        WeightsError::File(_)
        | WeightsError::UnsupportedFormat { .. }
        | WeightsError::NoWeights { .. }
        | WeightsError::BadIndex { .. }
        | WeightsError::NoSuchTensor { .. } => (Subject::File, None),
    };
    Refusal { subject, name: name.cloned(), message: refusal.to_string() }
}

fn of_tokenizer(refusal: &TokenizerError) -> Refusal {
    Refusal { subject: Subject::Tokenizer, name: None, message: refusal.to_string() }
}

fn of_gguf(refusal: &GgufError, file: &str) -> Refusal {
    let (subject, name) = match refusal {
        GgufError::Config(refusal) => return of_config(refusal),
        GgufError::Weights(refusal) => return of_weights(refusal),
        GgufError::Architecture { .. } => (Subject::Family, None),
        GgufError::Key { key } => (Subject::Field, Some(key.as_str())),
        GgufError::Type { tensor, .. }
        | GgufError::Factors { tensor, .. }
        | GgufError::UnexpectedTensor { tensor } => (Subject::Tensor, Some(tensor.as_str())),
        GgufError::Tokenizer(_) => (Subject::Tokenizer, None),
        GgufError::File(_)
        | GgufError::Damaged(_)
        | GgufError::Split { .. }
        | GgufError::MissingPart { .. }
        | GgufError::Several { .. } => (Subject::File, Some(file)),
    };
    Refusal { subject, name: name.map(str::to_string), message: refusal.to_string() }
}
