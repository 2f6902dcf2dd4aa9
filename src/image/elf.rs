//! Reading a cubin. Every number comes from the ELF file itself, so it can be compared with what the
//! compiler's log claims. Layout of `.nv.info` and of the ELF flags: observed on cubins of CUDA 12
//! and 13, and pinned by tests that compare all six architectures with the log.

use object::LittleEndian as LE;
use object::read::elf::{ElfFile64, FileHeader, SectionHeader};
use object::{Object, ObjectSection, ObjectSymbol};

use crate::target::{Arch, Variant};

/// Why a cubin cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfError {
    /// Not a 64-bit little-endian ELF file, or damaged.
    #[error("not a readable ELF image: {0}")]
    Malformed(String),
    /// An ELF file for another machine.
    #[error("an ELF file for machine {0}, not for CUDA (190)")]
    NotCuda(u16),
    /// The named symbol is absent.
    #[error(
        "the image has no symbol {0}; the compiler drops a constant that is neither used nor declared extern \"C\""
    )]
    NoSymbol(String),
}

/// What one kernel needs. Bytes unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct KernelInfo {
    /// Symbol of the kernel.
    pub name: String,
    /// Registers per thread.
    pub registers: u32,
    /// Stack frame per thread; a non-zero frame hints at spills or at indexed local arrays.
    pub stack_bytes: u32,
    /// Static shared memory per block, without what the system reserves.
    pub shared_bytes: u64,
    /// Constant bank 0: launch state and kernel parameters.
    pub constant_bytes: u64,
    /// Size of the code.
    pub code_bytes: u64,
    /// SASS instructions, padding included: 16 bytes each on every supported architecture.
    pub instructions: u64,
}

/// What a cubin holds.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct CubinInfo {
    /// Number of the real architecture: 90 for `sm_90a`.
    pub sm: u32,
    /// The letter after the number where the file says it (CUDA 13 and CUDA 12 differ in how).
    #[serde(skip)]
    pub variant: Option<Variant>,
    /// Kernels, ordered by name.
    pub kernels: Vec<KernelInfo>,
    /// User constants (bank 3), bytes.
    pub user_constant_bytes: u64,
}

impl CubinInfo {
    /// Whether this image was made for `arch`.
    pub fn is_for(&self, arch: Arch) -> bool {
        self.sm == arch.number && self.variant.is_none_or(|v| v == arch.variant)
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&KernelInfo> {
        self.kernels.iter().find(|k| k.name == name)
    }
}

const EM_CUDA: u16 = 190;
/// `e_ident[EI_OSABI]` of the layout that CUDA 13 writes (and CUDA 12 for Blackwell).
const OSABI_NEW: u8 = 0x41;
/// `.nv.info` record: format of a payload, and the two attributes read here.
const FORMAT_SIZED: u8 = 4;
const ATTR_FRAME_SIZE: u8 = 0x11;
const ATTR_REGISTERS: u8 = 0x2f;
/// Every instruction of sm_70 and later.
const INSTRUCTION_BYTES: u64 = 16;
/// Shared memory that the system keeps at the start of each block's allocation from sm_90 on; the
/// section size counts it.
const RESERVED_SHARED: u64 = 1024;

type Elf<'a> = ElfFile64<'a, LE>;

fn open(bytes: &[u8]) -> Result<Elf<'_>, ElfError> {
    let elf = Elf::parse(bytes).map_err(|e| ElfError::Malformed(e.to_string()))?;
    match elf.elf_header().e_machine(LE).0 {
        EM_CUDA => Ok(elf),
        other => Err(ElfError::NotCuda(other)),
    }
}

/// Reads the resources of every kernel in a cubin.
///
/// # Errors
/// [`ElfError`] for anything that is no cubin; never panics on hostile bytes.
pub fn inspect(bytes: &[u8]) -> Result<CubinInfo, ElfError> {
    let elf = open(bytes)?;
    let (sm, variant) = architecture(&elf);
    let size_of = |name: &str| elf.section_by_name(name).map_or(0, |s| s.size());
    let mut registers = Vec::new();
    let mut frames = Vec::new();
    if let Some(section) = elf.section_by_name(".nv.info") {
        let data = section.data().map_err(|e| ElfError::Malformed(e.to_string()))?;
        for (attribute, symbol, value) in info_records(data)? {
            match attribute {
                ATTR_REGISTERS => registers.push((symbol, value)),
                ATTR_FRAME_SIZE => frames.push((symbol, value)),
                _ => {}
            }
        }
    }
    let look_up = |list: &[(u32, u32)], index: usize| {
        let hit = list.iter().find(|(i, _)| *i as usize == index);
        hit.map(|(_, value)| *value)
    };
    let mut kernels = Vec::new();
    for symbol in elf.symbols() {
        let Ok(name) = symbol.name() else { continue };
        // A kernel is the function that has a constant bank 0 of its own.
        let bank0 = format!(".nv.constant0.{name}");
        if symbol.kind() != object::SymbolKind::Text || elf.section_by_name(&bank0).is_none() {
            continue;
        }
        let code_bytes = size_of(&format!(".text.{name}"));
        let shared = size_of(&format!(".nv.shared.{name}"));
        let reserved = if sm >= 90 { RESERVED_SHARED } else { 0 };
        let index = symbol.index().0;
        kernels.push(KernelInfo {
            name: name.to_owned(),
            registers: look_up(&registers, index).ok_or_else(|| {
                ElfError::Malformed(format!("no register count for kernel {name}"))
            })?,
            stack_bytes: look_up(&frames, index).unwrap_or(0),
            shared_bytes: shared.saturating_sub(reserved),
            constant_bytes: size_of(&bank0),
            code_bytes,
            instructions: code_bytes / INSTRUCTION_BYTES,
        });
    }
    kernels.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(CubinInfo { sm, variant, kernels, user_constant_bytes: size_of(".nv.constant3") })
}

