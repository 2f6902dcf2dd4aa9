//! What is compared with a golden: anything that gives logits.

use crate::reference::{Reference, Want};

/// The failure of an executor.
pub type SourceError = Box<dyn std::error::Error + Send + Sync>;

/// An executor with the state of one sequence: the CPU reference, the schedule VM, a GPU engine.
pub trait LogitSource {
    /// Length of a logit vector.
    fn vocab_size(&self) -> usize;

    /// Forgets the sequence.
    fn reset(&mut self) -> Result<(), SourceError>;

    /// Feeds `token` at `position` (which follows the last one fed) and gives the logits of the next token.
    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError>;

    /// Feeds several tokens beginning at `position`; `each` gets every position's logits, in order. The default steps.
    fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), SourceError> {
        for (i, &token) in tokens.iter().enumerate() {
            let logits = self.step(token, position + i)?;
            each(position + i, &logits);
        }
        Ok(())
    }

    /// Feeds a prompt from position 0 and gives the logits of the token after it. The default steps.
    fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        let mut last = Vec::new();
        for (i, &token) in tokens.iter().enumerate() {
            last = self.step(token, i)?;
        }
        Ok(last)
    }
}

impl LogitSource for Reference {
    fn vocab_size(&self) -> usize {
        self.config().vocab_size
    }

    fn reset(&mut self) -> Result<(), SourceError> {
        Reference::reset(self);
        Ok(())
    }

    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        Ok(self.forward(token, position)?)
    }

    fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), SourceError> {
        Ok(self.run(tokens, position, Want::All, None, each)?)
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        Ok(Reference::prefill(self, tokens, 0, Want::Last)?.pop().unwrap_or_default())
    }
}

/// How much of a golden to compare; the default is all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// At most this many prompts.
    pub prompts: usize,
    /// At most this many generated tokens per prompt.
    pub tokens: usize,
    /// Whether to compare the free-running generation.
    pub free_running: bool,
    /// Whether to compare the teacher-forced pass.
    pub teacher_forced: bool,
    /// Whether to compare the perplexity.
    pub perplexity: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            prompts: usize::MAX,
            tokens: usize::MAX,
            free_running: true,
            teacher_forced: true,
            perplexity: true,
        }
    }
}
