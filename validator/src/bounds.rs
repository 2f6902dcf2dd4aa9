//! **B, bounds.** Exact statement:
//!
//! - At every position of the bucket every bound of every accessed or streamed region lies within
//!   `0..=extent` of its dimension, also where the region is empty.
//! - The regions of an instruction are those of its op's footprint; opaque ops touch what they declare.
//! - `weight` and `constant` buffers are never written, and `tokens` buffers by the boundary alone.
//! - Packet regions are the same at every position, so that each word is written in every step or in none, and
//!   start and end on whole 64-bit words, or at the end of a row.
//! - Every element of a `local` buffer is touched by one SM only in a step, and not by the boundary.
//! - An LM head and a draw choose among no more ids than every embedding table that tokens index has rows.

use amk_schedule_ir::op::{NormLmHead, Sample};
use amk_schedule_ir::text::{print_access, print_bound};
use amk_schedule_ir::{
    Access, Bound, Buffer, BufferKind, BufferSync, Footprint, InstrId, Instruction, Op, Program,
    Region, RunSource, Source,
};

use crate::fault::{Fault, Faults, Invariant, Place, Witness};
use crate::model::{Model, NONE};

/// Judges one instruction against its footprint, if it has one.
pub(crate) fn instruction(
    p: &Program,
    i: usize,
    x: &Instruction,
    footprint: Option<&Footprint>,
    faults: &mut Faults,
) {
    let place = Place::Instruction(i);
    for (write, list) in [(false, &x.reads), (true, &x.writes)] {
        let wanted = footprint.map(|f| if write { &f.writes } else { &f.reads });
        for (k, a) in list.iter().enumerate() {
            let who = || {
                let verb = if write { "writes" } else { "reads" };
                format!("instr {i} ({}) {verb} {}", x.op.name(), print_access(a))
            };
            access(p, place, &who, a, write, faults);
            if let Some(o) = wanted.and_then(|w| w.get(k))
                && a.region != o.region
            {
                let right = print_access(&Access { region: o.region.clone(), ..a.clone() });
                let message = format!(
                    "{}, but its operand `{}` touches {right}; declare what the op touches",
                    who(),
                    o.role
                );
                faults.push(
                    Fault::new(Invariant::B, place, message)
                        .access(a)
                        .witness(Witness::Range { buffer: a.buffer.to_string(), elements: right }),
                );
            }
        }
    }
}

/// Judges the boundary, the streams and the ids chosen among; works on any program.
pub(crate) fn check(p: &Program, vocabulary: &Vocabulary, faults: &mut Faults) {
    vocabulary.check(p, faults);
    for (write, list) in [(false, &p.boundary.reads), (true, &p.boundary.writes)] {
        for a in list {
            let who = || format!("the boundary accesses {}", print_access(a));
            access(p, Place::Boundary, &who, a, write, faults);
        }
    }
    for (s, sm) in p.sms.iter().enumerate() {
        for (r, run) in sm.stream.iter().enumerate() {
            if let RunSource::Kv { buffer: id, region, .. } = &run.source
                && let Some(buffer) = p.buffer(*id)
            {
                let who = || format!("run {r} of sm {s} streams rows of {id}");
                inside(p, Place::Run { sm: s, run: r }, &who, buffer, region, None, faults);
            }
        }
    }
}

fn access(
    p: &Program,
    place: Place,
    who: &dyn Fn() -> String,
    a: &Access,
    write: bool,
    faults: &mut Faults,
) {
    let Some(buffer) = p.buffer(a.buffer) else { return };
    if write {
        let why = match buffer.kind {
            BufferKind::Weight | BufferKind::Constant => "is read-only",
            BufferKind::Tokens if place != Place::Boundary => "is written by the boundary alone",
            _ => "",
        };
        if !why.is_empty() {
            faults.push(
                Fault::new(
                    Invariant::B,
                    place,
                    format!(
                        "{}, but {} is a {:?} buffer, which {why}",
                        who(),
                        a.buffer,
                        buffer.kind
                    ),
                )
                .access(a),
            );
        }
    }
    if inside(p, place, who, buffer, &a.region, Some(a), faults)
        && buffer.sync == BufferSync::Packet
    {
        fixed(place, who, buffer, a, faults);
        whole_words(place, who, buffer, a, faults);
    }
}

