//! Control flow: order of blocks, loops, paths, and the simulation of automata over all paths.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::ptx::{Instr, Kernel, Operand, Reg};

/// Orders and loops of a kernel.
pub struct Flow {
    /// Reachable blocks in reverse postorder.
    pub order: Vec<usize>,
    /// Natural loops, by header: the blocks of each.
    loops: Vec<BTreeSet<usize>>,
    /// The same by back edge: loops that share a header stay apart.
    edges: Vec<BTreeSet<usize>>,
    /// Registers whose constants [`Flow::simulate`] follows, and the instructions that write them.
    followed: BTreeSet<Reg>,
    follows: Vec<bool>,
}

impl Flow {
    pub fn new(kernel: &Kernel) -> Flow {
        let order = reverse_postorder(kernel);
        let dominators = dominators(kernel, &order);
        let dominates = |a: usize, b: usize| {
            let mut at = b;
            loop {
                if at == a {
                    return true;
                }
                match dominators[at] {
                    Some(up) if up != at => at = up,
                    _ => return false,
                }
            }
        };
        let mut loops: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut edges = Vec::new();
        for &tail in &order {
            for &head in kernel.blocks[tail].succ.iter().filter(|h| dominates(**h, tail)) {
                let mut body = BTreeSet::from([head]);
                let mut work = vec![tail];
                while let Some(block) = work.pop() {
                    if body.insert(block) {
                        work.extend(&kernel.blocks[block].pred);
                    }
                }
                loops.entry(head).or_default().extend(&body);
                edges.push(body);
            }
        }
        let followed = followed(kernel);
        let writes = |i: &Instr| i.writes.iter().any(|r| followed.contains(r));
        let follows = kernel.instrs.iter().map(writes).collect();
        Flow { order, loops: loops.into_values().collect(), edges, followed, follows }
    }

    /// Blocks of the innermost loop around a block: of all that goes back to its header, and of the shortest way
    /// back. They differ where the compiler lets an inner loop begin at the header of an outer one.
    pub fn innermost(&self, block: usize) -> impl Iterator<Item = &BTreeSet<usize>> {
        let least = |loops: &'_ [BTreeSet<usize>]| -> Option<usize> {
            let around = loops.iter().enumerate().filter(|(_, l)| l.contains(&block));
            around.min_by_key(|(_, l)| l.len()).map(|(i, _)| i)
        };
        let (all, shortest) = (least(&self.loops), least(&self.edges));
        all.map(|i| &self.loops[i]).into_iter().chain(shortest.map(|i| &self.edges[i]))
    }
}

fn reverse_postorder(kernel: &Kernel) -> Vec<usize> {
    let mut seen = vec![false; kernel.blocks.len()];
    let mut out = Vec::new();
    let mut stack = vec![(0usize, 0usize)];
    if let Some(first) = seen.first_mut() {
        *first = true;
    }
    while let Some((block, next)) = stack.pop() {
        // Successors in reverse, so that the fall-through path comes before what a branch skips to.
        match kernel.blocks.get(block).and_then(|b| b.succ.get(next)) {
            Some(&s) => {
                stack.push((block, next + 1));
                if !std::mem::replace(&mut seen[s], true) {
                    stack.push((s, 0));
                }
            }
            None => out.push(block),
        }
    }
    out.reverse();
    out
}

