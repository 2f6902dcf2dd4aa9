//! Every program of a small scope.
//!
//! A program is one or two SMs with up to four instructions besides the boundaries, and *marks* on them:
//!
//! - a read or a write of one of two plain regions;
//! - a signal of 1 to a counter, or a wait for it with a threshold of at most the sum of its signals;
//! - a read or a write of a packet word in one of the phases of the step;
//! - the run of the stream of SM 0 that the instruction consumes (weights, or cache rows behind a gate);
//! - the append of a cache row, or a read of the rows that a launch may have appended before.
//!
//! A [`Family`] says which two synchronisation objects, how many regions, which streams, phases and tags there are, and
//! how many marks a program and an instruction may have; *every* such program is there. Left out are programs that
//! say less than they seem to, as each is another program of the scope with a mark that changes nothing or is
//! obviously wrong added: a counter without signal or wait, a region without a write or with one user, a packet
//! read in a phase nobody writes or written twice in one phase, an instruction without marks, a run without its
//! consumer, a cache without exactly the writes of one append. Programs that differ by the names of the SMs, of the
//! regions, or of two objects of one kind are one program, counted once ([`enumerate()`]).
//!
//! `build.rs` turns a code into a program, `compare.rs` runs a judge of the caller's against the oracle.

mod build;
mod compare;
mod families;

pub use build::{program, target};
pub use compare::{Class, FamilyCounts, Summary, Verdict, compare};
pub use families::families;

/// Instructions besides the boundaries.
pub const MAX_INSTRUCTIONS: usize = 4;

/// A synchronisation object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object {
    None,
    Counter,
    Packet,
}

/// The stream of SM 0: chunks of each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stream {
    pub runs: &'static [RunKind],
    pub slots: u32,
}

/// A run of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunKind {
    /// This many chunks of a weight matrix.
    Weight(u64),
    /// Cache rows `[0, pos - back)` in this many chunks, behind a gate.
    Kv { chunks: u64, back: u64, gate: u32 },
}

/// A part of the scope.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    pub objects: [Object; 2],
    /// Plain regions, 0 to 2.
    pub regions: u32,
    pub stream: Stream,
    /// Is there a cache?
    pub cache: bool,
    pub phases: u32,
    pub tags: u64,
    /// Most instructions.
    pub instructions: usize,
    /// Most marks of one instruction, and of the program.
    pub each: u32,
    pub marks: u32,
}

/// A program of a family: the marks of its instructions, those of SM 0 first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code {
    /// Instructions of SM 0 and of SM 1.
    pub split: [u8; 2],
    pub marks: [u32; MAX_INSTRUCTIONS],
}

// Bits of an instruction's marks: regions, objects, run, cache.
const REGION: [u32; 2] = [0, 2];
const OBJECT: [u32; 2] = [4, 8];
const RUN: u32 = 12;
const CACHE: u32 = 14;

/// Reads and writes of region `r`.
fn region(marks: u32, r: usize) -> (bool, bool) {
    (marks >> REGION[r] & 1 == 1, marks >> (REGION[r] + 1) & 1 == 1)
}

/// Signals counter `o`? The threshold it waits for, or 0.
fn counter(marks: u32, o: usize) -> (bool, u32) {
    let m = marks >> OBJECT[o] & 15;
    (m & 1 == 1, m >> 1 & 3)
}

/// Does it read, does it write the word of packet object `o` in this phase?
fn packet(marks: u32, o: usize, phase: u32) -> (bool, bool) {
    let m = marks >> (OBJECT[o] + 2 * phase) & 3;
    (m & 1 == 1, m & 2 == 2)
}

/// The run consumed, counted from 1; 0 for none.
fn run(marks: u32) -> u32 {
    marks >> RUN & 3
}

/// Appends to the cache? Reads its past rows? Reads the row of the step?
fn cache(marks: u32) -> (bool, bool, bool) {
    (marks >> CACHE & 1 == 1, marks >> (CACHE + 1) & 1 == 1, marks >> (CACHE + 2) & 1 == 1)
}

/// Number of marks.
fn weight(family: &Family, marks: u32) -> u32 {
    let mut n = (marks & 15).count_ones();
    for (o, kind) in family.objects.iter().enumerate() {
        n += match kind {
            Object::None => 0,
            Object::Counter => {
                let (signals, threshold) = counter(marks, o);
                u32::from(signals) + u32::from(threshold > 0)
            }
            Object::Packet => (marks >> OBJECT[o] & 15).count_ones(),
        };
    }
    n + u32::from(run(marks) > 0) + (marks >> CACHE & 7).count_ones()
}

/// Marks an instruction of this SM may have.
fn alphabet(family: &Family, sm: usize) -> Vec<u32> {
    let mut all: Vec<u32> = vec![0];
    let mut with = |options: Vec<u32>| {
        all = all.iter().flat_map(|a| options.iter().map(move |o| a | o)).collect();
    };
    for at in REGION.iter().take(family.regions as usize) {
        with((0..4).map(|x| x << at).collect());
    }
    for (o, kind) in family.objects.iter().enumerate() {
        let bits = match (kind, family.phases) {
            (Object::None, _) => 1,
            (Object::Counter, _) => 8,
            (Object::Packet, 1) => 4,
            (Object::Packet, _) => 16,
        };
        with((0..bits).map(|x| x << OBJECT[o]).collect());
    }
    if sm == 0 {
        with((0..=family.stream.runs.len() as u32).map(|x| x << RUN).collect());
    }
    if family.cache {
        with((0..8).map(|x| x << CACHE).collect());
    }
    all.retain(|&m| (1..=family.each).contains(&weight(family, m)));
    all.sort_unstable();
    all
}

