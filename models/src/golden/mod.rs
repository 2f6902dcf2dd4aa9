//! Outputs of HuggingFace transformers, and the comparison of any executor with them.
//!
//! `mod.rs` reads golden files (greedy outputs) and hidden-state files; `source.rs` has the trait an executor
//! implements to be compared; `exact.rs` compares in float32, token for token; `reduced.rs` is the rule for reduced
//! precision, fixed beforehand; `hidden.rs` compares layer by layer; `report.rs` is the result.

mod exact;
mod hidden;
mod reduced;
mod report;
mod source;

pub use exact::{TOLERANCE, verify_f32};
pub use hidden::{HIDDEN_TOLERANCE, HiddenGolden, HiddenReport, verify_hidden};
pub use reduced::{FileJudge, Judgement, ReducedRule, verify_reduced};
pub use report::{FileReport, FirstMismatch, Perplexity, VerifyReport};
pub use source::{Limits, LogitSource, SourceError};

use crate::files::{FileError, Files, read_limited};
use crate::limits;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// Why a golden file could not be used, or a comparison not be finished.
#[derive(Debug, thiserror::Error)]
pub enum GoldenError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// Not a golden file.
    #[error("{file} is not a golden file: {detail}")]
    Unreadable {
        /// File name.
        file: String,
        /// What is wrong.
        detail: String,
    },
    /// A format version that is not known.
    #[error("{file} has format version {found}; this program reads version 1")]
    Version {
        /// File name.
        file: String,
        /// The version in the file.
        found: String,
    },
    /// The golden is of other files than the checkpoint's.
    #[error(
        "{file} of the checkpoint is not the file the golden {golden} was made from (sha256 {found} instead of {expected}); use the golden of this very checkpoint"
    )]
    OtherCheckpoint {
        /// The golden's name.
        golden: String,
        /// The file that differs.
        file: String,
        /// Hash in the golden.
        expected: String,
        /// Hash of the file, or "none" where it is absent.
        found: String,
    },
    /// The golden has no run of this type.
    #[error("the golden {golden} has no {compute} run; it has {there}")]
    NoRun {
        /// The golden's name.
        golden: String,
        /// The run asked for.
        compute: String,
        /// The runs there are.
        there: String,
    },
    /// The executor failed.
    #[error("prompt {prompt}: {source}")]
    Source {
        /// Label of the prompt.
        prompt: String,
        /// What happened.
        source: SourceError,
    },
}

/// A golden file: greedy outputs of HuggingFace transformers for one checkpoint.
#[derive(Debug, Clone, Deserialize)]
pub struct Golden {
    /// The checkpoint's name.
    pub checkpoint: String,
    /// Tokens generated per prompt.
    pub n_new: usize,
    /// SHA-256 of the checkpoint's files, by name.
    pub files_sha256: BTreeMap<String, String>,
    /// Versions of what made the file.
    #[serde(default)]
    pub versions: BTreeMap<String, serde_json::Value>,
    /// One run per arithmetic: `f32`, `bf16`, `f16`.
    pub runs: BTreeMap<String, Run>,
}

/// All prompts in one arithmetic.
#[derive(Debug, Clone, Deserialize)]
pub struct Run {
    /// The prompts.
    pub prompts: Vec<Prompt>,
    /// Perplexity of a fixed text.
    pub perplexity: GoldenPerplexity,
}

/// One prompt and what came of it.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    /// Label.
    pub label: String,
    /// Text, where the prompt is a text.
    #[serde(default)]
    pub text: Option<String>,
    /// Ids of the prompt.
    pub prompt_ids: Vec<u32>,
    /// Greedy continuation, EOS not obeyed.
    pub generated_ids: Vec<u32>,
    /// Index of the first EOS generated.
    #[serde(default)]
    pub eos_at: Option<usize>,
    /// The two best ids of each step.
    pub top2_ids: Vec<[u32; 2]>,
    /// Their logits.
    pub top2_logits: Vec<[f32; 2]>,
    /// Difference of the two best logits of each step.
    pub margin: Vec<f32>,
    /// All logits of the last step, for small vocabularies.
    #[serde(default)]
    pub final_logits: Option<Vec<f32>>,
    /// The best logits of the last step.
    pub final_logits_top32: TopLogits,
    /// One uncached pass over prompt and continuation.
    pub teacher_forced: TeacherForced,
    /// In half-precision runs: HuggingFace's own logits along the tokens of the f32 run.
    #[serde(default)]
    pub along_f32_path: Option<AlongF32Path>,
}

/// The best logits of a position.
#[derive(Debug, Clone, Deserialize)]
pub struct TopLogits {
    /// Ids, best first.
    pub ids: Vec<u32>,
    /// Logits.
    pub logits: Vec<f32>,
}

/// Values per position of an uncached pass.
#[derive(Debug, Clone, Deserialize)]
pub struct TeacherForced {
    /// Best id.
    pub argmax: Vec<u32>,
    /// Its logit.
    pub max_logit: Vec<f32>,
    /// Logarithm of the sum of the exponentials of all logits.
    pub logsumexp: Vec<f64>,
    /// Negative log probability of the token that follows.
    pub nll_of_next: Vec<f64>,
}

/// How far HuggingFace's half precision strays from its own float32 along the same tokens.
#[derive(Debug, Clone, Deserialize)]
pub struct AlongF32Path {
    /// Positions compared.
    pub steps: usize,
    /// Steps at which its best token is another.
    pub argmax_differs_at: Vec<usize>,
    /// Root mean square logit difference.
    pub rms_dlogit: f64,
    /// Greatest logit difference.
    pub max_abs_dlogit: f64,
}

