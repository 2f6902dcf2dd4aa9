//! Where a model comes from: a folder, a repository of a hub, or the program itself.
//!
//! The hub client is the `hf-hub` crate; its cache folder is the one HuggingFace's own tools use. The environment
//! decides: `HF_HOME` or `HF_HUB_CACHE` (cache), `HF_TOKEN` or the token file in `HF_HOME` (access), `HF_ENDPOINT`
//! (server), `HF_HUB_OFFLINE=1` (answer from the cache alone). A local folder never touches the network.

use crate::gguf::split;
use hf_hub::api::sync::{Api, ApiBuilder, ApiError, ApiRepo};
use hf_hub::{Cache, Repo, RepoType};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Why a model could not be located or fetched.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// Neither a folder nor something that could be a hub id.
    #[error("{0} is neither a folder nor a hub id such as owner/name; check the path")]
    NotFound(String),
    /// A file where a folder is expected.
    #[error("{0} is a file; give the checkpoint's folder instead")]
    IsFile(String),
    /// The cache does not hold the model and the network must not be used.
    #[error(
        "HF_HUB_OFFLINE is set and the cache {cache} does not hold {file} of {model}; fetch the model once without HF_HUB_OFFLINE, or give a folder"
    )]
    NotCached {
        /// Hub id.
        model: String,
        /// The file looked for.
        file: String,
        /// The cache folder.
        cache: String,
    },
    /// The hub does not know the model or will not give it.
    #[error("{endpoint} answers {status} for {model}: {hint}")]
    Refused {
        /// The server.
        endpoint: String,
        /// HTTP status.
        status: u16,
        /// Hub id.
        model: String,
        /// What to do.
        hint: String,
    },
    /// The hub could not be reached, or broke off.
    #[error(
        "{model} could not be fetched from {endpoint}: {detail}; check the network or HF_ENDPOINT, or give a folder"
    )]
    Network {
        /// The server.
        endpoint: String,
        /// Hub id.
        model: String,
        /// What happened.
        detail: String,
    },
    /// The repository has nothing this program can load.
    #[error(
        "{model} on {endpoint} has no {missing}; it does not hold a checkpoint in safetensors format"
    )]
    NoCheckpoint {
        /// The server.
        endpoint: String,
        /// Hub id.
        model: String,
        /// What is missing.
        missing: String,
    },
    /// The repository has GGUF files alone, and it was not said which.
    #[error(
        "{model} on {endpoint} has no safetensors but {} GGUF files ({}); say which, for example {model}:{}",
        .files.len(), .files.join(", "), .files.first().map_or("", String::as_str)
    )]
    ManyGguf {
        /// The server, or the cache.
        endpoint: String,
        /// Hub id.
        model: String,
        /// The files.
        files: Vec<String>,
    },
    /// The repository lacks the GGUF file asked for.
    #[error("{model} on {endpoint} has no {file}; its GGUF files are: {}", list(.files))]
    NoGguf {
        /// The server.
        endpoint: String,
        /// Hub id.
        model: String,
        /// The file asked for.
        file: String,
        /// Those that are there.
        files: Vec<String>,
    },
    /// The repository changed between two files.
    #[error("{model} changed on {endpoint} while it was being fetched; run the command again")]
    Changed {
        /// The server.
        endpoint: String,
        /// Hub id.
        model: String,
    },
    /// The cache cannot be written.
    #[error("the hub's cache {cache} cannot be written: {source}; set HF_HOME to another folder")]
    Cache {
        /// The cache folder.
        cache: String,
        /// The reason.
        source: std::io::Error,
    },
    /// No place for the cache.
    #[error("there is no home folder for the hub's cache; set HF_HOME")]
    NoCache,
}

fn list(files: &[String]) -> String {
    if files.is_empty() { "none".to_string() } else { files.join(", ") }
}

impl HubError {
    /// Whether the machine rather than the request is at fault.
    pub fn is_environment(&self) -> bool {
        matches!(
            self,
            HubError::Network { .. }
                | HubError::NoCache
                | HubError::Cache { .. }
                | HubError::Changed { .. }
        )
    }
}

