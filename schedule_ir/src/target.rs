//! The target record: what a schedule may assume about a part. Plain data; the files live with the
//! program that loads them.

use serde::{Deserialize, Serialize};

/// One GPU part, or one device as its driver describes it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// Short name, for example `h200`.
    pub name: String,
    /// Architecture as the compiler spells it, for example `sm_90a`.
    pub sm: String,
    /// Multiprocessors that can each hold one block of the grid.
    pub sm_count: u32,
    /// Largest dynamic shared memory of one block after opting in, bytes.
    pub shared_per_block: u64,
    /// Shared memory of one multiprocessor, bytes.
    pub shared_per_sm: u64,
    /// Shared memory the system keeps per block, bytes.
    pub reserved_shared: u64,
    /// 32-bit registers per multiprocessor.
    pub registers_per_sm: u32,
    /// Largest register count of one thread.
    pub registers_per_thread: u32,
    /// Largest number of threads of one block.
    pub threads_per_block: u32,
    /// Named barriers per block.
    pub barriers: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Memory bandwidth by the data sheet, GB/s (10^9 bytes).
    pub nominal_gbps: f64,
    /// Plain-read bandwidth as measured, GB/s; absent where nobody has measured it.
    pub measured_gbps: Option<f64>,
    /// What the part can do.
    pub features: Features,
}

/// Optional hardware features a template may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Features {
    /// `cp.async` copies of 4 to 16 bytes (sm_80 and later).
    pub cp_async: bool,
    /// `cp.async.bulk` copies that complete on an mbarrier (sm_90 and later).
    pub bulk_copy: bool,
    /// `wgmma` (sm_90a only).
    pub wgmma: bool,
    /// `setmaxnreg` (sm_90a, sm_100a).
    pub setmaxnreg: bool,
    /// Thread-block clusters.
    pub cluster: bool,
}

impl Target {
    /// Best known read bandwidth, bytes per second.
    pub fn bandwidth(&self) -> f64 {
        self.measured_gbps.unwrap_or(self.nominal_gbps) * 1e9
    }
}
