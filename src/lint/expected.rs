//! What the kernel of a program must contain, and where its synchronisation words lie.

use std::ops::Range;

use amk_schedule_ir::{Access, Area, BoundaryOp, BufferSync, Op, Program, Target};

use super::cases::Case;
use super::value::{Origin, Value};
use crate::codegen::{Arena, case_calls};

/// Offsets of the kernel's parameters, bytes: `Params` in `templates/megakernel.cu.j2`.
pub mod params {
    /// Pointer to the arena.
    pub const ARENA: i64 = 8;
    /// Pointer to the instruction tables.
    pub const TABLES: i64 = 16;
    /// Pointer to the tokens the host polls.
    pub const HOST_TOKENS: i64 = 24;
    /// Pointer to the step count the host polls.
    pub const HOST_PROGRESS: i64 = 32;
    /// Pointer to the time stamps.
    pub const TRACE: i64 = 40;
    /// First packet epoch of the launch.
    pub const EPOCH_BASE: i64 = 64;
}

/// Where an access goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Buffers of the arena, and whatever is not known to be elsewhere in global memory.
    Data,
    /// Argmax keys, read by the boundary.
    Keys,
    Counter,
    Arrivals,
    TokenWord,
    Cancel,
    /// First word of the report: whether the launch was given up.
    GivenUp,
    /// The rest of the report.
    Report,
    Table,
    HostTokens,
    HostProgress,
    Trace,
    /// Slots of the ring.
    Ring,
    /// A slot's mbarrier that says it is full.
    Full,
    /// A slot's mbarrier that says it is empty.
    Empty,
    /// The stop flag the producer polls.
    Flag,
    /// Shared memory besides.
    Shared,
    /// No address.
    Nowhere,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Place::Data => "the buffers",
            Place::Keys => "the argmax keys",
            Place::Counter => "the counters",
            Place::Arrivals => "the arrivals of the boundary",
            Place::TokenWord => "the token word",
            Place::Cancel => "the cancel word",
            Place::GivenUp => "the given-up word",
            Place::Report => "the report",
            Place::Table => "the instruction tables",
            Place::HostTokens => "the host's tokens",
            Place::HostProgress => "the host's progress word",
            Place::Trace => "the trace",
            Place::Ring => "the ring",
            Place::Full => "a slot's full barrier",
            Place::Empty => "a slot's empty barrier",
            Place::Flag => "the stop flag",
            Place::Shared => "shared memory",
            Place::Nowhere => "no memory",
        })
    }
}

/// What a program's kernel is held to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Threads of all consumer warps.
    pub consumer_threads: i64,
    /// Bulk copies, or else `cp.async`.
    pub bulk: bool,
    /// Arrivals that complete a full barrier: the one thread that issues bulk copies, or a warp.
    pub full_count: i64,
    /// Arrivals that complete an empty barrier: one per consumer warp.
    pub empty_count: i64,
    /// Slots of the ring.
    pub slots: i64,
    /// Cases of the dispatch, by number.
    pub cases: Vec<Case>,
    arena: Arena,
    /// Start of the argmax keys; of what the boundary indexes itself, nothing lies behind them.
    keys: i64,
    ring: Range<i64>,
    full: Range<i64>,
    empty: Range<i64>,
    flag: i64,
}

impl Expected {
    /// What the kernel of `program` on `target` is held to.
    pub fn new(program: &Program, target: &Target) -> Expected {
        let arena = Arena::new(program);
        let r = &program.resources;
        let start =
            |area: Area| r.shared.iter().find(|s| s.area == area).map_or(0, |s| s.offset as i64);
        let (slots, warps) = (i64::from(r.ring_slots), i64::from(r.consumer_warps));
        let barriers = start(Area::Mbarrier);
        let keys = program.boundary.reads.first().map(|a| arena.offset(a.buffer) as i64);
        let bulk = target.features.bulk_copy;
        Expected {
            consumer_threads: warps * 32,
            bulk,
            full_count: if bulk { 1 } else { 32 },
            empty_count: warps,
            slots,
            cases: cases(program),
            keys: keys.unwrap_or(i64::MAX),
            ring: start(Area::Ring)..start(Area::Ring) + slots * r.slot_bytes as i64,
            full: barriers..barriers + 8 * slots,
            empty: barriers + 8 * slots..barriers + 16 * slots,
            flag: start(Area::Control),
            arena,
        }
    }