/// Perplexity of a fixed text.
#[derive(Debug, Clone, Deserialize)]
pub struct GoldenPerplexity {
    /// Label.
    pub label: String,
    /// Ids of the text.
    pub ids: Vec<u32>,
    /// Sum of the negative log probabilities of `ids[1..]`.
    pub nll_sum: f64,
    /// Terms of that sum.
    pub n_predicted: usize,
    /// `exp(nll_sum / n_predicted)`.
    pub perplexity: f64,
}

/// The golden of the embedded model.
pub fn embedded() -> Result<Golden, GoldenError> {
    Golden::from_slice("the embedded golden", crate::embedded::GOLDEN)
}

impl Golden {
    /// Reads a golden file.
    pub fn read(path: &Path) -> Result<Self, GoldenError> {
        let name = path
            .file_name()
            .map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        Self::from_slice(&name, &read_limited(path, limits::MAX_GOLDEN_BYTES)?)
    }

    /// Reads the contents of a golden file. `file` is the name used in messages.
    pub fn from_slice(file: &str, bytes: &[u8]) -> Result<Self, GoldenError> {
        let golden: Golden = versioned(file, bytes)?;
        for run in golden.runs.values() {
            for p in &run.prompts {
                p.check().map_err(|what| GoldenError::Unreadable {
                    file: file.to_string(),
                    detail: format!("prompt {}: {what}", p.label),
                })?;
            }
            let p = &run.perplexity;
            if p.ids.len() != p.n_predicted + 1 || p.n_predicted == 0 {
                return Err(GoldenError::Unreadable {
                    file: file.to_string(),
                    detail: format!(
                        "perplexity {}: {} ids for {} predictions",
                        p.label,
                        p.ids.len(),
                        p.n_predicted
                    ),
                });
            }
        }
        Ok(golden)
    }

    /// Checks that the golden was made from these very files. Files of the checkpoint the golden does not speak of are
    /// not looked at.
    pub fn check_files(&self, files: &Files) -> Result<(), GoldenError> {
        for (file, expected) in &self.files_sha256 {
            let found = if files.has(file) { files.sha256(file)? } else { "none".to_string() };
            if &found != expected {
                return Err(GoldenError::OtherCheckpoint {
                    golden: self.checkpoint.clone(),
                    file: file.clone(),
                    expected: expected.clone(),
                    found,
                });
            }
        }
        Ok(())
    }

    /// The run of an arithmetic.
    pub fn run(&self, compute: &str) -> Result<&Run, GoldenError> {
        self.runs.get(compute).ok_or_else(|| GoldenError::NoRun {
            golden: self.checkpoint.clone(),
            compute: compute.to_string(),
            there: self.runs.keys().cloned().collect::<Vec<_>>().join(", "),
        })
    }
}

impl Prompt {
    /// The tokens of the teacher-forced pass: the prompt and all but the last generated token.
    pub fn forced(&self) -> Vec<u32> {
        let all = self.prompt_ids.len() + self.generated_ids.len();
        self.prompt_ids
            .iter()
            .chain(&self.generated_ids)
            .copied()
            .take(all.saturating_sub(1))
            .collect()
    }

    /// Checks that the lists fit together.
    fn check(&self) -> Result<(), String> {
        let (p, n) = (self.prompt_ids.len(), self.generated_ids.len());
        if p == 0 || n == 0 {
            return Err("it has no prompt or no generated tokens".to_string());
        }
        let forced = p + n - 1;
        let t = &self.teacher_forced;
        let lengths = [
            ("top2_ids", self.top2_ids.len(), n),
            ("top2_logits", self.top2_logits.len(), n),
            ("margin", self.margin.len(), n),
            (
                "final_logits_top32.logits",
                self.final_logits_top32.logits.len(),
                self.final_logits_top32.ids.len(),
            ),
            ("teacher_forced.argmax", t.argmax.len(), forced),
            ("teacher_forced.max_logit", t.max_logit.len(), forced),
            ("teacher_forced.logsumexp", t.logsumexp.len(), forced),
            ("teacher_forced.nll_of_next", t.nll_of_next.len(), forced),
        ];
        match lengths.iter().find(|(_, found, expected)| found != expected) {
            Some((name, found, expected)) => {
                Err(format!("{name} has {found} entries instead of {expected}"))
            }
            None => Ok(()),
        }
    }
}

/// Reads a JSON document of format version 1.
fn versioned<T: for<'de> Deserialize<'de>>(file: &str, bytes: &[u8]) -> Result<T, GoldenError> {
    #[derive(Deserialize)]
    struct Version {
        schema: Option<serde_json::Value>,
    }
    let unreadable = |e: serde_json::Error| GoldenError::Unreadable {
        file: file.to_string(),
        detail: e.to_string(),
    };
    let version: Version = serde_json::from_slice(bytes).map_err(unreadable)?;
    match version.schema {
        Some(v) if v == 1 => serde_json::from_slice(bytes).map_err(unreadable),
        Some(v) => Err(GoldenError::Version { file: file.to_string(), found: v.to_string() }),
        None => Err(GoldenError::Unreadable {
            file: file.to_string(),
            detail: "it has no \"schema\"".to_string(),
        }),
    }
}
