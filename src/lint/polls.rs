//! Waiting: every wait repeats until what it reads says so, and every packet's epoch tag is looked at.

use std::collections::{BTreeMap, BTreeSet};

use super::events::Event;
use super::expected::params;
use super::ptx::{Base, Instr, Operand, Reg};
use super::rules::Judged;
use super::value::{Origin, Values};
use super::{LintFault, Rule};

impl Judged<'_> {
    /// All rules about waits and tags.
    pub fn waits(&self, values: &Values, faults: &mut Vec<LintFault>) {
        let compared = self.compared_with_tags(values, faults);
        for (i, instr) in self.kernel.instrs.iter().enumerate() {
            let rule = match self.events[i] {
                Event::PacketLoad => Rule::PacketLoad,
                Event::CounterWait => Rule::CounterWait,
                Event::TokenAcquire => Rule::Token,
                Event::MbarrierWait(_) => Rule::RingWait,
                _ => continue,
            };
            if !self.repeats(i, values) {
                faults.push(self.fault(
                    rule,
                    i,
                    "what is read is not read again until it is there",
                ));
            }
            if rule == Rule::PacketLoad && self.spins(i) && !self.left_together(i) {
                let what = "the lanes of a warp leave the wait one by one, and take turns at every shuffle that follows";
                faults.push(self.fault(rule, i, what));
            }
            let tagged = matches!(rule, Rule::PacketLoad | Rule::Token);
            if tagged && !instr.writes.iter().all(|r| compared.contains(r)) {
                faults.push(self.fault(rule, i, "the epoch tag of a word is not looked at"));
            }
        }
        self.tagged_stores(values, faults);
    }

    /// Whether the instruction is in a loop that reads the same address again and ends by what it
    /// gives; a first try before such a loop counts with it.
    fn repeats(&self, i: usize, values: &Values) -> bool {
        if self.spins(i) {
            return true;
        }
        let this = &self.kernel.instrs[i];
        // The compiler may make one address twice, in two registers.
        let known = |at: Option<(&Base, i64)>| {
            let value = at.map(|(base, offset)| values.address(self.kernel, base, offset));
            value.filter(|v| !v.varies && matches!(v.origin, Origin::Pointer(_)))
        };
        self.all(self.events[i]).any(|j| {
            let other = &self.kernel.instrs[j];
            j != i
                && this.opcode == other.opcode
                && (this.address() == other.address()
                    || known(this.address()).is_some_and(|v| Some(v) == known(other.address())))
                && self.spins(j)
        })
    }

    fn spins(&self, i: usize) -> bool {
        self.flow.innermost(self.kernel.block_of[i]).any(|body| self.spins_in(i, body))
    }

    fn spins_in(&self, i: usize, body: &BTreeSet<usize>) -> bool {
        let instr = &self.kernel.instrs[i];
        // A loop around barriers is one over instructions or tiles: nobody polls in it.
        let barrier =
            |i: usize| matches!(self.events[i], Event::ConsumerBarrier | Event::BlockBarrier);
        if body.iter().map(|b| &self.kernel.blocks[*b]).any(|b| (b.first..b.end).any(barrier)) {
            return false;
        }
        let mut address = Vec::new();
        if let Some((Base::Reg(reg), _)) = instr.address() {
            address.push(*reg);
        }
        if !address.iter().all(|r| self.invariant(*r, body, &mut BTreeMap::new())) {
            return false;
        }
        // A branch of the loop that depends on what was read.
        let made = self.made_from(instr.writes.clone(), body);
        body.iter().any(|b| {
            let last = &self.kernel.instrs[self.kernel.blocks[*b].end - 1];
            last.part(0) == "bra" && last.guard.is_some_and(|(p, _)| made.contains(&p))
        })
    }

    /// Whether the loop around a load ends by a vote of the whole warp.
    fn left_together(&self, i: usize) -> bool {
        self.flow.innermost(self.kernel.block_of[i]).any(|body| {
            let blocks = || body.iter().map(|b| &self.kernel.blocks[*b]);
            let ends = || blocks().map(|b| &self.kernel.instrs[b.end - 1]);
            let votes = blocks()
                .flat_map(|b| &self.kernel.instrs[b.first..b.end])
                .filter(|instr| instr.opcode == "vote.sync.all.pred");
            votes.map(|vote| self.made_from(vote.writes.clone(), body)).any(|made| {
                let by = |instr: &Instr| instr.guard.is_some_and(|(p, _)| made.contains(&p));
                ends().any(|instr| instr.part(0) == "bra" && by(instr))
            })
        })
    }

    /// Whether a register has the same value in every round of a loop.
    fn invariant(&self, reg: Reg, body: &BTreeSet<usize>, known: &mut BTreeMap<Reg, bool>) -> bool {
        if let Some(&known) = known.get(&reg) {
            return known;
        }
        // Met again while it is being looked at, it is made from itself: a counter.
        known.insert(reg, false);
        let ok = self.kernel.writers[reg].iter().all(|&d| {
            if !body.contains(&self.kernel.block_of[d]) {
                return true;
            }
            let instr = &self.kernel.instrs[d];
            if matches!(instr.part(0), "ld" | "atom") && !instr.has("nc") && !instr.has("param") {
                return false;
            }
            let mut sources = Vec::new();
            instr.sources().iter().for_each(|o| o.registers(&mut sources));
            sources.into_iter().all(|r| self.invariant(r, body, known))
        });
        known.insert(reg, ok);
        ok
    }

    /// Registers of a loop made from these by anything but memory, these among them.
    fn made_from(&self, regs: Vec<Reg>, body: &BTreeSet<usize>) -> BTreeSet<Reg> {
        let mut out = BTreeSet::new();
        let mut work = regs;
        while let Some(reg) = work.pop() {
            if !out.insert(reg) {
                continue;
            }
            for &i in &self.kernel.readers[reg] {
                let instr = &self.kernel.instrs[i];
                if body.contains(&self.kernel.block_of[i])
                    && !matches!(instr.part(0), "ld" | "atom" | "mbarrier")
                {
                    work.extend(&instr.writes);
                }
            }
        }
        out
    }

    /// Registers loaded from memory that are compared with an epoch tag, or for equality with one that
    /// is. Words compared with a tag must be read in a form made for it.
    fn compared_with_tags(&self, values: &Values, faults: &mut Vec<LintFault>) -> BTreeSet<Reg> {
        let mut out = BTreeSet::new();
        let mut pairs = Vec::new();
        for instr in self.kernel.instrs.iter().filter(|i| i.part(0) == "setp") {
            let sides: Vec<_> = instr.sources().iter().collect();
            let tagged = sides.iter().any(|o| values.operand(self.kernel, o).tag);
            let equality = matches!(instr.part(1), "eq" | "ne")
                && !instr.opcode.contains(".f")
                && sides.iter().all(|o| matches!(o, Operand::Reg(_)));
            if !tagged && !equality {
                continue;
            }
            let loads: Vec<BTreeSet<Reg>> =
                sides.into_iter().map(|o| self.loads_behind(o)).collect();
            if tagged {
                for &reg in loads.iter().flatten() {
                    self.kernel.writers[reg]
                        .iter()
                        .filter(|d| self.kernel.instrs[**d].part(0) == "ld")
                        .for_each(|d| self.tagged_load(*d, values, faults));
                    out.insert(reg);
                }
            } else {
                pairs.push(loads);
            }
        }
        // The compiler may compare the second word's tag with the first's.
        let packet =
            |r: &Reg| self.kernel.writers[*r].iter().any(|d| self.events[*d] == Event::PacketLoad);
        loop {
            let before = out.len();
            for sides in &pairs {
                if sides.iter().any(|s| s.iter().any(|r| out.contains(r) && packet(r))) {
                    out.extend(sides.iter().flatten().filter(|r| packet(r)));
                }
            }
            if out.len() == before {
                return out;
            }
        }
    }

    /// Registers loaded from memory that an operand is made from.
    fn loads_behind(&self, operand: &Operand) -> BTreeSet<Reg> {
        let mut out = BTreeSet::new();
        let mut work = Vec::new();
        operand.registers(&mut work);
        let mut seen = vec![false; self.kernel.writers.len()];
        while let Some(reg) = work.pop() {
            if std::mem::replace(&mut seen[reg], true) {
                continue;
            }
            for &d in &self.kernel.writers[reg] {
                let from = &self.kernel.instrs[d];
                match from.part(0) {
                    "ld" => drop(out.insert(reg)),
                    "atom" | "mbarrier" | "shfl" => {}
                    _ => from.sources().iter().for_each(|o| o.registers(&mut work)),
                }
            }
        }
        out
    }

    fn tagged_load(&self, i: usize, values: &Values, faults: &mut Vec<LintFault>) {
        let instr = &self.kernel.instrs[i];
        if matches!(self.events[i], Event::PacketLoad | Event::TokenAcquire)
            || instr.has("param")
            || instr.has("nc")
        {
            return;
        }
        let origin = instr.address().map(|(b, o)| values.address(self.kernel, b, o).origin);
        if origin == Some(Origin::Pointer(params::TABLES)) {
            return;
        }
        let what = "a word is compared with an epoch tag but not read in the form of a packet";
        let fault = self.fault(Rule::PacketLoad, i, what);
        if !faults.contains(&fault) {
            faults.push(fault);
        }
    }

    /// What is stored with a tag is a packet, the token word or a report; a packet carries a tag.
    fn tagged_stores(&self, values: &Values, faults: &mut Vec<LintFault>) {
        for (i, instr) in self.kernel.instrs.iter().enumerate() {
            if !matches!(instr.part(0), "st" | "atom" | "red") {
                continue;
            }
            let value = instr.operands.last().unwrap_or(&Operand::Other);
            let tag = values.operand(self.kernel, value).tag;
            match self.events[i] {
                Event::PacketStore | Event::TokenRelease if !tag => {
                    let what = "a packet is stored without an epoch tag";
                    faults.push(self.fault(Rule::PacketStore, i, what));
                }
                Event::PacketStore | Event::TokenRelease | Event::ReportWrite => {}
                _ if tag && !instr.has("shared") && !instr.has("local") => {
                    let what = "an epoch tag is stored, but not in the form of a packet";
                    faults.push(self.fault(Rule::PacketStore, i, what));
                }
                _ => {}
            }
        }
    }
}
