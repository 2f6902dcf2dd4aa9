//! What must hold before an image may be launched on a device, as functions of plain records, so that every
//! refusal is tested without a device.

use amk_schedule_ir::hash::hex;

use super::DeviceError;
use crate::image::symbol_bytes;
use crate::target::{Arch, DeviceFacts, Variant};

/// A compiled kernel in the form a driver takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Image {
    /// Machine code of one architecture.
    Cubin(Vec<u8>),
    /// Text that the driver compiles; for devices newer than the target.
    Ptx(String),
}

/// What is known of an image before it is loaded.
#[derive(Clone, Debug)]
pub struct ImageFacts<'a> {
    pub image: &'a Image,
    /// The architecture it was compiled for.
    pub arch: Arch,
    /// CUDA release of the compiler that made it.
    pub compiler: (u32, u32),
    /// Name of the constant that holds the program hash.
    pub hash_symbol: &'a str,
    /// Hash of the program it must carry.
    pub program: [u8; 32],
    /// Dynamic shared memory of a block, bytes.
    pub shared_bytes: u64,
}

/// Does a device run the machine code of an architecture, or only its PTX, or neither?
///
/// PTX without an architecture letter runs on every later capability (CUDA programming guide, "PTX Compatibility").
pub fn form_for(arch: Arch, capability: (u32, u32)) -> Option<Form> {
    let (major, minor) = capability;
    if arch.runs_on(major, minor) {
        return Some(Form::Cubin);
    }
    (arch.variant == Variant::Plain && arch.number <= major * 10 + minor).then_some(Form::Ptx)
}

/// The two forms of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Cubin,
    Ptx,
}

/// Checks an image against a device and its driver before it is loaded.
///
/// `driver` is the driver's CUDA version, 1000 times the major plus 10 times the minor. Machine code runs under every
/// driver of the compiler's major release or later, PTX under drivers of the compiler's release or later (CUDA
/// compatibility guide, "Minor Version Compatibility").
///
/// # Errors
/// The first that does not hold: driver, architecture, program hash, shared memory.
pub fn admit(image: &ImageFacts<'_>, device: &DeviceFacts, driver: i32) -> Result<(), DeviceError> {
    let (major, minor) = image.compiler;
    let release = |major: u32, minor: u32| i64::from(major) * 1000 + i64::from(minor) * 10;
    let needed = match image.image {
        Image::Cubin(_) => release(major, 0),
        Image::Ptx(_) => release(major, minor),
    };
    if i64::from(driver) < needed {
        return Err(DeviceError::DriverOlder {
            driver: format!("{}.{}", driver / 1000, driver % 1000 / 10),
            image: format!("{major}.{minor}"),
        });
    }
    let form = form_for(image.arch, device.capability);
    let fits = match image.image {
        Image::Cubin(_) => form == Some(Form::Cubin),
        Image::Ptx(_) => form.is_some(),
    };
    if !fits {
        let (major, minor) = device.capability;
        return Err(DeviceError::WrongArchitecture {
            image: image.arch.to_string(),
            device: format!("{} ({major}.{minor})", device.name),
        });
    }
    let found = match image.image {
        Image::Cubin(bytes) => symbol_bytes(bytes, image.hash_symbol).ok(),
        Image::Ptx(text) => ptx_bytes(text, image.hash_symbol),
    };
    if found.as_deref() != Some(&image.program[..]) {
        return Err(DeviceError::WrongProgram {
            image: found.map_or_else(|| "none".to_owned(), |b| hex_of(&b)),
            program: hex(&image.program),
        });
    }
    if image.shared_bytes > device.shared_per_block {
        return Err(DeviceError::SharedMemory {
            needed: image.shared_bytes,
            available: device.shared_per_block,
        });
    }
    Ok(())
}

/// Checks that all blocks of a grid are on the device at once. `per_sm` is what the driver says of the compiled
/// function.
///
/// # Errors
/// The grid has more blocks than the device holds.
pub fn co_resident(blocks: u64, per_sm: u32, sms: u32) -> Result<(), DeviceError> {
    let available = u64::from(per_sm) * u64::from(sms);
    match blocks > available {
        true => Err(DeviceError::GridTooLarge { blocks, available, per_sm, sms }),
        false => Ok(()),
    }
}

