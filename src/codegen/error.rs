//! Why a safe program cannot be turned into a kernel.

use amk_schedule_ir::InstrId;

#[derive(Debug, thiserror::Error)]
pub enum CodegenError {
    #[error("{instruction}: {what}; the kernel templates cannot run it")]
    Unsupported { instruction: InstrId, what: String },
    #[error("this program cannot become a kernel: {0}")]
    Program(String),
    #[error(
        "a launch of {steps} steps with {per_step} packet epochs each goes round the {tags} tags more than once, and the kernel's tags do not; lower `steps` or use more tags"
    )]
    EpochWrap { steps: u64, per_step: u32, tags: u64 },
    #[error(
        "the {what} of {warps} consumer warps and {tokens} positions per step end at byte {end} of the control area, where only {room} bytes are theirs; use fewer consumer warps or positions per step, or a larger control area"
    )]
    ControlArea { what: &'static str, tokens: u32, warps: u32, end: u64, room: u64 },
    #[error("the program is for {program}, the target is {target}")]
    Target { program: String, target: String },
    #[error("a kernel template failed (this is a fault of amk itself): {0}")]
    Template(#[from] minijinja::Error),
}
