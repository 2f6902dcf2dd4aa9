//! Packed weights on disk, so that a large model need not be packed again.
//!
//! A file holds the packed bytes of all streams and, at its end, a BLAKE3 hash of every block of them; it is named by
//! everything the bytes depend on: which rows each SM streams, and the weight files by path, length and time of
//! change. A block whose hash does not fit makes the whole file count as absent.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use amk_models::Checkpoint;
use amk_schedule_ir::{Program, RunSource};
use rayon::prelude::*;

/// Bytes that are hashed, read and handed on at once.
const BLOCK: usize = 8 << 20;
/// Blocks read at once.
const BATCH: usize = 8;
const MAGIC: &[u8; 16] = b"amk packed v1\0\0\0";

/// A folder of packed weights.
#[derive(Clone, Debug)]
pub struct PackedCache {
    folder: PathBuf,
}

/// Why a file was not used or not made.
#[derive(Debug, thiserror::Error)]
pub enum PackedError {
    /// Reading or writing failed.
    #[error("packed weights at {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// Its contents are not what was written.
    #[error("the packed weights at {} are damaged; they are packed again", .0.display())]
    Damaged(PathBuf),
}

/// The name of a program's packed weights; none for a model that is part of this program.
pub fn key(program: &Program, checkpoint: &Checkpoint) -> Option<String> {
    let mut hasher = blake3::Hasher::new_derive_key("amk packed weights v1");
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    for sm in &program.sms {
        part(b"sm");
        for run in &sm.stream {
            let RunSource::Weight { buffer, lo, hi, .. } = run.source else { continue };
            let b = program.buffer(buffer)?;
            part(format!("{} {:?} {:?} {lo} {hi}", b.name, b.dtype, b.shape).as_bytes());
        }
    }
    for name in checkpoint.weights().files() {
        let path = checkpoint.files().path(name)?;
        let about = std::fs::metadata(path).ok()?;
        let changed = about.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
        part(path.canonicalize().ok()?.to_string_lossy().as_bytes());
        part(format!("{} {}", about.len(), changed.as_nanos()).as_bytes());
    }
    Some(hasher.finalize().to_hex().to_string())
}

impl PackedCache {
    /// In a folder, which is made when something is kept.
    pub fn at(folder: PathBuf) -> PackedCache {
        PackedCache { folder }
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.packed"))
    }

    /// Hands the bytes on, `put(at, bytes)`, if they are there and sound; says whether they were. A damaged file may
    /// have handed on some blocks before it was found out, so everything is to be put again then.
    ///
    /// # Errors
    /// The file is damaged or cannot be read, or `put` fails.
    pub fn load<E: From<PackedError>>(
        &self,
        key: &str,
        total: u64,
        put: &mut dyn FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<bool, E> {
        let path = self.path(key);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(false),
            Err(source) => return Err(PackedError::Io { path, source }.into()),
        };
        let damaged = || E::from(PackedError::Damaged(path.clone()));
        let blocks = total.div_ceil(BLOCK as u64);
        let expected = MAGIC.len() as u64 + 32 * blocks + total;
        let length = file.metadata().map_err(|source| io(&path, source))?.len();
        let mut head = vec![0; MAGIC.len() + 32 * blocks as usize];
        if length != expected || file.read_exact(&mut head).is_err() || !head.starts_with(MAGIC) {
            return Err(damaged());
        }
        let hashes: Vec<&[u8]> = head[MAGIC.len()..].chunks_exact(32).collect();
        let mut at = 0u64;
        for batch in hashes.chunks(BATCH) {
            let size = ((batch.len() * BLOCK) as u64).min(total - at) as usize;
            let mut bytes = vec![0; size];
            file.read_exact(&mut bytes).map_err(|source| io(&path, source))?;
            let sound = bytes
                .par_chunks(BLOCK)
                .zip(batch.par_iter())
                .all(|(block, hash)| blake3::hash(block).as_bytes()[..] == **hash);
            if !sound {
                return Err(damaged());
            }
            put(at, &bytes)?;
            at += size as u64;
        }
        Ok(true)
    }

    /// Begins to keep `total` bytes under a key.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn begin(&self, key: &str, total: u64) -> Result<Keeping, PackedError> {
        let folder = &self.folder;
        std::fs::create_dir_all(folder).map_err(|source| io(folder, source))?;
        let mut file = tempfile::Builder::new()
            .prefix(".packed-")
            .tempfile_in(folder)
            .map_err(|source| io(folder, source))?;
        let blocks = total.div_ceil(BLOCK as u64) as usize;
        let path = self.path(key);
        let head = vec![0; MAGIC.len() + 32 * blocks];
        file.write_all(&head).map_err(|source| io(&path, source))?;
        Ok(Keeping {
            file,
            path,
            hashes: Vec::new(),
            block: Vec::with_capacity(BLOCK),
            total,
            at: 0,
        })
    }
}

