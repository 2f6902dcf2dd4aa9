//! A program that may be launched: validated, compiled, checked against the device, uploaded.

use amk_schedule_ir::Program;
use amk_schedule_ir::hash::hex;
use amk_validator::Validated;
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::{Block, Device, DeviceError, Params};
use crate::codegen::{Arena, Source, Tables};
use crate::image::symbol_bytes;
use crate::target::Arch;

/// A validated program, its image and its device, together.
pub struct Launchable {
    program: Validated<Program>,
    function: CudaFunction,
    device: Device,
    tables: Block,
    arena: Arena,
    config: LaunchConfig,
}

/// One launch of a program.
#[derive(Clone, Debug)]
pub struct Launch {
    pub params: Params,
}

impl Launchable {
    /// Makes the checks of invariant O-image and uploads the tables.
    ///
    /// # Errors
    /// The image is for another architecture or another program, the grid does not fit the device
    /// at once, shared memory is short, or the tables do not read back as they were sent.
    pub fn new(
        device: &Device,
        program: Validated<Program>,
        source: &Source,
        tables: &Tables,
        cubin: &[u8],
    ) -> Result<Launchable, DeviceError> {
        let facts = device.facts();
        let (major, minor) = facts.capability;
        let runs = source.sm.parse::<Arch>().is_ok_and(|a| a.runs_on(major, minor));
        if !runs {
            return Err(DeviceError::WrongArchitecture {
                image: source.sm.clone(),
                device: format!("{} ({major}.{minor})", facts.name),
            });
        }
        let wanted = hex(&program.hash());
        let found = symbol_bytes(cubin, source.hash_symbol).map(|b| hex(&b)).unwrap_or_default();
        if found != wanted {
            return Err(DeviceError::WrongProgram { image: found, program: wanted });
        }
        if source.shared_bytes > facts.shared_per_block {
            return Err(DeviceError::SharedMemory {
                needed: source.shared_bytes,
                available: facts.shared_per_block,
            });
        }
        let module = device
            .context
            .load_module(Ptx::from_binary(cubin.to_vec()))
            .map_err(|e| DeviceError::call("loading the image", e))?;
        let function = module
            .load_function(source.kernel)
            .map_err(|e| DeviceError::call("finding the kernel in the image", e))?;
        function
            .set_attribute(
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                source.shared_bytes as i32,
            )
            .map_err(|e| DeviceError::call("asking for shared memory", e))?;
        let per_sm = function
            .occupancy_max_active_blocks_per_multiprocessor(
                source.threads as u32,
                source.shared_bytes as usize,
                None,
            )
            .map_err(|e| DeviceError::call("asking for occupancy", e))?;
        let available = u64::from(per_sm) * u64::from(facts.sm_count);
        if source.blocks > available {
            return Err(DeviceError::GridTooLarge {
                blocks: source.blocks,
                available,
                per_sm,
                sms: facts.sm_count,
            });
        }
        let mut block = Block::zeros(device, tables.bytes.len() as u64)?;
        block.write(0, &tables.bytes)?;
        let mut back = vec![0; tables.bytes.len()];
        block.read(0, &mut back)?;
        if blake3::hash(&back).as_bytes() != &tables.hash() {
            return Err(DeviceError::Tables);
        }
        let arena = Arena::new(&program);
        let config = LaunchConfig {
            grid_dim: (source.blocks as u32, 1, 1),
            block_dim: (source.threads as u32, 1, 1),
            shared_mem_bytes: source.shared_bytes as u32,
        };
        Ok(Launchable { program, function, device: device.clone(), tables: block, arena, config })
    }

    /// The program.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Where its buffers lie.
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The tables on the device, for tests that tamper with them.
    pub fn tables_mut(&mut self) -> &mut Block {
        &mut self.tables
    }

    /// Submits a launch; `params.tables` is filled in here. The caller waits.
    ///
    /// # Errors
    /// The driver refuses the launch.
    pub fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        let params = Params { tables: self.tables.address(), ..launch.params };
        let mut builder = self.device.stream.launch_builder(&self.function);
        builder.arg(&params);
        // SAFETY: the parameters are laid out as the kernel declares them, and every address in them is
        // of a block at least as large as the arena and tables of this program say.
        unsafe { builder.launch_cooperative(self.config) }
            .map(|_| ())
            .map_err(|e| DeviceError::call("the cooperative launch", e))
    }
}
