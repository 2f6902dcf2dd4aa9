//! The read ceiling: how long a plain read of the same bytes takes on the same device, with nothing to wait for and
//! nothing to compute. No schedule of a memory-bound decode can be faster.

use std::rc::Rc;

use super::{BenchError, Contender};
use crate::device::{Block, Device, Kernel};
use crate::engine::EngineError;
use crate::image::ImageCache;
use crate::target::{Arch, arch_for_capability};
use crate::toolchain::{CompileRequest, Nvrtc, SpillPolicy};

/// 16-byte loads past L1, several in flight per thread; what was read is folded into a word that is stored only if it
/// has one certain value, so that no load can be left out. `UNROLL` is defined by the option of the compile.
const TEXT: &str = r#"
typedef unsigned int u32;
typedef unsigned long long u64;
extern "C" __global__ void amk_read(const void* data, u64 bytes, u32* out) {
  const char* base = (const char*)data;
  const u64 n = bytes / 16, stride = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  u32 fold = 0;
  for (; i + (UNROLL - 1) * stride < n; i += UNROLL * stride) {
    u32 a[UNROLL], b[UNROLL], c[UNROLL], d[UNROLL];
#pragma unroll
    for (int j = 0; j < UNROLL; ++j)
      asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a[j]), "=r"(b[j]), "=r"(c[j]), "=r"(d[j]) : "l"(base + (i + j * stride) * 16));
#pragma unroll
    for (int j = 0; j < UNROLL; ++j) fold ^= a[j] ^ b[j] ^ c[j] ^ d[j];
  }
  for (; i < n; i += stride) {
    u32 a, b, c, d;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(base + i * 16));
    fold ^= a ^ b ^ c ^ d;
  }
  if (fold == 0x6b6d6163u) *out = fold;
}
"#;

/// Threads of a block and loads in flight of a thread: the ways to read that are tried.
pub const WAYS: [(u32, u32); 3] = [(512, 8), (1024, 4), (256, 16)];

/// The text for a number of loads in flight.
pub fn text(unroll: u32) -> String {
    format!("#define UNROLL {unroll}\n{TEXT}")
}

/// Compiles the read kernel for an architecture.
///
/// # Errors
/// The compiler refuses it.
pub fn compile(
    arch: Arch,
    unroll: u32,
    nvrtc: &Nvrtc,
    cache: &ImageCache,
) -> Result<Vec<u8>, BenchError> {
    let source = text(unroll);
    let request = CompileRequest {
        source: &source,
        name: "read.cu",
        arch,
        options: &[],
        spills: SpillPolicy::Refuse,
    };
    Ok(cache.get_or_compile(nvrtc, &request)?.compiled.cubin)
}

/// One way to read `bytes` bytes of device memory, timed.
pub struct PlainRead {
    name: String,
    kernel: Kernel,
    device: Device,
    data: Rc<Block>,
    out: Block,
    bytes: u64,
    /// Launches of one sample.
    batch: usize,
}

/// All [`WAYS`] to read `bytes` bytes, of the same memory. What lies there does not matter.
///
/// # Errors
/// Too little memory, or the compiler or the driver refuses.
pub fn all_ways(
    device: &Device,
    bytes: u64,
    batch: usize,
    nvrtc: &Nvrtc,
    cache: &ImageCache,
) -> Result<Vec<PlainRead>, BenchError> {
    let (major, minor) = device.facts().capability;
    let choice = arch_for_capability(major, minor, Some(nvrtc.supported()))
        .map_err(|e| EngineError::Mismatch(e.to_string()))?;
    let data = Rc::new(Block::zeros(device, bytes).map_err(device_error)?);
    let make = |&(threads, unroll): &(u32, u32)| -> Result<PlainRead, BenchError> {
        let cubin = compile(choice.arch, unroll, nvrtc, cache)?;
        Ok(PlainRead {
            name: format!("read {threads}x{unroll}"),
            kernel: Kernel::load(device, &cubin, "amk_read", threads).map_err(device_error)?,
            device: device.clone(),
            data: data.clone(),
            out: Block::zeros(device, 16).map_err(device_error)?,
            bytes,
            batch,
        })
    };
    WAYS.iter().map(make).collect()
}

fn device_error(error: crate::device::DeviceError) -> BenchError {
    BenchError::Engine(error.into())
}

impl Contender for PlainRead {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self) -> Result<f64, BenchError> {
        let mut run = || -> Result<f64, crate::device::DeviceError> {
            self.kernel.launch(&self.data, self.bytes, &mut self.out)?;
            let start = self.device.record()?;
            for _ in 0..self.batch {
                self.kernel.launch(&self.data, self.bytes, &mut self.out)?;
            }
            let end = self.device.record()?;
            Ok(f64::from(start.elapsed_ms(&end)?) * 1e3 / self.batch as f64)
        };
        run().map_err(device_error)
    }
}
