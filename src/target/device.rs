//! A device's own answers against a target record.

use amk_schedule_ir::{Features, Target};

use super::arch::{Arch, ArchError, Variant, arch_for_capability};

/// What the driver says about one device.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct DeviceFacts {
    /// Marketing name, such as `NVIDIA H200`.
    pub name: String,
    /// Major and minor compute capability.
    pub capability: (u32, u32),
    /// Multiprocessors.
    pub sm_count: u32,
    /// Largest shared memory of a block after opting in, bytes.
    pub shared_per_block: u64,
    /// Shared memory of an SM, bytes.
    pub shared_per_sm: u64,
    /// Shared memory kept by the system per block, bytes.
    pub reserved_shared: u64,
    /// Registers of an SM.
    pub registers_per_sm: u32,
    /// Threads per block.
    pub threads_per_block: u32,
    /// L2 cache, bytes.
    pub l2_bytes: u64,
    /// Memory clock in kHz, or zero where the driver no longer says.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, bits.
    pub memory_bus_bits: u32,
    /// Total memory, bytes.
    pub memory_bytes: u64,
    /// Whether cooperative launches are supported.
    pub cooperative: bool,
}

/// A number of the record that the device does not reach.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{field}: the target {target} assumes {assumed}, and {device} has {actual}; use the device's own target or correct the record"
)]
pub struct Mismatch {
    /// The field of the record.
    pub field: &'static str,
    /// Name of the target.
    pub target: String,
    /// Name of the device.
    pub device: String,
    /// What the record says.
    pub assumed: String,
    /// What the device says.
    pub actual: String,
}

/// Features whose instructions an architecture has. PTX ISA: `cp.async` from sm_80,
/// `cp.async.bulk` and clusters from sm_90, `wgmma` on sm_90a alone, `setmaxnreg` on letter `a` from
/// sm_90a on. Clusters on sm_120 and later consumer parts gain no multicast and are not used.
pub(super) fn features_of(arch: Arch) -> Features {
    let specific = arch.variant == Variant::Specific;
    Features {
        cp_async: arch.number >= 80,
        bulk_copy: arch.number >= 90,
        wgmma: arch.number == 90 && specific,
        setmaxnreg: arch.number >= 90 && specific,
        cluster: (90..120).contains(&arch.number),
    }
}

/// Checks that a device is at least what a target assumes. L2 size and bandwidth are for
/// predictions only and are not compared.
///
/// # Errors
/// Every field that does not hold.
pub fn check_device(target: &Target, device: &DeviceFacts) -> Result<(), Vec<Mismatch>> {
    let mut out = Vec::new();
    let mut fail = |field: &'static str, assumed: String, actual: String| {
        out.push(Mismatch {
            field,
            target: target.name.clone(),
            device: device.name.clone(),
            assumed,
            actual,
        });
    };
    let (major, minor) = device.capability;
    let runs = target.sm.parse::<Arch>().is_ok_and(|a| a.runs_on(major, minor));
    if !runs {
        let actual = format!("compute capability {major}.{minor}");
        fail("sm", target.sm.clone(), actual);
    }
    let at_least = [
        ("sm_count", target.sm_count.into(), device.sm_count.into()),
        ("shared_per_block", target.shared_per_block, device.shared_per_block),
        ("shared_per_sm", target.shared_per_sm, device.shared_per_sm),
        ("registers_per_sm", target.registers_per_sm.into(), device.registers_per_sm.into()),
        ("threads_per_block", target.threads_per_block.into(), device.threads_per_block.into()),
    ];
    for (field, assumed, actual) in at_least {
        if actual < assumed {
            fail(field, assumed.to_string(), actual.to_string());
        }
    }
    if device.reserved_shared > target.reserved_shared {
        fail(
            "reserved_shared",
            target.reserved_shared.to_string(),
            device.reserved_shared.to_string(),
        );
    }
    if !device.cooperative {
        fail("cooperative launch", "support".into(), "none (MPS or vGPU setting?)".into());
    }
    if out.is_empty() { Ok(()) } else { Err(out) }
}

