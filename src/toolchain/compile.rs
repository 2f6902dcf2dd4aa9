//! CUDA text to cubin: options, refusals, and the rules on spills and ignored `setmaxnreg`.

use super::log::{CompileLog, Diagnostic, normalise};
use super::nvrtc::{INVALID_OPTION, Nvrtc};
use crate::target::{Arch, list_archs};

/// What to do when the compiler spilled registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpillPolicy {
    /// A spill is an error: shipped defaults must not spill.
    #[default]
    Refuse,
    /// Spills are counted and the image is used: in search they are a cost.
    Report,
}

/// One compile.
#[derive(Debug, Clone)]
pub struct CompileRequest<'a> {
    /// Self-contained CUDA C++; an `#include` fails, since there is no include path.
    pub source: &'a str,
    /// The name that diagnostics give the source; no part of the image.
    pub name: &'a str,
    /// The real architecture.
    pub arch: Arch,
    /// Further NVRTC options such as `--maxrregcount=128`.
    pub options: &'a [String],
    /// What to do about spills.
    pub spills: SpillPolicy,
}

/// What a compile gave. Everything in it is a function of source, options and compiler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Compiled {
    /// The ELF image for exactly one architecture.
    pub cubin: Vec<u8>,
    /// The PTX it came from, for the lint over synchronisation sequences.
    pub ptx: String,
    /// The compiler's log without times, see [`CompileLog`].
    pub log: String,
}

impl Compiled {
    /// The parsed log: spills, registers, warnings.
    pub fn report(&self) -> CompileLog {
        CompileLog::parse(&self.log)
    }
}

/// Why there is no image.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CompileError {
    /// The compiler is older than the architecture.
    #[error(
        "{compiler} cannot compile for {arch}: it knows {known}; use a newer one (`amk toolchain fetch`, a newer CUDA toolkit, or --nvrtc PATH)"
    )]
    UnsupportedArch {
        /// What was asked for.
        arch: Arch,
        /// The compiler's identity.
        compiler: String,
        /// What the compiler supports, as text.
        known: String,
    },
    /// An option that would make the image depend on more than source and compiler.
    #[error(
        "the compiler option {option} is not allowed: images must depend on nothing but source, options and compiler"
    )]
    ForbiddenOption {
        /// The option.
        option: String,
    },
    /// The source holds a NUL byte.
    #[error("{name} has a NUL byte at offset {offset}; CUDA text must have none")]
    NulByte {
        /// Name of the source.
        name: String,
        /// Byte offset.
        offset: usize,
    },
    /// Errors in the source or in its PTX.
    #[error("{compiler} refused {name} for {arch}: {}", first_error(.diagnostics, .log))]
    Refused {
        /// The compiler's identity.
        compiler: String,
        /// Name of the source.
        name: String,
        /// The architecture.
        arch: Arch,
        /// All errors and warnings, with their lines.
        diagnostics: Vec<Diagnostic>,
        /// The whole log.
        log: String,
    },
    /// NVRTC failed in another way.
    #[error("{compiler} failed on {name} for {arch}: {reason}")]
    Internal {
        /// The compiler's identity.
        compiler: String,
        /// Name of the source.
        name: String,
        /// The architecture.
        arch: Arch,
        /// NVRTC's own words.
        reason: String,
    },
    /// The compiler dropped a `setmaxnreg`: the warp roles would run short of registers.
    #[error(
        "{name} for {arch}: the compiler ignored setmaxnreg ({}): {}; bound the kernel's threads and registers with __launch_bounds__",
        .diagnostic.code.as_deref().unwrap_or("no number"),
        .diagnostic.message
    )]
    SetmaxnregIgnored {
        /// Name of the source.
        name: String,
        /// The architecture.
        arch: Arch,
        /// The warning.
        diagnostic: Box<Diagnostic>,
    },
    /// Registers were spilled and the policy refuses that.
    #[error(
        "{name} for {arch} spills registers: {stores} bytes stored and {loads} bytes loaded in {function}; use fewer consumer warps or smaller tiles"
    )]
    Spills {
        /// Name of the source.
        name: String,
        /// The architecture.
        arch: Arch,
        /// The first function that spills.
        function: String,
        /// Bytes stored, over all functions.
        stores: u64,
        /// Bytes loaded, over all functions.
        loads: u64,
    },
    /// The log says nothing about resources, so spills cannot be ruled out.
    #[error(
        "{compiler} wrote no resource report for {name} on {arch}, so spills cannot be ruled out; use another NVRTC (`amk toolchain fetch`)"
    )]
    NoReport {
        /// The compiler's identity.
        compiler: String,
        /// Name of the source.
        name: String,
        /// The architecture.
        arch: Arch,
    },
}

fn first_error(diagnostics: &[Diagnostic], log: &str) -> String {
    let mut errors = diagnostics.iter().filter(|d| d.severity == super::log::Severity::Error);
    match errors.next() {
        Some(first) => {
            let more = errors.count();
            let rest = if more == 0 { String::new() } else { format!(" (and {more} more)") };
            format!("{}: {}{rest}", first.place, first.message)
        }
        None => format!("no error is named in its log: {}", log.trim()),
    }
}

/// Options that reach outside the source, or put paths and line tables into the image.
const FORBIDDEN: [&str; 13] = [
    "-I",
    "--include-path",
    "-include",
    "--pre-include",
    "-lineinfo",
    "--generate-line-info",
    "-G",
    "--device-debug",
    "-arch",
    "--gpu-architecture",
    "-pch",
    "--pch",
    "--use-pch",
];

