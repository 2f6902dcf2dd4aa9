//! Schedules of a real model, broken in one place: the fault is found and named.

use std::sync::Arc;

use amk::lower::{EdgeKind, Edges, Knobs, Mode};
use amk::vm::{FaultKind, Options, Policy, Vm, VmFault};
use amk_schedule_ir::{Op, Program, RunSource};

use crate::support::{Case, checkpoint};

fn case(edges: EdgeKind) -> Case {
    let edges = Edges { hidden: edges, qkv: edges, attention: edges, act: edges, partial: edges };
    let knobs = Knobs { edges, capacity: Some(64), splits: Some(2), ..Knobs::default() };
    Case::new(checkpoint("llama-gqa-bf16"), 6, &knobs, 63, Mode::F32)
}

/// Faults of three steps from position 5 on, by seed and policy.
fn runs(program: Program) -> Vec<Vec<VmFault>> {
    let program = Arc::new(program);
    let options = (0..3).flat_map(|seed| Policy::ALL.map(|policy| (seed, policy)));
    options
        .map(|(seed, policy)| {
            let options = Options { seed, policy, ..Options::default() };
            let vm = Vm::new(program.clone(), None, options);
            vm.map_err(|f| vec![f]).and_then(|mut vm| vm.run(5, 3)).err().unwrap_or_default()
        })
        .collect()
}

/// Every run finds a fault of one of the kinds.
fn always(what: &str, program: Program, kinds: &[FaultKind]) {
    for faults in runs(program) {
        let found: Vec<_> = faults.iter().map(VmFault::kind).collect();
        assert!(found.iter().any(|k| kinds.contains(k)), "{what}: {found:?}");
    }
}

#[test]
fn whole_schedules_run_clean() {
    for kind in [EdgeKind::Packet, EdgeKind::Counter] {
        assert!(runs(case(kind).lowered.program).iter().all(|f| f.is_empty()));
    }
}

#[test]
fn each_dropped_wait_is_a_race() {
    let program = case(EdgeKind::Counter).lowered.program;
    let waiting: Vec<usize> = (0..program.instructions.len())
        .filter(|&i| !program.instructions[i].waits.is_empty())
        .collect();
    assert!(waiting.len() > 30);
    for &i in waiting.iter().step_by(5) {
        let mut broken = program.clone();
        broken.instructions[i].waits.clear();
        let op = broken.instructions[i].op.name();
        always(op, broken, &[FaultKind::Race]);
    }
}

#[test]
fn each_dropped_signal_is_stuck() {
    let program = case(EdgeKind::Counter).lowered.program;
    for i in (0..program.instructions.len()).step_by(7) {
        let mut broken = program.clone();
        if broken.instructions[i].signals.pop().is_some() {
            always("dropped signal", broken, &[FaultKind::Stuck]);
        }
    }
}

#[test]
fn each_packet_nobody_writes_is_stuck() {
    let program = case(EdgeKind::Packet).lowered.program;
    let packets: Vec<_> = program.buffers.iter().map(|b| b.sync).collect();
    let mut broken_ones = 0;
    for i in (0..program.instructions.len()).step_by(3) {
        let mut broken = program.clone();
        let instr = &mut broken.instructions[i];
        let before = instr.writes.len();
        instr.writes.retain(|w| packets[w.buffer.index()] != amk_schedule_ir::BufferSync::Packet);
        if instr.writes.len() < before && !matches!(instr.op, Op::Boundary(_)) {
            always("dropped packet", broken, &[FaultKind::Stuck]);
            broken_ones += 1;
        }
    }
    assert!(broken_ones > 10);
}

#[test]
fn swapped_queue_entries_starve_the_ring() {
    let program = case(EdgeKind::Packet).lowered.program;
    let mut stuck = 0;
    for sm in 0..program.sms.len() {
        let mut broken = program.clone();
        broken.resources.ring_slots = 2;
        let queue = &mut broken.sms[sm].queue;
        let streams =
            |id: &amk_schedule_ir::InstrId| program.instructions[id.index()].run.is_some();
        let at: Vec<usize> = (0..queue.len()).filter(|&q| streams(&queue[q])).collect();
        // Two matrix stages of different layers change places.
        queue.swap(at[0], at[at.len() - 1]);
        always("swap", broken, &[FaultKind::Stuck]);
        stuck += 1;
    }
    assert_eq!(stuck, 6);
}

#[test]
fn an_appended_row_that_is_read_back_in_the_same_step_races() {
    let mut program = case(EdgeKind::Packet).lowered.program;
    let attention = |op: &Op| matches!(op, Op::Attention(a) if !a.append && a.split == 0);
    let i = program.instructions.iter().position(|i| attention(&i.op)).unwrap();
    for read in program.instructions[i].reads.iter_mut().rev().take(2) {
        read.region.0[1] = amk_schedule_ir::Span::pos(0, 1);
    }
    always("same step", program, &[FaultKind::Race]);
}

#[test]
fn a_shared_packet_buffer_is_rewritten_under_its_readers() {
    // All layers publish into one buffer, in the same phase: words get two writers per epoch.
    let mut program = case(EdgeKind::Packet).lowered.program;
    let names = ["layer 0 hidden", "layer 1 hidden"];
    let published: Vec<_> = program
        .instructions
        .iter()
        .filter(|i| matches!(i.op, Op::LinearResidual(_)))
        .map(|i| i.writes[1].buffer)
        .collect();
    assert!(published.len() > 2, "{names:?}");
    for instr in &mut program.instructions {
        for access in instr.reads.iter_mut().chain(&mut instr.writes) {
            if published.contains(&access.buffer) {
                access.buffer = published[0];
            }
        }
    }
    always("aliased", program, &[FaultKind::DoubleWrite]);
}

#[test]
fn a_run_of_other_rows_is_refused_where_numbers_are_computed() {
    let case = case(EdgeKind::Packet);
    let mut program = case.lowered.program.clone();
    for run in &mut program.sms[2].stream {
        if let RunSource::Weight { lo, hi, .. } = &mut run.source {
            (*lo, *hi) = (0, *hi - *lo);
        }
    }
    let data = Box::new(case.data.clone());
    let fault = Vm::new(Arc::new(program), Some(data), Options::default()).err().unwrap();
    assert_eq!(fault.kind(), FaultKind::Maths);
    assert!(fault.to_string().contains("its run is not the weight rows"), "{fault}");
}
