//! Many executions of one program, in search of one that goes wrong.

use std::sync::Arc;

use amk_schedule_ir::Program;

use super::{Options, Policy, Vm, VmFault};

/// An execution that went wrong.
#[derive(Clone, Debug)]
pub struct Refutation {
    /// Seed and policy that give it again; `None` if the program has no execution at all.
    pub options: Option<Options>,
    /// Position of its first step.
    pub pos: u64,
    pub faults: Vec<VmFault>,
}

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// Seed of the first run; each run has the next.
    pub seed: u64,
    /// Executions, each with another seed, policy and place in the bucket.
    pub runs: u64,
    /// Most steps of one launch; an execution has two launches.
    pub steps: u64,
    /// As [`Options::fine`].
    pub fine: Option<bool>,
}

/// Steps of one launch: enough for a ring, a packet buffer and a gate to come round.
const STEPS: u64 = 4;

/// Runs a program without values `runs` times, each with another seed, policy and place in the bucket,
/// twice in a row, and returns the first run that finds a fault. `None` is no proof: see the module's
/// page for what runs can miss.
pub fn refute(program: &Arc<Program>, seed: u64, runs: u64) -> Option<Refutation> {
    refute_with(program, Effort { seed, runs, steps: STEPS, fine: None }, &|_| true)
}

/// As [`refute`], with a say in how long the launches are and in which faults count.
pub fn refute_with(
    program: &Arc<Program>,
    effort: Effort,
    counts: &dyn Fn(&VmFault) -> bool,
) -> Option<Refutation> {
    let (bucket, tokens) = (program.bucket, u64::from(program.tokens.max(1)));
    let refuted = |options, pos, mut faults: Vec<VmFault>| {
        faults.retain(counts);
        (!faults.is_empty()).then_some(Refutation { options, pos, faults })
    };
    let mut vm = match Vm::new(program.clone(), None, Options::default()) {
        Ok(vm) => vm,
        Err(fault) => return refuted(None, bucket.first, vec![fault]),
    };
    // Steps that fit into the bucket from a position on.
    let fit = |pos: u64| bucket.last.checked_sub(pos).map_or(0, |rest| rest / tokens + 1);
    let steps = effort.steps.min(program.max_steps);
    for run in 0..effort.runs {
        let seed = effort.seed.wrapping_add(run);
        let policy = Policy::ALL[(seed % Policy::ALL.len() as u64) as usize];
        // At the start of the bucket, at its end, and in the middle.
        let launches = 2 * steps.max(1);
        let end = bucket.last.saturating_sub((launches - 1).saturating_mul(tokens));
        let mut pos = match seed % 3 {
            0 => bucket.first,
            1 => end.max(bucket.first),
            _ => (bucket.first / 2 + end / 2).max(bucket.first),
        };
        let options = Options { seed, policy, fine: effort.fine, ..Options::default() };
        if let Err(fault) = vm.restart(options.clone()) {
            return refuted(Some(options), pos, vec![fault]);
        }
        for _ in 0..2 {
            let steps = steps.min(fit(pos));
            if steps == 0 {
                break;
            }
            if let Err(faults) = vm.run(pos, steps) {
                let found = refuted(Some(options.clone()), pos, faults);
                if found.is_some() {
                    return found;
                }
                break;
            }
            pos = pos.saturating_add(steps * tokens);
        }
    }
    None
}