    /// Where an address goes. `shared`: the instruction itself says that it is in shared memory.
    pub(super) fn place(&self, address: Value, shared: bool) -> Place {
        let Value { origin, offset, varies, loaded, .. } = address;
        let exactly = |at: u64| !varies && offset == at as i64;
        match origin {
            Origin::Shared if self.full.contains(&offset) => Place::Full,
            Origin::Shared if self.empty.contains(&offset) => Place::Empty,
            Origin::Shared if self.ring.contains(&offset) => Place::Ring,
            Origin::Shared if offset == self.flag && !varies => Place::Flag,
            Origin::Shared => Place::Shared,
            Origin::Params => Place::Nowhere,
            Origin::Pointer(params::TABLES) => Place::Table,
            Origin::Pointer(params::TRACE) => Place::Trace,
            Origin::Pointer(params::HOST_TOKENS) => Place::HostTokens,
            Origin::Pointer(params::HOST_PROGRESS) => Place::HostProgress,
            Origin::Pointer(params::ARENA) => {
                let a = &self.arena;
                if exactly(a.arrivals) {
                    Place::Arrivals
                } else if exactly(a.token_word) {
                    Place::TokenWord
                } else if exactly(a.cancel) {
                    Place::Cancel
                } else if exactly(a.report) {
                    Place::GivenUp
                } else if !varies && (1..8).any(|n| exactly(a.report + 4 * n)) {
                    Place::Report
                } else if offset == a.counters as i64 && loaded {
                    Place::Counter
                // The loop over the keys is unrolled, so that a constant may point past their end; one key is read
                // without a loop.
                } else if offset >= self.keys && (varies || offset == self.keys) && !loaded {
                    Place::Keys
                } else {
                    Place::Data
                }
            }
            _ if shared => Place::Shared,
            _ => Place::Data,
        }
    }
}

/// The cases of a program's dispatch; none of a program that has no kernel.
fn cases(program: &Program) -> Vec<Case> {
    let calls = case_calls(program).unwrap_or_default();
    let mut out: Vec<Case> = Vec::new();
    for (instruction, (number, call)) in program.instructions.iter().zip(calls) {
        let packets = |accesses: &[Access]| {
            let mut buffers = accesses.iter().filter_map(|a| program.buffer(a.buffer));
            buffers.any(|b| b.sync == BufferSync::Packet)
        };
        let at = out.iter().position(|c| c.number == number).unwrap_or_else(|| {
            out.push(Case {
                number,
                call,
                packet_reads: false,
                packet_writes: false,
                ring: false,
                boundary: false,
                argmax: false,
                draw: false,
            });
            out.len() - 1
        });
        let case = &mut out[at];
        case.packet_reads |= packets(&instruction.reads);
        case.packet_writes |= packets(&instruction.writes);
        case.ring |= instruction.run.is_some();
        let boundary = matches!(instruction.op, Op::Boundary(_));
        case.boundary |= boundary;
        case.draw |= matches!(instruction.op, Op::Sample(_));
        case.argmax |= boundary && program.boundary.op == BoundaryOp::Argmax;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::params;
    use crate::codegen::templates;

    /// Offsets of the members of `Params`, by the rules of C.
    fn layout() -> std::collections::BTreeMap<String, i64> {
        let (_, text) = templates().iter().find(|(n, _)| *n == "megakernel.cu.j2").unwrap();
        let list = text.split_once("struct Params {").unwrap().1.split_once("};").unwrap().0;
        let lines = list.lines().map(|l| l.split("//").next().unwrap()).collect::<String>();
        let mut at = 0;
        let mut out = std::collections::BTreeMap::new();
        for member in lines.split(';').map(str::trim).filter(|m| !m.is_empty()) {
            let kind = member.trim_start_matches("const ").split([' ', '*']).next().unwrap();
            let pointer = member.contains('*');
            let size = match kind {
                _ if pointer => 8,
                "u64" => 8,
                "u32" => 4,
                other => panic!("{other}"),
            };
            let names = member.rsplit_once(['*', ' ']).unwrap();
            let names = match member.contains(',') {
                true => member.split_once(' ').unwrap().1,
                false => names.1,
            };
            for name in names.split(',').map(str::trim) {
                let (name, count) = match name.split_once('[') {
                    Some((name, n)) => (name, n.trim_end_matches(']').parse().unwrap()),
                    None => (name, 1),
                };
                at = (at + size - 1) / size * size;
                out.insert(name.to_owned(), at);
                at += size * count;
            }
        }
        out
    }

    #[test]
    fn parameters_lie_where_the_template_has_them() {
        let layout = layout();
        assert_eq!(layout["weights"], 0);
        for (name, at) in [
            ("arena", params::ARENA),
            ("tables", params::TABLES),
            ("host_tokens", params::HOST_TOKENS),
            ("host_progress", params::HOST_PROGRESS),
            ("trace", params::TRACE),
            ("epoch_base", params::EPOCH_BASE),
        ] {
            assert_eq!(layout[name], at, "{name}");
        }
    }
}
