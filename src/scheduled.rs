//! A model decoded by executing its validated schedules on the reference VM: one schedule per bucket of
//! positions, each made when the sequence first reaches it, all sharing one cache.

use std::sync::Arc;

use amk_models::Checkpoint;
use amk_models::golden::{LogitSource, SourceError};
use amk_schedule_ir::{Bucket, Program, Target};

use crate::decode::LaunchPlan;
use crate::lower::{Knobs, Mode, Shape, bucket_of};
use crate::lowered::Lowered;
use crate::pipeline::{PipelineError, lower_and_validate};
use crate::rotary::SequenceRope;
use crate::vm::{Options, RecipeData, VmError, VmModel};

/// Why a position cannot be executed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduledError {
    /// There is no schedule.
    #[error(transparent)]
    Pipeline(#[from] PipelineError),
    /// The VM found a fault, or cannot run the schedule.
    #[error("the schedule for positions {first} to {last}: {source}")]
    Vm {
        /// First position of the schedule.
        first: u64,
        /// Its last.
        last: u64,
        /// What was found.
        source: Box<VmError>,
    },
    /// A position beyond the model or beyond what was asked for.
    #[error("position {position} is beyond the {limit} positions this run has room for")]
    Position {
        /// The position.
        position: usize,
        /// Positions there are.
        limit: usize,
    },
}

/// A schedule with what it needs to run.
struct Prepared {
    bucket: Bucket,
    program: Arc<Program>,
    data: Arc<RecipeData>,
}

/// One sequence of a model, executed by its schedules.
pub struct Scheduled<'a> {
    checkpoint: &'a Checkpoint,
    shape: Shape,
    target: Target,
    knobs: Knobs,
    mode: Mode,
    positions: usize,
    prepared: Vec<Prepared>,
    /// Index into `prepared`, and the machine that holds the sequence.
    current: Option<(usize, VmModel)>,
    /// Where rotary frequencies depend on the sequence: its lengths, and what was fed.
    rotary: Option<(SequenceRope, Vec<u32>)>,
}

impl<'a> Scheduled<'a> {
    /// A sequence of at most `positions` positions. Nothing is lowered yet.
    pub fn new(checkpoint: &'a Checkpoint, target: Target, mode: Mode, positions: usize) -> Self {
        let shape = Shape::of(checkpoint);
        let max = shape.sizes.max_positions;
        let positions = positions.clamp(1, usize::try_from(max).unwrap_or(usize::MAX));
        // All schedules share the cache, so it has the size the last of them needs.
        let capacity = bucket_of(max, 1, positions as u64 - 1).map(|b| b.last + 1);
        let knobs = Knobs { capacity, ..Knobs::default() };
        Self {
            checkpoint,
            shape,
            target,
            knobs,
            mode,
            positions,
            prepared: Vec::new(),
            current: None,
            rotary: SequenceRope::new(checkpoint.config()).map(|s| (s, Vec::new())),
        }
    }

    /// Positions there are.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Makes the machine of the bucket of `position` the current one, with the sequence taken over where it changes, and
    /// gives its index.
    fn machine(&mut self, position: usize) -> Result<usize, ScheduledError> {
        let at = position as u64;
        let here = |p: &Prepared| (p.bucket.first..=p.bucket.last).contains(&at);
        let index = match self.prepared.iter().position(here) {
            Some(index) => index,
            None => self.prepare(position)?,
        };
        let prepared = &self.prepared[index];
        let bucket = prepared.bucket;
        if self.current.as_ref().is_none_or(|(i, _)| *i != index) {
            let failed = |e: VmError| ScheduledError::Vm {
                first: bucket.first,
                last: bucket.last,
                source: Box::new(e),
            };
            let (program, data) = (prepared.program.clone(), prepared.data.clone());
            let mut next = VmModel::with_data(program, data, Options::default()).map_err(failed)?;
            if let Some((_, previous)) = &self.current
                && position > 0
            {
                next.take_over(previous, at).map_err(failed)?;
            }
            self.current = Some((index, next));
        }
        Ok(index)
    }