fn hex_of(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The initial bytes of a `.b8` array of PTX text. Trailing zeros may be left out there.
pub fn ptx_bytes(ptx: &str, symbol: &str) -> Option<Vec<u8>> {
    let mark = format!(" {symbol}[");
    let rest = &ptx[ptx.find(&mark)? + mark.len()..];
    let (size, rest) = rest.split_once(']')?;
    let size: usize = size.trim().parse().ok().filter(|n| *n <= 4096)?;
    let body = rest.trim_start().strip_prefix('=')?.trim_start().strip_prefix('{')?;
    let (list, _) = body.split_once('}')?;
    let mut bytes = Vec::new();
    for word in list.split(',').map(str::trim).filter(|w| !w.is_empty()) {
        bytes.push(word.parse().ok()?);
    }
    (bytes.len() <= size).then(|| {
        bytes.resize(size, 0);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::{check_device, resolve};

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

    fn ptx(bytes: &[u8]) -> Image {
        let list: Vec<String> = bytes.iter().map(u8::to_string).collect();
        Image::Ptx(format!(".global .align 1 .b8 h[32] = {{{}}};\n", list.join(", ")))
    }

    fn facts(image: &Image) -> ImageFacts<'_> {
        ImageFacts {
            image,
            arch: "sm_80".parse().unwrap(),
            compiler: (13, 0),
            hash_symbol: "h",
            program: [7; 32],
            shared_bytes: 200_000,
        }
    }

    fn refusal(image: &ImageFacts<'_>, driver: i32) -> String {
        admit(image, &h200(), driver).unwrap_err().to_string()
    }

    #[test]
    fn a_fitting_image_is_admitted() {
        let image = ptx(&[7; 32]);
        admit(&facts(&image), &h200(), 13_000).unwrap();
        admit(&facts(&image), &h200(), 13_020).unwrap();
    }

    #[test]
    fn a_driver_older_than_the_image_is_refused() {
        let image = ptx(&[7; 32]);
        let text = refusal(&facts(&image), 12_080);
        assert!(text.contains("12.8") && text.contains("13.0"), "{text}");
        // PTX needs the very release, machine code its major.
        let newer = ImageFacts { compiler: (13, 1), ..facts(&image) };
        assert!(refusal(&newer, 13_000).contains("13.1"));
        let cubin = Image::Cubin(Vec::new());
        let newer = ImageFacts { compiler: (13, 1), image: &cubin, ..facts(&cubin) };
        assert!(!refusal(&newer, 13_000).contains("driver"));
        assert!(refusal(&newer, 12_090).contains("driver"));
    }

    #[test]
    fn another_program_or_architecture_is_refused() {
        let image = ptx(&[8; 32]);
        let text = refusal(&facts(&image), 13_000);
        assert!(text.contains("0808") && text.contains("0707"), "{text}");
        let image = Image::Ptx("// nothing".into());
        assert!(refusal(&facts(&image), 13_000).contains("none"));
        let image = ptx(&[7; 32]);
        for arch in ["sm_120", "sm_90a", "sm_100a"] {
            let other = ImageFacts { arch: arch.parse().unwrap(), ..facts(&image) };
            match admit(&other, &h200(), 13_000) {
                Ok(()) => assert_eq!(arch, "sm_90a"),
                Err(e) => assert!(e.to_string().contains(arch), "{e}"),
            }
        }
        let cubin = Image::Cubin(Vec::new());
        assert!(refusal(&facts(&cubin), 13_000).contains("sm_80"));
    }

    #[test]
    fn shared_memory_over_the_limit_is_refused() {
        let image = ptx(&[7; 32]);
        let big = ImageFacts { shared_bytes: 232_449, ..facts(&image) };
        let text = refusal(&big, 13_000);
        assert!(text.contains("232449") && text.contains("232448"), "{text}");
    }

    #[test]
    fn a_grid_larger_than_co_resident_is_refused() {
        co_resident(132, 1, 132).unwrap();
        co_resident(264, 2, 132).unwrap();
        let text = co_resident(133, 1, 132).unwrap_err().to_string();
        assert!(text.contains("133 blocks") && text.contains("132 at once"), "{text}");
        assert!(co_resident(1, 0, 132).is_err());
    }

    #[test]
    fn a_record_that_claims_200_sms_is_refused() {
        let mut target = resolve("h200").unwrap().target;
        target.sm_count = 200;
        let faults = check_device(&target, &h200()).unwrap_err();
        let text = DeviceError::NotThatPart(faults).to_string();
        assert!(text.contains("200") && text.contains("132"), "{text}");
    }

    #[test]
    fn forms_follow_the_compatibility_rules() {
        let form = |arch: &str, at| form_for(arch.parse().unwrap(), at);
        assert_eq!(form("sm_90a", (9, 0)), Some(Form::Cubin));
        assert_eq!(form("sm_80", (8, 6)), Some(Form::Cubin));
        assert_eq!(form("sm_80", (9, 0)), Some(Form::Ptx));
        assert_eq!(form("sm_89", (12, 0)), Some(Form::Ptx));
        assert_eq!(form("sm_90a", (10, 0)), None);
        assert_eq!(form("sm_120", (9, 0)), None);
    }

    #[test]
    fn arrays_of_ptx_are_read() {
        let text =
            ".global .align 1 .b8 first[2] = {1, 2};\n.visible .global .b8 h[4] = {3,\n 255};";
        assert_eq!(ptx_bytes(text, "h"), Some(vec![3, 255, 0, 0]));
        assert_eq!(ptx_bytes(text, "first"), Some(vec![1, 2]));
        assert_eq!(ptx_bytes(text, "second"), None);
        assert_eq!(ptx_bytes(".b8 h[1] = {1, 2};", "h"), None);
        assert_eq!(ptx_bytes(".b8 h[2] = {1, 256};", "h"), None);
        assert_eq!(ptx_bytes(".b8 h[2];", "h"), None);
    }
}
