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

/// Steps of one launch: enough for a ring, a packet buffer and a gate to come round.
const STEPS: u64 = 4;

/// Runs a program without values `runs` times, each with another seed, policy and place in the bucket,
/// twice in a row, and returns the first run that finds a fault. `None` is no proof: see the module's
/// page for what runs can miss.
pub fn refute(program: &Arc<Program>, seed: u64, runs: u64) -> Option<Refutation> {
    let (bucket, tokens) = (program.bucket, u64::from(program.tokens.max(1)));
    let refuted = |options, pos, faults| Some(Refutation { options, pos, faults });
    let mut vm = match Vm::new(program.clone(), None, Options::default()) {
        Ok(vm) => vm,
        Err(fault) => return refuted(None, bucket.first, vec![fault]),
    };
    // Steps that fit into the bucket from a position on.
    let fit = |pos: u64| bucket.last.checked_sub(pos).map_or(0, |rest| rest / tokens + 1);
    let steps = STEPS.min(program.max_steps);
    for run in 0..runs {
        let (seed, policy) = (seed.wrapping_add(run), Policy::ALL[run as usize % 7]);
        // At the start of the bucket, at its end, and in the middle.
        let launches = 2 * steps.max(1);
        let end = bucket.last.saturating_sub((launches - 1).saturating_mul(tokens));
        let mut pos = match run % 3 {
            0 => bucket.first,
            1 => end.max(bucket.first),
            _ => (bucket.first / 2 + end / 2).max(bucket.first),
        };
        let options = Options { seed, policy, ..Options::default() };
        if let Err(fault) = vm.restart(options.clone()) {
            return refuted(Some(options), pos, vec![fault]);
        }
        for _ in 0..2 {
            let steps = steps.min(fit(pos));
            if steps == 0 {
                break;
            }
            if let Err(faults) = vm.run(pos, steps) {
                return refuted(Some(options), pos, faults);
            }
            pos = pos.saturating_add(steps * tokens);
        }
    }
    None
}