/// Says nothing that another program does not say with less; see the page.
fn sensible(family: &Family, marks: &[u32]) -> bool {
    for r in 0..family.regions as usize {
        let of = |m: &&u32| region(**m, r) != (false, false);
        let users = marks.iter().filter(of).count();
        let written = marks.iter().any(|&m| region(m, r).1);
        if users > 0 && (users < 2 || !written) {
            return false;
        }
    }
    for (o, kind) in family.objects.iter().enumerate() {
        match kind {
            Object::None => {}
            Object::Counter => {
                let signals = marks.iter().filter(|&&m| counter(m, o).0).count() as u32;
                let waits = marks.iter().filter(|&&m| counter(m, o).1 > 0).count();
                let most = marks.iter().map(|&m| counter(m, o).1).max().unwrap_or(0);
                if (signals == 0) != (waits == 0) || most > signals {
                    return false;
                }
            }
            Object::Packet => {
                for phase in 0..family.phases {
                    let writers = marks.iter().filter(|&&m| packet(m, o, phase).1).count();
                    let read = marks.iter().any(|&m| packet(m, o, phase).0);
                    if writers > 1 || read && writers == 0 {
                        return false;
                    }
                }
            }
        }
    }
    let mut runs = 0u32;
    for &m in marks {
        let bit = u32::from(run(m) > 0) << run(m);
        if runs & bit != 0 {
            return false;
        }
        runs |= bit;
    }
    let consumed = runs.count_ones() as usize == family.stream.runs.len();
    let appends = marks.iter().filter(|&&m| cache(m).0).count();
    consumed && appends == usize::from(family.cache)
}

fn swap(m: u32, a: u32, b: u32, bits: u32) -> u32 {
    let mask = (1 << bits) - 1;
    let (x, y) = (m >> a & mask, m >> b & mask);
    m & !(mask << a | mask << b) | x << b | y << a
}

/// Is this the one of its symmetric programs that counts?
fn canonical(family: &Family, code: &Code) -> bool {
    let [p, q] = code.split.map(usize::from);
    let sms = family.stream.runs.is_empty();
    if sms && p < q {
        return false;
    }
    let regions = family.regions == 2;
    let objects = family.objects[0] == family.objects[1] && family.objects[0] != Object::None;
    for image in 1..8u32 {
        let (s, r, o) = (image & 1 == 1, image & 2 == 2, image & 4 == 4);
        if s && (!sms || p != q) || r && !regions || o && !objects {
            continue;
        }
        let mut marks = code.marks;
        for m in &mut marks[..p + q] {
            if r {
                *m = swap(*m, REGION[0], REGION[1], 2);
            }
            if o {
                *m = swap(*m, OBJECT[0], OBJECT[1], 4);
            }
        }
        if s {
            marks[..p + q].rotate_left(p);
        }
        if marks[..p + q] < code.marks[..p + q] {
            return false;
        }
    }
    true
}

/// The parts into which the programs of a family fall, to be visited in parallel: the split and the marks of
/// the first instruction.
fn parts(family: &Family) -> Vec<Code> {
    let mut out = Vec::new();
    for total in 1..=family.instructions.min(MAX_INSTRUCTIONS) as u8 {
        for p in 0..=total {
            let split = [p, total - p];
            if family.stream.runs.is_empty() && split[0] < split[1] {
                continue;
            }
            for first in alphabet(family, usize::from(p == 0)) {
                let mut marks = [0; MAX_INSTRUCTIONS];
                marks[0] = first;
                out.push(Code { split, marks });
            }
        }
    }
    out
}

/// Calls `visit` with every program of a part.
fn part(family: &Family, first: Code, visit: &mut dyn FnMut(Code)) {
    let alphabets = [0, 1].map(|sm| {
        let all = alphabet(family, sm);
        let weighed = all.into_iter().map(|m| (m, weight(family, m)));
        weighed.collect::<Vec<(u32, u32)>>()
    });
    let left = family.marks.checked_sub(weight(family, first.marks[0]));
    if let Some(left) = left {
        extend(family, &alphabets, first, 1, left, visit);
    }
}

fn extend(
    family: &Family,
    alphabets: &[Vec<(u32, u32)>; 2],
    code: Code,
    at: usize,
    left: u32,
    visit: &mut dyn FnMut(Code),
) {
    let [p, q] = code.split.map(usize::from);
    if at == p + q {
        if sensible(family, &code.marks[..at]) && canonical(family, &code) {
            visit(code);
        }
        return;
    }
    // Every instruction still to come has a mark.
    let others = (p + q - at - 1) as u32;
    for &(m, weight) in &alphabets[usize::from(at >= p)] {
        if weight + others <= left {
            let mut next = code;
            next.marks[at] = m;
            extend(family, alphabets, next, at + 1, left - weight, visit);
        }
    }
}

/// Calls `visit` with every program of a family, symmetric ones once.
pub fn enumerate(family: &Family, mut visit: impl FnMut(Code)) {
    for first in parts(family) {
        part(family, first, &mut visit);
    }
}
