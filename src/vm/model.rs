//! A checkpoint decoded by executing its schedule.

use std::sync::Arc;

use amk_models::Checkpoint;
use amk_models::golden::{LogitSource, SourceError};
use amk_schedule_ir::{BufferId, Op};

use super::data::DataError;
use super::recipe::RecipeData;
use super::{Options, Outcome, Values, Vm, VmFault};
use crate::lowered::Lowered;

/// Why a model could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum VmError {
    /// The contents of a buffer could not be had.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The schedule computes no logits.
    #[error("the schedule has no LM head, so it gives no logits; lower the whole model")]
    NoLogits,
    /// Two schedules that should share their caches do not.
    #[error("the schedules do not share `{0}`; lower both with the same model and capacity")]
    NotShared(String),
    /// Faults of the schedule, the first in words.
    #[error("{}{}", .0.first().map_or(String::new(), |f| f.to_string()), more(.0))]
    Faults(Vec<VmFault>),
}

fn more(faults: &[VmFault]) -> String {
    match faults.len() {
        0 | 1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    }
}

impl From<VmFault> for VmError {
    fn from(fault: VmFault) -> VmError {
        VmError::Faults(vec![fault])
    }
}

impl From<Vec<VmFault>> for VmError {
    fn from(faults: Vec<VmFault>) -> VmError {
        VmError::Faults(faults)
    }
}

/// A model under one schedule, with the state of one sequence.
pub struct VmModel {
    vm: Vm,
    logits: BufferId,
    vocab: usize,
}

/// What generating gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generated {
    /// New tokens, an end-of-sequence token included.
    pub tokens: Vec<u32>,
    /// An end-of-sequence token ended it.
    pub stopped: bool,
}

impl VmModel {
    /// Fills the schedule's read-only buffers from the checkpoint it was lowered from.
    ///
    /// # Errors
    /// The checkpoint does not fit the schedule, or the schedule has no execution.
    pub fn new(
        lowered: &Lowered,
        checkpoint: &Checkpoint,
        options: Options,
    ) -> Result<VmModel, VmError> {
        let data = Arc::new(RecipeData::new(lowered, checkpoint)?);
        VmModel::with_data(Arc::new(lowered.program.clone()), data, options)
    }

    /// The same with contents that are already there, to be shared by many runs.
    ///
    /// # Errors
    /// The schedule has no execution, or no LM head.
    pub fn with_data(
        program: Arc<amk_schedule_ir::Program>,
        data: Arc<RecipeData>,
        options: Options,
    ) -> Result<VmModel, VmError> {
        let heads = program.instructions.iter().filter(|i| matches!(i.op, Op::NormLmHead(_)));
        let logits = heads.filter_map(|i| i.writes.first()).map(|w| w.buffer).next();
        let logits = logits.ok_or(VmError::NoLogits)?;
        let vocab = program.buffer(logits).and_then(|b| b.shape.first()).copied().unwrap_or(0);
        let options = Options { keep_outputs: true, ..options };
        let vm = Vm::new(program, Some(Box::new(data)), options)?;
        Ok(VmModel { vm, logits, vocab: vocab as usize })
    }

    /// The machine.
    pub fn vm(&mut self) -> &mut Vm {
        &mut self.vm
    }

    /// Logits of a step.
    fn logits(&self, outcome: &Outcome, step: usize) -> Vec<f32> {
        let outputs = outcome.steps.get(step).and_then(|s| s.outputs.as_ref());
        let logits = outputs.and_then(|o| o.iter().find(|(b, _)| *b == self.logits));
        match logits {
            Some((_, Values::Real(v))) => v.clone(),
            _ => Vec::new(),
        }
    }

    /// Puts tokens at the positions from `position` on and runs the launch that handles them:
    /// logits of the last position of each step. The number of tokens is a multiple of the positions
    /// per step.
    ///
    /// # Errors
    /// Faults of the schedule, or positions it does not cover.
    pub fn feed(&mut self, tokens: &[u32], position: u64) -> Result<Vec<Vec<f32>>, VmError> {
        let per_step = u64::from(self.vm.program().tokens);
        self.vm.put_tokens(position, tokens)?;
        let steps = tokens.len() as u64 / per_step;
        let mut logits = Vec::new();
        let (mut done, longest) = (0, self.vm.program().max_steps.max(1));
        while done < steps {
            let n = longest.min(steps - done);
            let outcome = self.vm.run(position + done * per_step, n)?;
            logits.extend((0..outcome.steps.len()).map(|s| self.logits(&outcome, s)));
            if outcome.steps.len() as u64 != n {
                break;
            }
            done += n;
        }
        Ok(logits)
    }

    /// Greedy continuation of a prompt, as launches of up to `launch` steps in which the boundary feeds
    /// each token back.
    ///
    /// # Errors
    /// Faults of the schedule, or positions it does not cover.
    pub fn generate(
        &mut self,
        prompt: &[u32],
        new: usize,
        launch: u64,
    ) -> Result<Generated, VmError> {
        self.vm.reset()?;
        self.vm.put_tokens(0, prompt)?;
        self.resume(0, prompt.len(), new, launch)
    }

    /// Continues after `prompt` tokens that are in place, the first `done` of them handled already.
    ///
    /// # Errors
    /// Faults of the schedule, or positions it does not cover.
    pub fn resume(
        &mut self,
        done: u64,
        prompt: usize,
        new: usize,
        launch: u64,
    ) -> Result<Generated, VmError> {
        let last = (prompt + new).saturating_sub(1) as u64;
        let most = launch.min(self.vm.program().max_steps).max(1);
        let (mut pos, mut tokens) = (done, Vec::new());
        while pos < last {
            let outcome = self.vm.run(pos, most.min(last - pos))?;
            let fresh = outcome.steps.iter().filter(|s| s.pos + 1 >= prompt as u64);
            tokens.extend(fresh.filter_map(|s| s.token));
            pos += outcome.steps.len() as u64;
            if outcome.stopped {
                return Ok(Generated { tokens, stopped: true });
            }
        }
        Ok(Generated { tokens, stopped: false })
    }

    /// Takes over caches and tokens of another schedule of the same model after `rows` positions.
    ///
    /// # Errors
    /// A cache of this schedule is not there, or has another shape.
    pub fn take_over(&mut self, other: &VmModel, rows: u64) -> Result<(), VmError> {
        self.vm.reset()?;
        self.vm.take_over(&other.vm, rows).map_err(VmError::NotShared)
    }
}

impl LogitSource for VmModel {
    fn vocab_size(&self) -> usize {
        self.vocab
    }

    fn reset(&mut self) -> Result<(), SourceError> {
        Ok(self.vm.reset()?)
    }

    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        let logits = self.feed(&[token], position as u64)?;
        logits.into_iter().next_back().ok_or_else(|| "the schedule gave no logits".into())
    }

    fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), SourceError> {
        for (i, logits) in self.feed(tokens, position as u64)?.iter().enumerate() {
            each(position + i, logits);
        }
        Ok(())
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        let logits = self.feed(tokens, 0)?;
        logits.into_iter().next_back().ok_or_else(|| "the prompt is empty".into())
    }
}
