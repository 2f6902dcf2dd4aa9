//! What a compile found out: `report.json` for tools and `report.html` for people.
//!
//! `mod.rs` is the data, taken from the schedule and the image; `balance.rs` counts the bytes each SM reads;
//! `stages.rs` has the dependence graph as lists, and the stages by op; `svg.rs` draws; `html.rs` fills
//! `page.html.j2`, one page without scripts or links.

mod balance;
mod html;
mod stages;
mod svg;

use amk_models::{Checkpoint, ModelConfig, Source as ModelSource};
use amk_schedule_ir::hash::hex;
use amk_schedule_ir::{Bucket, Program, Target};
use serde::Serialize;

pub use balance::{Balance, SmLoad};
pub use html::{PageError, page};
pub use stages::{Dependences, Edge, OpRow, op_rows};

use crate::graph::DependenceGraph;
use crate::image::{Occupancy, Provenance};
use crate::lower::Mode;
use crate::pipeline::{Kernel, Schedule, Seconds};

/// Format version of `report.json`.
pub const FORMAT: u32 = 1;

/// One compile of one model.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub format: u32,
    /// Version of amk.
    pub amk: &'static str,
    pub model: ModelSummary,
    /// Type of activations and KV cache.
    pub compute: Mode,
    /// First positions a step of the programs may have.
    pub bucket: Bucket,
    /// Identity of the compiler; none where there was no compiler.
    pub compiler: Option<String>,
    pub targets: Vec<TargetReport>,
    /// What the schedule VM generated, where it ran.
    pub run: Option<RunReport>,
}

/// The model, as far as the schedule depends on it.
#[derive(Clone, Debug, Serialize)]
pub struct ModelSummary {
    pub name: String,
    /// None for a config alone.
    pub source: Option<ModelSource>,
    pub config: ModelConfig,
    pub parameters: Option<u64>,
    /// Stored bytes of all tensors; none for a config alone.
    pub weight_bytes: Option<u64>,
}

impl ModelSummary {
    /// Of a loaded checkpoint.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        Self {
            name: checkpoint.name(),
            source: Some(checkpoint.source().clone()),
            config: checkpoint.config().clone(),
            parameters: checkpoint.config().parameter_count(),
            weight_bytes: Some(checkpoint.weights().bytes()),
        }
    }

    /// Of a config alone.
    pub fn shape_only(name: &str, config: &ModelConfig) -> Self {
        Self {
            name: name.to_owned(),
            source: None,
            config: config.clone(),
            parameters: config.parameter_count(),
            weight_bytes: None,
        }
    }
}

/// One target: its files, its schedule, its image.
#[derive(Clone, Debug, Serialize)]
pub struct TargetReport {
    pub sm: String,
    /// Name of the target record.
    pub name: String,
    pub files: Files,
    pub program_hash: String,
    pub instructions: usize,
    pub counters: usize,
    /// Blocks of the grid.
    pub blocks: u64,
    /// Threads of a block.
    pub threads: u64,
    /// Dynamic shared memory of a block, bytes.
    pub dynamic_shared_bytes: u64,
    pub ring_slots: u32,
    pub slot_bytes: u64,
    /// The validator accepted the schedule.
    pub validated: bool,
    pub image: Option<ImageReport>,
    pub balance: Balance,
    pub ops: Vec<OpRow>,
    pub dependences: Dependences,
    pub seconds: Seconds,
}

/// Names of the files written, beside the report.
#[derive(Clone, Debug, Serialize)]
pub struct Files {
    pub schedule: String,
    pub schedule_json: String,
    pub source: String,
    pub cubin: Option<String>,
}

/// A compiled image, read from the cubin and the compiler's log.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    pub registers: u32,
    pub spill_bytes: u64,
    pub stack_bytes: u32,
    /// Static shared memory, bytes.
    pub static_shared_bytes: u64,
    pub constant_bytes: u64,
    pub code_bytes: u64,
    /// SASS instructions.
    pub sass_instructions: u64,
    pub cubin_bytes: usize,
    pub occupancy: Occupancy,
    /// Taken from the cache rather than compiled.
    pub cached: bool,
    pub warnings: Vec<String>,
}

impl ImageReport {
    /// Of a checked kernel.
    pub fn of(kernel: &Kernel) -> Self {
        let image = &kernel.image;
        Self {
            registers: kernel.info.registers,
            spill_bytes: image.report.spill_bytes(),
            stack_bytes: kernel.info.stack_bytes,
            static_shared_bytes: kernel.info.shared_bytes,
            constant_bytes: image.info.user_constant_bytes,
            code_bytes: kernel.info.code_bytes,
            sass_instructions: kernel.info.instructions,
            cubin_bytes: image.compiled.cubin.len(),
            occupancy: kernel.occupancy,
            cached: image.provenance == Provenance::Cached,
            warnings: image.report.warnings().map(|d| d.message.clone()).collect(),
        }
    }
}

impl TargetReport {
    /// Of a schedule and, where there was a compiler, its kernel.
    pub fn new(
        target: &Target,
        schedule: &Schedule,
        kernel: Option<&Kernel>,
        files: Files,
        seconds: Seconds,
    ) -> Self {
        let program: &Program = &schedule.program;
        let graph = DependenceGraph::new(program, target);
        Self {
            sm: target.sm.clone(),
            name: target.name.clone(),
            files,
            program_hash: hex(&schedule.program.hash()),
            instructions: program.instructions.len(),
            counters: program.counters.len(),
            blocks: schedule.source.blocks,
            threads: schedule.source.threads,
            dynamic_shared_bytes: schedule.source.shared_bytes,
            ring_slots: program.resources.ring_slots,
            slot_bytes: program.resources.slot_bytes,
            validated: true,
            image: kernel.map(ImageReport::of),
            balance: Balance::of(program, &graph),
            ops: op_rows(&graph),
            dependences: Dependences::of(&graph),
            seconds,
        }
    }
}

/// What the schedule VM generated.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// The target whose schedule ran.
    pub sm: String,
    pub prompt: Option<String>,
    pub prompt_tokens: usize,
    pub tokens: Vec<u32>,
    pub text: Option<String>,
    /// Tokens, from the first, that the float32 CPU reference says too.
    pub agrees_with_reference: usize,
    pub seconds: f64,
}
