//! One CUDA device: opened with care, asked for its facts, and the one place that calls the driver to
//! allocate, copy and launch.
//!
//! [`Launchable`] is the last gate before a launch: it exists only for a validated program, an image
//! that carries that program's hash, and a device on which the compiled function has room for the
//! whole grid, with tables that were read back and found to be what was validated.

mod admit;
mod error;
mod kernel;
mod launchable;
mod memory;
mod params;

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream};

use crate::doctor::driver::{DriverState, probe_driver};
use crate::target::DeviceFacts;

pub use admit::{Form, Image, ImageFacts, admit, co_resident, form_for, ptx_bytes};
pub use error::{DeviceError, Hang};
pub use kernel::Kernel;
pub use launchable::{Candidate, Launch, Launchable};
pub use memory::{Block, HostWords, Staging};
pub use params::{LaunchReport, Params};

/// An opened device.
#[derive(Clone)]
pub struct Device {
    pub(crate) context: Arc<CudaContext>,
    pub(crate) stream: Arc<CudaStream>,
    /// For the words that reach a device while a kernel runs.
    pub(crate) side: Arc<CudaStream>,
    facts: DeviceFacts,
    driver: i32,
}

impl Device {
    /// Opens device `ordinal`.
    ///
    /// # Errors
    /// No driver, a driver too old, no such device: each a sentence, never a panic.
    pub fn open(ordinal: usize) -> Result<Device, DeviceError> {
        let (driver, devices) = match probe_driver() {
            DriverState::Ready { version, devices } => (version, devices),
            DriverState::Absent => return Err(DeviceError::NoDriver),
            DriverState::MissingSymbols { library, missing } => {
                return Err(DeviceError::OldDriver { library, missing: missing.join(", ") });
            }
            DriverState::Failed { call, error } => {
                return Err(DeviceError::Driver { call: call.to_owned(), error });
            }
            DriverState::NoDevice { .. } => {
                return Err(DeviceError::NoDevice { ordinal, found: 0 });
            }
        };
        let found = devices.len();
        let facts =
            devices.into_iter().nth(ordinal).ok_or(DeviceError::NoDevice { ordinal, found })?;
        if !facts.cooperative {
            return Err(DeviceError::NotCooperative { name: facts.name });
        }
        let context = CudaContext::new(ordinal).map_err(|e| DeviceError::call("opening", e))?;
        // One stream and no shared slices: cudarc's own event tracking would only cost time.
        // SAFETY: all work goes to one stream, so its order is the only order there is.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(|e| DeviceError::call("creating a stream", e))?;
        let side = context.new_stream().map_err(|e| DeviceError::call("creating a stream", e))?;
        Ok(Device { context, stream, side, facts, driver })
    }

    /// What the driver says about the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// CUDA version of the driver: 1000 times the major plus 10 times the minor.
    pub fn driver_version(&self) -> i32 {
        self.driver
    }

    /// Free device memory, bytes.
    pub fn free_memory(&self) -> Result<u64, DeviceError> {
        self.context
            .bind_to_thread()
            .and_then(|()| cudarc::driver::result::mem_get_info())
            .map(|(free, _)| free as u64)
            .map_err(|e| DeviceError::call("asking for free memory", e))
    }

    /// Waits for everything submitted.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        self.stream.synchronize().map_err(|e| DeviceError::call("waiting for the device", e))
    }
}

/// A point in the device's work, with a time.
pub struct Mark(cudarc::driver::CudaEvent);

impl Mark {
    /// Milliseconds from this mark to a later one; waits for both.
    pub fn elapsed_ms(&self, end: &Mark) -> Result<f32, DeviceError> {
        self.0.elapsed_ms(&end.0).map_err(|e| DeviceError::call("reading an event", e))
    }

    /// Has the device reached this mark?
    pub fn reached(&self) -> Result<bool, DeviceError> {
        self.0.try_is_complete().map_err(|e| DeviceError::call("waiting for the device", e))
    }
}

impl Device {
    /// Marks this point in the device's work.
    pub fn record(&self) -> Result<Mark, DeviceError> {
        let flags = cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
        let event = self.stream.record_event(Some(flags));
        Ok(Mark(event.map_err(|e| DeviceError::call("recording an event", e))?))
    }
}
