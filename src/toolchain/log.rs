//! Reading NVRTC's program log: front-end diagnostics, ptxas diagnostics, and the per-function
//! resource report that `--ptxas-options=-v` adds. Spill bytes exist nowhere else.

use serde::{Deserialize, Serialize};

/// How bad a diagnostic is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The compiler gave up on the program.
    Error,
    /// The compiler went on, and something is probably not as meant.
    Warning,
}

/// What a diagnostic points at. Line numbers are one-based.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A line of the CUDA source.
    Source {
        /// Line of the CUDA source.
        line: u32,
    },
    /// A line of the generated PTX.
    Ptx {
        /// Line of the PTX text.
        line: u32,
    },
    /// No place given (ptxas budget errors name the function in the message instead).
    Nowhere,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Source { line } => write!(f, "source line {line}"),
            Place::Ptx { line } => write!(f, "PTX line {line}"),
            Place::Nowhere => write!(f, "no line given"),
        }
    }
}

/// One error or warning of the compile log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Error or warning.
    pub severity: Severity,
    /// What it points at.
    pub place: Place,
    /// The compiler's own number: `"177-D"` from the front end, `"C7508"` from ptxas.
    pub code: Option<String>,
    /// The message, without severity and number.
    pub message: String,
    /// One-based line of the log where it stands.
    pub log_line: u32,
}

/// What ptxas reports for one function. Bytes unless said otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FunctionUsage {
    /// The function's symbol.
    pub name: String,
    /// Whether it is a kernel (a device function that was not inlined is not).
    pub entry: bool,
    /// Registers per thread; zero for functions that are not kernels.
    pub registers: u32,
    /// Stack frame per thread.
    pub stack_bytes: u32,
    /// Bytes of registers stored to local memory.
    pub spill_store_bytes: u32,
    /// Bytes of registers loaded back from local memory.
    pub spill_load_bytes: u32,
    /// Named barriers.
    pub barriers: u32,
    /// Static shared memory, without what the system reserves.
    pub shared_bytes: u32,
}

/// A parsed compile log.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CompileLog {
    /// Errors and warnings in the order of the log.
    pub diagnostics: Vec<Diagnostic>,
    /// Resource reports in the order of the log.
    pub functions: Vec<FunctionUsage>,
}

/// ptxas numbers that say `setmaxnreg` had no effect.
const SETMAXNREG_IGNORED: [&str; 2] = ["C7507", "C7508"];

impl CompileLog {
    /// Parses a log as [`normalise`] leaves it. Lines it does not know are skipped.
    pub fn parse(log: &str) -> Self {
        let mut out = Self::default();
        let mut entry: Option<String> = None;
        for (index, line) in log.lines().enumerate() {
            let log_line = u32::try_from(index + 1).unwrap_or(u32::MAX);
            if let Some(rest) = line.trim_start().strip_prefix("ptxas") {
                out.ptxas_line(rest, log_line, &mut entry);
            } else if let Some(d) = front_end(line, log_line) {
                out.diagnostics.push(d);
            } else {
                // Older releases print the frame line without the "ptxas" prefix.
                out.frame_line(line);
            }
        }
        out
    }

    fn ptxas_line(&mut self, rest: &str, log_line: u32, entry: &mut Option<String>) {
        if let Some(name) = between(rest, "Compiling entry function '", "'") {
            *entry = Some(name.to_owned());
        } else if let Some((_, name)) = rest.split_once("Function properties for ") {
            let name = name.trim().to_owned();
            self.functions.push(FunctionUsage {
                entry: entry.as_deref() == Some(name.as_str()),
                name,
                ..FunctionUsage::default()
            });
        } else if rest.contains(" bytes stack frame") {
            self.frame_line(rest);
        } else if let Some((_, used)) = rest.split_once("Used ") {
            // "Used ..." speaks of the kernel, after the reports of the functions it calls.
            if let Some(f) = self.functions.iter_mut().rev().find(|f| f.entry) {
                f.registers = number_before(rest, " registers").unwrap_or(0);
                f.barriers = number_before(used, " barriers").unwrap_or(0);
                f.shared_bytes = number_before(used, " bytes smem").unwrap_or(0);
            }
        } else if let Some(d) = ptxas_diagnostic(rest, log_line) {
            self.diagnostics.push(d);
        }
    }

