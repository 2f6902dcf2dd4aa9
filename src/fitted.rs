//! A kernel's text and image, fitted to the registers of the part: rendered with as many values in flight
//! as most shapes have registers for, and again with fewer where the compiler spills: first with fewer loads where
//! splits are merged, then of attention, then without chunks in registers, then with fewer loads everywhere.

use amk_schedule_ir::{Program, Target};
use amk_validator::Validated;

use crate::codegen::{CodegenError, InFlight, RenderOptions, Source, render};
use crate::image::{BuildError, Image, ImageCache};
use crate::target::Arch;
use crate::toolchain::{CompileRequest, Nvrtc, SpillPolicy};

/// A text and what the compiler made of it.
#[derive(Clone, Debug)]
pub struct Fitted {
    pub source: Source,
    pub image: Image,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error(transparent)]
    Codegen(#[from] CodegenError),
    #[error(transparent)]
    Build(#[from] BuildError),
}

/// What to compile with.
#[derive(Clone, Copy)]
pub struct Compiler<'a> {
    pub nvrtc: &'a Nvrtc,
    pub cache: &'a ImageCache,
    /// What to do when every text spills.
    pub spills: SpillPolicy,
}

/// Renders and compiles the program, with `options.in_flight` and then less, until no register spills.
/// Where all spill, the policy decides about the text that spills least. `edit` is applied to each text.
///
/// # Errors
/// [`FitError`].
pub fn fit(
    program: &Validated<Program>,
    target: &Target,
    options: RenderOptions,
    arch: Arch,
    compiler: Compiler<'_>,
    edit: &dyn Fn(&mut Source),
) -> Result<Fitted, FitError> {
    let text = |(in_flight, taken)| -> Result<Source, CodegenError> {
        let mut source = render(program, target, RenderOptions { in_flight, taken, ..options })?;
        edit(&mut source);
        Ok(source)
    };
    let file = format!("megakernel.{arch}.cu");
    let compile = |source: &Source, spills| {
        let request =
            CompileRequest { source: &source.text, name: &file, arch, options: &[], spills };
        compiler.cache.get_or_compile(compiler.nvrtc, &request)
    };
    let attempt = |level| -> Result<Fitted, FitError> {
        let source = text(level)?;
        let image = compile(&source, SpillPolicy::Report)?;
        Ok(Fitted { source, image })
    };
    let mut best = attempt((options.in_flight, options.taken))?;
    // Chunks in registers are worth more than the widest attention and merge.
    let with = [InFlight::Several, InFlight::Some].map(|level| (level, options.taken));
    let without = [InFlight::Some, InFlight::Few, InFlight::One].map(|level| (level, 0));
    let less = with.into_iter().chain(without).filter(|(level, _)| *level >= options.in_flight);
    for level in less.filter(|&level| level != (options.in_flight, options.taken)) {
        if best.image.report.spill_bytes() == 0 {
            return Ok(best);
        }
        let next = attempt(level)?;
        if next.image.report.spill_bytes() < best.image.report.spill_bytes() {
            best = next;
        }
    }
    let Fitted { source, .. } = best;
    let image = compile(&source, compiler.spills)?;
    Ok(Fitted { source, image })
}
