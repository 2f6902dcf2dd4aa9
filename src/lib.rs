//! amk compiles a Llama-family checkpoint into one persistent CUDA kernel whose schedule is proved
//! free of deadlock and races before launch.

pub mod codegen;
pub mod device;
pub mod doctor;
pub mod engine;
pub mod fuzz;
pub mod generate;
pub mod graph;
pub mod image;
pub mod import;
pub mod lint;
pub mod lower;
pub mod lowered;
pub mod pack;
pub mod pipeline;
pub mod predict;
pub mod report;
pub mod sampled;
pub mod scheduled;
pub mod target;
pub mod toolchain;
pub mod vm;