/// Is a packet region the same at every position? A word that a step leaves out keeps the tag of an older one.
fn fixed(place: Place, who: &dyn Fn() -> String, buffer: &Buffer, a: &Access, faults: &mut Faults) {
    let moves = |b: Bound| !matches!(b, Bound::At(_));
    let Some(d) = a.region.0.iter().position(|s| moves(s.lo) || moves(s.hi)) else { return };
    let span = a
        .region
        .0
        .get(d)
        .map_or_else(String::new, |s| format!("{}..{}", print_bound(s.lo), print_bound(s.hi)));
    faults.push(
        Fault::new(
            Invariant::B,
            place,
            format!(
                "{}, a packet region that follows the position in dimension {d}; a word that a step leaves out keeps an old tag, so use fixed bounds",
                who()
            ),
        )
        .access(a)
        .witness(Witness::Range {
            buffer: format!("{} {:?}", buffer.id, buffer.name),
            elements: format!("{span} in dimension {d}"),
        }),
    );
}

/// Rows of the embedding tables, and ids that instructions choose among.
#[derive(Default)]
pub(crate) struct Vocabulary {
    /// Rows of the smallest table, and who reads it.
    table: Option<(u64, InstrId)>,
    /// Instructions that choose, and among how many ids.
    choices: Vec<(usize, u64)>,
}

impl Vocabulary {
    /// Takes note of an instruction.
    pub fn see(&mut self, i: usize, x: &Instruction) {
        let rows = match &x.op {
            Op::Embed(op) => op.vocab,
            Op::NormQkv(op) if op.source == Source::Embedding => op.vocab,
            Op::NormLmHead(NormLmHead { vocab, .. }) | Op::Sample(Sample { vocab, .. }) => {
                self.choices.push((i, *vocab));
                return;
            }
            _ => return,
        };
        let table = (rows, x.id);
        self.table = Some(self.table.map_or(table, |least| least.min(table)));
    }

    /// Ids that a head or a draw can choose are rows of every table.
    fn check(&self, p: &Program, faults: &mut Faults) {
        let Some((rows, by)) = self.table else { return };
        for &(i, vocab) in self.choices.iter().filter(|c| c.1 > rows) {
            let name = p.instructions.get(i).map_or("", |x| x.op.name());
            faults.push(
                Fault::new(
                    Invariant::B,
                    Place::Instruction(i),
                    format!(
                        "instr {i} ({name}) chooses among {vocab} ids, but the embedding table of {by} has {rows} rows; it chooses among at most as many"
                    ),
                )
                .witness(Witness::Range {
                    buffer: "the embedding table".to_owned(),
                    elements: format!("rows {rows}..{vocab}"),
                }),
            );
        }
    }
}

/// Are all bounds within the extents, at every position?
fn inside(
    p: &Program,
    place: Place,
    who: &dyn Fn() -> String,
    buffer: &Buffer,
    region: &Region,
    a: Option<&Access>,
    faults: &mut Faults,
) -> bool {
    let mut ok = true;
    for (d, (span, &extent)) in region.0.iter().zip(&buffer.shape).enumerate() {
        // Bounds do not decrease with the position, so the ends of the bucket decide.
        let bounds = [span.lo, span.hi];
        let low = bounds.map(|b| b.eval(p.bucket.first)).into_iter().min().unwrap_or(0);
        let high = bounds.map(|b| b.eval(p.bucket.last)).into_iter().max().unwrap_or(0);
        let (elements, at) = if low < 0 {
            (format!("{low}..0"), p.bucket.first)
        } else if high > i128::from(extent) {
            (format!("{extent}..{high}"), p.bucket.last)
        } else {
            continue;
        };
        ok = false;
        let mut fault = Fault::new(
            Invariant::B,
            place,
            format!(
                "{}, where {}..{} in dimension {d} leaves 0..{extent} at position {at}; shrink the region or enlarge {}",
                who(),
                print_bound(span.lo),
                print_bound(span.hi),
                buffer.id
            ),
        )
        .witness(Witness::Range {
            buffer: format!("{} {:?}", buffer.id, buffer.name),
            elements: format!("{elements} in dimension {d} at position {at}"),
        });
        if let Some(a) = a {
            fault = fault.access(a);
        }
        faults.push(fault);
    }
    ok
}

