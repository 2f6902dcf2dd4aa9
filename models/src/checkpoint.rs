//! A checkpoint: config, generation settings, weights, tokenizer, and where they came from.

use crate::config::{ConfigError, GenerationConfig, ModelConfig};
use crate::files::{FileError, Files, read_limited};
use crate::gguf::{self, GgufError};
use crate::hub::{Hub, HubError, Source, Spec};
use crate::limits;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::weights::{Weights, WeightsError};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::OnceLock;

/// Why a checkpoint was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The model could not be located or fetched.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The config was refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weights were refused.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer was refused.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The GGUF file was refused.
    #[error(transparent)]
    Gguf(#[from] GgufError),
}

impl CheckpointError {
    /// Whether the machine rather than the input is at fault (exit code 3 rather than 2).
    pub fn is_environment(&self) -> bool {
        matches!(self, CheckpointError::Hub(e) if e.is_environment())
    }
}

/// A loaded checkpoint. Weights are mapped, not read; the tokenizer is built when it is first asked for.
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    generation: GenerationConfig,
    weights: Weights,
    tokenizer: OnceLock<Option<Tokenizer>>,
    source: Source,
    files: Files,
}

impl Checkpoint {
    /// Loads what a MODEL argument names: nothing (the embedded model), a folder, a GGUF file, or a hub id. `progress`
    /// draws progress bars for downloads.
    pub fn open(model: Option<&str>, progress: bool) -> Result<Self, CheckpointError> {
        let (files, source) = Self::locate(model, progress)?;
        Self::from_files(files, source)
    }

    /// Finds what a MODEL argument names, fetching it from the hub if need be; nothing is read of it.
    pub fn locate(model: Option<&str>, progress: bool) -> Result<(Files, Source), CheckpointError> {
        match Spec::parse(model)? {
            Spec::Embedded => Ok((crate::embedded::files(), Source::Embedded)),
            Spec::Folder(path) => Self::locate_folder(&path),
            Spec::Hub { id, revision } => {
                let hub = Hub { progress, ..Hub::from_env()? };
                Self::locate_on_hub(&hub, &id, &revision)
            }
        }
    }

    fn locate_folder(path: &Path) -> Result<(Files, Source), CheckpointError> {
        let files = if path.is_file() { Files::single(path) } else { Files::folder(path)? };
        Ok((files, Source::Folder { path: path.to_path_buf() }))
    }

    fn locate_on_hub(
        hub: &Hub,
        id: &str,
        revision: &str,
    ) -> Result<(Files, Source), CheckpointError> {
        let path = hub.fetch(id, revision)?;
        let source =
            Source::Hub { id: id.to_string(), revision: revision.to_string(), path: path.clone() };
        let files = if path.is_file() { Files::single(&path) } else { Files::folder(&path)? };
        Ok((files, source))
    }

    /// Loads a local folder, or a GGUF file; never touches the network.
    pub fn from_folder(path: &Path) -> Result<Self, CheckpointError> {
        let (files, source) = Self::locate_folder(path)?;
        Self::from_files(files, source)
    }

    /// Fetches a hub repository into the cache, unless it is there, and loads it.
    pub fn from_hub(hub: &Hub, id: &str, revision: &str) -> Result<Self, CheckpointError> {
        let (files, source) = Self::locate_on_hub(hub, id, revision)?;
        Self::from_files(files, source)
    }

    /// The model compiled into the program.
    pub fn embedded() -> Result<Self, CheckpointError> {
        Self::from_files(crate::embedded::files(), Source::Embedded)
    }

    /// Loads a checkpoint from its files.
    pub fn from_files(files: Files, source: Source) -> Result<Self, CheckpointError> {
        if let Some(name) = gguf::find(&files)? {
            let parts = gguf::open(&files, &name)?;
            // Small beside the weights, and needed before anything is said.
            let tokenizer = OnceLock::from(parts.tokenizer()?);
            let gguf::Parts { config, weights, .. } = parts;
            let generation = GenerationConfig::default();
            return Ok(Self { config, generation, weights, tokenizer, source, files });
        }
        let config =
            ModelConfig::from_slice(CONFIG, &files.read(CONFIG, limits::MAX_CONFIG_BYTES)?)?;
        let generation = match files.has(GENERATION) {
            true => GenerationConfig::from_slice(
                GENERATION,
                &files.read(GENERATION, limits::MAX_CONFIG_BYTES)?,
            )?,
            false => GenerationConfig::default(),
        };
        let weights = Weights::load(&files, &config)?;
        Ok(Self { config, generation, weights, tokenizer: OnceLock::new(), source, files })
    }

    /// The config.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The generation settings.
    pub fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// The weights.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Where the checkpoint came from.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// A short name for reports.
    pub fn name(&self) -> String {
        self.source.name()
    }

    /// The checkpoint's files.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// The tokenizer; none where the checkpoint has no `tokenizer.json`.
    pub fn tokenizer(&self) -> Result<Option<&Tokenizer>, CheckpointError> {
        if let Some(loaded) = self.tokenizer.get() {
            return Ok(loaded.as_ref());
        }
        let loaded = Tokenizer::load(&self.files)?;
        Ok(self.tokenizer.get_or_init(|| loaded).as_ref())
    }

    /// Every token that ends a generation: the union of `config.json`, `generation_config.json` and the tokenizer.
    pub fn eos_ids(&self) -> Result<BTreeSet<u32>, CheckpointError> {
        let mut ids: BTreeSet<u32> = self.config.eos_token_ids.iter().copied().collect();
        ids.extend(&self.generation.eos_token_ids);
        ids.extend(self.tokenizer()?.and_then(Tokenizer::eos_id));
        Ok(ids)
    }
}

/// Reads a `config.json` alone: the shapes of a model, without any weights.
pub fn shape_only(path: &Path) -> Result<ModelConfig, CheckpointError> {
    let (name, bytes) = config_file(path)?;
    Ok(ModelConfig::from_slice(&name, &bytes)?)
}

/// Name and contents of a config.
pub(crate) fn config_file(path: &Path) -> Result<(String, Vec<u8>), CheckpointError> {
    let name = path
        .file_name()
        .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
    Ok((name, read_limited(path, limits::MAX_CONFIG_BYTES)?))
}

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const GENERATION: &str = "generation_config.json";