/// The stored bytes of a `__constant__` or `__device__` variable; zeros for one without initialiser.
///
/// # Errors
/// [`ElfError::NoSymbol`] when the image has no such variable.
pub fn symbol_bytes(bytes: &[u8], name: &str) -> Result<Vec<u8>, ElfError> {
    let elf = open(bytes)?;
    let malformed = |e: object::Error| ElfError::Malformed(e.to_string());
    let symbol = elf
        .symbols()
        .find(|s| s.name() == Ok(name) && s.kind() == object::SymbolKind::Data)
        .ok_or_else(|| ElfError::NoSymbol(name.to_owned()))?;
    let outside = || ElfError::Malformed(format!("symbol {name} lies outside its section"));
    let index = symbol.section_index().ok_or_else(outside)?;
    let section = elf.section_by_index(index).map_err(malformed)?;
    let start = usize::try_from(symbol.address()).map_err(|_| outside())?;
    let size = usize::try_from(symbol.size()).map_err(|_| outside())?;
    let end = start.checked_add(size).ok_or_else(outside)?;
    if u64::try_from(end).map_err(|_| outside())? > section.size() {
        return Err(outside());
    }
    if section.elf_section_header().sh_type(LE) == object::elf::SHT_NOBITS {
        // Bounded by the check above only as far as the header is honest.
        const MOST: usize = 1 << 20;
        return match size {
            0..=MOST => Ok(vec![0; size]),
            _ => Err(outside()),
        };
    }
    let data = section.data().map_err(malformed)?;
    data.get(start..end).map(<[u8]>::to_vec).ok_or_else(outside)
}

/// The real architecture from the ELF flags, its letter from the flags or the tool note.
fn architecture(elf: &Elf<'_>) -> (u32, Option<Variant>) {
    let header = elf.elf_header();
    let flags = header.e_flags(LE).0;
    if header.e_ident().os_abi.0 == OSABI_NEW {
        let number = (flags >> 8) & 0xff;
        // CUDA 12 writes no tool note and marks the letter `a` by bit 3.
        let marked = (flags & 0x8 != 0).then_some(Variant::Specific);
        return (number, variant_from_note(elf, number).or(marked));
    }
    // CUDA 12 up to Hopper: the number in the low byte, bit 11 for the letter `a`.
    let variant = match flags & 0x800 {
        0 => Variant::Plain,
        _ => Variant::Specific,
    };
    (flags & 0xff, Some(variant))
}

/// The tool note ends with the options of the assembler, `-arch sm_90a` among them.
fn variant_from_note(elf: &Elf<'_>, number: u32) -> Option<Variant> {
    let data = elf.section_by_name(".note.nv.tkinfo")?.data().ok()?;
    let text = String::from_utf8_lossy(data);
    let words: Vec<&str> = text.split(['\0', ' ']).filter(|w| !w.is_empty()).collect();
    let at = words.iter().position(|w| *w == "-arch")?;
    let arch: Arch = words.get(at + 1)?.parse().ok()?;
    (arch.number == number).then_some(arch.variant)
}

/// The records of `.nv.info` whose payload is (symbol index, value).
fn info_records(mut data: &[u8]) -> Result<Vec<(u8, u32, u32)>, ElfError> {
    let cut = || ElfError::Malformed("a .nv.info record is cut short".to_owned());
    let mut out = Vec::new();
    while let [format, attribute, low, high, rest @ ..] = data {
        let size = usize::from(u16::from_le_bytes([*low, *high]));
        if *format != FORMAT_SIZED {
            // Other formats carry their value in the two bytes themselves.
            data = rest;
            continue;
        }
        let (payload, after) = rest.split_at_checked(size).ok_or_else(cut)?;
        if let [a, b, c, d, e, f, g, h] = *payload {
            let symbol = u32::from_le_bytes([a, b, c, d]);
            out.push((*attribute, symbol, u32::from_le_bytes([e, f, g, h])));
        }
        data = after;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_other_formats_are_stepped_over() {
        let mut data = vec![0x01, 0x55, 0xff, 0x00];
        data.extend([4, ATTR_REGISTERS, 8, 0, 7, 0, 0, 0, 40, 0, 0, 0]);
        data.extend([4, 0x0a, 4, 0, 1, 2, 3, 4]);
        assert_eq!(info_records(&data), Ok(vec![(ATTR_REGISTERS, 7, 40)]));
        data.extend([4, ATTR_REGISTERS, 9, 0, 7]);
        assert!(info_records(&data).is_err());
    }

    #[test]
    fn bytes_that_are_no_cubin_are_refused() {
        assert!(matches!(inspect(b""), Err(ElfError::Malformed(_))));
        assert!(matches!(inspect(&[0x7f; 400]), Err(ElfError::Malformed(_))));
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        assert!(matches!(inspect(&own), Err(ElfError::NotCuda(_))));
    }
}
