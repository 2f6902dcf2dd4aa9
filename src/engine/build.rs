//! Lowered model to validated program, tables and image.

use amk_schedule_ir::{Program, Target};
use amk_validator::{Validated, validate};

use super::EngineError;
use crate::codegen::{self, RenderOptions, Source, Tables};
use crate::device::{DeviceError, Form, Image, form_for};
use crate::fitted::{Compiler, FitError, Fitted, fit};
use crate::image::{ImageCache, ImageKey};
use crate::lint::{Expected, check_ptx};
use crate::target::Arch;
use crate::toolchain::{Nvrtc, SpillPolicy};

/// A program ready to be uploaded.
pub struct Built {
    pub program: Validated<Program>,
    pub source: Source,
    pub tables: Tables,
    pub arch: Arch,
    /// Machine code for `arch`.
    pub cubin: Vec<u8>,
    /// The text it came from, for devices that are newer than `arch`.
    pub ptx: String,
    /// CUDA release of the compiler.
    pub compiler: (u32, u32),
    /// Key of the image: source, architecture, compiler, options.
    pub key: ImageKey,
}

/// What to build with.
pub struct BuildRequest<'a> {
    pub target: &'a Target,
    pub nvrtc: &'a Nvrtc,
    pub cache: &'a ImageCache,
    pub options: RenderOptions,
    pub spills: SpillPolicy,
    /// Replaces the first text by the second in the rendered source: a fault for the self-test to find.
    pub corrupt: Option<&'a (String, String)>,
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
    let tables = codegen::tables(&program)?;
    let arch =
        request.target.sm.parse().map_err(|_| {
            EngineError::Mismatch(format!("{} is no architecture", request.target.sm))
        })?;
    if let Some((from, _)) = request.corrupt {
        let text = codegen::render(&program, request.target, request.options)?.text;
        if !text.contains(from.as_str()) {
            return Err(EngineError::Mismatch(format!(
                "the kernel's text has no {from:?} to be corrupted"
            )));
        }
    }
    let edit = |source: &mut Source| {
        if let Some((from, to)) = request.corrupt {
            source.text = source.text.replace(from.as_str(), to);
        }
    };
    let compiler = Compiler { nvrtc: request.nvrtc, cache: request.cache, spills: request.spills };
    let Fitted { source, image } =
        fit(&program, request.target, request.options, arch, compiler, &edit).map_err(
            |e| match e {
                FitError::Codegen(e) => EngineError::from(e),
                FitError::Build(e) => EngineError::from(e),
            },
        )?;
    let expected = Expected::new(&program, request.target);
    check_ptx(&image.compiled.ptx, &expected).map_err(EngineError::Lint)?;
    Ok(Built {
        program,
        source,
        tables,
        arch,
        cubin: image.compiled.cubin,
        ptx: image.compiled.ptx,
        compiler: request.nvrtc.cuda_version(),
        key: image.key,
    })
}

impl Built {
    /// The form of the image a device takes.
    ///
    /// # Errors
    /// It takes neither.
    pub fn image_for(&self, capability: (u32, u32)) -> Result<Image, EngineError> {
        match form_for(self.arch, capability) {
            Some(Form::Cubin) => Ok(Image::Cubin(self.cubin.clone())),
            Some(Form::Ptx) => Ok(Image::Ptx(self.ptx.clone())),
            None => Err(DeviceError::WrongArchitecture {
                image: self.arch.to_string(),
                device: format!("compute capability {}.{}", capability.0, capability.1),
            }
            .into()),
        }
    }
}
