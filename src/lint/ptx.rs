//! Reading the PTX of one kernel: statements, registers, basic blocks. Grammar: PTX ISA, chapter
//! "Syntax"; only what NVRTC writes and inline assembly may hold is understood.

use std::collections::{BTreeMap, BTreeSet};

/// A register, numbered in order of appearance.
pub type Reg = usize;

/// An operand of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operand {
    Reg(Reg),
    Imm(i64),
    /// `[base + offset]`.
    Address {
        base: Base,
        offset: i64,
    },
    /// `{a, b}`, or `p|q`.
    List(Vec<Operand>),
    /// A name that is no register: a variable, a label, a function.
    Name(String),
    /// `_`, a result nobody wants, and literals that are no integer.
    Other,
}

/// What an address starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Base {
    Reg(Reg),
    Name(String),
    /// `[16]`.
    Nothing,
}

/// An instruction.
#[derive(Clone, Debug)]
pub struct Instr {
    /// Line in the PTX, from 1.
    pub line: u32,
    /// Predicate under which it runs, and whether it is negated.
    pub guard: Option<(Reg, bool)>,
    pub opcode: String,
    /// The opcode between its dots.
    parts: Vec<String>,
    pub operands: Vec<Operand>,
    /// Registers written.
    pub writes: Vec<Reg>,
}

/// A basic block.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// Its instructions are `first..end`.
    pub first: usize,
    pub end: usize,
    /// Successors; of a guarded branch the taken one first.
    pub succ: Vec<usize>,
    pub pred: Vec<usize>,
}

/// A kernel.
#[derive(Clone, Debug, Default)]
pub struct Kernel {
    pub name: String,
    pub instrs: Vec<Instr>,
    pub blocks: Vec<Block>,
    /// Block of each instruction.
    pub block_of: Vec<usize>,
    /// Instructions that write each register.
    pub writers: Vec<Vec<usize>>,
    /// Instructions that read each register, as an operand.
    pub readers: Vec<Vec<usize>>,
    /// Names of variables in shared memory.
    pub shared: BTreeSet<String>,
}

/// Text that is not understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub line: u32,
    pub what: String,
}

impl Instr {
    fn new(line: u32, guard: Option<(Reg, bool)>, opcode: &str, operands: Vec<Operand>) -> Instr {
        let parts = opcode.split('.').map(str::to_owned).collect();
        let mut writes = Vec::new();
        if has_result(opcode)
            && let Some(first) = operands.first()
        {
            first.registers(&mut writes);
        }
        Instr { line, guard, opcode: opcode.to_owned(), parts, operands, writes }
    }

    /// Operands read, the address of a load among them.
    pub fn sources(&self) -> &[Operand] {
        let from = usize::from(has_result(&self.opcode)).min(self.operands.len());
        &self.operands[from..]
    }

    /// The first address.
    pub fn address(&self) -> Option<(&Base, i64)> {
        self.operands.iter().find_map(|o| match o {
            Operand::Address { base, offset } => Some((base, *offset)),
            _ => None,
        })
    }

    /// Part `n` of the dotted opcode.
    pub fn part(&self, n: usize) -> &str {
        self.parts.get(n).map_or("", String::as_str)
    }

    /// Whether the dotted opcode has this part.
    pub fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|p| p == part)
    }

    fn is_branch(&self) -> bool {
        matches!(self.part(0), "bra" | "brx")
    }

    fn ends(&self) -> bool {
        matches!(self.part(0), "ret" | "exit" | "trap")
    }
}

impl Operand {
    /// Registers in it, those of an address too.
    pub fn registers(&self, out: &mut Vec<Reg>) {
        match self {
            Operand::Reg(r) | Operand::Address { base: Base::Reg(r), .. } => out.push(*r),
            Operand::List(all) => all.iter().for_each(|o| o.registers(out)),
            _ => {}
        }
    }
}

/// Whether the first operand is a result.
fn has_result(opcode: &str) -> bool {
    let mut parts = opcode.split('.');
    let first = parts.next().unwrap_or_default();
    match first {
        "st" | "red" | "bar" | "barrier" | "bra" | "brx" | "ret" | "exit" | "trap" | "fence"
        | "membar" | "prefetch" | "prefetchu" | "cp" | "call" | "nanosleep" | "griddepcontrol"
        | "pmevent" | "multimem" | "discard" | "applypriority" | "setmaxnreg" => false,
        "mbarrier" => !matches!(parts.next(), Some("init" | "inval" | "expect_tx" | "complete_tx")),
        _ => true,
    }
}