fn io(path: &Path, source: std::io::Error) -> PackedError {
    PackedError::Io { path: path.to_owned(), source }
}

/// A file being written.
pub struct Keeping {
    file: tempfile::NamedTempFile,
    path: PathBuf,
    hashes: Vec<u8>,
    block: Vec<u8>,
    total: u64,
    at: u64,
}

impl Keeping {
    /// Appends bytes.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<(), PackedError> {
        self.at += bytes.len() as u64;
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(BLOCK - self.block.len()));
            self.block.extend_from_slice(now);
            bytes = later;
            if self.block.len() == BLOCK {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), PackedError> {
        self.hashes.extend_from_slice(blake3::hash(&self.block).as_bytes());
        self.file.write_all(&self.block).map_err(|source| io(&self.path, source))?;
        self.block.clear();
        Ok(())
    }

    /// Writes the hashes and gives the file its name, if all bytes were pushed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(mut self) -> Result<(), PackedError> {
        use std::io::{Seek, SeekFrom};
        if !self.block.is_empty() {
            self.flush()?;
        }
        if self.at != self.total {
            return Ok(());
        }
        let mut head = MAGIC.to_vec();
        head.extend_from_slice(&self.hashes);
        let file = self.file.as_file_mut();
        file.seek(SeekFrom::Start(0))
            .and_then(|_| file.write_all(&head))
            .map_err(|source| io(&self.path, source))?;
        self.file.persist(&self.path).map_err(|e| io(&self.path, e.error))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 31 + i / 251) as u8).collect()
    }

    fn read(cache: &PackedCache, total: u64) -> Result<Option<Vec<u8>>, PackedError> {
        let mut out = Vec::new();
        let found = cache.load("k", total, &mut |at, part| {
            assert_eq!(at, out.len() as u64);
            out.extend_from_slice(part);
            Ok::<(), PackedError>(())
        })?;
        Ok(found.then_some(out))
    }

    #[test]
    fn what_was_kept_comes_back_block_by_block() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackedCache::at(folder.path().join("packed"));
        assert_eq!(read(&cache, 10).unwrap(), None);
        let all = bytes(BLOCK * 9 + 12_345);
        let total = all.len() as u64;
        let mut keeping = cache.begin("k", total).unwrap();
        for part in all.chunks(3_000_017) {
            keeping.push(part).unwrap();
        }
        keeping.finish().unwrap();
        assert!(read(&cache, total).unwrap() == Some(all));
        // Nothing else lies in the folder.
        assert_eq!(std::fs::read_dir(folder.path().join("packed")).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_file_is_found_out_and_an_unfinished_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let cache = PackedCache::at(folder.path().to_owned());
        let mut keeping = cache.begin("k", 1000).unwrap();
        keeping.push(&bytes(999)).unwrap();
        keeping.finish().unwrap();
        assert_eq!(read(&cache, 1000).unwrap(), None);
        let mut keeping = cache.begin("k", 1000).unwrap();
        keeping.push(&bytes(1000)).unwrap();
        keeping.finish().unwrap();
        assert!(matches!(read(&cache, 1001), Err(PackedError::Damaged(_))));
        let path = folder.path().join("k.packed");
        let mut raw = std::fs::read(&path).unwrap();
        let last = raw.len() - 1;
        raw[last] ^= 1;
        std::fs::write(&path, &raw).unwrap();
        assert!(matches!(read(&cache, 1000), Err(PackedError::Damaged(_))));
        raw.pop();
        std::fs::write(&path, &raw).unwrap();
        assert!(matches!(read(&cache, 1000), Err(PackedError::Damaged(_))));
    }

    #[test]
    fn a_key_needs_files_and_depends_on_the_schedule() {
        use crate::lower::{Knobs, Mode, Shape, lower};
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
        let checkpoint = Checkpoint::from_folder(&root.join("llama-gqa-bf16")).unwrap();
        let target = crate::target::resolve("h200").unwrap().target;
        let of = |checkpoint: &Checkpoint, rotation| {
            let knobs = Knobs { rotation, ..Knobs::default() };
            let bucket = amk_schedule_ir::Bucket { first: 0, last: 31 };
            let low = lower(&Shape::of(checkpoint), &target, &knobs, bucket, Mode::Bf16).unwrap();
            key(&low.program, checkpoint)
        };
        assert!(of(&checkpoint, 1).is_some());
        assert_eq!(of(&checkpoint, 1), of(&checkpoint, 1));
        assert_ne!(of(&checkpoint, 1), of(&checkpoint, 2));
        assert_eq!(of(&Checkpoint::embedded().unwrap(), 1), None);
    }
}