/// Where a checkpoint was loaded from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Source {
    /// A folder given by the user.
    Folder {
        /// The folder.
        path: PathBuf,
    },
    /// A hub repository, fetched into the cache.
    Hub {
        /// Hub id.
        id: String,
        /// Revision asked for.
        revision: String,
        /// Snapshot folder in the cache.
        path: PathBuf,
    },
    /// The model compiled into the program.
    Embedded,
}

impl Source {
    /// A short name: the folder's last part, the hub id, or the embedded model's name.
    pub fn name(&self) -> String {
        match self {
            Source::Folder { path } => path
                .canonicalize()
                .unwrap_or_else(|_| path.clone())
                .file_name()
                .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned()),
            Source::Hub { id, .. } => id.clone(),
            Source::Embedded => crate::EMBEDDED_NAME.to_string(),
        }
    }
}

/// How to reach the hub.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Server, without a trailing slash; none for the client's own default.
    pub endpoint: Option<String>,
    /// Cache folder (the one that holds `models--owner--name`).
    pub cache: PathBuf,
    /// Access token.
    pub token: Option<String>,
    /// Answer from the cache alone.
    pub offline: bool,
    /// Draw progress bars on standard error.
    pub progress: bool,
}

impl Hub {
    /// Settings from the environment.
    pub fn from_env() -> Result<Self, HubError> {
        Self::from_vars(|name| std::env::var(name).ok())
    }

    /// Settings from variables; an empty one counts as unset.
    fn from_vars(get: impl Fn(&str) -> Option<String>) -> Result<Self, HubError> {
        let var = |name: &str| get(name).filter(|v| !v.is_empty());
        let cache = match (var("HF_HUB_CACHE"), var("HF_HOME"), var("HOME")) {
            (Some(cache), _, _) => PathBuf::from(cache),
            (None, Some(home), _) => PathBuf::from(home).join("hub"),
            (None, None, Some(home)) => PathBuf::from(home).join(".cache/huggingface/hub"),
            (None, None, None) => return Err(HubError::NoCache),
        };
        Ok(Self {
            endpoint: var("HF_ENDPOINT").map(|e| e.trim_end_matches('/').to_string()),
            token: var("HF_TOKEN").or_else(|| Cache::new(cache.clone()).token()),
            offline: var("HF_HUB_OFFLINE").is_some_and(|v| is_true(&v)),
            cache,
            progress: false,
        })
    }

