//! A verdict over a bucket is a verdict at every position: what is accepted with symbolic bounds is
//! accepted with the bounds put in for each position; and, without splits, what has races or gaps
//! has them at one of them.

use std::collections::BTreeMap;

use amk_schedule_ir::op::{BoundaryArrive, Op, Opaque};
use amk_schedule_ir::*;
use amk_validator::{Invariant, certify, check, checker};
use proptest::prelude::*;

mod common;

const EXTENT: u64 = 8;

fn bound() -> impl Strategy<Value = Bound> {
    prop_oneof![
        3 => (0..=EXTENT).prop_map(Bound::At),
        2 => (0..=1i64).prop_map(Bound::Pos),
        1 => (0..=EXTENT).prop_map(Bound::Clip),
        1 => (0..=3u32).prop_map(|part| Bound::Split { part, parts: 3 }),
        1 => (0..=2u32).prop_map(|part| Bound::Split { part, parts: 2 }),
    ]
}

fn span() -> impl Strategy<Value = Span> {
    (bound(), bound()).prop_map(|(lo, hi)| Span { lo, hi })
}

fn access(buffer: u32, span: Span) -> Access {
    let region = match buffer {
        2 => Region(vec![Span::at(0, 1), span, Span::at(0, 1)]),
        _ => Region(vec![span]),
    };
    Access { buffer: BufferId(buffer), region, phase: 0 }
}

fn instruction(id: u32, op: Op) -> Instruction {
    let (reads, writes, waits, signals) = (vec![], vec![], vec![], vec![]);
    Instruction { id: InstrId(id), op, reads, writes, waits, signals, run: None }
}

/// Tiles of a plain and a packet buffer and of a cache, written by two SMs and read by a third.
fn program(
    (first, width): (u64, u64),
    cuts: Vec<Bound>,
    extra: Vec<(u32, u32, bool, Span)>,
    ordered: bool,
) -> Program {
    let buffer = |id: u32, kind, sync, shape: &[u64]| Buffer {
        id: BufferId(id),
        name: format!("b{id}"),
        kind,
        sync,
        dtype: DType::F32,
        shape: shape.to_vec(),
        sequence: 0,
    };
    let opaque = |id: u32| instruction(id, Op::Opaque(Opaque { tag: u64::from(id) + 1 }));
    let arrive = |id: u32| instruction(id, Op::Boundary(BoundaryArrive {}));
    let mut instructions: Vec<Instruction> = (0..3).map(opaque).chain((3..6).map(arrive)).collect();
    // The cuts tile a buffer: neighbours go to the two writers in turn.
    let mut ends = vec![Bound::At(0)];
    ends.extend(cuts);
    ends.push(Bound::At(EXTENT));
    for buffer in [0, 1] {
        for (i, pair) in ends.windows(2).enumerate() {
            let tile = Span { lo: pair[0], hi: pair[1] };
            instructions[i % 2].writes.push(access(buffer, tile));
        }
        instructions[2].reads.push(access(buffer, Span::at(0, EXTENT)));
    }
    instructions[0].writes.push(access(2, Span::pos(0, 1)));
    for (instr, buffer, write, span) in extra {
        let x = &mut instructions[instr as usize];
        let list = if write { &mut x.writes } else { &mut x.reads };
        list.push(access(buffer, span));
    }
    let counter = CounterId(0);
    for x in &mut instructions[..2] {
        x.signals.push(Signal { counter, amount: 1 });
    }
    if ordered {
        instructions[2].waits.push(Wait { counter, threshold: 2 });
    }
    let sm = |i: u32| Sm { id: SmId(i), queue: vec![InstrId(i), InstrId(i + 3)], stream: vec![] };
    Program {
        version: FORMAT_VERSION,
        name: "positions".into(),
        sm_arch: "sm_90a".into(),
        bucket: Bucket { first, last: (first + width).min(EXTENT - 1) },
        tokens: 1,
        max_steps: 1,
        epochs: Epochs { per_step: 1, tags: 2 },
        meta: BTreeMap::new(),
        resources: Resources {
            consumer_warps: 1,
            ring_slots: 1,
            slot_bytes: 16,
            registers: 32,
            barriers: 1,
            shared: vec![],
        },
        buffers: vec![
            buffer(0, BufferKind::Activation, BufferSync::Plain, &[EXTENT]),
            buffer(1, BufferKind::Activation, BufferSync::Packet, &[EXTENT]),
            buffer(2, BufferKind::Kv, BufferSync::Plain, &[1, EXTENT, 1]),
        ],
        counters: vec![Counter { id: counter, name: "c".into(), init: 0, per_step: 2 }],
        boundary: Boundary { op: BoundaryOp::Plain, reads: vec![], writes: vec![] },
        sms: (0..3).map(sm).collect(),
        instructions,
    }
}

/// The program with `pos` put in.
fn at(p: &Program, pos: u64) -> Program {
    let mut p = p.clone();
    p.bucket = Bucket { first: pos, last: pos };
    for a in p.instructions.iter_mut().flat_map(|x| x.reads.iter_mut().chain(&mut x.writes)) {
        for s in &mut a.region.0 {
            let value = |b: Bound| Bound::At(b.eval(pos) as u64);
            *s = Span { lo: value(s.lo), hi: value(s.hi) };
        }
    }
    p
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_bucket_is_all_its_positions(
        bucket in (0..EXTENT, 0..6u64),
        cuts in prop::collection::vec(bound(), 0..3),
        extra in prop::collection::vec((0..3u32, 0..3u32, any::<bool>(), span()), 0..2),
        ordered in any::<bool>(),
    ) {
        let program = program(bucket, cuts, extra, ordered);
        let target = common::target();
        let report = check(&program, &target);
        let certificate = certify(&program).unwrap();
        let checked = checker::check(&program, &target, &certificate);
        prop_assert_eq!(report.ok, checked.is_ok(), "{:?} {:?} {}", report.faults, checked, text::print(&program));
        let all = (program.bucket.first..=program.bucket.last)
            .map(|pos| check(&at(&program, pos), &target))
            .find(|r| !r.ok);
        if let (true, Some(one)) = (report.ok, &all) {
            prop_assert!(false, "accepted, but not at a position: {:?}\n{}", one.faults, text::print(&program));
        }
        // Splits that round to nothing at every position are taken for something, and the bounds of B and K
        // hold where a region is empty too.
        let splits = text::print(&program).contains("split");
        let exact = report.faults.iter().all(|f| matches!(f.invariant, Invariant::C | Invariant::R));
        prop_assert!(report.ok || splits || !exact || all.is_some(), "rejected, but at no position: {:?}\n{}", report.faults, text::print(&program));
    }
}
