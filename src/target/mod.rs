//! Targets: the parts amk compiles for, as data.
//!
//! `arch` names architectures and maps compute capabilities to them; `record` reads and validates
//! target records, one JSON file per part in `data/`, and finds one by name; `device` holds a
//! device's own answers: it checks a record against them, and describes an unknown part by them.

mod arch;
mod device;
mod record;

pub use amk_schedule_ir::{Features, Target};
pub use arch::{Arch, ArchChoice, ArchError, Variant, arch_for_capability, list_archs};
pub use device::{DeviceFacts, Mismatch, check_device, describe_device};
pub use record::{
    FieldFault, RECORD_FORMAT, Record, Resolved, TargetError, default_targets, load_target_file,
    parse_record, records, resolve, to_record_json, validate_target,
};

/// The architectures amk ships target records for, in the order reports list them.
pub const DEFAULT_ARCHS: [Arch; 6] = [
    Arch::new(80, Variant::Plain),
    Arch::new(86, Variant::Plain),
    Arch::new(89, Variant::Plain),
    Arch::new(90, Variant::Specific),
    Arch::new(100, Variant::Specific),
    Arch::new(120, Variant::Plain),
];
