//! The result of a comparison, in the JSON that `amk verify` prints.

use serde::Serialize;

/// All files compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Whether every file passed.
    pub ok: bool,
    /// One entry per golden file.
    pub files: Vec<FileReport>,
}

impl VerifyReport {
    /// Sums up.
    pub fn new(files: Vec<FileReport>) -> Self {
        Self { ok: !files.is_empty() && files.iter().all(|f| f.ok), files }
    }
}

/// One golden file in one arithmetic.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct FileReport {
    /// The checkpoint's name.
    pub name: String,
    /// `f32`, `bf16` or `f16`.
    pub compute: String,
    /// Whether the file passed.
    pub ok: bool,
    /// Prompts compared.
    pub prompts: usize,
    /// Positions compared.
    pub positions: usize,
    /// Positions that agree: the same token and, in float32, every logit within the tolerance.
    pub exact: usize,
    /// Positions with another token that the rule for reduced precision excuses; none in float32.
    pub excused: usize,
    /// Positions that disagree.
    pub mismatched: usize,
    /// Greatest logit difference seen.
    pub max_abs_logit_error: f64,
    /// The first position that disagrees.
    pub first_mismatch: Option<FirstMismatch>,
    /// Perplexity, where it was compared.
    pub perplexity: Option<Perplexity>,
    /// Reduced precision: root mean square logit difference from float32, over all positions.
    pub rms_logit_error: Option<f64>,
    /// Reduced precision: the greatest `rms_logit_error` allowed.
    pub rms_allowed: Option<f64>,
    /// Reduced precision: the most positions that may be not exact.
    pub not_exact_allowed: Option<usize>,
    /// Reduced precision: where free-running generation first leaves HuggingFace's float32 tokens, per prompt.
    pub free_running: Vec<FirstMismatch>,
    /// What failed, one sentence each; empty if the file passed.
    pub failures: Vec<String>,
}

/// Where and how a result differs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FirstMismatch {
    /// Label of the prompt.
    pub prompt: String,
    /// `free-running` or `teacher-forced`.
    pub pass: String,
    /// Index of the generated token (free running) or of the position (teacher forced).
    pub step: usize,
    /// What was compared.
    pub what: String,
    /// HuggingFace's token.
    pub expected_token: u32,
    /// Our token.
    pub actual_token: u32,
    /// HuggingFace's value.
    pub expected_logit: f64,
    /// Our value.
    pub actual_logit: f64,
    /// HuggingFace's distance between its best and second logit there, where the golden has it.
    pub margin: Option<f64>,
}

/// Perplexity against HuggingFace's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Perplexity {
    /// HuggingFace's.
    pub expected: f64,
    /// Ours.
    pub actual: f64,
    /// Tokens predicted.
    pub tokens: usize,
}