    fn frame_line(&mut self, line: &str) {
        let Some(stack) = number_before(line, " bytes stack frame") else {
            return;
        };
        if let Some(f) = self.functions.last_mut() {
            f.stack_bytes = stack;
            f.spill_store_bytes = number_before(line, " bytes spill stores").unwrap_or(0);
            f.spill_load_bytes = number_before(line, " bytes spill loads").unwrap_or(0);
        }
    }

    /// Stores plus loads of spilled registers over all functions, in bytes.
    pub fn spill_bytes(&self) -> u64 {
        self.functions
            .iter()
            .map(|f| u64::from(f.spill_store_bytes) + u64::from(f.spill_load_bytes))
            .sum()
    }

    /// The diagnostic that says `setmaxnreg` was ignored, if there is one.
    pub fn setmaxnreg_ignored(&self) -> Option<&Diagnostic> {
        self.diagnostics.iter().find(|d| {
            d.code.as_deref().is_some_and(|c| SETMAXNREG_IGNORED.contains(&c))
                || d.message.contains("'setmaxnreg' ignored")
        })
    }

    /// The errors, in order.
    pub fn errors(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Error)
    }

    /// The warnings, in order.
    pub fn warnings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.diagnostics.iter().filter(|d| d.severity == Severity::Warning)
    }
}

