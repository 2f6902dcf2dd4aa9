//! Classes: all accesses to one region of one buffer in one phase. The tables that find the class of an access are
//! one per buffer, since accesses of one buffer stand close together in a program of many layers.

use std::hash::{BuildHasher, RandomState};

use amk_schedule_ir::limits::MAX_RANK;
use amk_schedule_ir::{Access, Bound, Buffer, BufferKind, BufferSync, Program, Region, Span};

use crate::nodes::{Lists, NONE};

/// One access of an instruction, or of the boundary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Acc {
    /// The class, or [`NONE`] for buffers nobody may write (and token ids, which have rules of their own).
    pub class: u32,
    pub write: bool,
}

/// Accesses of one region of one buffer in one phase.
#[derive(Clone, Copy)]
pub(crate) struct Class {
    pub buffer: u32,
    pub phase: u32,
    /// Number of reading and writing accesses.
    pub reads: u32,
    pub writes: u32,
    /// An instruction that writes it, or [`NONE`].
    pub writer: u32,
    /// Where its rectangles begin in the list of spans; each takes as many as the region has.
    pub rects: usize,
    pub rank: u8,
    /// Synchronisation of the buffer.
    pub sync: BufferSync,
}

/// Classes of one buffer by hash: open addressing, at most half full.
#[derive(Default)]
struct Table {
    slots: Vec<u32>,
    used: usize,
}

/// All accesses of a program with their classes. See the module page.
pub(crate) struct Classes<'p> {
    pub accesses: Lists<Acc>,
    pub classes: Vec<Class>,
    /// The region of each class.
    pub regions: Vec<&'p Region>,
    /// The rectangle of each class, span by span; of no use where a bound follows the position.
    pub spans: Vec<[u64; 2]>,
    /// Does some region of the buffer follow the position?
    pub symbolic: Vec<bool>,
    buffers: &'p [Buffer],
    hashes: Vec<u64>,
    tables: Vec<Table>,
    /// Makes collisions unforeseeable.
    seed: u64,
}

/// Are accesses of the buffer put into classes?
pub(crate) fn tracked(kind: BufferKind) -> bool {
    matches!(kind, BufferKind::Activation | BufferKind::Kv | BufferKind::Output)
}

/// The product of the two, folded: every bit of the result depends on every bit of both.
fn fold(hash: u64, word: u64) -> u64 {
    let product = u128::from(hash ^ word) * 0x9e37_79b9_7f4a_7c15;
    (product as u64) ^ ((product >> 64) as u64)
}

fn word(b: Bound) -> u64 {
    match b {
        Bound::At(x) => x,
        Bound::Pos(o) => (o as u64) ^ 1 << 61,
        Bound::Clip(x) => x ^ 1 << 62,
        Bound::Split { part, parts } => (u64::from(part) << 32 | u64::from(parts)) ^ 1 << 63,
    }
}

fn number(b: Bound) -> u64 {
    if let Bound::At(x) = b { x } else { 0 }
}

impl Table {
    /// The class that `same` accepts among those of this hash, or `new`, which is put in.
    fn find(&mut self, hash: u64, hashes: &[u64], new: u32, same: impl Fn(u32) -> bool) -> u32 {
        if self.used * 2 >= self.slots.len() {
            self.grow(hashes);
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            match self.slots[at] {
                NONE => {
                    self.slots[at] = new;
                    self.used += 1;
                    return new;
                }
                c if hashes.get(c as usize) == Some(&hash) && same(c) => return c,
                _ => at = (at + 1) & mask,
            }
        }
    }

    fn grow(&mut self, hashes: &[u64]) {
        let size = (2 * self.slots.len()).max(8);
        let old = std::mem::replace(&mut self.slots, vec![NONE; size]);
        for c in old.into_iter().filter(|&c| c != NONE) {
            let mut at = hashes.get(c as usize).map_or(0, |&h| h as usize) & (size - 1);
            while self.slots[at] != NONE {
                at = (at + 1) & (size - 1);
            }
            self.slots[at] = c;
        }
    }
}

