//! amk compiles a Llama-family checkpoint into one persistent CUDA kernel whose schedule is proved
//! free of deadlock and races before launch.

pub mod bench;
pub mod codegen;
pub mod decode;
pub mod device;
pub mod doctor;
pub mod engine;
pub mod fitted;
pub mod fuzz;
pub mod generate;
pub mod graph;
pub mod image;
pub mod import;
pub mod lint;
pub mod lower;
pub mod lowered;
pub mod mcp;
pub mod pack;
pub mod pipeline;
pub mod predict;
pub mod report;
pub mod rotary;
pub mod sampled;
pub mod scheduled;
pub mod search;
pub mod selftest;
pub mod target;
pub mod toolchain;
pub mod trace;
pub mod vm;
pub mod watch;
