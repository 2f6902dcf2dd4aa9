//! What schedules are searched for.

use std::path::Path;

use amk_autoresearch::store::Key;
use amk_autoresearch::{CostModel, Point, Prepared, Refusal, Stage};
use amk_models::{Checkpoint, CheckpointError, shape_only};
use amk_schedule_ir::hash::hex;
use amk_schedule_ir::{Bucket, BufferKind, Program, Target};
use amk_validator::{Validated, validate};

use super::space::knobs_of;
use crate::codegen::{RenderOptions, render, tables};
use crate::lower::{Knobs, Mode, Shape, bucket_of, lower};
use crate::pipeline::default_mode;

/// Positions of the cache, where the model has as many and the bucket needs no more: what an engine gives it.
const CAPACITY: u64 = 4096;

/// Why there is nothing to search for.
#[derive(Debug, thiserror::Error)]
pub enum SubjectError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("position {position} is outside the model's {positions} positions")]
    Position { position: u64, positions: u64 },
}

/// A model, a part, an arithmetic and a position.
pub struct Subject {
    /// As it was named.
    pub model: String,
    pub shape: Shape,
    pub target: Target,
    pub mode: Mode,
    /// A token is timed, or its time predicted, at this position.
    pub position: u64,
    pub bucket: Bucket,
    /// `None` for a config alone: then nothing can be measured.
    pub checkpoint: Option<Checkpoint>,
    /// Shares of the SMs that may be chosen, from measured speeds; see [`super::profiles`]. Empty: none were measured.
    pub balance: Vec<String>,
    /// Templates of ops that may not be chosen, by op and name: those that failed their test.
    pub refused: Vec<(String, String)>,
}

/// A point that was lowered and validated.
pub struct Made {
    pub program: Validated<Program>,
    pub prepared: Prepared,
    /// Chunks its kernel takes into registers while warps wait for their input.
    pub taken: u32,
}

impl Subject {
    /// A checkpoint; by default in its own arithmetic.
    ///
    /// # Errors
    /// The position is none of the model's.
    pub fn of(
        checkpoint: Checkpoint,
        model: Option<&str>,
        target: Target,
        mode: Option<Mode>,
        position: u64,
    ) -> Result<Subject, SubjectError> {
        let shape = Shape::of(&checkpoint);
        let mode = mode.unwrap_or_else(|| default_mode(&checkpoint));
        let name = model.map_or_else(|| checkpoint.name(), str::to_owned);
        let mut subject = Subject::new(name, shape, target, mode, position)?;
        subject.checkpoint = Some(checkpoint);
        Ok(subject)
    }

    /// The shapes of a config.json, without weights.
    ///
    /// # Errors
    /// The config is none, or the position is none of the model's.
    pub fn of_config(
        path: &Path,
        target: Target,
        mode: Option<Mode>,
        position: u64,
    ) -> Result<Subject, SubjectError> {
        let config = shape_only(path)?;
        let name = path.file_stem().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
        let shape = Shape::of_config(&name, &config);
        Subject::new(name, shape, target, mode.unwrap_or(Mode::Bf16), position)
    }

    /// A shape without weights.
    ///
    /// # Errors
    /// The position is none of the model's.
    pub fn new(
        model: String,
        shape: Shape,
        target: Target,
        mode: Mode,
        position: u64,
    ) -> Result<Subject, SubjectError> {
        let positions = shape.sizes.max_positions;
        let bucket = bucket_of(positions, 1, position)
            .ok_or(SubjectError::Position { position, positions })?;
        Ok(Subject {
            model,
            shape,
            target,
            mode,
            position,
            bucket,
            checkpoint: None,
            balance: Vec::new(),
            refused: Vec::new(),
        })
    }

