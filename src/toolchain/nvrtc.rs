//! The foreign half: an NVRTC library opened from a given path.
//!
//! The calls go through `libloading` and plain C integers, not through cudarc's `nvrtc` module:
//! that one opens whichever library the dynamic loader finds under a fixed list of names, once per
//! process, and panics when there is none or when a symbol is missing.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use libloading::Library;

use super::find::Origin;

type Program = *mut c_void;
type SizeOf = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Fetch = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// `nvrtcResult` values that are told apart here.
const SUCCESS: c_int = 0;
pub(super) const INVALID_OPTION: c_int = 5;

/// Oldest NVRTC that writes cubins and lists its architectures.
const OLDEST: &str = "11.2";

/// Why a library cannot serve as the compiler.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The dynamic loader refused it.
    #[error("{} cannot be opened: {source}", .path.display())]
    Open {
        /// The library.
        path: PathBuf,
        /// The loader's reason.
        #[source]
        source: libloading::Error,
    },
    /// It lacks a function that amk calls.
    #[error("{} has no function {symbol}: it is no NVRTC, or one older than {OLDEST}", .path.display())]
    MissingSymbol {
        /// The library.
        path: PathBuf,
        /// The function.
        symbol: &'static str,
    },
    /// A call failed.
    #[error("{} failed in {call}: {reason}", .path.display())]
    Call {
        /// The library.
        path: PathBuf,
        /// The function.
        call: &'static str,
        /// NVRTC's name for the error, with its log when it gave one.
        reason: String,
    },
}

struct Api {
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    num_archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    archs: unsafe extern "C" fn(*mut c_int) -> c_int,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: SizeOf,
    log: Fetch,
    ptx_size: SizeOf,
    ptx: Fetch,
    cubin_size: SizeOf,
    cubin: Fetch,
    // The library stays mapped until the process ends: it keeps thread-local state of its own.
    _library: ManuallyDrop<Library>,
}

/// An open NVRTC. Calls may come from several threads at once.
pub struct Nvrtc {
    path: PathBuf,
    origin: Origin,
    api: Api,
    release: String,
    build: String,
    supported: Vec<u32>,
    isolation: Vec<String>,
}

/// Keeps NVRTC away from the driver's compute cache: with the cache it opens libcuda, crashes when
/// that lacks a function, and may answer without the log.
const NO_CACHE: &str = "--no-cache";

impl std::fmt::Debug for Nvrtc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nvrtc")
            .field("path", &self.path)
            .field("origin", &self.origin)
            .field("release", &self.release)
            .field("build", &self.build)
            .finish_non_exhaustive()
    }
}

/// Copies a function pointer out of the library.
fn symbol<T: Copy>(library: &Library, path: &Path, name: &'static str) -> Result<T, LoadError> {
    // SAFETY: every caller names a function of NVRTC's C interface together with its documented
    // signature; the library is never unloaded, so the pointer stays valid.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    found.map(|s| *s).map_err(|_| LoadError::MissingSymbol { path: path.to_owned(), symbol: name })
}

impl Api {
    fn open(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: opening a shared library runs its initialisers; NVRTC's have no preconditions.
        let library = unsafe { Library::new(path) }
            .map_err(|source| LoadError::Open { path: path.to_owned(), source })?;
        Ok(Self {
            version: symbol(&library, path, "nvrtcVersion")?,
            error_string: symbol(&library, path, "nvrtcGetErrorString")?,
            num_archs: symbol(&library, path, "nvrtcGetNumSupportedArchs")?,
            archs: symbol(&library, path, "nvrtcGetSupportedArchs")?,
            create: symbol(&library, path, "nvrtcCreateProgram")?,
            destroy: symbol(&library, path, "nvrtcDestroyProgram")?,
            compile: symbol(&library, path, "nvrtcCompileProgram")?,
            log_size: symbol(&library, path, "nvrtcGetProgramLogSize")?,
            log: symbol(&library, path, "nvrtcGetProgramLog")?,
            ptx_size: symbol(&library, path, "nvrtcGetPTXSize")?,
            ptx: symbol(&library, path, "nvrtcGetPTX")?,
            cubin_size: symbol(&library, path, "nvrtcGetCUBINSize")?,
            cubin: symbol(&library, path, "nvrtcGetCUBIN")?,
            _library: ManuallyDrop::new(library),
        })
    }

