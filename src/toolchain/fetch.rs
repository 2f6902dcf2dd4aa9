//! `amk toolchain fetch`: the NVRTC wheel, installed by name through pip into amk's cache.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use super::find::{Origin, wheel_libraries};
use super::nvrtc::{LoadError, Nvrtc};
use super::{CacheDirError, cache_root};

/// The NVRTC release that `amk toolchain fetch` installs unless told otherwise.
pub const NVRTC_VERSION: &str = "13.0.88";

/// What to fetch, and where to.
#[derive(Debug, Clone)]
pub struct FetchOptions {
    /// Release of the wheel, such as `13.0.88`.
    pub version: String,
    /// amk's cache root; the wheel lands in `toolchain/nvrtc-<version>` below it.
    pub cache: PathBuf,
    /// The Python interpreter whose pip is used.
    pub python: PathBuf,
    /// Fetch again although that release is there and works.
    pub force: bool,
}

impl FetchOptions {
    /// The pinned release, amk's own cache, and `AMK_PYTHON` or `python3`.
    ///
    /// # Errors
    /// [`CacheDirError`] when the environment names no cache folder.
    pub fn from_env() -> Result<Self, CacheDirError> {
        Ok(Self {
            version: NVRTC_VERSION.to_owned(),
            cache: cache_root()?,
            python: default_python(),
            force: false,
        })
    }
}

/// A step of a fetch, for a progress display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FetchEvent<'a> {
    /// pip is about to run.
    Started {
        /// The requirement handed to pip.
        requirement: &'a str,
        /// The folder it will be in.
        folder: &'a Path,
    },
    /// A line pip printed.
    Line(&'a str),
    /// Nothing new; sent a few times a second so that a spinner can turn.
    Tick {
        /// Time since the start.
        elapsed: Duration,
    },
    /// The library is being opened and tried.
    Checking,
}

/// A compiler that is now in the cache.
#[derive(Debug)]
pub struct Fetched {
    /// The library.
    pub library: PathBuf,
    /// Its release with patch level.
    pub release: String,
    /// It was there before; nothing was fetched.
    pub already_there: bool,
}

/// Why nothing was fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// A version that is no dotted number.
    #[error("\"{0}\" is no NVRTC release: write it like {NVRTC_VERSION}")]
    BadVersion(String),
    /// No interpreter.
    #[error(
        "cannot run {}: {source}; `amk toolchain fetch` needs Python 3 with pip (Debian: apt-get install python3-pip), or set AMK_PYTHON", .python.display()
    )]
    NoPython {
        /// The interpreter that was tried.
        python: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// The interpreter has no pip.
    #[error(
        "{python} has no pip; install it (Debian: apt-get install python3-pip; elsewhere: {python} -m ensurepip) or set AMK_PYTHON to an interpreter that has it",
        python = .0.display()
    )]
    NoPip(PathBuf),
    /// pip failed.
    #[error("pip could not install {requirement} ({status}): {tail}")]
    Pip {
        /// The requirement handed to pip.
        requirement: String,
        /// How pip ended.
        status: String,
        /// The end of what it printed.
        tail: String,
    },
    /// pip succeeded, and there is no library in what it installed.
    #[error(
        "{requirement} holds no libnvrtc; it may not be built for this platform ({}-{})",
        std::env::consts::OS,
        std::env::consts::ARCH
    )]
    NoLibrary {
        /// The requirement handed to pip.
        requirement: String,
    },
    /// The library does not work, or is another release than asked for.
    #[error("the fetched compiler does not work: {0}")]
    Unusable(#[source] LoadError),
    /// The library says that it is another release.
    #[error("asked for NVRTC {wanted}, and the library that came says it is {got}")]
    WrongRelease {
        /// What was asked for.
        wanted: String,
        /// What came.
        got: String,
    },
    /// The cache cannot be written.
    #[error("cannot write {}: {source}; set AMK_CACHE to a writable folder with 300 MB free", .path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
}

/// `AMK_PYTHON`, else `python3`.
pub(super) fn default_python() -> PathBuf {
    std::env::var_os("AMK_PYTHON")
        .filter(|v| !v.is_empty())
        .unwrap_or_else(|| "python3".into())
        .into()
}

/// The folder below the cache root that holds fetched compilers.
pub(super) fn toolchain_folder(cache: &Path) -> PathBuf {
    cache.join("toolchain")
}

/// Fetched releases and their folders, newest first. Whether they work is not checked.
pub fn installed_versions(cache: &Path) -> Vec<(String, PathBuf)> {
    let Ok(read) = std::fs::read_dir(toolchain_folder(cache)) else {
        return Vec::new();
    };
    let mut found: Vec<(Vec<u32>, String, PathBuf)> = read
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.strip_prefix("nvrtc-")?.to_owned();
            Some((parse_version(&version)?, version, path))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, v, p)| (v, p)).collect()
}

fn parse_version(text: &str) -> Option<Vec<u32>> {
    let parts: Option<Vec<u32>> = text
        .split('.')
        .map(|p| p.bytes().all(|b| b.is_ascii_digit()).then(|| p.parse().ok())?)
        .collect();
    parts.filter(|p| p.len() == 3)
}