/// Immediate dominators of reachable blocks; the entry's is itself. Cooper, Harvey and Kennedy, "A
/// Simple, Fast Dominance Algorithm".
fn dominators(kernel: &Kernel, order: &[usize]) -> Vec<Option<usize>> {
    let mut rank = vec![usize::MAX; kernel.blocks.len()];
    for (n, &block) in order.iter().enumerate() {
        rank[block] = n;
    }
    let mut idom: Vec<Option<usize>> = vec![None; kernel.blocks.len()];
    let Some(&entry) = order.first() else { return idom };
    idom[entry] = Some(entry);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &order[1..] {
            let mut new: Option<usize> = None;
            for &p in kernel.blocks[block].pred.iter().filter(|p| rank[**p] != usize::MAX) {
                if idom[p].is_none() {
                    continue;
                }
                new = Some(match new {
                    None => p,
                    Some(mut a) => {
                        let mut b = p;
                        while a != b {
                            while rank[a] > rank[b] {
                                a = idom[a].unwrap_or(entry);
                            }
                            while rank[b] > rank[a] {
                                b = idom[b].unwrap_or(entry);
                            }
                        }
                        a
                    }
                });
            }
            if new.is_some() && idom[block] != new {
                idom[block] = new;
                changed = true;
            }
        }
    }
    idom
}

/// For every instruction, whether it is reachable from just after `from` without passing one that
/// `stops`; those are not.
pub fn reach(kernel: &Kernel, from: usize, stops: impl Fn(usize) -> bool) -> Vec<bool> {
    let mut out = vec![false; kernel.instrs.len()];
    let mut entered = vec![false; kernel.blocks.len()];
    // The rest of the first block, then whole blocks.
    let mut work = vec![(kernel.block_of[from], from + 1)];
    while let Some((block, first)) = work.pop() {
        let end = kernel.blocks[block].end;
        let stop = (first..end).find(|i| stops(*i));
        out[first..stop.unwrap_or(end)].fill(true);
        if stop.is_none() {
            for &s in &kernel.blocks[block].succ {
                if !std::mem::replace(&mut entered[s], true) {
                    work.push((s, kernel.blocks[s].first));
                }
            }
        }
    }
    out
}

/// What an automaton does at an instruction.
pub enum Step {
    /// Goes on in this state.
    To(u8),
    /// Reports a fault, then goes on in this state.
    Fault(u8, &'static str),
}

/// Constants that registers are known to hold on the paths to a point, by register.
#[derive(Clone, Debug, Default)]
struct Known(Vec<(Reg, i64)>);

impl Known {
    fn get(&self, reg: Reg) -> Option<i64> {
        self.0.binary_search_by_key(&reg, |(r, _)| *r).ok().map(|n| self.0[n].1)
    }

    fn set(&mut self, reg: Reg, value: Option<i64>) {
        match (self.0.binary_search_by_key(&reg, |(r, _)| *r), value) {
            (Ok(n), Some(value)) => self.0[n].1 = value,
            (Err(n), Some(value)) => self.0.insert(n, (reg, value)),
            (Ok(n), None) => drop(self.0.remove(n)),
            (Err(_), None) => {}
        }
    }