    fn error_name(&self, code: c_int) -> String {
        // SAFETY: the function accepts any integer and returns a static C string.
        let text = unsafe { (self.error_string)(code) };
        if text.is_null() {
            return format!("NVRTC error {code}");
        }
        // SAFETY: not null, and static per NVRTC's documentation.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// What one raw compile gave.
pub(super) struct RawCompile {
    /// `nvrtcResult` of the compile call.
    pub code: c_int,
    /// NVRTC's name for that result.
    pub reason: String,
    /// The program log, as written.
    pub log: Vec<u8>,
    /// PTX text with its terminating zero; empty when there is none.
    pub ptx: Vec<u8>,
    /// The cubin; empty when there is none.
    pub cubin: Vec<u8>,
}

impl RawCompile {
    pub fn succeeded(&self) -> bool {
        self.code == SUCCESS
    }
}

/// A program handle, destroyed on every way out.
struct Handle<'a> {
    api: &'a Api,
    program: Program,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        // SAFETY: `program` came from `create`, and this is its only destruction.
        unsafe { (self.api.destroy)(&mut self.program) };
    }
}

impl Handle<'_> {
    /// Reads one of the program's outputs; empty when the program has none.
    fn output(&self, size_of: SizeOf, fetch: Fetch) -> Vec<u8> {
        let mut size = 0usize;
        // SAFETY: a live program and a valid pointer to the size.
        if unsafe { size_of(self.program, &mut size) } != SUCCESS || size == 0 {
            return Vec::new();
        }
        let mut bytes = vec![0u8; size];
        // SAFETY: the buffer has exactly the size NVRTC asked for.
        if unsafe { fetch(self.program, bytes.as_mut_ptr().cast()) } != SUCCESS {
            return Vec::new();
        }
        bytes
    }
}

impl Nvrtc {
    /// Opens the library at `path` (or, for [`Origin::System`], by name) and asks it who it is.
    ///
    /// # Errors
    /// [`LoadError`] when it does not open, lacks a function, or cannot compile an empty program.
    pub fn load(path: &Path, origin: Origin) -> Result<Self, LoadError> {
        let api = Api::open(path)?;
        let fail = |call, reason| LoadError::Call { path: path.to_owned(), call, reason };
        let (mut major, mut minor) = (0, 0);
        // SAFETY: two valid pointers.
        let code = unsafe { (api.version)(&mut major, &mut minor) };
        if code != SUCCESS {
            return Err(fail("nvrtcVersion", api.error_name(code)));
        }
        let path_on_disk = match origin {
            Origin::System => mapped_file(api.version as usize).unwrap_or_else(|| path.to_owned()),
            _ => path.to_owned(),
        };
        let origin = first_origin(&path_on_disk, origin);
        preload_builtins(&path_on_disk, major, minor);

        let mut count = 0;
        // SAFETY: a valid pointer.
        let code = unsafe { (api.num_archs)(&mut count) };
        if code != SUCCESS {
            return Err(fail("nvrtcGetNumSupportedArchs", api.error_name(code)));
        }
        let mut list = vec![0 as c_int; usize::try_from(count).unwrap_or(0)];
        // SAFETY: the buffer holds as many integers as NVRTC said it writes.
        let code = unsafe { (api.archs)(list.as_mut_ptr()) };
        if code != SUCCESS {
            return Err(fail("nvrtcGetSupportedArchs", api.error_name(code)));
        }
        let supported = list.into_iter().filter_map(|a| u32::try_from(a).ok()).collect();

        let mut nvrtc = Self {
            path: path_on_disk,
            origin,
            api,
            release: format!("{major}.{minor}"),
            build: String::new(),
            supported,
            isolation: vec![NO_CACHE.to_owned()],
        };
        // The PTX banner alone tells patch release and build; compiling an empty program also
        // proves that the builtins library is there.
        let try_probe = |nvrtc: &Self| {
            nvrtc
                .compile_raw("extern \"C\" __global__ void probe() {}", "probe.cu", &[])
                .map_err(|code| fail("nvrtcCreateProgram", nvrtc.api.error_name(code)))
        };
        let mut probe = try_probe(&nvrtc)?;
        if probe.code == INVALID_OPTION {
            // A release from before the cache, which has no option against it.
            nvrtc.isolation.clear();
            probe = try_probe(&nvrtc)?;
        }
        if !probe.succeeded() {
            let log = String::from_utf8_lossy(&probe.log);
            let log = log.trim_matches(['\0', ' ', '\n']);
            return Err(fail(
                "nvrtcCompileProgram",
                format!("{} {log}", probe.reason).trim().to_owned(),
            ));
        }
        let banner = String::from_utf8_lossy(&probe.ptx);
        let field = |key: &str| {
            let line = banner.lines().find_map(|l| l.split_once(key))?.1;
            Some(line.trim().to_owned())
        };
        if let Some(patch) = field(", V") {
            nvrtc.release = patch;
        }
        nvrtc.build = field("Compiler Build ID:").unwrap_or_default();
        Ok(nvrtc)
    }

