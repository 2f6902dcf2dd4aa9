//! The image cache. One file per key; a file is used only when the hash over all of it fits, it
//! carries the key and architecture that were asked for, and the ELF image inside is for that
//! architecture. Anything else counts as absent, is reported, and is built anew.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::elf::{CubinInfo, ElfError, inspect};
use super::key::{ImageKey, KeyInputs};
use crate::target::Arch;
use crate::toolchain::{
    CacheDirError, CompileError, CompileLog, CompileRequest, Compiled, Nvrtc, cache_root, judge,
};

/// File layout: magic, BLAKE3 of everything after it, length of the JSON head, the head, then
/// cubin, PTX and log one after the other.
const MAGIC: &[u8; 8] = b"amkimg\x00\x01";
const HASH_AT: usize = 8;
const BODY_AT: usize = HASH_AT + 32;

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    key: String,
    arch: String,
    compiler: String,
    cubin_bytes: usize,
    ptx_bytes: usize,
    log_bytes: usize,
}

/// Where an image came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Provenance {
    /// Read from the cache, all checks passed.
    Cached,
    /// Compiled now; the cache had nothing.
    Built,
    /// Compiled now, because what the cache had was not fit to use.
    Rebuilt(CacheWarning),
}

/// A cached file that was not used. Each reads as a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CacheWarning {
    /// It could not be read at all.
    #[error("the cached image {} could not be read ({reason}); it is built anew", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// Its hash does not fit its content.
    #[error("the cached image {} is damaged ({what}); it is built anew", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What does not fit.
        what: String,
    },
    /// It is intact and belongs to another key or architecture.
    #[error("the cached image {} is for {got}, not for {wanted}; it is built anew", .path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What was asked for.
        wanted: String,
        /// What it is.
        got: String,
    },
    /// It is usable and could not be stored; the next run compiles again.
    #[error("the compiled image could not be kept: {0}")]
    NotStored(String),
}

/// Why the cache cannot take an image.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// No cache folder in the environment.
    #[error(transparent)]
    Dir(#[from] CacheDirError),
    /// Writing failed.
    #[error("cannot write the image cache at {}: {source}; set AMK_CACHE to a writable folder", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The image is not one for the architecture it is filed under.
    #[error("an image for {got} cannot be stored as one for {wanted}")]
    WrongArch {
        /// The architecture of the key.
        wanted: Arch,
        /// What the ELF file says.
        got: String,
    },
    /// The image is no cubin.
    #[error("the image to store is no cubin: {0}")]
    Elf(#[from] ElfError),
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The compiler refused.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The compiler's output is not what was asked for.
    #[error("the compiler's image for {arch} is unusable: {reason}")]
    Output {
        /// The architecture asked for.
        arch: Arch,
        /// What is wrong with it.
        reason: String,
    },
}

/// A compiled image with everything that is known about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// The key it is filed under.
    pub key: ImageKey,
    /// The architecture it is for.
    pub arch: Arch,
    /// Identity of the compiler that made it.
    pub compiler: String,
    /// Cubin, PTX and log.
    pub compiled: Compiled,
    /// Resources, read from the cubin.
    pub info: CubinInfo,
    /// Diagnostics and spills, read from the log.
    pub report: CompileLog,
    /// Cached, built, or rebuilt.
    pub provenance: Provenance,
    /// Set when the image is fine and could not be stored.
    pub warning: Option<CacheWarning>,
}

/// A folder of images.
#[derive(Debug, Clone)]
pub struct ImageCache {
    folder: Option<PathBuf>,
}

impl ImageCache {
    /// The cache below [`cache_root`].
    ///
    /// # Errors
    /// [`CacheDirError`] when the environment names no folder.
    pub fn from_env() -> Result<Self, CacheDirError> {
        Ok(Self::at(&cache_root()?))
    }

    /// The cache below a given cache root. Nothing is created until an image is stored.
    pub fn at(root: &Path) -> Self {
        Self { folder: Some(root.join("images")) }
    }

    /// A cache that keeps nothing.
    pub fn disabled() -> Self {
        Self { folder: None }
    }

