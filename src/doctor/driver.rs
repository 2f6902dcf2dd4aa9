//! The CUDA driver, asked carefully: cudarc panics when libcuda or one of its functions is absent,
//! so presence and symbols are established first, and every call runs under `catch_unwind` besides.

use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute, CUresult};

use crate::target::DeviceFacts;

/// Driver functions that amk calls, here or when it runs a schedule. A driver without one of them is
/// too old.
pub const REQUIRED_SYMBOLS: [&str; 36] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemsetD8_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyDtoH_v2",
    "cuLaunchKernel",
    "cuLaunchCooperativeKernel",
    "cuStreamCreate",
    "cuEventCreate",
    "cuEventElapsedTime_v2",
    "cuEventQuery",
    "cuStreamSynchronize",
    "cuMemHostAlloc",
    "cuMemGetInfo_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
];

/// What the driver is like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverState {
    /// No libcuda.
    Absent,
    /// A libcuda without functions that amk needs.
    MissingSymbols {
        /// The library, as the loader knows it.
        library: String,
        /// The functions.
        missing: Vec<&'static str>,
    },
    /// A call failed.
    Failed {
        /// The driver function.
        call: &'static str,
        /// The driver's name for the error, with its number.
        error: String,
    },
    /// It works and sees no device.
    NoDevice {
        /// CUDA version it supports: 1000 times the major plus 10 times the minor.
        version: i32,
    },
    /// It works and sees devices.
    Ready {
        /// CUDA version it supports: 1000 times the major plus 10 times the minor.
        version: i32,
        /// What it says of each device.
        devices: Vec<DeviceFacts>,
    },
}

/// Why the self-test kernel did not show that launches work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A driver call failed.
    #[error("{call} failed: {error}")]
    Call {
        /// The driver function.
        call: &'static str,
        /// The driver's name for the error, with its number.
        error: String,
    },
    /// The kernel ran and its answer is wrong.
    #[error("the kernel ran and word {index} is {got:#010x} where {wanted:#010x} is right")]
    Wrong {
        /// Index of the first wrong word.
        index: usize,
        /// What came back.
        got: u32,
        /// What is right.
        wanted: u32,
    },
}

/// A failed driver call.
struct Failed {
    call: &'static str,
    error: String,
}

/// Runs `body`, which calls the driver, and turns a panic into a failure.
fn guarded<T>(body: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .cloned()
            .or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        Err(Failed {
            call: "a driver call",
            error: text.unwrap_or_else(|| "panic without a message".into()),
        })
    })
}

/// Names a failed call and its error: `CUDA_ERROR_NO_DEVICE (100)`.
fn named<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T, Failed> {
    result.map_err(|error| {
        let number = error.0 as u32;
        let name = error.error_name().map_or_else(
            |_| "an error without a name".to_owned(),
            |name| name.to_string_lossy().into_owned(),
        );
        Failed { call, error: format!("{name} ({number})") }
    })
}

/// The first libcuda the loader finds, in cudarc's own order, with the symbols it lacks.
fn missing_symbols() -> Option<(String, Vec<&'static str>)> {
    let names = ["cuda", "nvcuda"].into_iter();
    for name in names.flat_map(cudarc::get_lib_name_candidates) {
        // SAFETY: opening the driver library has no preconditions.
        let Ok(library) = (unsafe { libloading::Library::new(&name) }) else {
            continue;
        };
        let missing = REQUIRED_SYMBOLS
            .into_iter()
            .filter(|symbol| {
                // SAFETY: only the presence of the symbol is looked at; it is never called here.
                unsafe { library.get::<*const ()>(symbol.as_bytes()) }.is_err()
            })
            .collect();
        return Some((name, missing));
    }
    None
}

/// Is there a libcuda? Nothing is asked of it.
pub fn library_is_there() -> bool {
    // SAFETY: tries to open the library and nothing else.
    unsafe { sys::is_culib_present() }
}

/// Asks the driver what it is and what devices it sees. Never panics.
pub fn probe_driver() -> DriverState {
    // SAFETY: tries to open the library and nothing else.
    if !unsafe { sys::is_culib_present() } {
        return DriverState::Absent;
    }
    match missing_symbols() {
        None => return DriverState::Absent,
        Some((library, missing)) if !missing.is_empty() => {
            return DriverState::MissingSymbols { library, missing };
        }
        Some(_) => {}
    }
    match guarded(ask_driver) {
        Ok(state) => state,
        Err(Failed { call, error }) => DriverState::Failed { call, error },
    }
}

fn ask_driver() -> Result<DriverState, Failed> {
    let mut version = 0;
    // SAFETY: a valid pointer; this call is allowed before cuInit.
    let got = unsafe { sys::cuDriverGetVersion(&mut version) };
    named("cuDriverGetVersion", got.result())?;
    if let Err(error) = result::init() {
        if error.0 == CUresult::CUDA_ERROR_NO_DEVICE {
            return Ok(DriverState::NoDevice { version });
        }
        return named("cuInit", Err(error));
    }
    let count = named("cuDeviceGetCount", result::device::get_count())?;
    let mut devices = Vec::new();
    for ordinal in 0..count {
        devices.push(device_facts(ordinal)?);
    }
    Ok(match devices.is_empty() {
        true => DriverState::NoDevice { version },
        false => DriverState::Ready { version, devices },
    })
}

