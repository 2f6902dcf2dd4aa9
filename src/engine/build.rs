//! Lowered model to validated program, tables and image.

use amk_schedule_ir::{Program, Target};
use amk_validator::{Validated, validate};

use super::EngineError;
use crate::codegen::{self, RenderOptions, Source, Tables};
use crate::image::ImageCache;
use crate::lint::{Expected, check_ptx};
use crate::toolchain::{CompileRequest, Nvrtc, SpillPolicy};

/// A program ready to be uploaded.
pub struct Built {
    pub program: Validated<Program>,
    pub source: Source,
    pub tables: Tables,
    pub cubin: Vec<u8>,
}

/// What to build with.
pub struct BuildRequest<'a> {
    pub target: &'a Target,
    pub nvrtc: &'a Nvrtc,
    pub cache: &'a ImageCache,
    pub options: RenderOptions,
    pub spills: SpillPolicy,
}

/// Validates, renders and compiles a program, and lints the PTX of the image.
///
/// # Errors
/// Rejected by the validator, refused by the templates, not compiled, or without an edge's instruction
/// sequence.
pub fn build(program: Program, request: &BuildRequest<'_>) -> Result<Built, EngineError> {
    let program = validate(program, request.target).map_err(|r| {
        EngineError::Rejected(r.faults.first().map_or_else(String::new, |f| f.message.clone()))
    })?;
    let source = codegen::render(&program, request.target, request.options)?;
    let tables = codegen::tables(&program)?;
    let arch =
        request.target.sm.parse().map_err(|_| {
            EngineError::Mismatch(format!("{} is no architecture", request.target.sm))
        })?;
    let image = request.cache.get_or_compile(
        request.nvrtc,
        &CompileRequest {
            source: &source.text,
            name: "megakernel.cu",
            arch,
            options: &[],
            spills: request.spills,
        },
    )?;
    let expected = Expected::new(&program, request.target);
    check_ptx(&image.compiled.ptx, &expected).map_err(EngineError::Lint)?;
    Ok(Built { program, source, tables, cubin: image.compiled.cubin })
}
