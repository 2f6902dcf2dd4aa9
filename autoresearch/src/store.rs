//! The best schedules, kept for other commands: one small file per model shape, target, arithmetic and bucket of
//! positions.
//!
//! Only what was measured and confirmed against the original is kept, with where it came from. A file is believed when
//! its own hash fits and it is about what was asked for; anything else is an error that says so. Whoever uses an entry
//! still has everything checked that is checked of any schedule: validator, lint, self-test on the device.

use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::candidate::Point;
use crate::verdict::Interval;

/// Version of the files' form.
pub const FORMAT: u32 = 1;
/// Longest file that is read, bytes.
const LONGEST: u64 = 1 << 20;

/// What a schedule is the best for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// Hash of the model's shape.
    pub shape: String,
    /// Name of the target record and its architecture.
    pub target: String,
    pub sm: String,
    /// `bf16` or `f32`.
    pub mode: String,
    /// First and last position.
    pub bucket: (u64, u64),
}

/// Where an entry came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provenance {
    /// The model as it was named.
    pub model: String,
    /// Version of amk.
    pub amk: String,
    /// Fingerprint of the device it was measured on.
    pub device: String,
    /// File name of the journal, the entry that kept it, and the hash of the journal's last line.
    pub journal: String,
    pub entry: u64,
    pub head: String,
    /// The position it was timed at.
    pub position: u64,
    /// Microseconds per token then, and those of the original in the same rounds.
    pub us: f64,
    pub original_us: f64,
    /// How many times as fast as the original.
    pub speedup: Interval,
    /// What the original was called.
    pub original: String,
}

/// A stored schedule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stored {
    pub format: u32,
    pub key: Key,
    pub knobs: Point,
    /// Hash of the program that was measured.
    pub program: String,
    pub provenance: Provenance,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed {
    entry: Stored,
    hash: String,
}

/// Why an entry cannot be used or kept.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("cannot {doing} the stored schedule {}: {source}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error("the stored schedule {} is damaged or was edited ({what}); remove it, or measure again", .path.display())]
    Damaged { path: PathBuf, what: String },
}

/// A folder of entries.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// In a folder, which need not be there yet.
    pub fn at(folder: PathBuf) -> Store {
        Store { folder }
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a key.
    pub fn path(&self, key: &Key) -> PathBuf {
        let mut hasher = blake3::Hasher::new_derive_key("amk autoresearch store key v1");
        let (first, last) = key.bucket;
        let bucket = format!("{first}-{last}");
        for part in [&key.shape, &key.target, &key.sm, &key.mode, &bucket] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        let name = &hasher.finalize().to_hex()[..32];
        self.folder.join(format!("{name}.json"))
    }

    /// The entry of a key, if there is one.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or is about another key.
    pub fn load(&self, key: &Key) -> Result<Option<Stored>, StoreError> {
        let path = self.path(key);
        let stored = match read(&path) {
            Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
                return Ok(None);
            }
            other => other?,
        };
        match stored.key == *key {
            true => Ok(Some(stored)),
            false => {
                Err(StoreError::Damaged { path, what: "it is about something else".to_owned() })
            }
        }
    }

    /// Keeps an entry in place of the one there: a temporary file in the folder, then a rename.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn save(&self, entry: &Stored) -> Result<PathBuf, StoreError> {
        let path = self.path(&entry.key);
        let io = |doing| {
            let path = path.clone();
            move |source| StoreError::Io { doing, path, source }
        };
        let sealed = Sealed { entry: entry.clone(), hash: seal(entry) };
        let mut bytes = serde_json::to_vec_pretty(&sealed).map_err(|e| io("write")(e.into()))?;
        bytes.push(b'\n');
        std::fs::create_dir_all(&self.folder).map_err(io("make the folder of"))?;
        let mut builder = tempfile::Builder::new();
        let mut file =
            builder.prefix(".schedule-").tempfile_in(&self.folder).map_err(io("write"))?;
        file.write_all(&bytes).map_err(io("write"))?;
        file.as_file().sync_all().map_err(io("write"))?;
        file.persist(&path).map_err(|e| io("write")(e.error))?;
        Ok(path)
    }

    /// Every file of the folder that is an entry or should be one, by name.
    pub fn list(&self) -> Vec<(PathBuf, Result<Stored, StoreError>)> {
        let Ok(folder) = std::fs::read_dir(&self.folder) else { return Vec::new() };
        let mut paths: Vec<PathBuf> = folder
            .filter_map(|e| e.ok().map(|e| e.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "json"))
            .collect();
        paths.sort();
        paths.into_iter().map(|p| (p.clone(), read(&p))).collect()
    }
}