/// A target made of a device's own answers, for parts without a shipped record. The notice, if any,
/// is that of [`arch_for_capability`].
///
/// # Errors
/// [`ArchError`] when the device is too old, or the compiler too old for it.
pub fn describe_device(
    device: &DeviceFacts,
    supported: Option<&[u32]>,
) -> Result<(Target, Option<String>), ArchError> {
    let (major, minor) = device.capability;
    let choice = arch_for_capability(major, minor, supported)?;
    // Two transfers per clock and eight bits per byte (CUDA samples, deviceQuery). Where the driver
    // hides the clock, a cautious guess per bit of bus width keeps predictions finite.
    let clock = f64::from(match device.memory_clock_khz {
        0 => 1_000_000,
        khz => khz,
    });
    let nominal = (2.0 * clock * f64::from(device.memory_bus_bits.max(64)) / 8.0 / 1e6).round();
    let fit = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ' ');
    let name: String = device.name.chars().filter(|c| fit(*c)).take(64).collect();
    let target = Target {
        name: if name.is_empty() { "device".into() } else { name },
        sm: choice.arch.to_string(),
        sm_count: device.sm_count,
        shared_per_block: device.shared_per_block,
        shared_per_sm: device.shared_per_sm,
        reserved_shared: device.reserved_shared,
        registers_per_sm: device.registers_per_sm,
        registers_per_thread: 255,
        threads_per_block: device.threads_per_block,
        barriers: 16,
        l2_bytes: device.l2_bytes.max(1),
        nominal_gbps: nominal,
        measured_gbps: None,
        features: features_of(choice.arch),
    };
    Ok((target, choice.notice))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{resolve, validate_target};

    fn h200() -> DeviceFacts {
        DeviceFacts {
            name: "NVIDIA H200".into(),
            capability: (9, 0),
            sm_count: 132,
            shared_per_block: 232_448,
            shared_per_sm: 233_472,
            reserved_shared: 1024,
            registers_per_sm: 65_536,
            threads_per_block: 1024,
            l2_bytes: 60 << 20,
            memory_clock_khz: 3_201_000,
            memory_bus_bits: 6144,
            memory_bytes: 150_000_000_000,
            cooperative: true,
        }
    }

    #[test]
    fn the_shipped_record_fits_the_device() {
        assert_eq!(check_device(&resolve("h200").unwrap().target, &h200()), Ok(()));
    }

    #[test]
    fn a_record_that_claims_more_is_refused_with_both_numbers() {
        let mut target = resolve("h200").unwrap().target;
        target.sm_count = 200;
        target.shared_per_block += 1;
        let faults = check_device(&target, &h200()).unwrap_err();
        let fields: Vec<_> = faults.iter().map(|f| f.field).collect();
        assert_eq!(fields, ["sm_count", "shared_per_block"]);
        let text = faults[0].to_string();
        assert!(text.contains("200") && text.contains("132"), "{text}");
    }

    #[test]
    fn another_architecture_is_refused() {
        let target = resolve("sm_120").unwrap().target;
        let faults = check_device(&target, &h200()).unwrap_err();
        assert_eq!(faults[0].field, "sm");
    }

    #[test]
    fn a_device_without_cooperative_launch_is_refused() {
        let device = DeviceFacts { cooperative: false, ..h200() };
        let target = resolve("h200").unwrap().target;
        assert_eq!(check_device(&target, &device).unwrap_err().len(), 1);
    }

    #[test]
    fn an_unknown_part_is_described_by_its_own_answers() {
        let device = DeviceFacts {
            name: "NVIDIA B300 (SXM) é".into(),
            capability: (10, 3),
            sm_count: 148,
            memory_clock_khz: 0,
            ..h200()
        };
        let (target, notice) = describe_device(&device, None).unwrap();
        assert_eq!((target.sm.as_str(), target.sm_count), ("sm_103a", 148));
        assert!(notice.unwrap().contains("sm_103a"));
        assert_eq!(validate_target(&target), []);
        assert_eq!(check_device(&target, &device), Ok(()));
        let (target, _) = describe_device(&h200(), None).unwrap();
        assert_eq!(target.nominal_gbps, 4917.0);
    }
}
