//! The places an NVRTC library may be, tried in a fixed order.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::nvrtc::{LoadError, Nvrtc};

/// Where an NVRTC library was found. The order of the variants is the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Named by `--nvrtc` or `AMK_NVRTC`.
    Explicit,
    /// A CUDA toolkit: `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda*`.
    Toolkit,
    /// The dynamic loader's own search path.
    System,
    /// A wheel in the site-packages of `python3`.
    Wheel,
    /// Installed by `amk toolchain fetch`.
    Fetched,
}

impl Origin {
    const ALL: [Origin; 5] =
        [Origin::Explicit, Origin::Toolkit, Origin::System, Origin::Wheel, Origin::Fetched];
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Origin::Explicit => "named by --nvrtc or AMK_NVRTC",
            Origin::Toolkit => "CUDA toolkit",
            Origin::System => "system library",
            Origin::Wheel => "Python wheel",
            Origin::Fetched => "amk toolchain fetch",
        })
    }
}

/// What to search. [`FindOptions::from_env`] gives the documented order; tests build their own.
#[derive(Debug, Clone, Default)]
pub struct FindOptions {
    /// A library file, or a folder that holds one. When set, nothing else is tried.
    pub explicit: Option<PathBuf>,
    /// Roots of CUDA toolkits, best first.
    pub toolkits: Vec<PathBuf>,
    /// Whether to ask the dynamic loader for a library by name.
    pub system: bool,
    /// The Python interpreter whose site-packages are searched.
    pub python: Option<PathBuf>,
    /// amk's cache root, see [`super::cache_root`].
    pub cache: Option<PathBuf>,
}

impl FindOptions {
    /// The documented search. `flag` is the value of `--nvrtc`, which wins over `AMK_NVRTC`.
    pub fn from_env(flag: Option<PathBuf>) -> Self {
        let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let mut toolkits: Vec<PathBuf> =
            ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(var).collect();
        toolkits.extend(installed_toolkits(Path::new("/usr/local")));
        Self {
            explicit: flag.or_else(|| var("AMK_NVRTC")),
            toolkits,
            system: true,
            python: Some(super::fetch::default_python()),
            cache: super::cache_root().ok(),
        }
    }
}

/// A place that held an NVRTC library which could not be used.
#[derive(Debug)]
pub struct Skipped {
    /// The library.
    pub path: PathBuf,
    /// Where it was found.
    pub origin: Origin,
    /// Why it was passed over.
    pub reason: LoadError,
}

/// An open compiler, and what was passed over on the way to it.
#[derive(Debug)]
pub struct Found {
    /// The compiler.
    pub nvrtc: Nvrtc,
    /// Candidates that came earlier in the order and did not work.
    pub skipped: Vec<Skipped>,
}

/// No usable NVRTC.
#[derive(Debug, thiserror::Error)]
pub enum NotFound {
    /// The path given by `--nvrtc` or `AMK_NVRTC` holds no NVRTC library.
    #[error(
        "no NVRTC library at {}: --nvrtc (or AMK_NVRTC) must name libnvrtc.so.* or a folder that holds it", .path.display()
    )]
    NothingAtPath {
        /// The path as given.
        path: PathBuf,
    },
    /// The path given by `--nvrtc` or `AMK_NVRTC` holds a library that does not work.
    #[error("the NVRTC library named by --nvrtc or AMK_NVRTC cannot be used: {0}")]
    Unusable(#[source] LoadError),
    /// Nothing in any of the places.
    #[error(
        "no NVRTC (the CUDA runtime compiler) found in: {searched}{skipped}; run `amk toolchain fetch`, install a CUDA toolkit, or pass --nvrtc PATH"
    )]
    Nowhere {
        /// The places that were searched, in order.
        searched: String,
        /// The candidates that did not work, with reasons, or an empty text.
        skipped: String,
    },
}