fn read(path: &Path) -> Result<Stored, StoreError> {
    use std::io::Read;
    let io = |source| StoreError::Io { doing: "read", path: path.to_owned(), source };
    let damaged = |what: String| StoreError::Damaged { path: path.to_owned(), what };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(io)?;
    file.take(LONGEST + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > LONGEST {
        return Err(damaged(format!("it is longer than {LONGEST} bytes")));
    }
    let sealed: Sealed = serde_json::from_slice(&bytes).map_err(|e| damaged(e.to_string()))?;
    if sealed.entry.format != FORMAT {
        return Err(damaged(format!("it has form {}, not {FORMAT}", sealed.entry.format)));
    }
    match sealed.hash == seal(&sealed.entry) {
        true => Ok(sealed.entry),
        false => Err(damaged("its hash does not fit what it says".to_owned())),
    }
}

fn seal(entry: &Stored) -> String {
    // Texts, numbers and maps with text keys are always JSON.
    let text = serde_json::to_string(entry).unwrap_or_default();
    blake3::Hasher::new_derive_key("amk autoresearch stored schedule v1")
        .update(text.as_bytes())
        .finalize()
        .to_hex()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Stored {
        Stored {
            format: FORMAT,
            key: Key {
                shape: "s".into(),
                target: "h200".into(),
                sm: "sm_90a".into(),
                mode: "bf16".into(),
                bucket: (0, 255),
            },
            knobs: Point::default().with("rotation", 3),
            program: "p".into(),
            provenance: Provenance {
                model: "m".into(),
                amk: "0".into(),
                device: "d".into(),
                journal: "j".into(),
                entry: 7,
                head: "h".into(),
                position: 16,
                us: 600.25,
                original_us: 900.125,
                speedup: Interval { median: 1.5, low: 1.4, high: 1.6 },
                original: "naive".into(),
            },
        }
    }

    #[test]
    fn entries_come_back_and_only_for_their_key() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().join("schedules"));
        let e = entry();
        assert_eq!(store.load(&e.key).unwrap(), None);
        let path = store.save(&e).unwrap();
        assert_eq!(store.load(&e.key).unwrap(), Some(e.clone()));
        let other = Key { bucket: (256, 1023), ..e.key.clone() };
        assert_eq!(store.load(&other).unwrap(), None);
        // Moved to another key's place.
        std::fs::copy(&path, store.path(&other)).unwrap();
        let error = store.load(&other).unwrap_err().to_string();
        assert!(error.contains("something else"), "{error}");
        assert_eq!(store.list().len(), 2);
    }

    #[test]
    fn every_damage_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::at(folder.path().to_owned());
        let e = entry();
        let path = store.save(&e).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let edits = [
            text.replace("\"rotation\": 3", "\"rotation\": 4"),
            text.replace("900.125", "901.125"),
            text.replace("\"format\": 1", "\"format\": 2"),
            text.replace("\"knobs\"", "\"nobs\""),
            text[..text.len() / 2].to_owned(),
            String::new(),
        ];
        for edited in edits {
            assert_ne!(edited, text);
            std::fs::write(&path, &edited).unwrap();
            let error = store.load(&e.key).unwrap_err().to_string();
            assert!(
                error.contains("damaged or was edited") && error.contains("remove it"),
                "{error}"
            );
        }
    }
}
