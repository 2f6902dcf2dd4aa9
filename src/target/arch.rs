//! GPU architectures by name, and which one to compile for on a device of a given compute
//! capability.

use std::fmt;
use std::str::FromStr;

/// The letter after an architecture's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Variant {
    /// No letter: the code also runs on later minor revisions of the same major.
    Plain,
    /// `a`: uses instructions of exactly this architecture and runs nowhere else.
    Specific,
    /// `f`: uses instructions of the architecture's family.
    Family,
}

/// A real architecture such as `sm_90a`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Arch {
    /// Ten times the major plus the minor compute capability: 90 for `sm_90a`.
    pub number: u32,
    /// The letter, if any.
    pub variant: Variant,
}

/// An architecture that cannot be read, or that amk cannot compile for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchError {
    /// Not a name of an architecture.
    #[error(
        "\"{0}\" is not an architecture: write it like sm_80, sm_90a or sm_120 (9.0a and 90a are understood too)"
    )]
    Unreadable(String),
    /// Older than what the kernels need.
    #[error(
        "compute capability {major}.{minor} is too old: the kernels need 8.0 or newer (cp.async, bf16 tensor cores)"
    )]
    TooOld {
        /// Major compute capability.
        major: u32,
        /// Minor compute capability.
        minor: u32,
    },
    /// The compiler knows no architecture whose code runs on this device.
    #[error(
        "this compiler cannot make code for compute capability {major}.{minor}: it knows {known}; get a newer one (`amk toolchain fetch`, or a newer CUDA toolkit)"
    )]
    CompilerTooOld {
        /// Major compute capability.
        major: u32,
        /// Minor compute capability.
        minor: u32,
        /// What the compiler supports, as text.
        known: String,
    },
}

impl Arch {
    /// `sm_<number><letter>`.
    pub const fn new(number: u32, variant: Variant) -> Self {
        Self { number, variant }
    }

    /// Major and minor compute capability.
    pub const fn capability(self) -> (u32, u32) {
        (self.number / 10, self.number % 10)
    }

    /// Whether code for `self` runs on a device of that compute capability.
    ///
    /// Plain code runs on the same major with an equal or higher minor, code with a letter `a` on
    /// exactly its own capability, code of a family (`f`) like plain code (CUDA programming guide,
    /// "Binary Compatibility" and "Feature Set Compatibility"). The integrated parts 8.7, 10.1 and
    /// 11.0 run only their own code.
    pub fn runs_on(self, major: u32, minor: u32) -> bool {
        let (own_major, own_minor) = self.capability();
        if own_major != major {
            return false;
        }
        let integrated = |number: u32| matches!(number, 87 | 101 | 110);
        let exact = self.variant == Variant::Specific
            || integrated(self.number)
            || integrated(major * 10 + minor);
        if exact { own_minor == minor } else { own_minor <= minor }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = match self.variant {
            Variant::Plain => "",
            Variant::Specific => "a",
            Variant::Family => "f",
        };
        write!(f, "sm_{}{letter}", self.number)
    }
}

impl FromStr for Arch {
    type Err = ArchError;

