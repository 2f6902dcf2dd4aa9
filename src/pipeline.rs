//! From a model to compiled kernels, one target at a time: lower, validate, render, compile, and check
//! that the image is the program's and fits the part.

use std::time::Instant;

use amk_models::{Checkpoint, DType as Stored};
use amk_schedule_ir::{Program, Target};
use amk_validator::{Rejected, Validated, validate};
use serde::Serialize;

use crate::codegen::{CodegenError, RenderOptions, Source, render};
use crate::fitted::{Compiler, FitError, Fitted, fit};
use crate::image::{
    Budget, BudgetFault, BuildError, Image, ImageCache, KernelInfo, Occupancy, check_budget,
    symbol_bytes,
};
use crate::lint::{Expected, LintFault, LintReport, check_ptx};
use crate::lower::{Knobs, LowerError, Mode, Shape, lower_for};
use crate::lowered::{Lowered, Recipe};
use crate::target::{Arch, ArchError};
use crate::toolchain::{Nvrtc, SpillPolicy};

/// Why there is no kernel.
#[derive(Debug, thiserror::Error)]
pub enum PipelineError {
    /// The model, a knob or the position cannot be scheduled on this part.
    #[error("{target}: {source}")]
    Lower {
        /// The part.
        target: String,
        /// Why.
        source: LowerError,
    },
    /// The validator refuses the lowered schedule: a fault of amk itself.
    #[error("{target}: {source}")]
    Rejected {
        /// The part.
        target: String,
        /// Every fault.
        source: Box<Rejected>,
    },
    /// The templates cannot run the schedule.
    #[error("{target}: {source}")]
    Codegen {
        /// The part.
        target: String,
        /// Why.
        source: CodegenError,
    },
    /// The record's architecture is none.
    #[error("{target}: {source}")]
    Arch {
        /// The part.
        target: String,
        /// Why.
        source: ArchError,
    },
    /// The compiler refuses the text.
    #[error("{target}: {source}")]
    Build {
        /// The part.
        target: String,
        /// Why.
        source: BuildError,
    },
    /// The compiled kernel lacks an instruction sequence that an edge of the schedule needs.
    #[error("{target}: {}", .faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Lint {
        /// The part.
        target: String,
        /// Every fault.
        faults: Vec<LintFault>,
    },
    /// The image does not fit the part.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Budget(Vec<BudgetFault>),
    /// The image is not what was rendered.
    #[error("{target}: the compiled image {what}; this is a fault of amk or of the compiler")]
    Image {
        /// The part.
        target: String,
        /// What is wrong with it.
        what: String,
    },
}

/// A schedule that was lowered, validated and rendered for one part.
pub struct Schedule {
    /// The proof.
    pub program: Validated<Program>,
    /// Where the contents of read-only buffers come from, by buffer id.
    pub recipes: Vec<Option<Recipe>>,
    /// How the text is rendered.
    pub options: RenderOptions,
    /// The kernel's text and launch, before it is fitted to registers.
    pub source: Source,
    /// The architecture.
    pub arch: Arch,
    /// What each part took.
    pub seconds: Seconds,
}

/// Wall time of the steps, seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seconds {
    pub lower: f64,
    pub validate: f64,
    pub render: f64,
    pub compile: f64,
}

impl Seconds {
    /// All steps together.
    pub fn total(&self) -> f64 {
        self.lower + self.validate + self.render + self.compile
    }
}

impl Schedule {
    /// The schedule as what the VM and the packing take.
    pub fn lowered(&self) -> Lowered {
        Lowered { program: self.program.get().clone(), recipes: self.recipes.clone() }
    }
}

/// A compiled kernel that was checked against its schedule and its part.
pub struct Kernel {
    /// The text the image was made from.
    pub source: Source,
    pub image: Image,
    /// The entry's resources.
    pub info: KernelInfo,
    /// Blocks an SM can hold.
    pub occupancy: Occupancy,
    /// The parts of edges found in its PTX.
    pub lint: LintReport,
}