/// The options of a compile, in the order they are passed. They are part of the cache key.
pub fn full_options(arch: Arch, extra: &[String]) -> Result<Vec<String>, CompileError> {
    for option in extra {
        let name = option.split('=').next().unwrap_or_default();
        let forbidden = FORBIDDEN.contains(&name) || option.starts_with("-I");
        if forbidden || option.contains('\0') {
            return Err(CompileError::ForbiddenOption {
                option: option.escape_debug().to_string(),
            });
        }
    }
    let mut all = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".to_owned(),
        "--ptxas-options=-v".to_owned(),
    ];
    all.extend(extra.iter().cloned());
    Ok(all)
}

impl Nvrtc {
    /// Compiles `request` to a cubin and its PTX. The log is read on success too.
    ///
    /// # Errors
    /// [`CompileError`]; a `setmaxnreg` that the compiler ignored is always one, spills are one
    /// under [`SpillPolicy::Refuse`].
    pub fn compile(&self, request: &CompileRequest<'_>) -> Result<Compiled, CompileError> {
        let options = full_options(request.arch, request.options)?;
        let compiled = self.run(request, &options, true)?;
        judge(&compiled, &compiled.report(), request, || self.identity())?;
        Ok(compiled)
    }

    /// Compiles `request` to the PTX that [`Nvrtc::compile`] makes its cubin from, in about half the
    /// time: nothing is assembled, so resources are not known.
    ///
    /// # Errors
    /// [`CompileError`].
    pub fn compile_to_ptx(&self, request: &CompileRequest<'_>) -> Result<String, CompileError> {
        let mut options = full_options(request.arch, request.options)?;
        // A virtual architecture is what makes NVRTC stop at PTX.
        if let Some(arch) = options.first_mut() {
            *arch = arch.replace("=sm_", "=compute_");
        }
        Ok(self.run(request, &options, false)?.ptx)
    }

    /// One compile, with everything but the rules on resources judged.
    fn run(
        &self,
        request: &CompileRequest<'_>,
        options: &[String],
        with_cubin: bool,
    ) -> Result<Compiled, CompileError> {
        let arch = request.arch;
        let name = || request.name.to_owned();
        if let Some(offset) = request.source.find('\0') {
            return Err(CompileError::NulByte { name: name(), offset });
        }
        let unsupported = || CompileError::UnsupportedArch {
            arch,
            compiler: self.identity(),
            known: list_archs(self.supported()),
        };
        if !self.supported().contains(&arch.number) {
            return Err(unsupported());
        }
        let raw = match self.compile_raw(request.source, request.name, options) {
            Ok(raw) => raw,
            Err(code) => {
                return Err(CompileError::Internal {
                    compiler: self.identity(),
                    name: name(),
                    arch,
                    reason: format!("the program could not be created (code {code})"),
                });
            }
        };
        let log = normalise(&raw.log);
        let report = CompileLog::parse(&log);
        // The first is NVRTC's refusal of a number, the second its front end's of a letter.
        let refused_arch = (raw.code == INVALID_OPTION && log.contains("--gpu-architecture"))
            || (!raw.succeeded() && log.contains("--nv_arch"));
        if refused_arch {
            return Err(unsupported());
        }
        if !raw.succeeded() && report.errors().next().is_some() {
            return Err(CompileError::Refused {
                compiler: self.identity(),
                name: name(),
                arch,
                diagnostics: report.diagnostics,
                log,
            });
        }
        if !raw.succeeded() || (with_cubin && raw.cubin.is_empty()) || raw.ptx.is_empty() {
            return Err(CompileError::Internal {
                compiler: self.identity(),
                name: name(),
                arch,
                reason: format!("{} {}", raw.reason, log.trim()).trim().to_owned(),
            });
        }
        let ptx = String::from_utf8_lossy(&raw.ptx);
        Ok(Compiled { cubin: raw.cubin, ptx: ptx.trim_end_matches('\0').to_owned(), log })
    }
}

/// The rules a compile must meet beyond being accepted, also applied to images from the cache.
pub fn judge(
    compiled: &Compiled,
    report: &CompileLog,
    request: &CompileRequest<'_>,
    compiler: impl Fn() -> String,
) -> Result<(), CompileError> {
    let (name, arch) = (request.name.to_owned(), request.arch);
    if let Some(diagnostic) = report.setmaxnreg_ignored() {
        return Err(CompileError::SetmaxnregIgnored {
            name,
            arch,
            diagnostic: Box::new(diagnostic.clone()),
        });
    }
    if compiled.ptx.contains(".entry") && report.functions.is_empty() {
        return Err(CompileError::NoReport { compiler: compiler(), name, arch });
    }
    let spilling =
        report.functions.iter().find(|f| f.spill_store_bytes > 0 || f.spill_load_bytes > 0);
    if let (SpillPolicy::Refuse, Some(first)) = (request.spills, spilling) {
        let sum = |of: fn(&super::FunctionUsage) -> u32| {
            report.functions.iter().map(|f| u64::from(of(f))).sum()
        };
        return Err(CompileError::Spills {
            name,
            arch,
            function: first.name.clone(),
            stores: sum(|f| f.spill_store_bytes),
            loads: sum(|f| f.spill_load_bytes),
        });
    }
    Ok(())
}
