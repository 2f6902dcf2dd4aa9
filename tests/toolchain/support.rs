//! What the tests share: the compiler, and kernels small enough to reason about.

use std::sync::OnceLock;

use amk::target::Arch;
use amk::toolchain::{
    CompileError, CompileRequest, Compiled, FindOptions, Nvrtc, SpillPolicy, find_nvrtc,
};

/// The NVRTC of this machine, opened once.
pub fn nvrtc() -> &'static Nvrtc {
    static NVRTC: OnceLock<Nvrtc> = OnceLock::new();
    NVRTC.get_or_init(|| match find_nvrtc(&FindOptions::from_env(None)) {
        Ok(found) => found.nvrtc,
        Err(error) => panic!("these tests need NVRTC: run `amk toolchain fetch` first ({error})"),
    })
}

pub fn arch(name: &str) -> Arch {
    name.parse().unwrap()
}

pub fn request<'a>(source: &'a str, arch_name: &str) -> CompileRequest<'a> {
    CompileRequest {
        source,
        name: "test.cu",
        arch: arch(arch_name),
        options: &[],
        spills: SpillPolicy::Refuse,
    }
}

pub fn compile(source: &str, arch_name: &str) -> Result<Compiled, CompileError> {
    nvrtc().compile(&request(source, arch_name))
}

/// Two kernels, 1,024 bytes of static shared memory in `reverse`, a used and an unused constant, an
/// initialised and a zeroed global.
pub const SMALL: &str = r#"
extern "C" __constant__ unsigned char amk_program_hash[32] = {1, 2, 3, 4, 5};
extern "C" __constant__ unsigned int unused_words[3] = {0x01020304u, 7u, 9u};
extern "C" __device__ int table[4] = {7, 8, 9, 10};
__device__ int zeroed[4];
extern "C" __global__ void reverse(float* out, int n) {
    __shared__ float s[256];
    s[threadIdx.x] = out[threadIdx.x] + amk_program_hash[n & 31];
    __syncthreads();
    out[threadIdx.x] = s[255 - threadIdx.x] + table[n & 3] + zeroed[n & 3];
}
extern "C" __global__ void twice(float* out) { out[threadIdx.x] *= 2.0f; }
"#;

/// A kernel that must spill: 96 live values per thread, and 32 registers allowed.
pub const SPILLING: &str = r#"
extern "C" __global__ void __launch_bounds__(1024, 2) spill(float* o) {
    float a[96];
    #pragma unroll
    for (int i = 0; i < 96; i++) a[i] = o[i * 1024 + threadIdx.x];
    __syncthreads();
    #pragma unroll
    for (int i = 0; i < 96; i++) o[i * 1024 + threadIdx.x] = a[95 - i] * a[i];
}
"#;