/// Opens the first NVRTC that loads and answers, in the order of [`Origin`].
///
/// # Errors
/// [`NotFound`], which says what was searched and how to get a compiler.
pub fn find_nvrtc(options: &FindOptions) -> Result<Found, NotFound> {
    if let Some(path) = &options.explicit {
        let library =
            library_at(path).ok_or_else(|| NotFound::NothingAtPath { path: path.clone() })?;
        let nvrtc = Nvrtc::load(&library, Origin::Explicit).map_err(NotFound::Unusable)?;
        return Ok(Found { nvrtc, skipped: Vec::new() });
    }
    let mut skipped = Vec::new();
    let mut searched = Vec::new();
    for origin in Origin::ALL {
        for path in candidates(origin, options, &mut searched) {
            match Nvrtc::load(&path, origin) {
                Ok(nvrtc) => return Ok(Found { nvrtc, skipped }),
                // The dynamic loader has no such name: not a candidate at all.
                Err(LoadError::Open { .. }) if origin == Origin::System => {}
                Err(reason) => skipped.push(Skipped { path, origin, reason }),
            }
        }
    }
    let skipped = skipped
        .iter()
        .map(|s| format!("; passed over {} ({}): {}", s.path.display(), s.origin, s.reason))
        .collect();
    Err(NotFound::Nowhere { searched: searched.join(", "), skipped })
}

/// The libraries one origin offers, best first; says in `searched` what was looked at.
fn candidates(origin: Origin, options: &FindOptions, searched: &mut Vec<String>) -> Vec<PathBuf> {
    match origin {
        Origin::Explicit => Vec::new(),
        Origin::Toolkit => {
            if options.toolkits.is_empty() {
                searched.push("CUDA toolkits (none installed, CUDA_HOME not set)".into());
            }
            searched.extend(options.toolkits.iter().map(|r| r.display().to_string()));
            let roots = options.toolkits.iter();
            roots.filter_map(|root| library_at(root)).collect()
        }
        Origin::System if options.system => {
            searched.push("the system's library path".into());
            let names = cudarc::get_lib_name_candidates("nvrtc").into_iter();
            names.map(PathBuf::from).collect()
        }
        Origin::System => Vec::new(),
        Origin::Wheel => {
            let Some(python) = &options.python else {
                return Vec::new();
            };
            searched.push(format!("the site-packages of {}", python.display()));
            let sites = site_packages(python).into_iter();
            sites.flat_map(|site| wheel_libraries(&site)).collect()
        }
        Origin::Fetched => {
            let Some(cache) = &options.cache else {
                return Vec::new();
            };
            let folder = super::fetch::toolchain_folder(cache);
            searched.push(folder.display().to_string());
            let installed = super::fetch::installed_versions(cache).into_iter();
            installed.flat_map(|(_, root)| wheel_libraries(&root)).collect()
        }
    }
}

/// `root/cuda`, then `root/cuda-*` with the newest first.
fn installed_toolkits(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = entries(root)
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let version = match name.strip_prefix("cuda")? {
                "" => vec![u32::MAX],
                rest => numbers(rest.strip_prefix('-')?)?,
            };
            Some((version, path))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// The NVRTC libraries of a site-packages folder (or a pip `--target` folder), newest first.
pub(super) fn wheel_libraries(site: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<(u32, PathBuf)> = entries(&site.join("nvidia"))
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let major = match name {
                // CUDA 12 and older put each library into a folder of its own.
                "cuda_nvrtc" => 0,
                _ => name.strip_prefix("cu")?.parse().ok()?,
            };
            Some((major, path.join("lib")))
        })
        .collect();
    folders.sort_by(|a, b| b.cmp(a));
    folders.iter().filter_map(|(_, folder)| newest_library(folder)).collect()
}

/// The library a path means: itself when it is a file, else the newest one in the usual places
/// below the folder.
fn library_at(path: &Path) -> Option<PathBuf> {
    if path.is_file() {
        return Some(path.to_owned());
    }
    let below = ["", "lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"];
    let folders = below.iter().map(|sub| path.join(sub));
    let direct = folders.filter_map(|f| newest_library(&f)).next();
    direct.or_else(|| wheel_libraries(path).into_iter().next())
}