/// Lowers a model for the bucket of `position`, validates the schedule and renders its kernel.
///
/// # Errors
/// [`PipelineError`].
pub fn schedule(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    position: u64,
    mode: Mode,
) -> Result<Schedule, PipelineError> {
    let name = || target.name.clone();
    let arch =
        target.sm.parse().map_err(|source| PipelineError::Arch { target: name(), source })?;
    let start = Instant::now();
    let (program, recipes, mut seconds) = timed(shape, target, knobs, position, mode)?;
    let options = knobs.render_options(RenderOptions::default());
    let source = render(&program, target, options)
        .map_err(|source| PipelineError::Codegen { target: name(), source })?;
    seconds.render = start.elapsed().as_secs_f64() - seconds.lower - seconds.validate;
    Ok(Schedule { program, recipes, options, source, arch, seconds })
}

/// A program that passed, and where its contents come from.
pub type Proved = (Validated<Program>, Vec<Option<Recipe>>);

/// The first half of [`schedule`]: a validated program, without a kernel.
///
/// # Errors
/// [`PipelineError`].
pub fn lower_and_validate(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    position: u64,
    mode: Mode,
) -> Result<Proved, PipelineError> {
    timed(shape, target, knobs, position, mode).map(|(program, recipes, _)| (program, recipes))
}

fn timed(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    position: u64,
    mode: Mode,
) -> Result<(Validated<Program>, Vec<Option<Recipe>>, Seconds), PipelineError> {
    let name = || target.name.clone();
    let start = Instant::now();
    let Lowered { program, recipes } = lower_for(shape, target, knobs, position, mode)
        .map_err(|source| PipelineError::Lower { target: name(), source })?;
    let lower = start.elapsed().as_secs_f64();
    let program = validate(program, target)
        .map_err(|e| PipelineError::Rejected { target: name(), source: Box::new(e) })?;
    let validate = start.elapsed().as_secs_f64() - lower;
    Ok((program, recipes, Seconds { lower, validate, ..Seconds::default() }))
}

/// Compiles a rendered kernel, or takes it from the cache, and checks the image: the entry is there,
/// the program's hash is in it, its PTX has every edge's instruction sequence, spills are as the policy has it, and at least one block fits an SM of the part.
///
/// # Errors
/// [`PipelineError`].
pub fn compile(
    schedule: &Schedule,
    target: &Target,
    nvrtc: &Nvrtc,
    cache: &ImageCache,
    spills: SpillPolicy,
) -> Result<Kernel, PipelineError> {
    let name = || target.name.clone();
    let compiler = Compiler { nvrtc, cache, spills };
    let options = schedule.options;
    let Fitted { source, image } =
        fit(&schedule.program, target, options, schedule.arch, compiler, &|_| ()).map_err(|e| {
            match e {
                FitError::Codegen(source) => PipelineError::Codegen { target: name(), source },
                FitError::Build(source) => PipelineError::Build { target: name(), source },
            }
        })?;
    let wrong = |what: String| PipelineError::Image { target: name(), what };
    let info = image
        .info
        .kernel(source.kernel)
        .cloned()
        .ok_or_else(|| wrong(format!("has no kernel {}", source.kernel)))?;
    let hash = symbol_bytes(&image.compiled.cubin, source.hash_symbol)
        .map_err(|e| wrong(e.to_string()))?;
    if hash != schedule.program.hash() {
        return Err(wrong("carries the hash of another program".to_owned()));
    }
    let expected = Expected::new(&schedule.program, target);
    let lint = check_ptx(&image.compiled.ptx, &expected)
        .map_err(|faults| PipelineError::Lint { target: name(), faults })?;
    let threads = u32::try_from(source.threads).unwrap_or(u32::MAX);
    let budget = Budget { threads, dynamic_shared: source.shared_bytes };
    let occupancy = check_budget(&info, target, budget).map_err(PipelineError::Budget)?;
    Ok(Kernel { source, image, info, occupancy, lint })
}

/// The arithmetic a checkpoint is compiled for unless told otherwise: bf16 for bf16 weights, float32
/// for all others, whose weights bf16 activations would not do justice.
pub fn default_mode(checkpoint: &Checkpoint) -> Mode {
    let matrices = |t: &&amk_models::WeightTensor| t.shape().len() > 1;
    match checkpoint.weights().iter().filter(matrices).all(|t| t.dtype() == Stored::Bf16) {
        true => Mode::Bf16,
        false => Mode::F32,
    }
}