/// The log as amk keeps it: no zero bytes, no trailing space, and no compile times, so that
/// two runs give the same text.
pub(super) fn normalise(raw: &[u8]) -> String {
    // Each pass of the compiler ends its part with a zero byte.
    let text = String::from_utf8_lossy(raw).replace('\0', "");
    let mut out = String::with_capacity(text.len());
    for line in text.trim_end().lines() {
        if line.trim_start().starts_with("ptxas") && line.contains("Compile time = ") {
            continue;
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// `name(12): error #20-D: text`, `name(12): catastrophic error: text`, `nvrtc: error: text`.
fn front_end(line: &str, log_line: u32) -> Option<Diagnostic> {
    let (head, rest) = line.split_once(": ")?;
    let place = if head == "nvrtc" {
        Place::Nowhere
    } else {
        let (_, number) = head.strip_suffix(')')?.rsplit_once('(')?;
        Place::Source { line: number.parse().ok()? }
    };
    let (kind, message) = rest.split_once(": ")?;
    let (severity, after) = if let Some(after) = kind
        .strip_prefix("error")
        .or_else(|| kind.strip_prefix("catastrophic error"))
        .or_else(|| kind.strip_prefix("internal error"))
    {
        (Severity::Error, after)
    } else {
        (Severity::Warning, kind.strip_prefix("warning")?)
    };
    let code = after.trim().strip_prefix('#').map(str::to_owned);
    Some(Diagnostic { severity, place, code, message: message.trim().to_owned(), log_line })
}

/// What follows "ptxas": ` application ptx input, line 23; error   : text`, ` error   : text`,
/// ` fatal   : text`, ` warning : text`, ` info    : (C7508) text`.
fn ptxas_diagnostic(rest: &str, log_line: u32) -> Option<Diagnostic> {
    let (head, message) = rest.split_once(" : ").or_else(|| rest.split_once(": "))?;
    let (place, kind) = match head.rsplit_once(';') {
        Some((at, kind)) => (
            at.rsplit_once("line ")
                .and_then(|(_, n)| n.trim().parse().ok())
                .map_or(Place::Nowhere, |line| Place::Ptx { line }),
            kind.trim(),
        ),
        None => (Place::Nowhere, head.trim()),
    };
    let message = message.trim();
    let (code, message) = match between(message, "(", ")") {
        Some(code) if message.starts_with("(C") => {
            (Some(code.to_owned()), message[code.len() + 2..].trim_start())
        }
        _ => (None, message),
    };
    let severity = match kind {
        "error" | "fatal" => Severity::Error,
        "warning" => Severity::Warning,
        // ptxas files lost performance under "info", with a number.
        "info" if code.is_some() => Severity::Warning,
        _ => return None,
    };
    Some(Diagnostic { severity, place, code, message: message.to_owned(), log_line })
}

fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(open)?;
    Some(rest.split_once(close)?.0)
}

/// The decimal number that ends right before `unit`.
fn number_before(text: &str, unit: &str) -> Option<u32> {
    let (head, _) = text.split_once(unit)?;
    let digits = head.len() - head.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    head[head.len() - digits..].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "\
mk.cu(3): warning #20044-D: extern declaration of the entity zz is treated as a static definition

ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas info    : 32 bytes gmem
ptxas info    : Compiling entry function 'spill' for 'sm_90a'
ptxas info    : Function properties for spill
ptxas         .     912 bytes stack frame, 516 bytes spill stores, 620 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 912 bytes cumulative stack size
ptxas info    : Compile time = 36.780 ms
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 2 barriers, 1024 bytes smem, 400 bytes cmem[0]
ptxas info    : Function properties for helper
    8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
  \0";

    #[test]
    fn resources_and_spills_are_read() {
        let text = normalise(FULL.as_bytes());
        assert!(!text.contains("Compile time") && text.ends_with("spill loads\n"));
        let log = CompileLog::parse(&text);
        let [spill, k, helper] = &log.functions[..] else {
            panic!("{:?}", log.functions);
        };
        assert_eq!((spill.registers, spill.stack_bytes), (32, 912));
        assert_eq!((spill.spill_store_bytes, spill.spill_load_bytes), (516, 620));
        assert_eq!((k.registers, k.barriers, k.shared_bytes), (12, 2, 1024));
        assert!(k.entry && !helper.entry && helper.spill_load_bytes == 4);
        assert_eq!(log.spill_bytes(), 516 + 620 + 8);
    }

    #[test]
    fn both_setmaxnreg_numbers_are_seen() {
        let found = CompileLog::parse(FULL).setmaxnreg_ignored().cloned().unwrap();
        assert_eq!((found.code.as_deref(), found.log_line), (Some("C7508"), 3));
        let other = "ptxas info    : (C7507) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements.";
        assert!(CompileLog::parse(other).setmaxnreg_ignored().is_some());
        let wgmma = "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized";
        let log = CompileLog::parse(wgmma);
        assert!(log.setmaxnreg_ignored().is_none());
        assert_eq!(log.warnings().count(), 1);
    }

    #[test]
    fn errors_carry_source_and_ptx_lines() {
        let text = normalise(
            b"mk.cu(2): error: identifier \"foo\" is undefined\n   o[0]=foo;\n        ^\n\
             mk.cu(1): catastrophic error: could not open source file \"a.h\" (no directories in search list)\n\
             1 error detected in the compilation of \"mk.cu\".\n\
             ptxas application ptx input, line 23; error   : Unknown modifier '.foo'\n\
             ptxas fatal   : Ptx assembly aborted due to errors\n\
             \0ptxas error   : Entry function 'k' uses too much shared data (0x40000 bytes, 0x38c00 max)\n\
             nvrtc: error: unrecognized option --wibble found\n",
        );
        let log = CompileLog::parse(&text);
        let errors: Vec<_> = log.errors().map(|d| (d.place.clone(), d.log_line)).collect();
        assert_eq!(
            errors,
            [
                (Place::Source { line: 2 }, 1),
                (Place::Source { line: 1 }, 4),
                (Place::Ptx { line: 23 }, 6),
                (Place::Nowhere, 7),
                (Place::Nowhere, 8),
                (Place::Nowhere, 9),
            ]
        );
        assert_eq!(log.diagnostics[0].message, "identifier \"foo\" is undefined");
        assert_eq!(log.diagnostics[2].message, "Unknown modifier '.foo'");
        assert!(log.diagnostics[4].message.starts_with("Entry function 'k'"));
    }
}
