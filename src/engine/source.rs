//! The engine as a giver of logits, so that goldens judge it with the same code as the CPU reference.

use amk_models::golden::{LogitSource, SourceError};

use super::{Engine, EngineError, RunOptions};

impl LogitSource for Engine {
    fn vocab_size(&self) -> usize {
        Engine::vocab_size(self)
    }

    fn reset(&mut self) -> Result<(), SourceError> {
        // Rows of the cache past the position are never read, so there is nothing to forget.
        Ok(())
    }

    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        let mut go = || -> Result<Vec<f32>, EngineError> {
            self.set_tokens(position as u64, &[token])?;
            let options = RunOptions { logits: true, ..RunOptions::default() };
            self.submit(position as u64, 1, &options)?;
            self.finish()?;
            self.logits()
        };
        go().map_err(|e| SourceError::from(e.to_string()))
    }
}