/// The wheel's name changed with CUDA 13.
fn requirement(version: &str) -> Result<String, FetchError> {
    let parts = parse_version(version).ok_or_else(|| FetchError::BadVersion(version.to_owned()))?;
    Ok(match parts[0] {
        0..=12 => format!("nvidia-cuda-nvrtc-cu{}=={version}", parts[0]),
        _ => format!("nvidia-cuda-nvrtc=={version}"),
    })
}

/// What the interpreter and its pip say of themselves: (`Python 3.11.2`, `pip 23.0 ...`).
///
/// # Errors
/// [`FetchError::NoPython`] or [`FetchError::NoPip`].
pub fn probe_python(python: &Path) -> Result<(String, String), FetchError> {
    let run = |args: &[&str]| {
        let output = Command::new(python)
            .args(args)
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
            .stdin(Stdio::null())
            .output();
        output.map_err(|source| FetchError::NoPython { python: python.to_owned(), source })
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let version = run(&["--version"])?;
    if !version.status.success() {
        let reason = format!("it ended with {}: {}", version.status, text(&version.stderr));
        return Err(FetchError::NoPython {
            python: python.to_owned(),
            source: std::io::Error::other(reason),
        });
    }
    let pip = run(&["-m", "pip", "--version"])?;
    if !pip.status.success() {
        return Err(FetchError::NoPip(python.to_owned()));
    }
    Ok((text(&version.stdout), text(&pip.stdout)))
}

/// Installs the NVRTC wheel into the cache, tries it, and only then gives it its final name.
/// `progress` is called on this thread.
///
/// # Errors
/// [`FetchError`]; the cache is left as it was.
pub fn fetch(
    options: &FetchOptions,
    progress: &mut dyn FnMut(FetchEvent<'_>),
) -> Result<Fetched, FetchError> {
    let requirement = requirement(&options.version)?;
    let parent = toolchain_folder(&options.cache);
    let folder = parent.join(format!("nvrtc-{}", options.version));
    if !options.force
        && let Ok((library, release)) = try_library(&folder, &requirement, &options.version)
    {
        return Ok(Fetched { library, release, already_there: true });
    }
    probe_python(&options.python)?;
    let write = |path: &Path| {
        let path = path.to_owned();
        move |source| FetchError::Write { path, source }
    };
    std::fs::create_dir_all(&parent).map_err(write(&parent))?;
    let staging =
        tempfile::Builder::new().prefix(".fetch-").tempdir_in(&parent).map_err(write(&parent))?;
    progress(FetchEvent::Started { requirement: &requirement, folder: &folder });
    run_pip(&options.python, staging.path(), &requirement, progress)?;
    progress(FetchEvent::Checking);
    let (_, release) = try_library(staging.path(), &requirement, &options.version)?;

    // A folder cannot be replaced by rename: move what is there aside, then swap.
    let aside = parent.join(format!(".old-{}-{}", options.version, std::process::id()));
    let had_old = std::fs::rename(&folder, &aside).is_ok();
    let swapped = std::fs::rename(staging.path(), &folder);
    if had_old {
        if swapped.is_err() {
            // Put the old one back; the error below reports the swap itself.
            let _ = std::fs::rename(&aside, &folder);
        } else {
            // Only disk space is lost when this fails.
            let _ = std::fs::remove_dir_all(&aside);
        }
    }
    if let Err(source) = swapped {
        // Another process may have finished the same fetch first.
        if try_library(&folder, &requirement, &options.version).is_err() {
            return Err(write(&folder)(source));
        }
    }
    let library = wheel_libraries(&folder).into_iter().next();
    let library = library.ok_or(FetchError::NoLibrary { requirement })?;
    Ok(Fetched { library, release, already_there: false })
}

/// Opens the library of an installed wheel and compares its release with the one asked for.
fn try_library(
    root: &Path,
    requirement: &str,
    wanted: &str,
) -> Result<(PathBuf, String), FetchError> {
    let library = wheel_libraries(root).into_iter().next();
    let library =
        library.ok_or_else(|| FetchError::NoLibrary { requirement: requirement.to_owned() })?;
    let nvrtc = Nvrtc::load(&library, Origin::Fetched).map_err(FetchError::Unusable)?;
    let got = nvrtc.release().to_owned();
    if got != wanted {
        return Err(FetchError::WrongRelease { wanted: wanted.to_owned(), got });
    }
    Ok((library, got))
}

fn run_pip(
    python: &Path,
    target: &Path,
    requirement: &str,
    progress: &mut dyn FnMut(FetchEvent<'_>),
) -> Result<(), FetchError> {
    let arguments: [&OsStr; 9] = [
        "-m".as_ref(),
        "pip".as_ref(),
        "install".as_ref(),
        "--no-deps".as_ref(),
        "--no-compile".as_ref(),
        "--only-binary=:all:".as_ref(),
        "--target".as_ref(),
        target.as_os_str(),
        requirement.as_ref(),
    ];
    let mut child = Command::new(python)
        .args(arguments)
        .envs([
            ("PIP_DISABLE_PIP_VERSION_CHECK", "1"),
            ("PIP_NO_INPUT", "1"),
            ("PIP_ROOT_USER_ACTION", "ignore"),
            // Settings that contradict --target, or that guard environments it does not touch.
            ("PIP_USER", "0"),
            ("PIP_REQUIRE_VIRTUALENV", "0"),
            ("PYTHONUNBUFFERED", "1"),
        ])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| FetchError::NoPython { python: python.to_owned(), source })?;
    let start = Instant::now();
    let (sender, lines) = channel();
    if let Some(out) = child.stdout.take() {
        forward(out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(err, sender);
    }
    let mut printed: Vec<String> = Vec::new();
    loop {
        match lines.recv_timeout(Duration::from_millis(150)) {
            Ok(line) => {
                progress(FetchEvent::Line(&line));
                printed.push(line);
            }
            Err(RecvTimeoutError::Timeout) => {
                progress(FetchEvent::Tick { elapsed: start.elapsed() })
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child
        .wait()
        .map_err(|source| FetchError::NoPython { python: python.to_owned(), source })?;
    if status.success() {
        return Ok(());
    }
    let errors: Vec<&str> =
        printed.iter().map(String::as_str).filter(|l| l.contains("ERROR")).collect();
    let tail = match errors.is_empty() {
        true => printed[printed.len().saturating_sub(3)..].join(" / "),
        false => errors.join(" / "),
    };
    Err(FetchError::Pip { requirement: requirement.to_owned(), status: status.to_string(), tail })
}

/// Sends every non-empty line of a pipe, until it closes.
fn forward(pipe: impl Read + Send + 'static, sender: Sender<String>) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).split(b'\n') {
            let Ok(line) = line else { return };
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            if !line.is_empty() && sender.send(line).is_err() {
                return;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(cache: &Path, python: PathBuf) -> FetchOptions {
        FetchOptions { version: NVRTC_VERSION.into(), cache: cache.into(), python, force: false }
    }

    /// A stand-in interpreter made of shell.
    fn script(dir: &Path, body: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = dir.join("python");
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn leftovers(cache: &Path) -> usize {
        std::fs::read_dir(toolchain_folder(cache)).map_or(0, |r| r.count())
    }

    #[test]
    fn the_wheel_is_named_after_the_major() {
        assert_eq!(requirement("13.0.88").unwrap(), "nvidia-cuda-nvrtc==13.0.88");
        assert_eq!(requirement("12.9.86").unwrap(), "nvidia-cuda-nvrtc-cu12==12.9.86");
        for bad in ["", "13", "13.0", "13.0.x", "13.0.88 evil", "../13.0.8", "+1.0.8"] {
            assert!(matches!(requirement(bad), Err(FetchError::BadVersion(_))), "{bad}");
        }
    }

    #[test]
    fn a_missing_interpreter_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), dir.path().join("no-such-python"));
        let error = fetch(&options, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("no-such-python") && error.contains("python3-pip"), "{error}");
    }

    #[test]
    fn a_missing_pip_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let body =
            "case \"$*\" in *pip*) echo 'No module named pip' >&2; exit 1;; esac; echo Python 3";
        let options = options(dir.path(), script(dir.path(), body));
        let error = fetch(&options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, FetchError::NoPip(_)), "{error}");
        assert!(error.to_string().contains("ensurepip"), "{error}");
    }

    #[test]
    fn what_pip_says_when_it_fails_is_passed_on_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let body = "case \"$*\" in *install*) echo Collecting; echo 'ERROR: No matching distribution' >&2; exit 1;; esac; echo fine";
        let options = options(dir.path(), script(dir.path(), body));
        let mut lines = Vec::new();
        let error = fetch(&options, &mut |event| {
            if let FetchEvent::Line(line) = event {
                lines.push(line.to_owned());
            }
        })
        .unwrap_err();
        assert!(error.to_string().contains("No matching distribution"), "{error}");
        assert!(lines.contains(&"Collecting".to_owned()), "{lines:?}");
        assert_eq!(leftovers(dir.path()), 0);
    }

    #[test]
    fn a_wheel_without_a_library_is_refused_and_nothing_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path(), script(dir.path(), "echo fine"));
        let error = fetch(&options, &mut |_| {}).unwrap_err();
        assert!(matches!(error, FetchError::NoLibrary { .. }), "{error}");
        assert_eq!(leftovers(dir.path()), 0);
    }

    #[test]
    fn installed_releases_are_listed_newest_first() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["nvrtc-12.9.86", "nvrtc-13.0.88", ".fetch-x", "nvrtc-junk"] {
            std::fs::create_dir_all(toolchain_folder(dir.path()).join(name)).unwrap();
        }
        let versions: Vec<_> = installed_versions(dir.path()).into_iter().map(|(v, _)| v).collect();
        assert_eq!(versions, ["13.0.88", "12.9.86"]);
    }
}
