//! What registers hold, as far as the lint needs it: from which pointer an address starts and at what
//! constant offset, and whether a value was made from the launch's epoch base.
//!
//! Every register gets one value, whatever the path. NVRTC's registers have one definition, except
//! where paths join; there the first definition in control-flow order gives the offset, since that is
//! where a pointer that walks through an array starts.

use super::flow::Flow;
use super::ptx::{Base, Instr, Kernel, Operand, Reg};

/// What an address starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A number.
    Number,
    /// The kernel's parameters themselves.
    Params,
    /// A pointer that lies at this offset of the parameters.
    Pointer(i64),
    /// Dynamic shared memory.
    Shared,
    /// Anything else.
    Unknown,
}

/// An abstract value: origin + offset, plus something unknown if `varies`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub origin: Origin,
    pub offset: i64,
    pub varies: bool,
    /// Made from the epoch base.
    pub tag: bool,
    /// Made from something in memory, such as an offset of the instruction table.
    pub loaded: bool,
}

impl Value {
    const UNKNOWN: Value =
        Value { origin: Origin::Number, offset: 0, varies: true, tag: false, loaded: false };

    const LOADED: Value = Value { loaded: true, ..Value::UNKNOWN };

    fn at(origin: Origin, offset: i64) -> Value {
        Value { varies: false, origin, offset, ..Value::UNKNOWN }
    }

    fn add(self, other: Value, sign: i64) -> Value {
        let origin = match (self.origin, other.origin, sign) {
            (o, Origin::Number, _) | (Origin::Number, o, 1) => o,
            // A distance between pointers, or nothing that makes sense.
            _ => Origin::Number,
        };
        Value {
            origin,
            offset: self.offset.wrapping_add(other.offset.wrapping_mul(sign)),
            varies: self.varies || other.varies,
            ..self.marks(other)
        }
    }

    /// An unknown number that carries the marks of both.
    fn marks(self, other: Value) -> Value {
        Value { tag: self.tag || other.tag, loaded: self.loaded || other.loaded, ..Value::UNKNOWN }
    }

    fn times(self, factor: i64) -> Value {
        match self.origin {
            Origin::Number => Value { offset: self.offset.wrapping_mul(factor), ..self },
            _ => self.marks(self),
        }
    }

    fn constant(self) -> Option<i64> {
        (self.origin == Origin::Number && !self.varies).then_some(self.offset)
    }

    /// Where paths meet: the first value, which now varies unless both agree.
    fn meet(self, other: Value) -> Value {
        let same = (self.origin, self.offset) == (other.origin, other.offset);
        Value {
            origin: if self.origin == other.origin { self.origin } else { Origin::Unknown },
            offset: self.offset,
            varies: self.varies || other.varies || !same,
            ..self.marks(other)
        }
    }
}

/// Values of all registers.
pub struct Values {
    values: Vec<Option<Value>>,
}

impl Values {
    /// Evaluates a kernel whose epoch base lies at `epoch_base` in its parameters.
    pub fn new(kernel: &Kernel, flow: &Flow, epoch_base: i64) -> Values {
        let mut this = Values { values: vec![None; kernel.writers.len()] };
        loop {
            let mut changed = false;
            for &block in &flow.order {
                let block = &kernel.blocks[block];
                for instr in &kernel.instrs[block.first..block.end] {
                    let value = this.result(kernel, instr, epoch_base);
                    for &reg in &instr.writes {
                        let old = this.values[reg];
                        let new = old.map_or(value, |old| old.meet(value));
                        changed |= old != Some(new);
                        this.values[reg] = Some(new);
                    }
                }
            }
            if !changed {
                return this;
            }
        }
    }

    /// The value of a register; special registers are unknown numbers.
    pub fn register(&self, reg: Reg) -> Value {
        self.values.get(reg).copied().flatten().unwrap_or(Value::UNKNOWN)
    }

    /// The value of an operand.
    pub fn operand(&self, kernel: &Kernel, operand: &Operand) -> Value {
        match operand {
            Operand::Reg(reg) => self.register(*reg),
            Operand::Imm(value) => Value::at(Origin::Number, *value),
            Operand::Name(name) if kernel.shared.contains(name) => Value::at(Origin::Shared, 0),
            Operand::Name(name) if is_parameter(kernel, name) => Value::at(Origin::Params, 0),
            Operand::Name(_) => Value::at(Origin::Unknown, 0),
            Operand::List(all) => {
                let all = all.iter().map(|o| self.operand(kernel, o));
                all.fold(Value::UNKNOWN, Value::marks)
            }
            Operand::Address { base, offset } => self.address(kernel, base, *offset),
            Operand::Other => Value::UNKNOWN,
        }
    }

    /// The value of an address.
    pub fn address(&self, kernel: &Kernel, base: &Base, offset: i64) -> Value {
        let base = match base {
            Base::Reg(reg) => self.register(*reg),
            Base::Name(name) => self.operand(kernel, &Operand::Name(name.clone())),
            Base::Nothing => Value::at(Origin::Number, 0),
        };
        base.add(Value::at(Origin::Number, offset), 1)
    }

    fn result(&self, kernel: &Kernel, instr: &Instr, epoch_base: i64) -> Value {
        let sources = instr.sources();
        let get = |n: usize| sources.get(n).map_or(Value::UNKNOWN, |o| self.operand(kernel, o));
        let unknown = (0..sources.len()).map(get).fold(Value::UNKNOWN, Value::marks);
        match (instr.part(0), instr.part(1)) {
            // From memory comes what somebody stored; only parameters are known.
            ("ld", "param") => {
                let from = get(0);
                if from.origin != Origin::Params {
                    return Value::UNKNOWN;
                }
                let pointer = instr.has("u64") || instr.has("b64") || instr.has("s64");
                match pointer && !from.varies {
                    true => Value::at(Origin::Pointer(from.offset), 0),
                    false => {
                        Value { tag: from.offset == epoch_base && !from.varies, ..Value::UNKNOWN }
                    }
                }
            }
            ("ld" | "atom", _) => Value::LOADED,
            ("mov" | "cvta", _) if sources.len() == 1 => get(0),
            ("cvt", _) if sources.len() == 1 && !instr.opcode.contains(".f") => get(0),
            ("add", _) => get(0).add(get(1), 1),
            ("sub", _) => get(0).add(get(1), -1),
            // An `or` is how the compiler adds to a value with those bits clear: a constant, or a number made from the
            // thread's own.
            ("or", _) if addend(get(0)) || addend(get(1)) => get(0).add(get(1), 1),
            ("shl", _) => match get(1).constant() {
                Some(by @ 0..=62) => get(0).times(1 << by),
                _ => unknown,
            },
            ("mul", "lo" | "wide") => product(get(0), get(1)).unwrap_or(unknown),
            ("mad", "lo" | "wide") => product(get(0), get(1)).unwrap_or(unknown).add(get(2), 1),
            ("selp", _) => get(0).meet(get(1)),
            _ => unknown,
        }
    }
}

/// May this side of an `or` be one that is added: a constant, or a number of no known offset?
fn addend(value: Value) -> bool {
    value.origin == Origin::Number && (!value.varies || value.offset == 0)
}

fn product(a: Value, b: Value) -> Option<Value> {
    match (a.constant(), b.constant()) {
        (_, Some(factor)) => Some(a.times(factor)),
        (Some(factor), None) => Some(b.times(factor)),
        (None, None) => None,
    }
}

fn is_parameter(kernel: &Kernel, name: &str) -> bool {
    name.strip_prefix(kernel.name.as_str()).is_some_and(|rest| rest.starts_with("_param_"))
}