    /// The library's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it was found.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Release with patch level, such as `13.0.88`.
    pub fn release(&self) -> &str {
        &self.release
    }

    /// Release and build, such as `nvrtc 13.0.88 CL-36424714`: two compilers with the same identity
    /// give the same bytes for the same source and options.
    pub fn identity(&self) -> String {
        format!("nvrtc {} {}", self.release, self.build).trim_end().to_owned()
    }

    /// The CUDA major and minor release.
    pub fn cuda_version(&self) -> (u32, u32) {
        let mut parts = self.release.split('.').map(|p| p.parse().unwrap_or(0));
        (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
    }

    /// Architectures it can compile for, as numbers like 90, ascending.
    pub fn supported(&self) -> &[u32] {
        &self.supported
    }

    /// One compile, with every output read back. `Err` holds the result of a failed creation.
    pub(super) fn compile_raw(
        &self,
        source: &str,
        name: &str,
        options: &[String],
    ) -> Result<RawCompile, c_int> {
        // NUL bytes are refused by the caller; here they would only cut the text short.
        let text = |s: &str| {
            let bytes: Vec<u8> = s.bytes().take_while(|&b| b != 0).collect();
            CString::new(bytes).unwrap_or_default()
        };
        let (source, name) = (text(source), text(name));
        let options = self.isolation.iter().chain(options);
        let options: Vec<CString> = options.map(|o| text(o)).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Program = std::ptr::null_mut();
        // SAFETY: both strings outlive the program; no headers are passed.
        let code = unsafe {
            (self.api.create)(
                &mut program,
                source.as_ptr(),
                name.as_ptr(),
                0,
                std::ptr::null(),
                std::ptr::null(),
            )
        };
        if code != SUCCESS {
            return Err(code);
        }
        let handle = Handle { api: &self.api, program };
        let count = c_int::try_from(pointers.len()).unwrap_or(c_int::MAX);
        // SAFETY: a live program and `count` valid C strings.
        let code = unsafe { (self.api.compile)(handle.program, count, pointers.as_ptr()) };
        Ok(RawCompile {
            code,
            reason: self.api.error_name(code),
            log: handle.output(self.api.log_size, self.api.log),
            ptx: handle.output(self.api.ptx_size, self.api.ptx),
            cubin: handle.output(self.api.cubin_size, self.api.cubin),
        })
    }
}

/// How this process first came to the library. A name that the loader is asked for is answered with a
/// library of that name which is mapped already, so a search by name can end at a file that was
/// opened by path before. Files are told apart by inode, since a fetch renames its folder.
fn first_origin(path: &Path, origin: Origin) -> Origin {
    use std::os::unix::fs::MetadataExt;
    static OPENED: Mutex<BTreeMap<(u64, u64), Origin>> = Mutex::new(BTreeMap::new());
    let Ok(meta) = std::fs::metadata(path) else {
        return origin;
    };
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let first = *opened.entry((meta.dev(), meta.ino())).or_insert(origin);
    match origin {
        Origin::System => first,
        _ => origin,
    }
}

/// Opens the builtins library beside NVRTC by absolute path. NVRTC opens it by bare name, and some
/// releases carry no RPATH; once it is mapped, the loader answers that name with it. Absence is no
/// error here: the system's search path may still have it, and the probe compile tells.
fn preload_builtins(nvrtc: &Path, major: c_int, minor: c_int) {
    let real = std::fs::canonicalize(nvrtc).unwrap_or_else(|_| nvrtc.to_owned());
    let folders = [nvrtc.parent(), real.parent()];
    for folder in folders.into_iter().flatten() {
        let file = folder.join(format!("libnvrtc-builtins.so.{major}.{minor}"));
        let Ok(file) = std::path::absolute(file) else {
            continue;
        };
        if file.is_file() {
            // SAFETY: the builtins library only carries data.
            if let Ok(library) = unsafe { Library::new(&file) } {
                std::mem::forget(library);
                return;
            }
        }
    }
}

/// The file mapped at an address of this process.
fn mapped_file(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (low, high) = range.split_once('-')?;
        let low = usize::from_str_radix(low, 16).ok()?;
        let high = usize::from_str_radix(high, 16).ok()?;
        let path = &rest[rest.find('/')?..];
        (low..high).contains(&address).then(|| PathBuf::from(path))
    })
}
