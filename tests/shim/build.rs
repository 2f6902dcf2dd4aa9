//! The C++ compiler, and runs of what it made.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use amk::codegen::HOST_FILES;

use crate::support::folder;

/// How the host program is compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Build {
    /// With checks of alignment and of undefined shifts and conversions.
    Plain,
    /// With ThreadSanitizer.
    Watched,
}

/// A compiled host program.
pub struct Host {
    program: PathBuf,
    folder: PathBuf,
}

/// What one run gave.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    /// Tokens by launch.
    pub tokens: Vec<Vec<u32>>,
    pub stdout: String,
    pub stderr: String,
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
    output
}

fn compiler(folder: &Path) -> Command {
    let name = std::env::var("CXX").unwrap_or_else(|_| "g++".to_owned());
    let mut c = Command::new(name);
    c.current_dir(folder).args(["-std=c++20", "-g1", "-Wall", "-Wno-unknown-pragmas"]);
    c
}

/// The scheduler, which is the same for every case, compiled once.
fn runtime() -> &'static Path {
    static OBJECT: OnceLock<PathBuf> = OnceLock::new();
    OBJECT.get_or_init(|| {
        let folder = folder("runtime");
        sources(&folder);
        done(compiler(&folder).args(["-O2", "-c", "runtime.cpp", "-o", "runtime.o"]));
        folder.join("runtime.o")
    })
}

fn sources(folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    for (name, text) in HOST_FILES {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

/// Compiles a kernel's text with a `main` of its own behind it, runs it, and gives what it says; it must end well.
pub fn run_alone(text: &str, folder: &Path) -> String {
    sources(folder);
    std::fs::write(folder.join("alone.cpp"), text).unwrap();
    let flags = ["-O1", "-fsanitize=alignment,shift,bounds", "-fno-sanitize-recover"];
    done(
        compiler(folder)
            .args(flags)
            .args(["-Wno-unused-function", "alone.cpp"])
            .arg(runtime())
            .args(["-o", "alone"]),
    );
    let output = done(&mut Command::new(folder.join("alone")));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Host {
    /// Compiles a rendering into `folder`, where a case has been or will be written.
    pub fn new(text: &str, folder: &Path, build: Build) -> Host {
        sources(folder);
        std::fs::write(folder.join("kernel.cpp"), text).unwrap();
        let flags: &[&str] = match build {
            Build::Plain => &["-O1", "-fsanitize=alignment,shift,bounds", "-fno-sanitize-recover"],
            Build::Watched => &["-O1", "-fsanitize=thread"],
        };
        done(compiler(folder).args(flags).args(["-c", "main.cpp", "-o", "main.o"]));
        let link = ["main.o", "-o", "host"];
        done(compiler(folder).args(flags).arg(runtime()).args(link));
        Host { program: folder.join("host"), folder: folder.to_owned() }
    }

    /// The folder of the case.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Runs the case in the folder. `mutant` 0 is the text as it is.
    pub fn run(&self, seed: u64, mutant: u32) -> Run {
        self.run_with(seed, mutant, "exitcode=66 halt_on_error=1")
    }

    /// The same with other options of the sanitizer.
    pub fn run_with(&self, seed: u64, mutant: u32, options: &str) -> Run {
        let output = Command::new(&self.program)
            .arg(&self.folder)
            .args([seed.to_string(), mutant.to_string()])
            .env("TSAN_OPTIONS", options)
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
        let tokens = stdout
            .lines()
            .filter_map(|line| line.strip_prefix("tokens"))
            .map(|line| line.split_whitespace().map(|t| t.parse().unwrap()).collect())
            .collect();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        Run { code: output.status.code(), tokens, stdout, stderr }
    }

    /// Output of the last step of launch `n`.
    pub fn logits(&self, n: usize) -> Vec<f32> {
        let bytes = std::fs::read(self.folder.join(format!("output.{n}.bin"))).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }
}
