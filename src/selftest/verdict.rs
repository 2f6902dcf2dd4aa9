//! Verdicts, and the folder they are kept in.

use std::io::Write;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::Findings;
use crate::image::ImageKey;
use crate::target::DeviceFacts;
use crate::toolchain::{CacheDirError, cache_root};

/// When to test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// Every time.
    Always,
    /// Where there is no verdict yet.
    #[default]
    Cached,
    /// Never.
    Skip,
}

/// What to do about one image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Test,
    /// The verdict that is there counts.
    Known,
    Untested,
}

/// What a policy does where a verdict is known or is not.
pub fn decide(policy: Policy, known: Option<&Verdict>) -> Decision {
    match (policy, known) {
        (Policy::Skip, _) => Decision::Untested,
        (Policy::Cached, Some(_)) => Decision::Known,
        _ => Decision::Test,
    }
}

/// Everything a verdict depends on, as one hash. The image's own key stands for source, architecture, compiler and
/// options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictKey(String);

impl VerdictKey {
    /// The key of an image on a device under a driver.
    pub fn new(image: &ImageKey, driver: i32, device: &DeviceFacts) -> VerdictKey {
        VerdictKey::of(&image.to_string(), driver, device)
    }

    /// Is that the key of a kept verdict?
    pub fn is(&self, text: &str) -> bool {
        self.0 == text
    }

    fn of(image: &str, driver: i32, device: &DeviceFacts) -> VerdictKey {
        let mut hasher = blake3::Hasher::new_derive_key("amk self-test verdict v1");
        let (major, minor) = device.capability;
        for part in [
            image,
            &driver.to_string(),
            &device.name,
            &format!("{major}.{minor}, {} SMs", device.sm_count),
        ] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        VerdictKey(hasher.finalize().to_hex().to_string())
    }
}

/// What was found about one image on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub key: String,
    pub device: String,
    /// CUDA version of the driver.
    pub driver: i32,
    #[serde(flatten)]
    pub findings: Findings,
    /// It was found by an earlier run.
    #[serde(default)]
    pub cached: bool,
}

impl Verdict {
    /// A fresh verdict.
    pub fn new(key: &VerdictKey, findings: Findings, device: &str, driver: i32) -> Verdict {
        Verdict { key: key.0.clone(), device: device.to_owned(), driver, findings, cached: false }
    }
}

/// A folder of verdicts.
#[derive(Clone, Debug)]
pub struct VerdictCache {
    folder: Option<PathBuf>,
}

impl VerdictCache {
    /// Below amk's cache root.
    ///
    /// # Errors
    /// The environment names no folder.
    pub fn from_env() -> Result<VerdictCache, CacheDirError> {
        Ok(VerdictCache { folder: Some(cache_root()?.join("selftest")) })
    }

    /// In a folder.
    pub fn at(folder: PathBuf) -> VerdictCache {
        VerdictCache { folder: Some(folder) }
    }

    /// Keeps nothing.
    pub fn disabled() -> VerdictCache {
        VerdictCache { folder: None }
    }

    /// The verdict under a key. A file that is damaged or belongs to another key counts as absent.
    pub fn load(&self, key: &VerdictKey) -> Option<Verdict> {
        let path = self.folder.as_ref()?.join(format!("{}.json", key.0));
        let bytes = std::fs::read(path).ok()?;
        serde_json::from_slice::<Verdict>(&bytes).ok().filter(|v| v.key == key.0)
    }

    /// Keeps a verdict: a temporary file in the folder, then a rename.
    ///
    /// # Errors
    /// The folder cannot be written.
    pub fn store(&self, key: &VerdictKey, verdict: &Verdict) -> std::io::Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        std::fs::create_dir_all(folder)?;
        let mut file = tempfile::Builder::new().prefix(".verdict-").tempfile_in(folder)?;
        file.write_all(&serde_json::to_vec_pretty(verdict)?)?;
        file.persist(folder.join(format!("{}.json", key.0))).map_err(|e| e.error)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            sm_count: 132,
            shared_per_block: 232_448,
            shared_per_sm: 233_472,
            reserved_shared: 1024,
            registers_per_sm: 65_536,
            threads_per_block: 1024,
            l2_bytes: 60 << 20,
            memory_clock_khz: 0,
            memory_bus_bits: 6144,
            memory_bytes: 1,
            cooperative: true,
        }
    }

    fn findings(ok: bool) -> Findings {
        let reason = (!ok).then(|| "wrong".to_owned());
        Findings { ok, positions: vec![96, 5], difference: 0.01, reason }
    }

    #[test]
    fn every_part_of_the_key_counts() {
        let key = |image: &str, driver, device: &DeviceFacts| VerdictKey::of(image, driver, device);
        let base = key("a", 13_000, &device());
        assert_eq!(base, key("a", 13_000, &device()));
        let others = [
            key("b", 13_000, &device()),
            key("a", 13_010, &device()),
            key("a", 13_000, &DeviceFacts { name: "NVIDIA H100".into(), ..device() }),
            key("a", 13_000, &DeviceFacts { sm_count: 114, ..device() }),
        ];
        assert!(others.iter().all(|k| *k != base));
    }

    #[test]
    fn verdicts_are_kept_and_damaged_ones_are_not_believed() {
        let folder = tempfile::tempdir().unwrap();
        let cache = VerdictCache::at(folder.path().join("selftest"));
        let key = VerdictKey::of("a", 13_000, &device());
        assert_eq!(cache.load(&key), None);
        let verdict = Verdict::new(&key, findings(false), "NVIDIA H200", 13_000);
        cache.store(&key, &verdict).unwrap();
        assert_eq!(cache.load(&key), Some(verdict.clone()));
        let path = folder.path().join("selftest").join(format!("{}.json", key.0));
        // Another key's verdict under this name.
        let other = Verdict { key: "other".into(), ..verdict };
        std::fs::write(&path, serde_json::to_vec(&other).unwrap()).unwrap();
        assert_eq!(cache.load(&key), None);
        std::fs::write(&path, b"{").unwrap();
        assert_eq!(cache.load(&key), None);
        VerdictCache::disabled().store(&key, &other).unwrap();
    }

    #[test]
    fn policies_decide() {
        let key = VerdictKey::of("a", 13_000, &device());
        let known = Verdict::new(&key, findings(true), "x", 1);
        assert_eq!(decide(Policy::Always, Some(&known)), Decision::Test);
        assert_eq!(decide(Policy::Cached, Some(&known)), Decision::Known);
        assert_eq!(decide(Policy::Cached, None), Decision::Test);
        assert_eq!(decide(Policy::Skip, None), Decision::Untested);
    }
}
