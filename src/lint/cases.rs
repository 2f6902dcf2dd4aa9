//! Which instructions run for which op: the cases of the kernel's dispatch, and what each must hold.

use super::events::{Barrier, Event};
use super::ptx::{Kernel, Operand, Reg};
use super::rules::Judged;
use super::{LintFault, Rule};

/// One case of the dispatch and the edges its instructions have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// The number instructions name it by.
    pub number: u32,
    /// The call behind it.
    pub call: String,
    /// Whether instructions read packets.
    pub packet_reads: bool,
    /// Whether instructions write packets.
    pub packet_writes: bool,
    /// Whether instructions consume chunks of the ring.
    pub ring: bool,
    /// Whether it is the boundary.
    pub boundary: bool,
    /// Whether it chooses the next token.
    pub argmax: bool,
    /// Whether it draws the next token.
    pub draw: bool,
}

impl Case {
    /// What its instructions must hold, in words too.
    fn wanted(&self) -> Vec<(Event, &'static str)> {
        use Event::*;
        let mut all = Vec::new();
        if self.packet_reads {
            all.push((PacketLoad, "a packet load"));
        }
        if self.packet_writes {
            all.push((PacketStore, "a packet store"));
        }
        if self.ring {
            all.extend([
                (MbarrierWait(Barrier::Full), "a wait for a full slot"),
                (RingRead, "a read of the ring"),
                (Release, "the release of a slot"),
            ]);
        }
        if self.boundary {
            all.extend([
                (ConsumerBarrier, "a barrier of the consumer warps"),
                (Arrival, "the arrival"),
                (TokenRelease, "the release of the token word"),
                (TokenAcquire, "the acquire of the token word"),
                (HostToken, "the store of the host's token"),
                (HostProgress, "the release of the host's progress word"),
                (CancelLoad, "the load of the host's cancel word"),
                (GivenUpLoad, "the load of the given-up word at system scope"),
                (FlagStore, "the store of the stop flag"),
            ]);
        }
        if self.argmax {
            all.extend([
                (KeyRead, "the read of the argmax keys"),
                (NanClaim, "the claim of the report for a logit that is no number"),
            ]);
        }
        if self.draw {
            all.extend([
                (DrawCount, "the counts by which ids are kept"),
                (DrawMark, "the marks of ids that are there already"),
            ]);
        }
        all
    }
}

/// Candidates for the register of the dispatch that are looked at.
const CANDIDATES: usize = 32;

impl Judged<'_> {
    /// Every case holds each part of the edges its instructions have.
    pub fn cases(&self, faults: &mut Vec<LintFault>) {
        let cases = &self.expected.cases;
        let Some(regions) = self.regions(cases) else {
            let what = "which instructions run for which op cannot be told: by no register's comparisons do the numbers of the ops part";
            faults.push(LintFault::missing(Rule::Missing, what));
            return;
        };
        for (case, region) in cases.iter().zip(&regions) {
            for (event, what) in case.wanted() {
                if !self.all(event).any(|i| region[i]) {
                    let what = format!("what runs for {} lacks {what}", case.call);
                    faults.push(LintFault::missing(Rule::Missing, what));
                }
            }
        }
    }

    /// The instructions that run for each case, up to the next dispatch. The register that holds the
    /// number is the one by which all that ops do runs for some case, and for as few cases as can be.
    fn regions(&self, cases: &[Case]) -> Option<Vec<Vec<bool>>> {
        use Event::*;
        let mut compared = vec![0; self.kernel.writers.len()];
        let numbers = cases.iter().map(|c| i64::from(c.number));
        let (least, most) = (numbers.clone().min()?, numbers.max()?);
        for instr in &self.kernel.instrs {
            match (instr.part(0), instr.operands.as_slice()) {
                ("setp", [_, Operand::Reg(r), Operand::Imm(n)])
                    if (least - 1..=most + 1).contains(n) =>
                {
                    compared[*r] += 1;
                }
                ("brx", [Operand::Reg(r), ..]) => compared[*r] += cases.len(),
                _ => {}
            }
        }
        let mut candidates: Vec<Reg> = (0..compared.len()).filter(|r| compared[*r] > 0).collect();
        candidates.sort_by_key(|r| std::cmp::Reverse(compared[*r]));
        let of_ops = |event: &Event| {
            let boundary = [Arrival, TokenRelease, TokenAcquire, KeyRead];
            boundary.contains(event) || [PacketLoad, PacketStore, RingRead].contains(event)
        };
        let of_ops: Vec<usize> =
            (0..self.events.len()).filter(|i| of_ops(&self.events[*i])).collect();
        let judged = candidates.into_iter().take(CANDIDATES).filter_map(|register| {
            let all: Vec<_> =
                cases.iter().map(|c| region(self.kernel, register, c.number)).collect();
            let runs = |i: &usize| all.iter().filter(|region| region[*i]).count();
            let counts: Vec<usize> = of_ops.iter().map(runs).collect();
            let sum: usize = counts.iter().sum();
            let parts = counts.iter().all(|n| *n > 0) && sum < counts.len() * cases.len();
            parts.then_some((sum, all))
        });
        judged.min_by_key(|(sum, _)| *sum).map(|(_, all)| all)
    }
}

/// What runs from the writers of `register` on when it holds `number`, until it is written again.
fn region(kernel: &Kernel, register: Reg, number: u32) -> Vec<bool> {
    let mut out = vec![false; kernel.instrs.len()];
    let mut entered = vec![false; kernel.blocks.len()];
    let writers = &kernel.writers[register];
    let mut work: Vec<(usize, usize)> =
        writers.iter().map(|w| (kernel.block_of[*w], w + 1)).collect();
    while let Some((block, first)) = work.pop() {
        let b = &kernel.blocks[block];
        let stop = (first..b.end).find(|i| writers.contains(i));
        out[first..stop.unwrap_or(b.end)].fill(true);
        if stop.is_some() {
            continue;
        }
        let known = successor(kernel, block, register, i64::from(number));
        for (n, &s) in b.succ.iter().enumerate() {
            if known.is_none_or(|k| k == n) && !std::mem::replace(&mut entered[s], true) {
                work.push((s, kernel.blocks[s].first));
            }
        }
    }
    out
}

/// Which successor a block goes to when `register` holds `number`, if that decides it.
fn successor(kernel: &Kernel, block: usize, register: Reg, number: i64) -> Option<usize> {
    let b = &kernel.blocks[block];
    let last = &kernel.instrs[b.end - 1];
    match (last.part(0), last.operands.first()) {
        ("brx", Some(Operand::Reg(r))) if *r == register => return usize::try_from(number).ok(),
        ("bra", _) if b.succ.len() == 2 => {}
        _ => return None,
    }
    let (predicate, negated) = last.guard?;
    let [writer] = kernel.writers[predicate].as_slice() else { return None };
    let set = &kernel.instrs[*writer];
    let [Operand::Reg(_), Operand::Reg(r), Operand::Imm(value)] = set.operands.as_slice() else {
        return None;
    };
    if set.part(0) != "setp" || *r != register {
        return None;
    }
    let holds = match set.part(1) {
        "eq" => number == *value,
        "ne" => number != *value,
        "lt" | "lo" => number < *value,
        "le" | "ls" => number <= *value,
        "gt" | "hi" => number > *value,
        "ge" | "hs" => number >= *value,
        _ => return None,
    };
    Some(usize::from(holds == negated))
}
