//! The smallest program that still disagrees: deterministic delta debugging over SMs, instructions, edges
//! and accesses.

use amk_schedule_ir::op::Opaque;
use amk_schedule_ir::{Bucket, Op, Program};

use super::edit;

/// Makes `p` smaller as long as `still` holds, with at most `budget` questions.
pub(crate) fn shrink(p: &Program, budget: usize, still: &dyn Fn(&Program) -> bool) -> Program {
    let mut s = Shrinker { best: p.clone(), left: budget, still };
    s.attempt(|p| {
        p.meta.clear();
        edit::drop_unused(p);
    });
    while s.left > 0 {
        let before = size(&s.best);
        s.sms();
        s.instructions();
        s.edges();
        s.attempt(edit::drop_unused);
        s.numbers();
        if size(&s.best) >= before {
            break;
        }
    }
    s.best
}

/// What is made smaller.
fn size(p: &Program) -> usize {
    let parts = |x: &amk_schedule_ir::Instruction| {
        1 + x.reads.len()
            + x.writes.len()
            + x.waits.len()
            + x.signals.len()
            + usize::from(!matches!(x.op, Op::Opaque(_) | Op::Boundary(_)))
    };
    p.instructions.iter().map(parts).sum::<usize>()
        + p.sms.iter().map(|s| 1 + s.stream.len()).sum::<usize>()
        + p.buffers.len()
        + p.counters.len()
        + usize::from(p.max_steps > 2)
        + usize::from(p.bucket.last > p.bucket.first)
}

struct Shrinker<'a> {
    best: Program,
    left: usize,
    still: &'a dyn Fn(&Program) -> bool,
}

impl Shrinker<'_> {
    /// Keeps a change if the program still disagrees.
    fn attempt(&mut self, change: impl FnOnce(&mut Program)) -> bool {
        if self.left == 0 {
            return false;
        }
        let mut candidate = self.best.clone();
        change(&mut candidate);
        if candidate == self.best {
            return false;
        }
        self.left -= 1;
        let kept = (self.still)(&candidate);
        if kept {
            self.best = candidate;
        }
        kept
    }

    fn sms(&mut self) {
        let mut s = self.best.sms.len();
        while s > 0 && self.best.sms.len() > 1 {
            s -= 1;
            if s < self.best.sms.len() {
                self.attempt(|p| edit::remove_sm(p, s));
            }
        }
    }

    /// Parts of the list of instructions, half of it first and single ones last.
    fn instructions(&mut self) {
        let mut part = self.best.instructions.len().div_ceil(2);
        while part > 0 {
            let mut at = 0;
            while at < self.best.instructions.len() && self.left > 0 {
                let end = at + part;
                let gone = self.attempt(|p| {
                    let keep: Vec<bool> = p
                        .instructions
                        .iter()
                        .enumerate()
                        .map(|(i, x)| !(at..end).contains(&i) || edit::is_boundary(x))
                        .collect();
                    edit::retain_instructions(p, &keep);
                });
                if !gone {
                    at = end;
                }
            }
            part = if part == 1 { 0 } else { part.div_ceil(2) };
        }
    }

    /// Single accesses, waits, signals and runs.
    fn edges(&mut self) {
        for i in 0..self.best.instructions.len() {
            if self.left == 0 {
                return;
            }
            self.attempt(|p| {
                let x = &mut p.instructions[i];
                if !edit::is_boundary(x) {
                    x.op = Op::Opaque(Opaque { tag: 1 });
                }
            });
            for list in 0..4 {
                let mut k = match list {
                    0 => self.best.instructions[i].reads.len(),
                    1 => self.best.instructions[i].writes.len(),
                    2 => self.best.instructions[i].waits.len(),
                    _ => self.best.instructions[i].signals.len(),
                };
                while k > 0 {
                    k -= 1;
                    self.attempt(|p| {
                        let x = &mut p.instructions[i];
                        match list {
                            0 => drop(x.reads.remove(k)),
                            1 => drop(x.writes.remove(k)),
                            2 => drop(x.waits.remove(k)),
                            _ => {
                                let s = x.signals.remove(k);
                                if let Some(c) = p.counters.get_mut(s.counter.index()) {
                                    c.per_step = c.per_step.saturating_sub(s.amount);
                                }
                            }
                        }
                    });
                }
            }
        }
    }

    fn numbers(&mut self) {
        self.attempt(|p| p.max_steps = p.max_steps.min(2));
        self.attempt(|p| p.max_steps = p.max_steps.min(1));
        self.attempt(|p| p.bucket = Bucket { first: p.bucket.first, last: p.bucket.first });
        self.attempt(|p| p.bucket = Bucket { first: p.bucket.last, last: p.bucket.last });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::smith::smith;
    use crate::vm::rng::Rng;

    #[test]
    fn what_is_asked_for_is_all_that_is_left() {
        let parts = crate::target::default_targets();
        let (p, _) = smith(&mut Rng::new(3, 0), 60, &parts);
        let tag = |x: &amk_schedule_ir::Instruction| match &x.op {
            Op::Opaque(o) => o.tag,
            _ => 0,
        };
        let wanted = tag(&p.instructions[17]);
        let still = |p: &Program| p.instructions.iter().any(|x| wanted > 1 && tag(x) == wanted);
        let small = shrink(&p, 10_000, &still);
        let rest: Vec<_> = small.instructions.iter().filter(|x| !edit::is_boundary(x)).collect();
        assert_eq!((rest.len(), small.sms.len()), (1, 1));
        assert_eq!(edit::accesses(rest[0]).count() + rest[0].waits.len(), 0);
        assert!(small.buffers.is_empty() && small.counters.is_empty());
        assert_eq!(small.instructions[1].id.index(), 1);
    }
}
