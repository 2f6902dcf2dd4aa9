//! amk compiles a Llama-family checkpoint into one persistent CUDA kernel whose schedule is proved
//! free of deadlock and races before launch.

pub mod codegen;
pub mod doctor;
pub mod generate;
pub mod graph;
pub mod image;
pub mod lower;
pub mod lowered;
pub mod predict;
pub mod target;
pub mod toolchain;
pub mod vm;