impl<'p> Classes<'p> {
    pub fn new(p: &'p Program) -> Classes<'p> {
        // Most instructions write a tile of their own and read what others have written.
        let n = p.instructions.len();
        Classes {
            accesses: Lists::with_capacity(n + 1),
            classes: Vec::with_capacity(n),
            regions: Vec::with_capacity(n),
            spans: Vec::with_capacity(2 * n),
            symbolic: vec![false; p.buffers.len()],
            buffers: &p.buffers,
            hashes: Vec::with_capacity(n),
            tables: p.buffers.iter().map(|_| Table::default()).collect(),
            seed: RandomState::new().hash_one(0),
        }
    }

    /// Adds the accesses of the next node; the boundary comes last.
    pub fn add(&mut self, node: u32, reads: &'p [Access], writes: &'p [Access]) {
        for access in reads {
            let class = self.class(access);
            if let Some(c) = self.classes.get_mut(class as usize) {
                c.reads = c.reads.saturating_add(1);
            }
            self.accesses.push(Acc { class, write: false });
        }
        for access in writes {
            let class = self.class(access);
            if let Some(c) = self.classes.get_mut(class as usize) {
                c.writes = c.writes.saturating_add(1);
                c.writer = node;
            }
            self.accesses.push(Acc { class, write: true });
        }
        self.accesses.end();
    }

    fn class(&mut self, access: &'p Access) -> u32 {
        let (buffer, phase, region) = (access.buffer.index(), access.phase, &access.region);
        let (Some(b), Some(table)) = (self.buffers.get(buffer), self.tables.get_mut(buffer)) else {
            return NONE;
        };
        if !tracked(b.kind) {
            return NONE;
        }
        let mut hash = fold(self.seed, u64::from(phase));
        for Span { lo, hi } in &region.0 {
            hash = fold(fold(hash, word(*lo)), word(*hi));
        }
        let new = self.classes.len() as u32;
        let same = |c: u32| {
            self.classes.get(c as usize).is_some_and(|x| x.phase == phase)
                && self.regions.get(c as usize).is_some_and(|r| *r == region)
        };
        let found = table.find(hash, &self.hashes, new, same);
        if found == new {
            self.hashes.push(hash);
            self.regions.push(region);
            self.push(buffer as u32, phase, b.sync, region);
        }
        found
    }

    /// Adds a class that no access has yet, and returns it.
    pub fn push(&mut self, buffer: u32, phase: u32, sync: BufferSync, region: &Region) -> u32 {
        let spans = region.0.get(..MAX_RANK).unwrap_or(&region.0);
        if spans.iter().any(|s| s.lo.is_symbolic() || s.hi.is_symbolic())
            && let Some(s) = self.symbolic.get_mut(buffer as usize)
        {
            *s = true;
        }
        self.classes.push(Class {
            buffer,
            phase,
            reads: 0,
            writes: 0,
            writer: NONE,
            rects: self.spans.len(),
            rank: spans.len() as u8,
            sync,
        });
        self.spans.extend(spans.iter().map(|s| [number(s.lo), number(s.hi)]));
        self.classes.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use amk_schedule_ir::{BufferId, text};

    use super::*;

    /// Accesses have one class exactly where buffer, phase and region agree, however many there are.
    #[test]
    fn classes_are_equal_accesses() {
        let source = include_str!("../../tests/schedules/accept/llama-layer.sched");
        let mut p = text::parse(source).expect("a program");
        p.buffers.iter_mut().for_each(|b| b.kind = BufferKind::Activation);
        let buffers = p.buffers.len().min(2) as u32;
        let bounds =
            [Bound::At(1), Bound::Pos(1), Bound::Clip(1), Bound::Split { part: 0, parts: 1 }];
        let mut accesses = Vec::new();
        for _ in 0..2 {
            for buffer in 0..buffers {
                for phase in 0..3 {
                    for lo in 0..20 {
                        for hi in bounds {
                            let region = Region(vec![Span { lo: Bound::At(lo), hi }]);
                            accesses.push(Access { buffer: BufferId(buffer), region, phase });
                        }
                    }
                }
            }
        }
        let mut all = Classes::new(&p);
        let (first, second) = accesses.split_at(accesses.len() / 2);
        all.add(0, first, second);
        assert_eq!(all.classes.len(), first.len());
        let found: Vec<u32> = all.accesses.get(0).iter().map(|a| a.class).collect();
        let expected: Vec<u32> = (0..first.len() as u32).collect();
        assert_eq!(found[..first.len()], expected);
        assert_eq!(found[first.len()..], expected);
        assert!(all.classes.iter().all(|c| c.reads == 1 && c.writes == 1 && c.writer == 0));
        assert!(all.regions.iter().zip(first).all(|(r, a)| **r == a.region));
    }
}