    /// Fetches a model, or finds it in the cache, and gives the folder that holds its files. Where the id names a GGUF
    /// file (`owner/name:file.gguf`), or the repository has one and no safetensors, that file is fetched alone and given.
    pub fn fetch(&self, id: &str, revision: &str) -> Result<PathBuf, HubError> {
        let (id, file) = split_file(id);
        let repo = Repo::with_revision(id.to_string(), RepoType::Model, revision.to_string());
        if self.offline {
            return self.cached(&repo, id, file);
        }
        // The client panics on some malformed answers; a server's fault must not end the program.
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            self.download(&repo, id, file)
        }));
        match outcome {
            Ok(Err(e @ HubError::Network { .. })) => match self.cached(&repo, id, file) {
                Ok(folder) => {
                    tracing::warn!("{e}; using the copy in the cache");
                    Ok(folder)
                }
                Err(_) => Err(e),
            },
            Ok(result) => result,
            Err(_) => Err(HubError::Network {
                endpoint: self.endpoint_name(),
                model: id.to_string(),
                detail: "the answer is not one the hub client understands".to_string(),
            }),
        }
    }

    /// The snapshot in the cache, if it is complete, or the GGUF file.
    fn cached(&self, repo: &Repo, id: &str, file: Option<&str>) -> Result<PathBuf, HubError> {
        let cache = Cache::new(self.cache.clone()).repo(repo.clone());
        let missing = |file: &str| HubError::NotCached {
            model: id.to_string(),
            file: file.to_string(),
            cache: self.cache.display().to_string(),
        };
        if let Some(file) = file {
            return cache.get(file).ok_or_else(|| missing(file));
        }
        let config = cache.get(CONFIG);
        let folder = config.as_deref().and_then(Path::parent);
        let whole = |f: &&Path| f.join(SINGLE).exists() || f.join(INDEX).exists();
        if let Some(folder) = folder.filter(whole) {
            return Ok(folder.to_path_buf());
        }
        match self.cached_gguf(repo).as_slice() {
            [] => Err(missing(if folder.is_some() { SINGLE } else { CONFIG })),
            [one] => cache.get(one).ok_or_else(|| missing(one)),
            many => Err(HubError::ManyGguf {
                endpoint: self.cache.display().to_string(),
                model: id.to_string(),
                files: many.to_vec(),
            }),
        }
    }

    /// GGUF files of the snapshot in the cache, in order.
    fn cached_gguf(&self, repo: &Repo) -> Vec<String> {
        let root = self.cache.join(repo.folder_name());
        let commit = std::fs::read_to_string(root.join("refs").join(repo.revision()));
        let folder = commit.map(|c| root.join("snapshots").join(c.trim()));
        let entries = folder.and_then(std::fs::read_dir).into_iter().flatten().flatten();
        let names = entries.map(|e| e.file_name().to_string_lossy().into_owned());
        let files: Vec<String> = names.filter(|n| is_gguf(n)).collect();
        split::models(files.iter().map(String::as_str))
    }

    fn download(&self, repo: &Repo, id: &str, file: Option<&str>) -> Result<PathBuf, HubError> {
        let mut builder = ApiBuilder::from_cache(Cache::new(self.cache.clone()))
            .with_token(self.token.clone())
            .with_progress(self.progress)
            .with_retries(2);
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        let client = builder.build().map_err(|e| self.explain(id, &e))?;
        let api = client.repo(repo.clone());
        let info = api.info().map_err(|e| self.explain(id, &e))?;
        let there: Vec<&str> = info.siblings.iter().map(|s| s.rfilename.as_str()).collect();
        let no = |missing: &str| HubError::NoCheckpoint {
            endpoint: self.endpoint_name(),
            model: id.to_string(),
            missing: missing.to_string(),
        };
        let gguf = split::models(there.iter().copied().filter(|f| is_gguf(f)));
        let weights: Vec<&str> = match (there.contains(&SINGLE), there.contains(&INDEX)) {
            (true, _) => vec![SINGLE],
            (false, true) => std::iter::once(INDEX)
                .chain(there.iter().copied().filter(|f| is_shard(f)))
                .collect(),
            (false, false) => Vec::new(),
        };
        let whole = there.contains(&CONFIG) && !weights.is_empty();
        // A GGUF file, or its parts, hold everything.
        let alone = match (file, gguf.as_slice()) {
            (Some(file), _) if is_gguf(file) && there.contains(&file) => Some(file),
            (Some(file), all) => {
                return Err(HubError::NoGguf {
                    endpoint: self.endpoint_name(),
                    model: id.to_string(),
                    file: file.to_string(),
                    files: all.to_vec(),
                });
            }
            (None, _) if whole => None,
            (None, []) if there.contains(&CONFIG) => {
                return Err(no("model.safetensors and no model.safetensors.index.json"));
            }
            (None, []) => return Err(no(CONFIG)),
            (None, [one]) => Some(one.as_str()),
            (None, many) => {
                return Err(HubError::ManyGguf {
                    endpoint: self.endpoint_name(),
                    model: id.to_string(),
                    files: many.to_vec(),
                });
            }
        };
        let parts = alone.map(split::family).unwrap_or_default();
        if let Some(part) = parts.iter().find(|part| !there.contains(&part.as_str())) {
            return Err(HubError::NoGguf {
                endpoint: self.endpoint_name(),
                model: id.to_string(),
                file: part.clone(),
                files: gguf,
            });
        }
        let wanted: Vec<&str> = match alone {
            Some(_) => parts.iter().map(String::as_str).collect(),
            None => {
                let more = OPTIONAL.iter().copied().filter(|f| there.contains(f));
                std::iter::once(CONFIG).chain(more).chain(weights).collect()
            }
        };
        let cache = Cache::new(self.cache.clone()).repo(repo.clone());
        if info.sha.is_empty() || !info.sha.chars().all(|c| c.is_ascii_alphanumeric()) {
            return Err(HubError::Network {
                endpoint: self.endpoint_name(),
                model: id.to_string(),
                detail: format!("its commit is {:?}, which is no hash", info.sha),
            });
        }
        // The revision as it is now, which may be newer than what is in the cache.
        let folder = cache.pointer_path(&info.sha);
        for file in wanted {
            if folder.join(file).exists() {
                continue;
            }
            if self.get(&client, &api, id, file)? != folder {
                return Err(HubError::Changed {
                    endpoint: self.endpoint_name(),
                    model: id.to_string(),
                });
            }
        }
        cache
            .create_ref(&info.sha)
            .map_err(|e| HubError::Cache { cache: self.cache.display().to_string(), source: e })?;
        Ok(alone.map_or_else(|| folder.clone(), |file| folder.join(file)))
    }

    /// Fetches one file and gives the snapshot folder it lies in. What was broken off is gone on with.
    fn get(&self, client: &Api, api: &ApiRepo, id: &str, file: &str) -> Result<PathBuf, HubError> {
        let path = api.download(file).map_err(|e| self.explain(id, &e))?;
        let stated = client.metadata(&api.url(file)).map_err(|e| self.explain(id, &e))?.size();
        let found = std::fs::metadata(&path).map_or(0, |m| m.len());
        if found != stated as u64 {
            // The client joins the parts of a file without looking at them. What came of it must not stay.
            if let Ok(blob) = path.canonicalize() {
                let _ = std::fs::remove_file(blob);
            }
            let _ = std::fs::remove_file(&path);
            return Err(HubError::Network {
                endpoint: self.endpoint_name(),
                model: id.to_string(),
                detail: format!(
                    "{file} came as {found} bytes instead of {stated}; it is removed, run the command again"
                ),
            });
        }
        path.parent().map(Path::to_path_buf).ok_or_else(|| HubError::NoCheckpoint {
            endpoint: self.endpoint_name(),
            model: id.to_string(),
            missing: file.to_string(),
        })
    }

    fn endpoint_name(&self) -> String {
        self.endpoint.clone().unwrap_or_else(|| "the hub".to_string())
    }

    fn explain(&self, id: &str, error: &ApiError) -> HubError {
        let text = error.to_string();
        let status = ["401", "403", "404"].iter().find(|s| text.contains(&format!("status: {s}")));
        match status.and_then(|s| s.parse::<u16>().ok()) {
            Some(status) => HubError::Refused {
                endpoint: self.endpoint_name(),
                status,
                model: id.to_string(),
                hint: match status {
                    404 => "there is no such model, or no such revision; check the spelling",
                    _ if self.token.is_some() => "the token has no access; accept the model's terms or use another token",
                    _ => "the model is private, gated, or does not exist; set HF_TOKEN or check the spelling",
                }
                .to_string(),
            },
            None => HubError::Network { endpoint: self.endpoint_name(), model: id.to_string(), detail: text },
        }
    }
}

