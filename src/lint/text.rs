//! The lint over template text: raw synchronisation stands in the primitive files of `sync/` and `ring/`
//! alone, raw assembly of any kind there and in that of `arch/`. `host/` is for another compiler.

use super::events::is_synchronisation;

/// Starts of the names of templates that may hold raw synchronisation.
const SYNCHRONISES: [&str; 3] = ["sync/ptx", "ring/ptx_", "host/"];
/// The template that may hold assembly of other kinds.
const RAW: &str = "arch/cuda.";
/// Starts of names by which CUDA C++ orders memory or waits without assembly.
const NAMES: [&str; 20] = [
    "__syncthreads",
    "__syncwarp",
    "__threadfence",
    "__barrier",
    "__nv_",
    "__pipeline",
    "__cluster",
    "__nanosleep",
    "__ldcg",
    "__ldca",
    "__ldcs",
    "__ldcv",
    "__ldlu",
    "__stcg",
    "__stcs",
    "__stwb",
    "__stwt",
    "atomic",
    "cuda",
    "cooperative_groups",
];

/// Raw synchronisation or assembly where it must not be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "templates/{template} line {line}: {what}; raw synchronisation belongs into templates/sync/ptx* or templates/ring/ptx_*"
)]
pub struct TextFault {
    pub template: String,
    pub line: usize,
    pub what: String,
}

/// Judges templates given by name (such as `ops/embed.cu.j2`) and text.
pub fn check_templates<'a>(
    templates: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Vec<TextFault> {
    let mut faults = Vec::new();
    for (name, text) in templates {
        if !SYNCHRONISES.iter().any(|start| name.starts_with(start)) {
            check(name, text, name.starts_with(RAW), &mut faults);
        }
    }
    faults
}

/// Opcodes of the assembly statements of a text that order, synchronise or copy asynchronously, in
/// order of appearance.
pub fn raw_synchronisation(text: &str) -> Vec<String> {
    let text = without_comments(text);
    let asm = words(&text).into_iter().filter(|(_, word)| *word == "asm");
    asm.flat_map(|(at, _)| opcodes(&text[at..])).filter(|o| is_synchronisation(o)).collect()
}

fn check(name: &str, text: &str, raw: bool, faults: &mut Vec<TextFault>) {
    let text = without_comments(text);
    let mut fault = |at: usize, what: String| {
        let line = text[..at].matches('\n').count() + 1;
        faults.push(TextFault { template: name.to_owned(), line, what });
    };
    for (at, word) in words(&text) {
        if word == "asm" || word == "__asm__" || word == "__asm" {
            if !raw {
                fault(at, "assembly".to_owned());
                continue;
            }
            for opcode in opcodes(&text[at..]) {
                let first = opcode.split('.').next().unwrap_or_default();
                // Weak loads of data nobody writes meanwhile, in a form C++ has no name for.
                let plain =
                    ["ld.global.nc.", "ld.shared.v2."].iter().any(|p| opcode.starts_with(p));
                if is_synchronisation(&opcode) || matches!(first, "ld" | "st") && !plain {
                    fault(at, format!("the assembly {opcode}"));
                }
            }
        } else if word == "volatile" {
            // Of assembly it says that it has effects; of data, that somebody waits for it.
            let before = text[..at].trim_end();
            if !before.ends_with("asm") && !before.ends_with("__asm__") {
                fault(at, "a volatile access".to_owned());
            }
        } else if NAMES.iter().any(|n| word.starts_with(n)) {
            fault(at, format!("the name {word}"));
        }
    }
}

/// Line comments replaced by spaces, so that offsets stay.
fn without_comments(text: &str) -> String {
    let line = |line: &str| match line.find("//") {
        Some(at) => format!("{}{}", &line[..at], " ".repeat(line.len() - at)),
        None => line.to_owned(),
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// Identifiers with their offsets.
fn words(text: &str) -> Vec<(usize, &str)> {
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices().chain([(text.len(), ' ')]) {
        match (part(c), start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                out.push((from, &text[from..at]));
                start = None;
            }
            _ => {}
        }
    }
    out
}

/// Opcodes in the string literals of the assembly statement that starts here.
fn opcodes(text: &str) -> Vec<String> {
    let mut code = String::new();
    for (n, piece) in text.split('"').enumerate() {
        match n % 2 {
            1 => code.push_str(piece),
            // The literals end at the operands or at the closing parenthesis.
            _ if n > 0 && piece.trim_start().starts_with([':', ')']) => break,
            _ => {}
        }
    }
    let code = code.replace("\\n", ";").replace("\\t", " ").replace(['{', '}'], ";");
    let mut out = Vec::new();
    for statement in code.split(';') {
        let mut words = statement.split_whitespace();
        let mut first = words.next().unwrap_or_default();
        if first.starts_with('@') {
            first = words.next().unwrap_or_default();
        }
        if first.starts_with(|c: char| c.is_ascii_lowercase()) {
            out.push(first.to_owned());
        }
    }
    out
}
