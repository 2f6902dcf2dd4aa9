//! The compiler-side plumbing against a real NVRTC: `compile` (options, refusals, spills, fetching),
//! `image` (reading cubins, the cache), `doctor` (every state a machine can be in, with stand-in
//! driver libraries made by gcc). A test that needs NVRTC fails without it, and says how to get it.

mod compile;
mod doctor;
mod image;
mod support;