/// Reads the one kernel of `text`.
///
/// # Errors
/// Text that is no PTX, holds no kernel, several of them, or a function beside it.
pub fn read(text: &str) -> Result<Kernel, Unreadable> {
    let mut reader = Reader::default();
    let mut labels: BTreeMap<String, usize> = BTreeMap::new();
    let mut tables: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut last_label = String::new();
    for statement in statements(text) {
        let Statement { line, text } = statement;
        let fail = |what: &str| Err(Unreadable { line, what: what.to_owned() });
        let text = text.as_str();
        if let Some(label) = text.strip_suffix(':') {
            if reader.depth > 0 {
                labels.insert(label.to_owned(), reader.kernel.instrs.len());
                label.clone_into(&mut last_label);
            }
        } else if text == "{" {
            reader.scopes.push(BTreeMap::new());
            reader.depth += 1;
        } else if text == "}" {
            reader.scopes.pop();
            reader.depth = reader.depth.saturating_sub(1);
        } else if text.starts_with('.') {
            let words: Vec<&str> = text.split_whitespace().collect();
            if let Some(at) = words.iter().position(|w| *w == ".entry") {
                if !reader.kernel.name.is_empty() {
                    return fail("there is a second kernel");
                }
                let name = words.get(at + 1).copied().unwrap_or_default();
                reader.kernel.name = name.split('(').next().unwrap_or_default().to_owned();
            } else if words.contains(&".func") {
                return fail("there is a function beside the kernel: calls cannot be judged");
            } else if words.contains(&".shared") {
                let name = words.last().copied().unwrap_or_default();
                let name = name.split('[').next().unwrap_or_default();
                reader.kernel.shared.insert(name.to_owned());
            } else if words.first() == Some(&".reg") && reader.depth > 1 {
                reader.local_registers(&words);
            } else if words.first() == Some(&".branchtargets") {
                let list = text.trim_start_matches(".branchtargets").split(',');
                let list = list.map(|l| l.trim().to_owned()).collect();
                tables.insert(last_label.clone(), list);
            }
        } else if reader.depth > 0 {
            let instr = reader.instruction(line, text)?;
            reader.kernel.instrs.push(instr);
        } else {
            return fail("a statement outside the kernel");
        }
    }
    let mut kernel = reader.kernel;
    kernel.writers = vec![Vec::new(); reader.names.len()];
    kernel.readers = kernel.writers.clone();
    for (i, instr) in kernel.instrs.iter().enumerate() {
        let mut read = Vec::new();
        instr.sources().iter().for_each(|o| o.registers(&mut read));
        read.into_iter().for_each(|r| kernel.readers[r].push(i));
        instr.writes.iter().for_each(|r| kernel.writers[*r].push(i));
    }
    if kernel.name.is_empty() || kernel.instrs.is_empty() {
        return Err(Unreadable { line: 1, what: "there is no kernel".to_owned() });
    }
    build_blocks(&mut kernel, &labels, &tables)?;
    Ok(kernel)
}

/// A statement without its `;`: a label with its `:`, a brace, a directive, an instruction.
struct Statement {
    line: u32,
    text: String,
}

/// Directives that end with their line.
const LINE_DIRECTIVES: [&str; 5] = [".version", ".target", ".address_size", ".loc", ".file"];

fn statements(text: &str) -> Vec<Statement> {
    let mut out = Vec::new();
    let mut current = String::new();
    let mut start = 1;
    let mut parens = 0i32;
    for (number, line) in text.lines().enumerate() {
        let line = line.split("//").next().unwrap_or_default();
        let number = number as u32 + 1;
        for c in line.chars() {
            if current.is_empty() {
                if c.is_whitespace() {
                    continue;
                }
                start = number;
            }
            let mut push = |text: String| out.push(Statement { line: start, text });
            match c {
                // A brace that opens a scope, not a vector operand.
                '{' | '}' if current.is_empty() => push(c.to_string()),
                '{' if parens == 0 && current.contains(".entry") => {
                    push(std::mem::take(&mut current));
                    push("{".to_owned());
                }
                ';' => push(std::mem::take(&mut current).trim_end().to_owned()),
                ':' if is_label(&current) => {
                    current.push(':');
                    push(std::mem::take(&mut current));
                }
                _ => {
                    parens += i32::from(c == '(') - i32::from(c == ')');
                    current.push(c);
                }
            }
        }
        if LINE_DIRECTIVES.iter().any(|d| current.starts_with(d)) {
            current.clear();
        } else if !current.is_empty() {
            current.push(' ');
        }
    }
    out
}

