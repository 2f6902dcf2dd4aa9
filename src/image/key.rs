//! The cache key: everything that can change the bytes of an image.

use std::fmt;

use crate::target::Arch;
use crate::toolchain::{CompileError, full_options};

/// What goes into a key.
#[derive(Debug, Clone)]
pub struct KeyInputs<'a> {
    /// The rendered CUDA source.
    pub source: &'a str,
    /// The architecture.
    pub arch: Arch,
    /// `Nvrtc::identity`: release and build of the compiler.
    pub compiler: &'a str,
    /// Further compiler options.
    pub options: &'a [String],
}

/// A BLAKE3 hash over [`KeyInputs`] and amk's own version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageKey([u8; 32]);

impl ImageKey {
    /// Derives the key. Each part is preceded by its length, so that no two lists of parts share a
    /// hash by running into each other.
    ///
    /// # Errors
    /// [`CompileError::ForbiddenOption`] for options that no image may be made with.
    pub fn new(inputs: &KeyInputs<'_>) -> Result<Self, CompileError> {
        Self::for_version(inputs, env!("CARGO_PKG_VERSION"))
    }

    fn for_version(inputs: &KeyInputs<'_>, version: &str) -> Result<Self, CompileError> {
        let options = full_options(inputs.arch, inputs.options)?;
        let arch = inputs.arch.to_string();
        let mut hasher = blake3::Hasher::new_derive_key("amk image cache v1");
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for text in [version, inputs.compiler, &arch, inputs.source] {
            part(text);
        }
        for option in &options {
            part(option);
        }
        Ok(Self(*hasher.finalize().as_bytes()))
    }

    /// The raw hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_input_changes_the_key() {
        let none: [String; 0] = [];
        let one = ["--maxrregcount=64".to_owned()];
        let base = KeyInputs {
            source: "a",
            arch: "sm_90a".parse().unwrap(),
            compiler: "nvrtc 13.0.88 CL-1",
            options: &none,
        };
        let key = |inputs: KeyInputs<'_>| ImageKey::new(&inputs).unwrap().to_string();
        let keys = [
            key(base.clone()),
            key(KeyInputs { source: "b", ..base.clone() }),
            key(KeyInputs { arch: "sm_90".parse().unwrap(), ..base.clone() }),
            key(KeyInputs { compiler: "nvrtc 13.0.88 CL-2", ..base.clone() }),
            key(KeyInputs { options: &one, ..base.clone() }),
            ImageKey::for_version(&base, "0.0.0").unwrap().to_string(),
        ];
        let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len());
        assert_eq!(keys[0], key(base));
        assert_eq!(keys[0].len(), 64);
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        let none: [String; 0] = [];
        let with = |compiler: &str, source: &str| {
            let inputs =
                KeyInputs { source, arch: "sm_80".parse().unwrap(), compiler, options: &none };
            ImageKey::new(&inputs).unwrap()
        };
        assert_ne!(with("ab", "c"), with("a", "bc"));
    }
}
