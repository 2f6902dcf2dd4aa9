//! The files of a checkpoint: a folder on disk or bytes compiled into the program, behind one interface.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// Why a file could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The operating system refused.
    #[error("{path}: {source}; check that the file is there and readable")]
    Io {
        /// The path.
        path: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A file larger than anything of its kind.
    #[error("{path} has {size} bytes, more than the {limit} a file of this kind may have")]
    TooLarge {
        /// The path.
        path: String,
        /// Its size.
        size: u64,
        /// The cap.
        limit: u64,
    },
    /// A file the checkpoint needs and does not have.
    #[error(
        "{folder} has no {name}; a checkpoint folder needs config.json and model.safetensors, or its shards and their index"
    )]
    Absent {
        /// The folder.
        folder: String,
        /// The file's name.
        name: String,
    },
}

/// Bytes of one file.
pub(crate) enum Bytes {
    /// Mapped from disk.
    Mapped(memmap2::Mmap),
    /// Part of the program.
    Static(&'static [u8]),
    /// A copy whose start is aligned to eight bytes, and its length.
    Aligned(Vec<u64>, usize),
}

impl Bytes {
    /// A copy aligned to eight bytes.
    pub fn aligned_copy(bytes: &[u8]) -> Self {
        let words = bytes
            .chunks(8)
            .map(|c| {
                let mut word = [0u8; 8];
                word[..c.len()].copy_from_slice(c);
                u64::from_ne_bytes(word)
            })
            .collect();
        Bytes::Aligned(words, bytes.len())
    }

    /// The bytes of numbers, little-endian.
    pub fn of_f32(values: &[f32]) -> Self {
        let word = |pair: &[f32]| {
            let mut word = [0u8; 8];
            for (four, value) in word.chunks_mut(4).zip(pair) {
                four.copy_from_slice(&value.to_le_bytes());
            }
            u64::from_ne_bytes(word)
        };
        Bytes::Aligned(values.chunks(2).map(word).collect(), 4 * values.len())
    }
}

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Mapped(m) => m,
            Bytes::Static(b) => b,
            Bytes::Aligned(words, len) => {
                // SAFETY: `words` holds at least `len` initialised bytes, and u8 has no alignment or validity needs.
                unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), *len) }
            }
        }
    }
}

#[derive(Debug, Clone)]
enum Place {
    Path(PathBuf),
    Static(&'static [u8]),
}

/// The files of one checkpoint, by name.
#[derive(Debug, Clone)]
pub struct Files {
    label: String,
    files: BTreeMap<String, Place>,
}

impl Files {
    /// The regular files of a folder (links followed, subfolders left out).
    pub fn folder(folder: &Path) -> Result<Self, FileError> {
        let io = |source| FileError::Io { path: folder.display().to_string(), source };
        let mut files = BTreeMap::new();
        for entry in std::fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            if let (true, Some(name)) = (path.is_file(), path.file_name().and_then(|n| n.to_str()))
            {
                files.insert(name.to_string(), Place::Path(path));
            }
        }
        Ok(Self { label: folder.display().to_string(), files })
    }

    /// One file, as a folder of its own; of a GGUF file that is one of several, with the others that are there.
    pub fn single(path: &Path) -> Self {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let mut files = BTreeMap::from([(name.clone(), Place::Path(path.to_path_buf()))]);
        for part in crate::gguf::split::family(&name) {
            let path = path.with_file_name(&part);
            if path.is_file() {
                files.insert(part, Place::Path(path));
            }
        }
        Self { label: path.display().to_string(), files }
    }

    /// Files compiled into the program.
    pub fn embedded(label: &str, files: &[(&str, &'static [u8])]) -> Self {
        Self {
            label: label.to_string(),
            files: files.iter().map(|(n, b)| (n.to_string(), Place::Static(b))).collect(),
        }
    }

    /// What to call the folder in a message.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.files.keys().map(String::as_str)
    }

    /// Whether there is a file of this name.
    pub fn has(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// The file's path, where it is on disk.
    pub fn path(&self, name: &str) -> Option<&Path> {
        match self.files.get(name)? {
            Place::Path(p) => Some(p),
            Place::Static(_) => None,
        }
    }

    /// Size in bytes.
    pub fn size(&self, name: &str) -> Result<u64, FileError> {
        match self.place(name)? {
            Place::Path(p) => {
                std::fs::metadata(p).map(|m| m.len()).map_err(|source| self.io(p, source))
            }
            Place::Static(b) => Ok(b.len() as u64),
        }
    }

    /// Reads a whole file of at most `limit` bytes.
    pub fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, FileError> {
        match self.place(name)? {
            Place::Path(p) => read_limited(p, limit),
            Place::Static(b) => Ok(b.to_vec()),
        }
    }

    /// SHA-256 of a file, in hexadecimal.
    pub fn sha256(&self, name: &str) -> Result<String, FileError> {
        let mut hash = Sha256::new();
        match self.place(name)? {
            Place::Static(b) => hash.update(b),
            Place::Path(p) => {
                let io = |source| self.io(p, source);
                let mut file = File::open(p).map_err(io)?;
                let mut buffer = vec![0u8; 1 << 20];
                loop {
                    let n = file.read(&mut buffer).map_err(io)?;
                    if n == 0 {
                        break;
                    }
                    hash.update(&buffer[..n]);
                }
            }
        }
        Ok(hash.finalize().iter().fold(String::with_capacity(64), |mut s, b| {
            let _ = write!(s, "{b:02x}");
            s
        }))
    }

    /// Maps a file.
    pub(crate) fn map(&self, name: &str) -> Result<Bytes, FileError> {
        match self.place(name)? {
            Place::Static(b) => Ok(Bytes::Static(b)),
            Place::Path(p) => {
                let io = |source| self.io(p, source);
                let file = File::open(p).map_err(io)?;
                if file.metadata().map_err(io)?.len() == 0 {
                    return Ok(Bytes::Static(&[]));
                }
                // SAFETY: the mapping is read-only. A file truncated by another process while it is mapped is the
                // usual hazard of mapped files; checkpoints are replaced by renaming, not rewritten in place.
                unsafe { memmap2::Mmap::map(&file) }.map(Bytes::Mapped).map_err(io)
            }
        }
    }

    fn place(&self, name: &str) -> Result<&Place, FileError> {
        self.files
            .get(name)
            .ok_or_else(|| FileError::Absent { folder: self.label.clone(), name: name.to_string() })
    }

    fn io(&self, path: &Path, source: std::io::Error) -> FileError {
        FileError::Io { path: path.display().to_string(), source }
    }
}

/// Reads a whole file, refusing one that is larger than `limit` before reading it.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let io = |source| FileError::Io { path: path.display().to_string(), source };
    let file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let too_large = |size| FileError::TooLarge { path: path.display().to_string(), size, limit };
    if size > limit {
        return Err(too_large(size));
    }
    let mut bytes = Vec::with_capacity(size as usize);
    file.take(limit + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > limit {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}
