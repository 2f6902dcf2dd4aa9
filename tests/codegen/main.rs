//! The generated CUDA text: `goldens` compares it byte for byte with files of the tree, `images`
//! compiles those very files for their targets and judges the cubins, `support` says which programs
//! they are of. Compiling needs NVRTC and fails without it.

mod goldens;
mod images;
mod support;