fn whole_words(
    place: Place,
    who: &dyn Fn() -> String,
    buffer: &Buffer,
    a: &Access,
    faults: &mut Faults,
) {
    let per = buffer.dtype.per_word();
    let (Some(span), Some(&extent)) = (a.region.0.last(), buffer.shape.last()) else { return };
    if per <= 1 {
        return;
    }
    let whole = |b: Bound| match b {
        Bound::At(x) => x.is_multiple_of(per) || x == extent,
        _ => false,
    };
    if !whole(span.lo) || !whole(span.hi) {
        faults.push(
            Fault::new(
                Invariant::B,
                place,
                format!(
                    "{}, which cuts a packet word: {per} elements of {:?} share one; start and end on multiples of {per}",
                    who(), buffer.dtype
                ),
            )
            .access(a)
            .witness(Witness::Range {
                buffer: format!("{} {:?}", buffer.id, buffer.name),
                elements: format!("{}..{} of the innermost dimension", print_bound(span.lo), print_bound(span.hi)),
            }),
        );
    }
}

/// Judges the ownership of `local` elements.
pub(crate) fn check_local(m: &Model, faults: &mut Faults) {
    if m.program.buffers.iter().all(|b| b.sync != BufferSync::Local) {
        return;
    }
    // Per class the first node that touches it and, if there is one, the first on another SM.
    let mut touch: Vec<[u32; 2]> = vec![[NONE; 2]; m.classes.len()];
    let sm = |node: u32| m.sm.get(node as usize).copied().unwrap_or(NONE);
    for node in 0..=m.boundary() {
        for acc in m.accesses(node) {
            if m.sync(acc.class) != Some(BufferSync::Local) {
                continue;
            }
            if let Some([first, second]) = touch.get_mut(acc.class as usize) {
                if *first == NONE {
                    *first = node;
                } else if *second == NONE && sm(node) != sm(*first) {
                    *second = node;
                }
            }
        }
    }
    for (c, &[a, second]) in touch.iter().enumerate() {
        let c = c as u32;
        if a == NONE {
            continue;
        }
        let report = |class: u32, other: u32, faults: &mut Faults| {
            let buffer = m.class(class).map_or(0, |c| c.buffer);
            faults.push(
                Fault::new(
                    Invariant::B,
                    m.node_place(other),
                    format!(
                        "{} touches elements of local {} that {} touches too; each element of a local buffer belongs to one SM",
                        m.node_name(other), m.buffer_name(buffer), m.node_name(a)
                    ),
                )
                .witness(m.range(buffer, m.shared(c, class))),
            );
        };
        // A region that is empty at every position is nobody's.
        if second != NONE && !matches!(m.uncovered(c, &[]), Ok(None)) {
            report(c, second, faults);
        }
        for &other in m.overlaps(c) {
            if other <= c {
                continue;
            }
            if let Some(&[b, _]) = touch.get(other as usize)
                && b != NONE
                && sm(a) != sm(b)
            {
                if faults.full(Invariant::B) {
                    return;
                }
                report(other, b, faults);
            }
        }
    }
    if m.program
        .boundary
        .reads
        .iter()
        .chain(&m.program.boundary.writes)
        .any(|a| m.program.buffer(a.buffer).is_some_and(|b| b.sync == BufferSync::Local))
    {
        faults.push(Fault::new(
            Invariant::B,
            Place::Boundary,
            "the boundary accesses a local buffer, but any SM may run the boundary; use a plain buffer",
        ));
    }
}