    fn prepare(&mut self, position: usize) -> Result<usize, ScheduledError> {
        let max = self.shape.sizes.max_positions;
        let bucket = bucket_of(max, 1, position as u64).filter(|_| position < self.positions);
        let bucket = bucket.ok_or(ScheduledError::Position { position, limit: self.positions })?;
        let (program, recipes) =
            lower_and_validate(&self.shape, &self.target, &self.knobs, position as u64, self.mode)?;
        let lowered = Lowered { program: program.into_inner(), recipes };
        let data = RecipeData::new(&lowered, self.checkpoint).map_err(|e| ScheduledError::Vm {
            first: bucket.first,
            last: bucket.last,
            source: Box::new(e.into()),
        })?;
        self.prepared.push(Prepared {
            bucket,
            program: Arc::new(lowered.program),
            data: Arc::new(data),
        });
        Ok(self.prepared.len() - 1)
    }

    /// Begins anew, with the machine at hand if it is the first bucket's.
    fn forget(&mut self) -> Result<(), ScheduledError> {
        match &mut self.current {
            Some((index, machine)) if self.prepared[*index].bucket.first == 0 => {
                let bucket = self.prepared[*index].bucket;
                machine.vm().reset().map_err(|fault| ScheduledError::Vm {
                    first: bucket.first,
                    last: bucket.last,
                    source: Box::new(fault.into()),
                })
            }
            _ => {
                self.current = None;
                Ok(())
            }
        }
    }

    /// Feeds tokens in one pass, as far as frequencies go; `each` gets every position's logits.
    fn feed(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ScheduledError> {
        let pass = (position + tokens.len()) as u64;
        let (at, steps) = (position as u64, tokens.len() as u64);
        let plan = LaunchPlan { program: 0, position: at, steps, tokens: 1 };
        let again = match &mut self.rotary {
            None => Vec::new(),
            Some((sequence, fed)) => {
                fed.truncate(position);
                let again = if sequence.renews(&plan, pass) { fed.clone() } else { Vec::new() };
                fed.extend_from_slice(tokens);
                sequence.done(&plan, pass, steps);
                again
            }
        };
        if !again.is_empty() {
            self.forget()?;
            self.run(&again, 0, pass, &mut |_, _| {})?;
        }
        self.run(tokens, position, pass, each)
    }

    /// Feeds tokens of a sequence of `pass` positions, each bucket's part in one go.
    fn run(
        &mut self,
        tokens: &[u32],
        position: usize,
        pass: u64,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), ScheduledError> {
        let (mut rest, mut at) = (tokens, position);
        while !rest.is_empty() {
            let index = self.machine(at)?;
            let bucket = self.prepared[index].bucket;
            self.prepared[index].data.set_length(pass);
            let Some((_, machine)) = &mut self.current else { break };
            let room = usize::try_from(bucket.last + 1 - at as u64).unwrap_or(usize::MAX);
            let (now, later) = rest.split_at(room.min(rest.len()));
            let logits = machine.feed(now, at as u64).map_err(|e| ScheduledError::Vm {
                first: bucket.first,
                last: bucket.last,
                source: Box::new(e),
            })?;
            for (i, l) in logits.iter().enumerate() {
                each(at + i, l);
            }
            at += now.len();
            rest = later;
        }
        Ok(())
    }
}

impl LogitSource for Scheduled<'_> {
    fn vocab_size(&self) -> usize {
        self.checkpoint.config().vocab_size
    }

    fn reset(&mut self) -> Result<(), SourceError> {
        Ok(self.forget()?)
    }

    fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
        let mut out = Vec::new();
        self.feed(&[token], position, &mut |_, l| out = l.to_vec())?;
        Ok(out)
    }

    fn prefill(
        &mut self,
        tokens: &[u32],
        position: usize,
        each: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), SourceError> {
        Ok(self.feed(tokens, position, each)?)
    }

    fn prompt(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        let mut out = Vec::new();
        self.feed(tokens, 0, &mut |_, l| out = l.to_vec())?;
        Ok(out)
    }
}
