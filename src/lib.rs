//! amk compiles a Llama-family checkpoint into one persistent CUDA kernel whose schedule is proved
//! free of deadlock and races before launch.

pub mod lowered;
