//! Programs of the scope.

use std::collections::BTreeMap;

use amk_schedule_ir::op::{BoundaryArrive, Opaque};
use amk_schedule_ir::*;

use super::{Code, Family, Object, RunKind, cache, counter, packet, region, run};

/// Rows of the cache; the last position of the bucket and the step's rows fit.
const CAPACITY: u64 = 6;
const WIDTH: u64 = 16;

/// The part the programs are for.
pub fn target() -> Target {
    Target {
        name: "small-scope".into(),
        sm: "sm_90a".into(),
        sm_count: 2,
        shared_per_block: 65_536,
        shared_per_sm: 66_560,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 1 << 20,
        nominal_gbps: 1000.0,
        measured_gbps: None,
        features: Features::default(),
    }
}

fn one(lo: u64) -> Region {
    Region(vec![Span::at(0, 1), Span::at(lo, lo + 1)])
}

fn rows(lo: Bound, hi: Bound) -> Region {
    Region(vec![Span::at(0, 1), Span { lo, hi }, Span::at(0, WIDTH)])
}

/// The program of a code.
pub fn program(family: &Family, code: &Code) -> Program {
    let [p, q] = code.split.map(usize::from);
    let marks = &code.marks[..p + q];
    let mut buffers: Vec<Buffer> = Vec::new();
    let mut buffer = |name: &str, kind, sync, dtype, shape: &[u64]| {
        let id = BufferId(buffers.len() as u32);
        buffers.push(Buffer {
            id,
            name: name.into(),
            kind,
            sync,
            dtype,
            shape: shape.to_vec(),
            sequence: 0,
        });
        id
    };
    let (act, plain) = (BufferKind::Activation, BufferSync::Plain);
    let regions = (family.regions > 0).then(|| buffer("x", act, plain, DType::F32, &[1, 2]));
    let packets = [0, 1].map(|o| {
        (family.objects[o] == Object::Packet)
            .then(|| buffer(["p", "q"][o], act, BufferSync::Packet, DType::F32, &[1, 1]))
    });
    let weight = family.stream.runs.iter().any(|r| matches!(r, RunKind::Weight(_)));
    let weight = weight.then(|| buffer("w", BufferKind::Weight, plain, DType::Bf16, &[24, 32]));
    let kv = family
        .cache
        .then(|| buffer("k", BufferKind::Kv, plain, DType::Bf16, &[1, CAPACITY, WIDTH]));

    // Counters that are used, in order.
    let mut counters: Vec<Counter> = Vec::new();
    let ids = [0, 1].map(|o| {
        let sum = marks.iter().filter(|&&m| counter(m, o).0).count() as u64;
        (family.objects[o] == Object::Counter && sum > 0).then(|| {
            let id = CounterId(counters.len() as u32);
            let name = ["a", "b"][o].into();
            counters.push(Counter { id, name, init: 0, per_step: sum });
            id
        })
    });

    let mut instructions: Vec<Instruction> = marks
        .iter()
        .enumerate()
        .map(|(i, &m)| {
            let (mut reads, mut writes) = (Vec::new(), Vec::new());
            let mut touch = |buffer: BufferId, region: Region, phase, (r, w): (bool, bool)| {
                if r {
                    reads.push(Access { buffer, region: region.clone(), phase });
                }
                if w {
                    writes.push(Access { buffer, region, phase });
                }
            };
            if let Some(x) = regions {
                for r in 0..family.regions as usize {
                    touch(x, one(r as u64), 0, region(m, r));
                }
            }
            for (o, id) in packets.iter().enumerate() {
                if let Some(id) = id {
                    for phase in 0..family.phases {
                        touch(*id, one(0), phase, packet(m, o, phase));
                    }
                }
            }
            if let Some(k) = kv {
                let (append, past, now) = cache(m);
                touch(k, rows(Bound::Pos(0), Bound::Pos(1)), 0, (now, append));
                touch(k, rows(Bound::At(0), Bound::Pos(0)), 0, (past, false));
            }
            let (mut waits, mut signals) = (Vec::new(), Vec::new());
            for (o, id) in ids.iter().enumerate() {
                let Some(counter_id) = *id else { continue };
                let (signal, threshold) = counter(m, o);
                if signal {
                    signals.push(Signal { counter: counter_id, amount: 1 });
                }
                if threshold > 0 {
                    waits.push(Wait { counter: counter_id, threshold: threshold.into() });
                }
            }
            Instruction {
                id: InstrId(i as u32),
                op: Op::Opaque(Opaque { tag: i as u64 + 1 }),
                reads,
                writes,
                waits,
                signals,
                run: run(m).checked_sub(1).map(RunId),
            }
        })
        .collect();

    let mut next = 0;
    let stream: Vec<Run> = family
        .stream
        .runs
        .iter()
        .enumerate()
        .map(|(i, kind)| {
            let source = match *kind {
                RunKind::Weight(chunks) => {
                    let lo = next;
                    next += chunks * TILE_ROWS;
                    let buffer = weight.unwrap_or(BufferId(0));
                    RunSource::Weight { buffer, lo, hi: next, tiles: 1, blocks: 1 }
                }
                RunKind::Kv { chunks, back, gate } => RunSource::Kv {
                    buffer: kv.unwrap_or(BufferId(0)),
                    region: rows(Bound::At(0), Bound::Pos(-(back as i64))),
                    rows: CAPACITY.div_ceil(chunks) as u32,
                    gate,
                },
            };
            Run { id: RunId(i as u32), source, window: 1 }
        })
        .collect();
    let mut sms = Vec::new();
    for (s, range) in [(0u32, 0..p), (1, p..p + q)] {
        if range.is_empty() && s == 1 {
            continue;
        }
        let boundary = InstrId(instructions.len() as u32);
        instructions.push(Instruction {
            id: boundary,
            op: Op::Boundary(BoundaryArrive {}),
            reads: Vec::new(),
            writes: Vec::new(),
            waits: Vec::new(),
            signals: Vec::new(),
            run: None,
        });
        let queue = range.map(|i| InstrId(i as u32)).chain([boundary]).collect();
        let stream = if s == 0 { stream.clone() } else { Vec::new() };
        sms.push(Sm { id: SmId(s), queue, stream });
    }
    let area = |area, offset, bytes| SharedArea { area, offset, bytes };
    let ring = u64::from(family.stream.slots) * 1024;
    let shared = match stream.is_empty() {
        true => Vec::new(),
        false => vec![area(Area::Ring, 0, ring), area(Area::Mbarrier, ring, 64)],
    };
    Program {
        version: FORMAT_VERSION,
        name: family.name.into(),
        sm_arch: "sm_90a".into(),
        bucket: Bucket { first: 2, last: 4 },
        tokens: 1,
        max_steps: 3,
        epochs: Epochs { per_step: family.phases, tags: family.tags },
        meta: BTreeMap::new(),
        resources: Resources {
            consumer_warps: 1,
            ring_slots: family.stream.slots,
            slot_bytes: 1024,
            registers: 64,
            barriers: 1,
            shared,
        },
        buffers,
        counters,
        boundary: Boundary { op: BoundaryOp::Plain, reads: Vec::new(), writes: Vec::new() },
        sms,
        instructions,
    }
}