fn device_facts(ordinal: i32) -> Result<DeviceFacts, Failed> {
    let device = named("cuDeviceGet", result::device::get(ordinal))?;
    let ask = |attribute| {
        // SAFETY: `device` came from the driver.
        let value = unsafe { result::device::get_attribute(device, attribute) };
        named("cuDeviceGetAttribute", value).map(|v| u32::try_from(v).unwrap_or(0))
    };
    // SAFETY: `device` came from the driver.
    let memory = named("cuDeviceTotalMem", unsafe { result::device::total_mem(device) })?;
    Ok(DeviceFacts {
        name: named("cuDeviceGetName", result::device::get_name(device))?
            .trim_matches(['\0', ' '])
            .to_owned(),
        capability: (
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            ask(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        sm_count: ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
            .into(),
        shared_per_sm: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?
            .into(),
        reserved_shared: ask(Attribute::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK)?
            .into(),
        registers_per_sm: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        threads_per_block: ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
        l2_bytes: ask(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        memory_clock_khz: ask(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bus_bits: ask(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        memory_bytes: memory as u64,
        cooperative: ask(Attribute::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH)? != 0,
    })
}

/// Loads `cubin` on a device, launches `kernel` with one block of `expected.len()` threads and one
/// pointer argument, and compares the words it wrote. Call only after [`probe_driver`] said
/// [`DriverState::Ready`].
///
/// # Errors
/// [`LaunchError`]; whatever was allocated is released on every way out.
pub fn self_test(
    ordinal: i32,
    cubin: Vec<u8>,
    kernel: &CStr,
    expected: &[u32],
) -> Result<(), LaunchError> {
    let words = guarded(|| run_words(ordinal, &cubin, kernel, expected.len()))
        .map_err(|Failed { call, error }| LaunchError::Call { call, error })?;
    let wrong = words.iter().zip(expected).position(|(a, b)| a != b);
    match wrong {
        None => Ok(()),
        Some(index) => {
            Err(LaunchError::Wrong { index, got: words[index], wanted: expected[index] })
        }
    }
}

/// Calls a function when dropped.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn run_words(ordinal: i32, cubin: &[u8], kernel: &CStr, count: usize) -> Result<Vec<u32>, Failed> {
    let bytes = count * size_of::<u32>();
    let device = named("cuDeviceGet", result::device::get(ordinal))?;
    // SAFETY: `device` came from the driver; released below.
    let context = unsafe { result::primary_ctx::retain(device) };
    let context = named("cuDevicePrimaryCtxRetain", context)?;
    // Errors while releasing are not the answer to "do launches work", so they are dropped.
    let _context = Finally(|| {
        // SAFETY: retained above, released once.
        let _ = unsafe { result::primary_ctx::release(device) };
    });
    // SAFETY: a live context.
    named("cuCtxSetCurrent", unsafe { result::ctx::set_current(context) })?;
    // SAFETY: the image is a whole ELF file in memory; the driver reads its length from it.
    let module = unsafe { result::module::load_data(cubin.as_ptr().cast()) };
    let module = named("cuModuleLoadData", module)?;
    let _module = Finally(|| {
        // SAFETY: loaded above, unloaded once.
        let _ = unsafe { result::module::unload(module) };
    });
    // SAFETY: a live module.
    let function = unsafe { result::module::get_function(module, kernel.to_owned()) };
    let function = named("cuModuleGetFunction", function)?;
    // SAFETY: freed below.
    let mut pointer = named("cuMemAlloc", unsafe { result::malloc_sync(bytes) })?;
    let allocated = pointer;
    let _memory = Finally(|| {
        // SAFETY: allocated above, freed once.
        let _ = unsafe { result::free_sync(allocated) };
    });
    // SAFETY: the allocation holds `bytes` bytes.
    named("cuMemsetD8", unsafe { result::memset_d8_sync(pointer, 0xa5, bytes) })?;
    let mut arguments = [(&raw mut pointer).cast()];
    let threads = u32::try_from(count).unwrap_or(u32::MAX);
    // SAFETY: one argument of pointer size, as the kernel declares; each thread writes one word
    // inside the allocation.
    named("cuLaunchKernel", unsafe {
        result::launch_kernel(
            function,
            (1, 1, 1),
            (threads, 1, 1),
            0,
            std::ptr::null_mut(),
            &mut arguments,
        )
    })?;
    // SAFETY: a context is current.
    let finished = unsafe { sys::cuCtxSynchronize() };
    named("cuCtxSynchronize", finished.result())?;
    let mut words = vec![0u32; count];
    // SAFETY: source and destination both hold `bytes` bytes.
    named("cuMemcpyDtoH", unsafe { result::memcpy_dtoh_sync(&mut words, pointer) })?;
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_a_failure() {
        let failed = guarded::<()>(|| panic!("Missing symbol cuX")).err().unwrap();
        assert!(failed.error.contains("cuX"));
    }
}