    /// Keeps what both know; whether that is less than before.
    fn meet(&mut self, other: &Known) -> bool {
        let before = self.0.len();
        self.0.retain(|(reg, value)| other.get(*reg) == Some(*value));
        self.0.len() != before
    }
}

impl Flow {
    /// Runs an automaton along every path from the entry and gives the faults it reports, by instruction.
    /// `step` gives nothing where no state changes. Registers that branches compare with constants are
    /// followed where they hold constants themselves, so that a path which a flag rules out is not walked
    /// (per automaton state, as in "ESP: Path-Sensitive Program Verification in Polynomial Time", Das,
    /// Lerner and Seigle). States are below 8.
    pub fn simulate(
        &self,
        kernel: &Kernel,
        matters: impl Fn(usize) -> bool,
        step: impl Fn(u8, usize) -> Step,
    ) -> Vec<(usize, &'static str)> {
        const STATES: usize = 8;
        let mut at_entry: Vec<[Option<Known>; STATES]> =
            vec![Default::default(); kernel.blocks.len()];
        let mut faults = BTreeMap::new();
        let mut work = VecDeque::from([(0usize, 0u8)]);
        if let Some(first) = at_entry.first_mut() {
            first[0] = Some(Known::default());
        }
        while let Some((block, state)) = work.pop_front() {
            let mut known = at_entry[block][usize::from(state)].clone().unwrap_or_default();
            // A set of states, one bit each.
            let mut states = 1u8 << state;
            let b = &kernel.blocks[block];
            for i in b.first..b.end {
                let instr = &kernel.instrs[i];
                if matters(i) {
                    // A guarded instruction may not run.
                    let mut next = if instr.guard.is_some() { states } else { 0 };
                    for s in (0..STATES as u8).filter(|s| states & 1 << s != 0) {
                        let to = match step(s, i) {
                            Step::To(to) => to,
                            Step::Fault(to, what) => {
                                faults.entry(i).or_insert(what);
                                to
                            }
                        };
                        next |= 1 << to;
                    }
                    states = next;
                }
                if self.follows[i] {
                    transfer(instr, &self.followed, &mut known);
                }
            }
            let last = &kernel.instrs[b.end - 1];
            let taken = match last.guard {
                Some((reg, negated)) => known.get(reg).map(|v| (v != 0) != negated),
                None => None,
            };
            for (n, &s) in b.succ.iter().enumerate() {
                // The taken successor is the first, unless the branch falls through alone.
                if b.succ.len() == 2 && taken.is_some_and(|t| t != (n == 0)) {
                    continue;
                }
                for state in (0..STATES as u8).filter(|s| states & 1 << s != 0) {
                    let entry = &mut at_entry[s][usize::from(state)];
                    let changed = match entry {
                        None => {
                            *entry = Some(known.clone());
                            true
                        }
                        Some(old) => old.meet(&known),
                    };
                    if changed {
                        work.push_back((s, state));
                    }
                }
            }
        }
        faults.into_iter().collect()
    }
}

/// Registers worth following: those compared with a constant for a branch, and what is copied into
/// them.
fn followed(kernel: &Kernel) -> BTreeSet<Reg> {
    let guards: BTreeSet<Reg> = kernel
        .instrs
        .iter()
        .filter(|i| i.part(0) == "bra")
        .filter_map(|i| Some(i.guard?.0))
        .collect();
    let mut out = BTreeSet::new();
    for i in &kernel.instrs {
        if let Some((pred, reg, _, _)) = comparison(i)
            && guards.contains(&pred)
        {
            out.extend([pred, reg]);
        }
    }
    loop {
        let before = out.len();
        for i in &kernel.instrs {
            if let ("mov" | "cvt" | "and", [Operand::Reg(to), Operand::Reg(from), ..]) =
                (i.part(0), i.operands.as_slice())
                && out.contains(to)
            {
                out.insert(*from);
            }
        }
        if out.len() == before {
            return out;
        }
    }
}

/// `setp.eq` or `setp.ne` of a register and a constant: predicate, register, constant, equal.
fn comparison(i: &Instr) -> Option<(Reg, Reg, i64, bool)> {
    let equal = match (i.part(0), i.part(1)) {
        ("setp", "eq") => true,
        ("setp", "ne") => false,
        _ => return None,
    };
    match i.operands.as_slice() {
        [Operand::Reg(p), Operand::Reg(r), Operand::Imm(v)] => Some((*p, *r, *v, equal)),
        _ => None,
    }
}

fn transfer(instr: &Instr, followed: &BTreeSet<Reg>, known: &mut Known) {
    for &reg in &instr.writes {
        if !followed.contains(&reg) {
            continue;
        }
        let value = match (instr.part(0), instr.operands.as_slice()) {
            _ if instr.guard.is_some() => None,
            ("mov", [_, Operand::Imm(v)]) => Some(*v),
            ("mov" | "cvt", [_, Operand::Reg(from)]) => known.get(*from),
            ("and", [_, Operand::Reg(from), Operand::Imm(mask)]) => {
                known.get(*from).map(|v| v & mask)
            }
            _ => comparison(instr)
                .and_then(|(_, r, v, equal)| Some(i64::from((known.get(r)? == v) == equal))),
        };
        known.set(reg, value);
    }
}
