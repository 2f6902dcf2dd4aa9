//! A program that may be launched: validated, compiled, checked against the device, uploaded.

use amk_schedule_ir::Program;
use amk_validator::Validated;
use cudarc::driver::sys::CUfunction_attribute;
use cudarc::driver::{CudaFunction, LaunchConfig, PushKernelArg};
use cudarc::nvrtc::Ptx;

use super::{Block, Device, DeviceError, Image, ImageFacts, Params, admit, co_resident};
use crate::codegen::{Arena, Source, Tables};

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

/// A compiled kernel on its way to a device.
pub struct Candidate<'a> {
    pub source: &'a Source,
    pub tables: &'a Tables,
    pub image: &'a Image,
    /// CUDA release of the compiler.
    pub compiler: (u32, u32),
}

impl Launchable {
    /// Makes the checks of invariant O-image and uploads the tables.
    ///
    /// # Errors
    /// The image is for another architecture, driver or program, the grid does not fit the device
    /// at once, shared memory is short, or the tables do not read back as they were sent.
    pub fn new(
        device: &Device,
        program: Validated<Program>,
        candidate: &Candidate<'_>,
    ) -> Result<Launchable, DeviceError> {
        let Candidate { source, tables, image, compiler } = candidate;
        let facts = device.facts();
        let arch = source.sm.parse().map_err(|_| DeviceError::WrongArchitecture {
            image: source.sm.clone(),
            device: facts.name.clone(),
        })?;
        admit(
            &ImageFacts {
                image,
                arch,
                compiler: *compiler,
                hash_symbol: source.hash_symbol,
                program: program.hash(),
                shared_bytes: source.shared_bytes,
            },
            facts,
            device.driver_version(),
        )?;
        let code = match image {
            Image::Cubin(bytes) => Ptx::from_binary(bytes.clone()),
            Image::Ptx(text) => Ptx::from_src(text.as_str()),
        };
        let module = device
            .context
            .load_module(code)
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
        co_resident(source.blocks, per_sm, facts.sm_count)?;
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