fn is_label(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '$')
}

#[derive(Default)]
struct Reader {
    kernel: Kernel,
    names: BTreeMap<String, Reg>,
    /// Registers declared inside braces within the kernel: their names there and overall.
    scopes: Vec<BTreeMap<String, String>>,
    depth: usize,
}

impl Reader {
    fn local_registers(&mut self, words: &[&str]) {
        let line = self.kernel.instrs.len();
        if let Some(scope) = self.scopes.last_mut() {
            for name in words.iter().skip(2).flat_map(|w| w.split(',')).filter(|n| !n.is_empty()) {
                scope.insert(name.to_owned(), format!("{name} of {line}"));
            }
        }
    }

    fn register(&mut self, name: &str) -> Option<Reg> {
        let local = self.scopes.iter().rev().find_map(|s| s.get(name)).cloned();
        let name = match local {
            Some(full) => full,
            None if name.starts_with('%') => name.to_owned(),
            None => return None,
        };
        let next = self.names.len();
        Some(*self.names.entry(name).or_insert(next))
    }

    fn instruction(&mut self, line: u32, text: &str) -> Result<Instr, Unreadable> {
        let fail = |what: &str| Unreadable { line, what: format!("{what} in: {text}") };
        let (guard, rest) = match text.strip_prefix('@') {
            Some(rest) => {
                let (name, rest) = rest.split_once(char::is_whitespace).ok_or(fail("no opcode"))?;
                let negated = name.starts_with('!');
                let reg = self.register(name.trim_start_matches('!'));
                (Some((reg.ok_or(fail("no predicate"))?, negated)), rest.trim_start())
            }
            None => (None, text),
        };
        let (opcode, rest) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        if !opcode.starts_with(|c: char| c.is_ascii_lowercase()) {
            return Err(fail("no opcode"));
        }
        let operands = split(rest).into_iter().map(|o| self.operand(o)).collect();
        Ok(Instr::new(line, guard, opcode, operands))
    }

    fn operand(&mut self, text: &str) -> Operand {
        let inside = |open: char, close: char| text.strip_prefix(open)?.strip_suffix(close);
        if let Some(list) = inside('{', '}') {
            return Operand::List(split(list).into_iter().map(|o| self.operand(o)).collect());
        }
        if let Some(address) = inside('[', ']') {
            let (base, offset) = match address.split_once('+') {
                Some((base, offset)) => (base.trim(), integer(offset.trim()).unwrap_or(0)),
                None => (address.trim(), 0),
            };
            let base = match (self.register(base), integer(base)) {
                (Some(reg), _) => Base::Reg(reg),
                (None, Some(at)) => {
                    return Operand::Address { base: Base::Nothing, offset: at + offset };
                }
                (None, None) => Base::Name(base.to_owned()),
            };
            return Operand::Address { base, offset };
        }
        if let Some((a, b)) = text.split_once('|') {
            return Operand::List(vec![self.operand(a.trim()), self.operand(b.trim())]);
        }
        if let Some(reg) = self.register(text.trim_start_matches('!')) {
            return Operand::Reg(reg);
        }
        match integer(text) {
            Some(value) => Operand::Imm(value),
            None if text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '$') => {
                Operand::Name(text.to_owned())
            }
            None => Operand::Other,
        }
    }
}

/// Operands between commas that stand outside brackets.
fn split(text: &str) -> Vec<&str> {
    let (mut out, mut depth, mut from) = (Vec::new(), 0, 0);
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth -= 1,
            ',' if depth == 0 => {
                out.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    out.push(text[from..].trim());
    out.retain(|o| !o.is_empty());
    out
}

fn integer(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let digits = digits.strip_suffix('U').unwrap_or(digits);
    let value = match digits.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => digits.parse().ok()?,
    };
    Some(sign * value)
}

