//! The generated CUDA text: `goldens` compares it byte for byte with files of the tree, `images`
//! compiles those very files for their targets and judges the cubins, `lint` judges the PTX of each,
//! `places` and `mutants` that of broken variants, `fixtures` renders the schedules of the tree, `support` says which
//! programs the files are of. Compiling needs NVRTC and fails without it.

mod fixtures;
mod goldens;
mod images;
mod lint;
mod mutants;
mod places;
#[path = "../places/mod.rs"]
mod source;
mod support;
