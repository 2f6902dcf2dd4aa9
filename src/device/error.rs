//! What can go wrong between a validated program and its launch.

use cudarc::driver::result::DriverError;

use crate::target::Mismatch;

/// Every refusal of the device layer. Exit code 3 unless it says otherwise.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    #[error("there is no CUDA driver (libcuda.so.1) on this machine; install the NVIDIA driver")]
    NoDriver,
    #[error("the CUDA driver {library} is too old: it lacks {missing}; install a newer driver")]
    OldDriver { library: String, missing: String },
    #[error("device {ordinal} was asked for, and the driver sees {found}")]
    NoDevice { ordinal: usize, found: usize },
    #[error("{name} has no cooperative launches, which a persistent kernel needs")]
    NotCooperative { name: String },
    #[error("{call} failed: {error}")]
    Driver { call: String, error: String },
    #[error("the image is for {image}, the device is {device}")]
    WrongArchitecture { image: String, device: String },
    #[error(
        "the image was made from another program (hash {image}, the program's is {program}); compile it again"
    )]
    WrongProgram { image: String, program: String },
    #[error(
        "the grid has {blocks} blocks, and the device holds {available} at once ({per_sm} per SM on {sms} SMs); another process, MPS or MIG may have taken SMs, or the kernel needs more registers or shared memory than assumed"
    )]
    GridTooLarge { blocks: u64, available: u64, per_sm: u32, sms: u32 },
    #[error(
        "the kernel needs {needed} bytes of shared memory per block, the device gives {available}"
    )]
    SharedMemory { needed: u64, available: u64 },
    #[error(
        "the driver supports CUDA {driver} and the image was made by CUDA {image}; install a newer driver, or name an older compiler with --nvrtc"
    )]
    DriverOlder { driver: String, image: String },
    #[error("the device is not the part the schedule is for: {}", join(.0))]
    NotThatPart(Vec<Mismatch>),
    #[error(
        "{what} needs {needed} bytes of device memory and {free} are free; use a smaller model or fewer positions, or end what else runs on the device"
    )]
    Memory { what: String, needed: u64, free: u64 },
    #[error("the instruction tables read back from the device differ from the validated program's")]
    Tables,
    #[error("{0}")]
    Hung(Hang),
    #[error(
        "the device did nothing for {seconds} s in {phase}, and no wait of the kernel was given up; the launch is abandoned"
    )]
    Stalled { phase: String, seconds: u64 },
    #[error("the logits of step {step} contain NaN")]
    NaN { step: u32 },
}

fn join(faults: &[Mismatch]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A wait that outlasted its limit.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Hang {
    pub sm: u32,
    /// Place in the SM's queue.
    pub queue_index: u32,
    /// The instruction there, once it was looked up in the program.
    pub instruction: Option<String>,
    pub step: u32,
    /// 1 packet, 2 counter, 3 boundary, 4 ring.
    pub edge: u32,
    /// Tag or counter value waited for.
    pub expected: u32,
    /// The last one seen.
    pub seen: u32,
}

impl std::fmt::Display for Hang {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let edge = match self.edge {
            1 => "a packet",
            2 => "a counter",
            3 => "the step boundary",
            _ => "the ring",
        };
        let instruction = self.instruction.as_ref().map_or_else(String::new, |i| format!(" ({i})"));
        write!(
            f,
            "the launch was given up: sm {}, queue entry {}{instruction}, step {} waited for {edge} to reach epoch {} and last saw {}",
            self.sm, self.queue_index, self.step, self.expected, self.seen
        )
    }
}

impl DeviceError {
    /// A failed driver call.
    pub fn call(what: &str, error: DriverError) -> DeviceError {
        DeviceError::Driver { call: what.to_owned(), error: format!("{:?}", error.0) }
    }
}
