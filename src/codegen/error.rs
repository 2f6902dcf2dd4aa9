//! Why a safe program cannot be turned into a kernel.

use amk_schedule_ir::InstrId;

#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    #[error("{instruction}: {what}; the kernel templates cannot run it")]
    Unsupported { instruction: InstrId, what: String },
    #[error("this program cannot become a kernel: {0}")]
    Program(String),
    #[error("the program is for {program}, the target is {target}")]
    Target { program: String, target: String },
    #[error("a kernel template failed (this is a fault of amk itself): {0}")]
    Template(#[from] minijinja::Error),
}
