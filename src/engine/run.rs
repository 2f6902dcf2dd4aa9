//! The engine as an executor of launches, and as a giver of logits, so that goldens judge it with the same code as
//! the CPU reference.

use amk_models::golden::{LogitSource, SourceError};

use super::{Engine, EngineError, STEPS_CAP, watch};
use crate::decode::{Executor, LaunchOptions, LaunchPlan, ProgramFacts, feed};

impl Engine {
    /// Runs one launch to its end; see [`Executor::launch`].
    ///
    /// # Errors
    /// The driver refuses, a wait was given up, or logits were NaN.
    pub fn run(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, EngineError> {
        self.renew(plan, options)?;
        // Where keys will have to be made anew, the launch ends before.
        let rotary = self.rotary.as_ref().map(|r| &r.sequence);
        let steps = rotary.map_or(plan.steps, |s| s.steps(plan, options.pass_len()));
        self.fly(&LaunchPlan { steps, ..*plan }, options, each)
    }

    /// Runs one launch as it is planned.
    pub(super) fn fly(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, EngineError> {
        let allowed = self.patience * 3;
        watch::begin(
            &format!("a launch of {} steps from position {} on", plan.steps, plan.position),
            // A launch that makes progress may last.
            allowed + allowed.mul_f64(plan.steps as f64 / 1024.0),
        );
        let flight = self.submit(plan, options)?;
        let mut step = 0;
        let mut told = Vec::new();
        let done = self.finish(&flight, &mut |token| {
            step += 1;
            told.push((plan.position + step * plan.tokens, token));
            each(token)
        });
        for (at, token) in told {
            self.line.told(at, token);
        }
        let lost = matches!(&done, Err(EngineError::Device(e)) if flight.outlived(e));
        if !lost {
            watch::end();
        }
        if let (Ok(steps), Some(rotary)) = (&done, &mut self.rotary) {
            rotary.sequence.done(plan, options.pass_len(), *steps);
        }
        done
    }

    /// Logits after `token` at `position`.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn logits_after(&mut self, token: u32, position: u64) -> Result<Vec<f32>, EngineError> {
        self.logits_within(token, position, 0)
    }

    /// Logits after `token` at `position` of a sequence of `pass` positions fed in one pass.
    fn logits_within(
        &mut self,
        token: u32,
        position: u64,
        pass: u64,
    ) -> Result<Vec<f32>, EngineError> {
        self.line.put(position, &[token]);
        let program = self.index_for(position, 1)?;
        let plan = LaunchPlan { program, position, steps: 1, tokens: 1 };
        let options = LaunchOptions { logits: true, pass, ..LaunchOptions::default() };
        self.run(&plan, &options, &mut |_| true)?;
        self.logits()
    }

    /// Submits the same launch `batch` times without waiting between them and gives the microseconds of one step, from
    /// the end of a launch before them to the end of the last.
    ///
    /// # Errors
    /// As [`Engine::run`].
    pub fn time(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        batch: usize,
    ) -> Result<f64, EngineError> {
        let steps = plan.steps * batch as u64;
        let what =
            format!("{batch} launches of {} steps at position {}", plan.steps, plan.position);
        watch::begin(&what, self.patience * 3 + self.patience.mul_f64(steps as f64 / 1024.0));
        let mut flight = self.submit(plan, options)?;
        let start = self.device.record()?;
        for _ in 0..batch {
            flight = self.submit(plan, options)?;
        }
        let end = self.device.record()?;
        self.wait_for(&end)?;
        self.finish(&flight, &mut |_| true)?;
        watch::end();
        Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / steps.max(1) as f64)
    }

    /// Puts tokens at positions `at ..`.
    pub fn put(&mut self, at: u64, tokens: &[u32]) {
        self.line.put(at, tokens);
    }
}

impl Executor for Engine {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn programs(&self) -> Vec<ProgramFacts> {
        self.programs.iter().map(|l| l.facts).collect()
    }

    fn steps_cap(&self) -> u64 {
        STEPS_CAP
    }

    fn put_tokens(&mut self, at: u64, tokens: &[u32]) -> Result<(), SourceError> {
        self.line.put(at, tokens);
        Ok(())
    }

    fn launch(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, SourceError> {
        Ok(self.run(plan, options, each)?)
    }
}

impl LogitSource for Engine {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn reset(&mut self) -> Result<(), SourceError> {
        // Rows of the cache past the position are never read, so there is nothing to forget.
        Ok(())
    }

    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        Ok(self.logits_after(token, position as u64)?)
    }

    fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), SourceError> {
        let pass = (position + tokens.len()) as u64;
        for (at, &token) in (position..).zip(tokens) {
            each(at, &self.logits_within(token, at as u64, pass)?);
        }
        Ok(())
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        feed(self, tokens)?;
        Ok(self.logits()?)
    }
}
