//! Named mutators: each breaks a program in one way. One file per invariant of the validator.
//!
//! A mutator changes a program in place and says whether it found something to change. What it makes is
//! not always unsafe (a dropped wait may have been redundant); that is for the oracle to say.

mod bounds;
mod coverage;
mod deadlock;
mod edges;
mod epoch;
mod kv;
mod race;
mod resources;
mod structure;

use amk_schedule_ir::{Access, Buffer, Instruction, Program};
use amk_validator::Invariant;

use super::draw::Draw;
use super::edit;
use crate::vm::rng::Rng;

/// One way to break a program.
pub struct Mutator {
    pub name: &'static str,
    /// The invariant it is about; others may notice too.
    pub invariant: Invariant,
    apply: fn(&mut Program, &mut Rng) -> Option<()>,
}

impl Mutator {
    /// Changes the program; false if it has nothing of the kind. A sound program is then as before.
    pub(crate) fn apply(&self, p: &mut Program, rng: &mut Rng) -> bool {
        (self.apply)(p, rng).is_some()
    }
}

/// Every mutator, in the order of the invariants.
pub fn all() -> &'static [Mutator] {
    static ALL: std::sync::OnceLock<Vec<Mutator>> = std::sync::OnceLock::new();
    ALL.get_or_init(|| {
        let lists = [
            (Invariant::S, structure::LIST),
            (Invariant::B, bounds::LIST),
            (Invariant::C, coverage::LIST),
            (Invariant::D, deadlock::LIST),
            (Invariant::R, race::LIST),
            (Invariant::E, epoch::LIST),
            (Invariant::M, edges::LIST),
            (Invariant::O, resources::LIST),
            (Invariant::K, kv::LIST),
        ];
        lists
            .into_iter()
            .flat_map(|(invariant, list)| {
                list.iter().map(move |&(name, apply)| Mutator { name, invariant, apply })
            })
            .collect()
    })
}

/// What a file of this folder lists.
type List = &'static [(&'static str, fn(&mut Program, &mut Rng) -> Option<()>)];

/// Where an access stands: instruction, whether it writes, and which of the list.
#[derive(Clone, Copy)]
struct Site {
    instruction: usize,
    write: bool,
    at: usize,
}

impl Site {
    fn list<'p>(&self, p: &'p mut Program) -> &'p mut Vec<Access> {
        let x = &mut p.instructions[self.instruction];
        if self.write { &mut x.writes } else { &mut x.reads }
    }

    fn access<'p>(&self, p: &'p mut Program) -> &'p mut Access {
        &mut self.list(p)[self.at]
    }
}

/// An access of an instruction that qualifies, with its buffer.
fn site(
    p: &Program,
    rng: &mut Rng,
    fits: impl Fn(&Instruction, &Access, &Buffer, bool) -> bool,
) -> Option<Site> {
    let from = rng.below(4);
    rng.find(p.instructions.len(), |i| {
        let x = &p.instructions[i];
        let n = x.reads.len() + x.writes.len();
        (0..n).map(|k| (k + from) % n).find_map(|k| {
            let write = k >= x.reads.len();
            let at = if write { k - x.reads.len() } else { k };
            let a = if write { &x.writes[at] } else { &x.reads[at] };
            let b = p.buffers.get(a.buffer.index())?;
            fits(x, a, b, write).then_some(Site { instruction: i, write, at })
        })
    })
}

/// An instruction that qualifies.
fn instruction(p: &Program, rng: &mut Rng, fits: impl Fn(&Instruction) -> bool) -> Option<usize> {
    rng.find(p.instructions.len(), |i| fits(&p.instructions[i]).then_some(i))
}

/// A buffer that qualifies.
fn buffer(p: &Program, rng: &mut Rng, fits: impl Fn(&Buffer) -> bool) -> Option<usize> {
    rng.find(p.buffers.len(), |i| fits(&p.buffers[i]).then_some(i))
}

/// A run that qualifies, by SM and place in its stream.
fn run(
    p: &Program,
    rng: &mut Rng,
    fits: impl Fn(&amk_schedule_ir::Run) -> bool,
) -> Option<(usize, usize)> {
    rng.find(p.sms.len(), |s| {
        let stream = &p.sms[s].stream;
        let n = stream.len();
        let start = n / 2;
        (start..n).chain(0..start).find(|&r| fits(&stream[r])).map(|r| (s, r))
    })
}

/// An opaque instruction, which may touch anything.
fn is_opaque(x: &Instruction) -> bool {
    matches!(x.op, amk_schedule_ir::Op::Opaque(_))
}

/// Is this instruction anything but an arrival?
fn works(x: &Instruction) -> bool {
    !edit::is_boundary(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_invariant_has_some() {
        let all = all();
        let mut names: Vec<_> = all.iter().map(|m| m.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
        assert!(names.len() >= 24);
        for i in Invariant::ALL {
            assert!(all.iter().any(|m| m.invariant == i), "{i}");
        }
    }
}
