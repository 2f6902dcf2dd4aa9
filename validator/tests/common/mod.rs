//! What the tests share.
#![allow(dead_code)]

use amk_schedule_ir::{Features, Target};

/// A part with the limits of an H200.
pub fn target() -> Target {
    Target {
        name: "test-sm_90a".into(),
        sm: "sm_90a".into(),
        sm_count: 132,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 50 << 20,
        nominal_gbps: 4800.0,
        measured_gbps: None,
        features: Features {
            cp_async: true,
            bulk_copy: true,
            wgmma: true,
            setmaxnreg: true,
            cluster: true,
        },
    }
}