/// The `libnvrtc.so*` of a folder with the highest version; a bare `libnvrtc.so` comes last.
fn newest_library(folder: &Path) -> Option<PathBuf> {
    entries(folder)
        .into_iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let version = match name.strip_prefix("libnvrtc.so")? {
                "" => Vec::new(),
                rest => numbers(rest.strip_prefix('.')?)?,
            };
            Some((version, path))
        })
        .max()
        .map(|(_, path)| path)
}

fn numbers(dotted: &str) -> Option<Vec<u32>> {
    dotted.split('.').map(|part| part.parse().ok()).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(read) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    read.filter_map(|e| e.ok().map(|e| e.path())).collect()
}

/// The site-packages folders of an interpreter, in its own order; empty when it does not run.
fn site_packages(python: &Path) -> Vec<PathBuf> {
    const SCRIPT: &str = "\
import sys
for p in sys.path:
    if p.endswith(('site-packages', 'dist-packages')):
        print(p)
";
    let output = Command::new(python)
        .args(["-c", SCRIPT])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    match output {
        Ok(out) if out.status.success() => {
            String::from_utf8_lossy(&out.stdout).lines().map(PathBuf::from).collect()
        }
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(path: &Path) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, b"").unwrap();
    }

    #[test]
    fn the_newest_library_of_a_folder_wins_and_variants_do_not_count() {
        let dir = tempfile::tempdir().unwrap();
        for name in [
            "libnvrtc.so",
            "libnvrtc.so.9.2",
            "libnvrtc.so.12",
            "libnvrtc.alt.so.13",
            "libnvrtc-builtins.so.13.0",
        ] {
            touch(&dir.path().join(name));
        }
        let newest = newest_library(dir.path()).unwrap();
        assert_eq!(newest.file_name().unwrap(), "libnvrtc.so.12");
    }

    #[test]
    fn toolkits_are_ordered_newest_first_after_the_unversioned_link() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["cuda-12.9", "cuda", "cuda-13.0", "cuda-9.2", "cudart", "bin"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        let names: Vec<_> = installed_toolkits(dir.path())
            .iter()
            .map(|p| p.file_name().unwrap().to_str().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["cuda", "cuda-13.0", "cuda-12.9", "cuda-9.2"]);
    }

    #[test]
    fn wheels_are_ordered_by_cuda_major() {
        let dir = tempfile::tempdir().unwrap();
        touch(&dir.path().join("nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
        touch(&dir.path().join("nvidia/cu13/lib/libnvrtc.so.13"));
        touch(&dir.path().join("nvidia/cudnn/lib/libcudnn.so.9"));
        let found = wheel_libraries(dir.path());
        assert_eq!(found.len(), 2);
        assert!(found[0].ends_with("nvidia/cu13/lib/libnvrtc.so.13"));
        assert_eq!(library_at(dir.path()).as_ref(), Some(&found[0]));
    }

    #[test]
    fn a_folder_with_no_library_is_named_in_the_error() {
        let dir = tempfile::tempdir().unwrap();
        let options =
            FindOptions { explicit: Some(dir.path().to_owned()), ..FindOptions::default() };
        let error = find_nvrtc(&options).unwrap_err().to_string();
        assert!(error.contains(&*dir.path().to_string_lossy()), "{error}");
        assert!(error.contains("--nvrtc"), "{error}");
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_when_named_and_passed_over_when_not() {
        let dir = tempfile::tempdir().unwrap();
        touch(&dir.path().join("lib64/libnvrtc.so.13"));
        let named = FindOptions { explicit: Some(dir.path().to_owned()), ..FindOptions::default() };
        assert!(matches!(find_nvrtc(&named), Err(NotFound::Unusable(_))));
        let searched = FindOptions {
            toolkits: vec![dir.path().to_owned()],
            cache: Some(dir.path().join("cache")),
            ..FindOptions::default()
        };
        let error = find_nvrtc(&searched).unwrap_err().to_string();
        assert!(error.contains("passed over"), "{error}");
        assert!(error.contains("amk toolchain fetch"), "{error}");
    }
}
