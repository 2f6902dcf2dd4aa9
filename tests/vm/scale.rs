//! Large schedules, watched for order and hazards without numbers.

use std::sync::Arc;

use amk::lower::{Knobs, Mode, Shape, lower};
use amk::vm::{FaultKind, Options, Policy, Vm};
use amk_schedule_ir::{Bucket, Program};

use crate::support::{root, target};

fn program(name: &str, splits: u32) -> Program {
    let path = root().join("shapes").join(format!("{name}.json"));
    let config = amk_models::shape_only(&path).unwrap();
    let shape = Shape::of_config(name, &config);
    let knobs = Knobs { splits: Some(splits), ..Knobs::default() };
    let bucket = Bucket { first: 256, last: 1023 };
    lower(&shape, &target(132), &knobs, bucket, Mode::Bf16).unwrap().program
}

#[test]
fn an_8b_schedule_runs_clean() {
    let program = Arc::new(program("llama-3.1-8b", 4));
    assert!(program.instructions.len() > 15_000);
    for (seed, policy) in Policy::ALL.into_iter().enumerate() {
        let options = Options { seed: seed as u64, policy, ..Options::default() };
        let mut vm = Vm::new(program.clone(), None, options).unwrap();
        let outcome = vm.run(600, 2).unwrap_or_else(|f| panic!("{policy:?}: {}", f[0]));
        assert_eq!(outcome.instructions, 2 * program.instructions.len() as u64);
        // The memory goes on in the next launch.
        vm.run(602, 1).unwrap_or_else(|f| panic!("{policy:?}: {}", f[0]));
    }
}

#[test]
fn a_fault_deep_in_a_1b_schedule_is_found() {
    let mut broken = program("llama-3.2-1b", 4);
    let at = broken.instructions.len() / 2;
    let from = |i: &usize| broken.instructions[*i].op.name() == "linear_residual";
    let i = (at..broken.instructions.len()).find(from).unwrap();
    broken.instructions[i].writes.pop();
    let broken = Arc::new(broken);
    for policy in Policy::ALL {
        let mut vm =
            Vm::new(broken.clone(), None, Options { policy, ..Options::default() }).unwrap();
        let faults = vm.run(600, 1).unwrap_err();
        assert_eq!(faults[0].kind(), FaultKind::Stuck, "{policy:?}: {}", faults[0]);
    }
}
