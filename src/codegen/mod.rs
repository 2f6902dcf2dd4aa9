//! Validated schedule to CUDA text and instruction tables.
//!
//! The text (`templates/`, minijinja with strict undefined) holds what is fixed for a program: sizes,
//! the shared-memory map, the op variants it uses and its hash. Everything else is data: [`tables`]
//! packs queues and streams into the tables the kernel interprets, [`arena`] places the buffers.
//! Nothing here decides anything about the schedule.

pub mod arena;
mod checks;
mod error;
mod registry;
mod source;
pub mod tables;
#[cfg(test)]
mod tests;
mod variants;

use amk_schedule_ir::{Program, Target};
use amk_validator::Validated;

pub use arena::Arena;
pub use error::CodegenError;
pub use registry::{OP_VARIANTS, OpVariant, op_variant, op_variants};
pub use source::{Backend, HOST_FILES, InFlight, Products, RenderOptions, Source, templates};
pub use tables::Tables;

/// Renders the kernel of a validated program.
///
/// # Errors
/// A program that is safe but that this kernel cannot run (an opaque op, a kv run in a stream, ...) is
/// refused by name.
pub fn render(
    program: &Validated<Program>,
    target: &Target,
    options: RenderOptions,
) -> Result<Source, CodegenError> {
    source::render(program, target, options)
}

/// Packs the instruction tables of a validated program.
///
/// # Errors
/// As [`render`].
pub fn tables(program: &Validated<Program>) -> Result<Tables, CodegenError> {
    let plan = variants::Plan::new(program)?;
    tables::pack(program, &plan)
}

/// For every instruction, by id, the number of its case in the kernel's dispatch and the call behind it.
pub(crate) fn case_calls(program: &Program) -> Result<Vec<(u32, String)>, CodegenError> {
    let plan = variants::Plan::new(program)?;
    let call = |record: &variants::Record| {
        let number = record.0[variants::F::Op as usize];
        (number, plan.text_of(number as usize))
    };
    Ok(plan.records.iter().map(call).collect())
}