fn build_blocks(
    kernel: &mut Kernel,
    labels: &BTreeMap<String, usize>,
    tables: &BTreeMap<String, Vec<String>>,
) -> Result<(), Unreadable> {
    let count = kernel.instrs.len();
    let mut leaders: BTreeSet<usize> = labels.values().copied().filter(|i| *i < count).collect();
    leaders.insert(0);
    for (i, instr) in kernel.instrs.iter().enumerate() {
        if (instr.is_branch() || instr.ends()) && i + 1 < count {
            leaders.insert(i + 1);
        }
    }
    let leaders: Vec<usize> = leaders.into_iter().collect();
    kernel.block_of = vec![0; count];
    for (n, &first) in leaders.iter().enumerate() {
        let end = leaders.get(n + 1).copied().unwrap_or(count);
        kernel.block_of[first..end].fill(n);
        kernel.blocks.push(Block { first, end, ..Block::default() });
    }
    for n in 0..kernel.blocks.len() {
        let last = &kernel.instrs[kernel.blocks[n].end - 1];
        let mut succ = Vec::new();
        if last.is_branch() {
            let target = last.operands.last();
            let names: Vec<&str> = match target {
                Some(Operand::Name(name)) if last.part(0) == "brx" => {
                    tables.get(name).into_iter().flatten().map(String::as_str).collect()
                }
                Some(Operand::Name(name)) => vec![name],
                _ => Vec::new(),
            };
            for name in names {
                let at = labels.get(name).filter(|i| **i < count).ok_or_else(|| Unreadable {
                    line: last.line,
                    what: format!("a branch to {name}, which is not there"),
                })?;
                succ.push(kernel.block_of[*at]);
            }
        }
        let falls = !(last.is_branch() || last.ends()) || last.guard.is_some();
        if falls && n + 1 < kernel.blocks.len() {
            succ.push(n + 1);
        }
        for &s in &succ {
            kernel.blocks[s].pred.push(n);
        }
        kernel.blocks[n].succ = succ;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str = "
.version 9.0
.target sm_90a
.extern .shared .align 128 .b8 smem[];
.visible .entry k(
\t.param .u64 k_param_0
)
{
\t.reg .pred \t%p<2>;
\tld.param.u64 \t%rd1, [k_param_0+8];
\tmov.u32 \t%r1, 0; // a comment; with a semicolon

$L__BB0_1:
\t// begin inline asm
\t{
.reg .pred p;
mbarrier.try_wait.parity.shared.b64 p, [%r1], %r2;
selp.u32 %r3, 1, 0, p;
}
\tld.global.v2.u32 \t{%r4, %r5}, [%rd1+-8];
\tsetp.eq.s32 \t%p1, %r3, 0;
\t@%p1 bra \t$L__BB0_1;
\tst.shared.u32 \t[smem+227716], %r4;
\tret;
}
";

    #[test]
    fn statements_registers_and_blocks() {
        let k = read(SMALL).unwrap();
        assert_eq!(k.name, "k");
        assert!(k.shared.contains("smem"));
        let ops: Vec<&str> = k.instrs.iter().map(|i| i.opcode.as_str()).collect();
        assert_eq!(
            ops,
            [
                "ld.param.u64",
                "mov.u32",
                "mbarrier.try_wait.parity.shared.b64",
                "selp.u32",
                "ld.global.v2.u32",
                "setp.eq.s32",
                "bra",
                "st.shared.u32",
                "ret"
            ]
        );
        // The predicate inside the braces is one register.
        assert_eq!(k.instrs[2].writes, {
            let mut read = Vec::new();
            k.instrs[3].operands[3].registers(&mut read);
            read
        });
        assert_eq!(k.instrs[4].writes.len(), 2);
        assert!(matches!(k.instrs[4].address(), Some((Base::Reg(_), -8))));
        assert!(
            matches!(k.instrs[7].address(), Some((Base::Name(n), 227_716)) if n.as_str() == "smem")
        );
        assert!(k.instrs[7].writes.is_empty());
        let succ: Vec<_> = k.blocks.iter().map(|b| b.succ.clone()).collect();
        assert_eq!(succ, [vec![1], vec![1, 2], vec![]]);
    }

    #[test]
    fn what_cannot_be_judged_is_refused() {
        assert!(read("").is_err());
        assert!(read("hello;").is_err());
        assert!(read(&SMALL.replace("$L__BB0_1;", "$L__BB0_7;")).is_err());
        assert!(read(&format!("{SMALL}{SMALL}")).is_err());
        assert!(read(&format!(".func f()\n{{\nret;\n}}\n{SMALL}")).is_err());
    }
}
