//! The CUDA compiler: where NVRTC is found, how it is fetched, and how CUDA text becomes a cubin.
//!
//! `find` lists the places an NVRTC library may be and opens the first that works; `nvrtc` holds the
//! foreign calls and the compile itself; `log` reads the compiler's log (diagnostics, spills,
//! registers); `fetch` installs the NVRTC wheel into amk's cache through pip; `cache_dir` says where
//! that cache is. Nothing here needs a GPU or a driver, and nothing panics when a library is absent.

mod cache_dir;
mod compile;
mod fetch;
mod find;
mod log;
mod nvrtc;

pub use cache_dir::{CacheDirError, cache_root};
pub use compile::{CompileError, CompileRequest, Compiled, SpillPolicy};
pub(crate) use compile::{full_options, judge};
pub use fetch::{
    FetchError, FetchEvent, FetchOptions, Fetched, NVRTC_VERSION, fetch, installed_versions,
    probe_python,
};
pub use find::{FindOptions, Found, NotFound, Origin, Skipped, find_nvrtc};
pub use log::{CompileLog, Diagnostic, FunctionUsage, Place, Severity};
pub use nvrtc::{LoadError, Nvrtc};