    /// The file of a key, or `None` for a cache that keeps nothing.
    pub fn path_of(&self, key: &ImageKey) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join(format!("{key}.img")))
    }

    /// The image of a request: from the cache when it is there and sound, else compiled and stored.
    /// A cached image must meet the request's spill policy just as a fresh one.
    ///
    /// # Errors
    /// [`BuildError`]; a cache that fails is never an error here, only a warning.
    pub fn get_or_compile(
        &self,
        nvrtc: &Nvrtc,
        request: &CompileRequest<'_>,
    ) -> Result<Image, BuildError> {
        let compiler = nvrtc.identity();
        let key = ImageKey::new(&KeyInputs {
            source: request.source,
            arch: request.arch,
            compiler: &compiler,
            options: request.options,
        })?;
        let (provenance, compiled) = match self.load(&key, request.arch) {
            Ok(Some(compiled)) => {
                judge(&compiled, &compiled.report(), request, || compiler.clone())?;
                (Provenance::Cached, compiled)
            }
            Ok(None) => (Provenance::Built, nvrtc.compile(request)?),
            Err(warning) => {
                tracing::warn!("{warning}");
                (Provenance::Rebuilt(warning), nvrtc.compile(request)?)
            }
        };
        let unusable = |reason: String| BuildError::Output { arch: request.arch, reason };
        let info = inspect(&compiled.cubin).map_err(|e| unusable(e.to_string()))?;
        if !info.is_for(request.arch) {
            return Err(unusable(format!("it is an image for sm_{}", info.sm)));
        }
        let warning = match provenance {
            Provenance::Cached => None,
            _ => self
                .store(&key, request.arch, &compiler, &compiled)
                .err()
                .map(|e| CacheWarning::NotStored(e.to_string())),
        };
        if let Some(warning) = &warning {
            tracing::warn!("{warning}");
        }
        let report = compiled.report();
        Ok(Image { key, arch: request.arch, compiler, compiled, info, report, provenance, warning })
    }

    /// The image stored under `key`, if there is one and all of it is sound and for `arch`.
    ///
    /// # Errors
    /// [`CacheWarning`] says why a file that is there must not be used.
    pub fn load(&self, key: &ImageKey, arch: Arch) -> Result<Option<Compiled>, CacheWarning> {
        let Some(path) = self.path_of(key) else {
            return Ok(None);
        };
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => {
                return Err(CacheWarning::Unreadable { path, reason: e.to_string() });
            }
        };
        match decode(&bytes) {
            Ok((head, compiled)) => {
                check_fit(&path, key, arch, &head, &compiled)?;
                Ok(Some(compiled))
            }
            Err(what) => Err(CacheWarning::Damaged { path, what }),
        }
    }

    /// Stores an image: a temporary file in the same folder, then a rename.
    ///
    /// # Errors
    /// [`CacheError`]; an image for another architecture is refused here already.
    pub fn store(
        &self,
        key: &ImageKey,
        arch: Arch,
        compiler: &str,
        compiled: &Compiled,
    ) -> Result<(), CacheError> {
        let Some(folder) = &self.folder else {
            return Ok(());
        };
        let info = inspect(&compiled.cubin)?;
        if !info.is_for(arch) {
            return Err(CacheError::WrongArch { wanted: arch, got: describe(&info) });
        }
        let path = folder.join(format!("{key}.img"));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| CacheError::Write { path, source }
        };
        std::fs::create_dir_all(folder).map_err(failed(folder))?;
        let bytes = encode(key, arch, compiler, compiled)
            .map_err(|e| failed(&path)(std::io::Error::other(e)))?;
        let mut file =
            tempfile::Builder::new().prefix(".img-").tempfile_in(folder).map_err(failed(folder))?;
        file.write_all(&bytes).map_err(failed(&path))?;
        file.as_file().sync_all().map_err(failed(&path))?;
        file.persist(&path).map_err(|e| failed(&path)(e.error)).map(drop)
    }
}

fn describe(info: &CubinInfo) -> String {
    match info.variant {
        Some(variant) => Arch::new(info.sm, variant).to_string(),
        None => format!("sm_{}", info.sm),
    }
}

/// The last line of defence: an intact file under a wrong name, or holding another part's image.
fn check_fit(
    path: &Path,
    key: &ImageKey,
    arch: Arch,
    head: &Head,
    compiled: &Compiled,
) -> Result<(), CacheWarning> {
    let foreign =
        |wanted: String, got: String| CacheWarning::Foreign { path: path.to_owned(), wanted, got };
    if head.arch != arch.to_string() {
        return Err(foreign(arch.to_string(), head.arch.clone()));
    }
    if head.key != key.to_string() {
        return Err(foreign(format!("key {key}"), format!("key {}", head.key)));
    }
    let info = inspect(&compiled.cubin)
        .map_err(|e| CacheWarning::Damaged { path: path.to_owned(), what: e.to_string() })?;
    match info.is_for(arch) {
        true => Ok(()),
        false => Err(foreign(arch.to_string(), describe(&info))),
    }
}

fn encode(
    key: &ImageKey,
    arch: Arch,
    compiler: &str,
    compiled: &Compiled,
) -> Result<Vec<u8>, serde_json::Error> {
    let head = serde_json::to_vec(&Head {
        key: key.to_string(),
        arch: arch.to_string(),
        compiler: compiler.to_owned(),
        cubin_bytes: compiled.cubin.len(),
        ptx_bytes: compiled.ptx.len(),
        log_bytes: compiled.log.len(),
    })?;
    let mut body = Vec::new();
    body.extend((head.len() as u64).to_le_bytes());
    body.extend(&head);
    body.extend(&compiled.cubin);
    body.extend(compiled.ptx.as_bytes());
    body.extend(compiled.log.as_bytes());
    let mut out = MAGIC.to_vec();
    out.extend(blake3::hash(&body).as_bytes());
    out.extend(body);
    Ok(out)
}

fn decode(bytes: &[u8]) -> Result<(Head, Compiled), String> {
    let cut = || "it is cut short".to_owned();
    let body = bytes.get(BODY_AT..).ok_or_else(cut)?;
    if !bytes.starts_with(MAGIC) {
        return Err("it does not start like an image file of this version".into());
    }
    if blake3::hash(body).as_bytes()[..] != bytes[HASH_AT..BODY_AT] {
        return Err("its hash does not fit its content".into());
    }
    let (length, rest) = body.split_first_chunk::<8>().ok_or_else(cut)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
    let (head, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
    let head: Head = serde_json::from_slice(head).map_err(|e| e.to_string())?;
    let (cubin, rest) = rest.split_at_checked(head.cubin_bytes).ok_or_else(cut)?;
    let (ptx, log) = rest.split_at_checked(head.ptx_bytes).ok_or_else(cut)?;
    if log.len() != head.log_bytes {
        return Err(cut());
    }
    let text = |b: &[u8]| String::from_utf8(b.to_vec()).map_err(|e| e.to_string());
    let compiled = Compiled { cubin: cubin.to_vec(), ptx: text(ptx)?, log: text(log)? };
    Ok((head, compiled))
}
