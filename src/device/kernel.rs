//! Small kernels beside the megakernel: the plain read that bounds what any schedule can reach.

use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::{Block, Device, DeviceError};

/// A loaded kernel whose parameters are `(const void* data, u64 bytes, u32* out)`.
pub struct Kernel {
    function: CudaFunction,
    device: Device,
    blocks: u32,
    threads: u32,
}

impl Kernel {
    /// Loads `name` from machine code, to be launched with as many blocks of `threads` threads as the device
    /// holds at once.
    ///
    /// # Errors
    /// The driver refuses the image.
    pub fn load(
        device: &Device,
        cubin: &[u8],
        name: &str,
        threads: u32,
    ) -> Result<Kernel, DeviceError> {
        let module = device
            .context
            .load_module(Ptx::from_binary(cubin.to_vec()))
            .map_err(|e| DeviceError::call("loading a kernel", e))?;
        let function =
            module.load_function(name).map_err(|e| DeviceError::call("finding a kernel", e))?;
        let per_sm = function
            .occupancy_max_active_blocks_per_multiprocessor(threads, 0, None)
            .map_err(|e| DeviceError::call("asking for occupancy", e))?;
        let blocks = per_sm.max(1) * device.facts().sm_count;
        Ok(Kernel { function, device: device.clone(), blocks, threads })
    }

    /// Submits a launch over `bytes` bytes of `data`; the caller waits.
    ///
    /// # Errors
    /// The driver refuses the launch, or the block is shorter.
    pub fn launch(&self, data: &Block, bytes: u64, out: &mut Block) -> Result<(), DeviceError> {
        let bytes = bytes.min(data.len());
        let (from, to) = (data.address(), out.address_mut());
        let mut builder = self.device.stream.launch_builder(&self.function);
        builder.arg(&from).arg(&bytes).arg(&to);
        let config = LaunchConfig {
            grid_dim: (self.blocks, 1, 1),
            block_dim: (self.threads, 1, 1),
            shared_mem_bytes: 0,
        };
        // SAFETY: three parameters as the kernel declares them; it reads within the block's `bytes` and writes the
        // first word of `out`.
        unsafe { builder.launch(config) }
            .map(|_| ())
            .map_err(|e| DeviceError::call("launching a kernel", e))
    }
}
