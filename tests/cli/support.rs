//! Runs the binary and reads what it said.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use serde_json::Value;

/// The binary, with an environment in which neither colours nor the user's logging interfere.
pub fn amk() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_amk"));
    command.env_remove("AMK_LOG").env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// What a run said and how it ended.
pub struct Run {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Run {
    fn of(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
        Self {
            code: output.status.code().expect("ended by itself, not by a signal"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Asserts the exit code.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "\nstdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    /// Asserts that standard error says all of this, in any case and whatever the line breaks.
    #[track_caller]
    pub fn says(self, parts: &[&str]) -> Self {
        let flat = self.err.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
        for part in parts {
            assert!(flat.contains(&part.to_lowercase()), "no {part:?} in\n{}", self.err);
        }
        assert!(!flat.contains("panicked"), "{}", self.err);
        self
    }

    /// The one document on standard output.
    #[track_caller]
    pub fn json(&self) -> Value {
        let mut documents = self.documents();
        assert_eq!(documents.len(), 1, "{}", self.out);
        documents.remove(0)
    }

    /// The documents on standard output, one a line.
    #[track_caller]
    pub fn documents(&self) -> Vec<Value> {
        let parse =
            |line: &str| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
        self.out.lines().map(parse).collect()
    }
}

/// Runs a prepared command.
pub fn finish(command: &mut Command) -> Run {
    Run::of(command.output().expect("the binary starts"))
}

/// Runs `amk` with these arguments.
pub fn run<A: AsRef<OsStr>>(args: &[A]) -> Run {
    finish(amk().args(args))
}

/// A prompt of a golden file, float32 run.
pub struct GoldenPrompt {
    pub text: String,
    pub ids: Vec<u32>,
    pub generated: Value,
}

/// Reads the `index`-th prompt of a golden.
pub fn golden_prompt(path: &str, index: usize) -> GoldenPrompt {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let golden: Value = serde_json::from_slice(&bytes).expect("the golden is JSON");
    let prompt = &golden["runs"]["f32"]["prompts"][index];
    GoldenPrompt {
        text: prompt["text"].as_str().unwrap_or_default().to_owned(),
        ids: serde_json::from_value(prompt["prompt_ids"].clone()).expect("prompt ids"),
        generated: prompt["generated_ids"].clone(),
    }
}

/// The NVRTC library, fetched through pip the first time; tests that need images call this first.
pub fn nvrtc() -> PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY
        .get_or_init(|| {
            let status = run(&["toolchain", "status", "--json"]);
            if status.code != 0 {
                run(&["toolchain", "fetch"]).exits(0);
            }
            let status = run(&["toolchain", "status", "--json"]).exits(0).json();
            PathBuf::from(status["nvrtc"]["path"].as_str().expect("a path"))
        })
        .clone()
}