    /// `bf16` or `f32`.
    pub fn mode_name(&self) -> &'static str {
        match self.mode {
            Mode::Bf16 => "bf16",
            Mode::F32 => "f32",
        }
    }

    /// Hash of the shape: sizes, and every tensor's name and type.
    pub fn shape_hash(&self) -> String {
        shape_hash(&self.shape)
    }

    /// What a best schedule is kept under.
    pub fn key(&self) -> Key {
        key(&self.shape, &self.target, self.mode, self.bucket)
    }

    /// A point as the schedule parameters of this subject's program.
    ///
    /// # Errors
    /// A knob that is none.
    pub fn knobs(&self, point: &Point) -> Result<Knobs, String> {
        let capacity = (self.bucket.last + 1).max(CAPACITY).min(self.shape.sizes.max_positions);
        Ok(Knobs { tokens: 1, capacity: Some(capacity), ..knobs_of(point)? })
    }

    /// Lowers, validates, renders and predicts a point.
    ///
    /// # Errors
    /// The stage that refuses it.
    pub fn make(&self, point: &Point, cost: &dyn CostModel) -> Result<Made, Refusal> {
        let refuse = |stage| move |reason: String| Refusal::Rejected { stage, reason };
        let knobs = self.knobs(point).map_err(refuse(Stage::Proposal))?;
        let lowered = lower(&self.shape, &self.target, &knobs, self.bucket, self.mode)
            .map_err(|e| refuse(Stage::Lower)(e.to_string()))?;
        let program = validate(lowered.program, &self.target)
            .map_err(|e| refuse(Stage::Validate)(e.to_string()))?;
        let render_error = |e: crate::codegen::CodegenError| refuse(Stage::Render)(e.to_string());
        let options = knobs.render_options(RenderOptions::default());
        render(&program, &self.target, options).map_err(render_error)?;
        let packed = tables(&program).map_err(render_error)?.weight_bytes;
        let bytes = packed + cache_bytes(&program, self.position);
        let mut prediction = cost.predict(&program, &self.target, self.position, options.taken);
        prediction.floor_us = prediction.floor_us.max(self.floor_us(bytes));
        prediction.us = prediction.us.max(prediction.floor_us);
        let program_hash = hex(&program.hash());
        let prepared = Prepared {
            program: program_hash,
            body: body_hash(&program, options),
            bytes,
            prediction,
        };
        Ok(Made { program, prepared, taken: options.taken })
    }

    /// Reading `bytes` at the target's bandwidth, microseconds.
    fn floor_us(&self, bytes: u64) -> f64 {
        bytes as f64 / self.target.bandwidth() * 1e6
    }
}

/// Bytes of keys and values a step at `position` reads.
pub fn cache_bytes(program: &Program, position: u64) -> u64 {
    let rows = program.buffers.iter().filter(|b| b.kind == BufferKind::Kv);
    let row = |b: &amk_schedule_ir::Buffer| {
        b.shape[0] * b.shape.get(2).copied().unwrap_or(0) * b.dtype.bytes()
    };
    rows.map(row).sum::<u64>() * position
}

/// Hash of a program without its provenance, and of how its text is rendered.
fn body_hash(program: &Program, options: RenderOptions) -> String {
    let mut body = program.clone();
    body.meta.clear();
    let text = format!("{options:?}\n{}", amk_schedule_ir::text::print(&body));
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// What a best schedule is kept under.
pub(super) fn key(shape: &Shape, target: &Target, mode: Mode, bucket: Bucket) -> Key {
    Key {
        shape: shape_hash(shape),
        target: target.name.clone(),
        sm: target.sm.clone(),
        mode: if mode == Mode::Bf16 { "bf16" } else { "f32" }.to_owned(),
        bucket: (bucket.first, bucket.last),
    }
}

fn shape_hash(shape: &Shape) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("amk autoresearch shape v1");
    // The name is for people.
    let text = format!(
        "{:?}\n{:?}\n{:?}\n{:?}\n{:?}",
        shape.sizes, shape.embedding, shape.layers, shape.final_norm, shape.head
    );
    hasher.update(text.as_bytes());
    hasher.finalize().to_hex().to_string()
}