const CONFIG: &str = "config.json";
const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const OPTIONAL: &[&str] = &[
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
];

fn is_shard(name: &str) -> bool {
    !name.contains('/') && name.starts_with("model-") && name.ends_with(".safetensors")
}

fn is_gguf(name: &str) -> bool {
    !name.contains('/') && name.ends_with(".gguf")
}

/// `owner/name:file.gguf` as the repository and the file.
fn split_file(id: &str) -> (&str, Option<&str>) {
    match id.split_once(':') {
        Some((id, file)) => (id, Some(file)),
        None => (id, None),
    }
}

fn is_true(value: &str) -> bool {
    matches!(value.to_ascii_uppercase().as_str(), "1" | "ON" | "YES" | "TRUE")
}

/// What a MODEL argument means, decided without touching the network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spec {
    /// A folder that exists, or a GGUF file.
    Folder(PathBuf),
    /// A hub repository.
    Hub {
        /// Hub id, `owner/name` or `name`, with the file where one of GGUF files is meant: `owner/name:file.gguf`.
        id: String,
        /// Branch, tag or commit; `main` unless written as `owner/name@revision`.
        revision: String,
    },
    /// The model compiled into the program.
    Embedded,
}

impl Spec {
    /// Reads a MODEL argument: nothing is the embedded model, a folder that exists is that folder, and anything that
    /// cannot be a path is a hub id.
    pub fn parse(model: Option<&str>) -> Result<Self, HubError> {
        let Some(text) = model else { return Ok(Spec::Embedded) };
        let path = Path::new(text);
        if path.is_dir() {
            return Ok(Spec::Folder(path.to_path_buf()));
        }
        if path.is_file() && path.extension().is_some_and(|e| e == "gguf") {
            return Ok(Spec::Folder(path.to_path_buf()));
        }
        if path.exists() {
            return Err(HubError::IsFile(text.to_string()));
        }
        let (id, revision) = text.split_once('@').unwrap_or((text, "main"));
        let part = |p: &str| {
            !p.is_empty()
                && !p.starts_with(['.', '-'])
                && p.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
        };
        let (repo, file) = split_file(id);
        let parts: Vec<&str> = repo.split('/').collect();
        let file_ok = file.is_none_or(|f| part(f) && is_gguf(f));
        let revision_ok = !revision.is_empty()
            && !revision.contains("..")
            && revision
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '/'));
        if parts.len() > 2 || !parts.iter().all(|p| part(p)) || !revision_ok || !file_ok {
            return Err(HubError::NotFound(text.to_string()));
        }
        Ok(Spec::Hub { id: id.to_string(), revision: revision.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specs_are_told_apart_without_network() {
        assert_eq!(Spec::parse(None).unwrap(), Spec::Embedded);
        assert_eq!(Spec::parse(Some("src")).unwrap(), Spec::Folder("src".into()));
        assert!(matches!(Spec::parse(Some("Cargo.toml")), Err(HubError::IsFile(_))));
        let hub = |id: &str, revision: &str| Spec::Hub { id: id.into(), revision: revision.into() };
        assert_eq!(Spec::parse(Some("owner/name")).unwrap(), hub("owner/name", "main"));
        assert_eq!(
            Spec::parse(Some("owner/na.me-1_b@v1/x")).unwrap(),
            hub("owner/na.me-1_b", "v1/x")
        );
        assert_eq!(Spec::parse(Some("name-alone")).unwrap(), hub("name-alone", "main"));
        let (one, file) = ("owner/name:model-Q4_K.gguf", "owner/name:model-Q4_K.gguf@v2");
        assert_eq!(Spec::parse(Some(one)).unwrap(), hub(one, "main"));
        assert_eq!(Spec::parse(Some(file)).unwrap(), hub(one, "v2"));
        for bad in [
            "",
            "./nowhere",
            "../nowhere",
            "/nowhere",
            "a/b/c",
            "a/",
            "a b",
            "~/x",
            "a/b@",
            "a/b@../c",
            "-x",
            "a/b:",
            "a/b:model.bin",
            "a/b:../x.gguf",
            "a/b:c/x.gguf",
        ] {
            assert!(matches!(Spec::parse(Some(bad)), Err(HubError::NotFound(_))), "{bad}");
        }
    }

    #[test]
    fn settings_come_from_the_variables_huggingface_uses() {
        let from = |vars: &[(&str, &str)]| {
            let find = |name: &str| vars.iter().find(|(n, _)| *n == name);
            Hub::from_vars(|name| find(name).map(|(_, v)| v.to_string()))
        };
        let hub = from(&[("HOME", "/h")]).unwrap();
        assert_eq!(hub.cache, Path::new("/h/.cache/huggingface/hub"));
        assert!(hub.endpoint.is_none() && hub.token.is_none() && !hub.offline);
        let home = tempfile::tempdir().unwrap();
        std::fs::write(home.path().join("token"), "from-file\n").unwrap();
        let path = home.path().to_str().unwrap();
        let vars = [("HF_HOME", path), ("HF_HUB_OFFLINE", "1"), ("HF_ENDPOINT", "http://x/")];
        let hub = from(&vars).unwrap();
        assert_eq!((hub.cache, hub.endpoint), (home.path().join("hub"), Some("http://x".into())));
        assert!(hub.offline && hub.token.as_deref() == Some("from-file"));
        let hub = from(&[("HF_HOME", path), ("HF_TOKEN", "t"), ("HF_HUB_CACHE", "/c")]).unwrap();
        assert_eq!((hub.cache, hub.token), ("/c".into(), Some("t".into())));
        assert!(matches!(from(&[("HF_HOME", "")]), Err(HubError::NoCache)));
    }

    #[test]
    fn offline_switch_is_read_as_huggingface_reads_it() {
        assert!(["1", "true", "ON", "Yes"].iter().all(|v| is_true(v)));
        assert!(["0", "false", "off", "2"].iter().all(|v| !is_true(v)));
    }
}