    /// Reads `sm_90a`, `sm90a`, `compute_90a`, `90a`, `9.0a`, in either case.
    fn from_str(text: &str) -> Result<Self, ArchError> {
        let bad = || ArchError::Unreadable(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let body = ["sm_", "sm", "compute_"]
            .iter()
            .find_map(|prefix| lower.strip_prefix(prefix))
            .unwrap_or(&lower);
        let (digits, variant) = match body.as_bytes().last() {
            Some(b'a') => (&body[..body.len() - 1], Variant::Specific),
            Some(b'f') => (&body[..body.len() - 1], Variant::Family),
            _ => (body, Variant::Plain),
        };
        let decimal = |s: &str| {
            let plain = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            plain.then(|| s.parse::<u32>().ok()).flatten()
        };
        let number = match digits.split_once('.') {
            Some((major, minor)) => {
                let (major, minor) =
                    (decimal(major).ok_or_else(bad)?, decimal(minor).ok_or_else(bad)?);
                if minor > 9 || major > 99 {
                    return Err(bad());
                }
                major * 10 + minor
            }
            None => decimal(digits).ok_or_else(bad)?,
        };
        if !(10..1000).contains(&number) {
            return Err(bad());
        }
        Ok(Self { number, variant })
    }
}

impl serde::Serialize for Arch {
    /// As its name.
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

/// The architecture chosen for a device, and a sentence when it is not the obvious one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchChoice {
    /// What to hand to the compiler.
    pub arch: Arch,
    /// Set when amk falls back: what was wanted, what is used, and what is lost.
    pub notice: Option<String>,
}

/// Capabilities whose letter-less code lacks instructions the kernels use.
fn preferred_variant(number: u32) -> Variant {
    match number {
        90 | 100 | 101 | 103 | 110 => Variant::Specific,
        _ => Variant::Plain,
    }
}

/// The architecture to compile for on a device of compute capability `major.minor`.
///
/// `supported` is what the compiler says it knows (`Nvrtc::supported`), as numbers like 90; `None`
/// skips that check. When the compiler is older than the device, the newest architecture whose code
/// still runs there is taken, with a notice.
///
/// # Errors
/// [`ArchError::TooOld`] below 8.0, [`ArchError::CompilerTooOld`] when nothing fits.
pub fn arch_for_capability(
    major: u32,
    minor: u32,
    supported: Option<&[u32]>,
) -> Result<ArchChoice, ArchError> {
    if major < 8 {
        return Err(ArchError::TooOld { major, minor });
    }
    let number = major * 10 + minor;
    let wanted = Arch::new(number, preferred_variant(number));
    let knows = |n: u32| supported.is_none_or(|list| list.contains(&n));
    let shipped = super::DEFAULT_ARCHS.contains(&wanted);
    if knows(number) {
        let notice = (!shipped).then(|| {
            format!("no target record ships for {wanted}; its limits come from the driver")
        });
        return Ok(ArchChoice { arch: wanted, notice });
    }
    let known = supported.unwrap_or_default();
    let fallback = known
        .iter()
        .map(|&n| Arch::new(n, Variant::Plain))
        .filter(|a| a.number >= 80 && a.runs_on(major, minor))
        .max();
    match fallback {
        Some(arch) => Ok(ArchChoice {
            arch,
            notice: Some(format!(
                "this compiler does not know {wanted}; using {arch}, which runs there without the newer instructions (`amk toolchain fetch` gets a newer compiler)"
            )),
        }),
        None => Err(ArchError::CompilerTooOld { major, minor, known: list_archs(known) }),
    }
}

/// `sm_80, sm_86, ...` for messages.
pub fn list_archs(numbers: &[u32]) -> String {
    let names: Vec<String> = numbers.iter().map(|n| format!("sm_{n}")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What NVRTC 13.0 and 12.4 answer to `nvrtcGetSupportedArchs`.
    const CUDA_13_0: &[u32] = &[75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121];
    const CUDA_12_4: &[u32] = &[50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90];

    #[test]
    fn every_capability_from_7_5_to_12_1() {
        // (capability, with NVRTC 13.0, notice?, with NVRTC 12.4 or the kind of refusal)
        let table = [
            ((7, 5), "too old", false, "too old"),
            ((8, 0), "sm_80", false, "sm_80"),
            ((8, 6), "sm_86", false, "sm_86"),
            ((8, 7), "sm_87", true, "sm_87"),
            ((8, 8), "sm_88", true, "sm_86"),
            ((8, 9), "sm_89", false, "sm_89"),
            ((9, 0), "sm_90a", false, "sm_90a"),
            ((10, 0), "sm_100a", false, "compiler"),
            ((10, 1), "compiler", false, "compiler"),
            ((10, 3), "sm_103a", true, "compiler"),
            ((11, 0), "sm_110a", true, "compiler"),
            ((12, 0), "sm_120", false, "compiler"),
            ((12, 1), "sm_121", true, "compiler"),
        ];
        let show = |r: &Result<ArchChoice, ArchError>| match r {
            Ok(choice) => choice.arch.to_string(),
            Err(ArchError::TooOld { .. }) => "too old".into(),
            Err(ArchError::CompilerTooOld { .. }) => "compiler".into(),
            Err(e) => panic!("{e}"),
        };
        for ((major, minor), new, notice, old) in table {
            let got = arch_for_capability(major, minor, Some(CUDA_13_0));
            assert_eq!(show(&got), new, "{major}.{minor} with 13.0");
            assert_eq!(got.is_ok_and(|c| c.notice.is_some()), notice, "{major}.{minor} notice");
            let got = arch_for_capability(major, minor, Some(CUDA_12_4));
            assert_eq!(show(&got), old, "{major}.{minor} with 12.4");
        }
    }

    #[test]
    fn a_compiler_older_than_the_part_falls_back_with_a_notice() {
        let choice = arch_for_capability(10, 3, Some(&[80, 90, 100])).unwrap();
        assert_eq!(choice.arch.to_string(), "sm_100");
        let notice = choice.notice.unwrap();
        assert!(notice.contains("sm_103a") && notice.contains("sm_100"), "{notice}");
        let choice = arch_for_capability(12, 1, Some(&[120])).unwrap();
        assert_eq!(choice.arch.to_string(), "sm_120");
    }

    #[test]
    fn specific_code_runs_nowhere_else() {
        let arch = |s: &str| s.parse::<Arch>().unwrap();
        assert!(arch("sm_90a").runs_on(9, 0));
        assert!(!arch("sm_100a").runs_on(10, 3));
        assert!(arch("sm_100f").runs_on(10, 3));
        assert!(arch("sm_80").runs_on(8, 9));
        assert!(!arch("sm_80").runs_on(8, 7));
        assert!(!arch("sm_89").runs_on(8, 6));
        assert!(!arch("sm_90a").runs_on(12, 0));
    }

    #[test]
    fn spellings() {
        for text in ["sm_90a", "SM_90A", "sm90a", "90a", "9.0a", "compute_90a", " sm_90a "] {
            assert_eq!(text.parse(), Ok(Arch::new(90, Variant::Specific)), "{text}");
        }
        assert_eq!("12.0".parse(), Ok(Arch::new(120, Variant::Plain)));
        assert_eq!("10.0f".parse(), Ok(Arch::new(100, Variant::Family)));
        for text in [
            "", "a", "sm_", "9", "sm_9", "9.0b", "9.10", "sm_-90", "+90", "90aa", "sm_90 a", "12.",
            "1200", "é",
        ] {
            assert_eq!(text.parse::<Arch>(), Err(ArchError::Unreadable(text.into())), "{text}");
        }
    }
}
