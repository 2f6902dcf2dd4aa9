use std::collections::BTreeMap;

use amk_schedule_ir::op::*;
use amk_schedule_ir::program::*;
use amk_schedule_ir::{
    Bound, BufferId, CounterId, Features, InstrId, Region, RunId, SmId, Span, Target,
};

use super::*;
use crate::rng::Rng;

fn target(sms: u32, gbps: f64) -> Target {
    Target {
        name: "test part".to_owned(),
        sm: "sm_90a".to_owned(),
        sm_count: sms,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 50 << 20,
        nominal_gbps: gbps,
        measured_gbps: None,
        features: Features::default(),
    }
}

/// A chain of matrix products, one after the other, its rows dealt out to `sms` SMs with these weights.
struct Chain {
    sms: usize,
    stages: usize,
    /// Tiles of a stage by SM.
    tiles: Vec<u64>,
    slots: u32,
    window: u32,
    packets: bool,
    /// Past positions each SM streams after each product, by the gate before it.
    kv: Option<u32>,
}

impl Chain {
    fn new(sms: usize, stages: usize) -> Chain {
        let tiles = vec![4; sms];
        Chain { sms, stages, tiles, slots: 8, window: 3, packets: true, kv: None }
    }

    fn program(&self) -> Program {
        let k = 1024;
        let rows: u64 = self.tiles.iter().sum::<u64>() * 8;
        let (mut buffers, mut instructions) = (Vec::new(), Vec::new());
        let mut buffer = |name: String, kind, sync, dtype, shape: Vec<u64>| {
            let id = BufferId(buffers.len() as u32);
            buffers.push(Buffer { id, name, kind, sync, dtype, shape, sequence: 0 });
            id
        };
        let sync = if self.packets { BufferSync::Packet } else { BufferSync::Plain };
        let weights: Vec<BufferId> = (0..self.stages)
            .map(|s| {
                let name = format!("weight {s}");
                buffer(name, BufferKind::Weight, BufferSync::Plain, DType::Bf16, vec![rows, k])
            })
            .collect();
        let values: Vec<BufferId> = (0..self.stages)
            .map(|s| {
                let name = format!("value {s}");
                buffer(name, BufferKind::Activation, sync, DType::F32, vec![1, rows])
            })
            .collect();
        let cache = self.kv.map(|_| {
            let shape = vec![1, 4096, 64];
            buffer("keys".into(), BufferKind::Kv, BufferSync::Plain, DType::Bf16, shape)
        });
        let mut sms: Vec<Sm> = (0..self.sms)
            .map(|s| Sm { id: SmId(s as u32), queue: Vec::new(), stream: Vec::new() })
            .collect();
        let access = |buffer, lo, hi| Access {
            buffer,
            region: Region(vec![Span::at(0, 1), Span::at(lo, hi)]),
            phase: 0,
        };
        for stage in 0..self.stages {
            let mut lo = 0;
            for (s, sm) in sms.iter_mut().enumerate() {
                let hi = lo + self.tiles[s] * 8;
                if hi == lo {
                    continue;
                }
                let mut push = |source: RunSource, window| {
                    let id = RunId(sm.stream.len() as u32);
                    sm.stream.push(Run { id, source, window });
                    id
                };
                let run = push(
                    RunSource::Weight { buffer: weights[stage], lo, hi, tiles: 1, blocks: 32 },
                    self.window,
                );
                let before = stage.checked_sub(1).map(|b| values[b]);
                let plain = |stage: usize| CounterId(stage as u32);
                let mut instruction = |op: Op, run, reads, writes| {
                    let id = InstrId(instructions.len() as u32);
                    let waits = match stage {
                        0 => Vec::new(),
                        _ if self.packets => Vec::new(),
                        _ => vec![Wait {
                            counter: plain(stage - 1),
                            threshold: self.tiles.iter().filter(|t| **t > 0).count() as u64,
                        }],
                    };
                    let signals = match self.packets {
                        true => Vec::new(),
                        false => vec![Signal { counter: plain(stage), amount: 1 }],
                    };
                    sm.queue.push(id);
                    instructions.push(Instruction { id, op, reads, writes, waits, signals, run });
                };
                let reads = before.map(|b| access(b, 0, rows)).into_iter().collect();
                let op = Op::Opaque(Opaque { tag: 1 });
                instruction(op, Some(run), reads, vec![access(values[stage], lo, hi)]);
                if let (Some(buffer), Some(gate)) = (cache, self.kv) {
                    let id = RunId(sm.stream.len() as u32);
                    let region = Region(vec![
                        Span::at(0, 1),
                        Span { lo: Bound::At(0), hi: Bound::Clip(512) },
                        Span::at(0, 64),
                    ]);
                    let source = RunSource::Kv { buffer, region: region.clone(), rows: 64, gate };
                    sm.stream.push(Run { id, source, window: self.window });
                    let at = InstrId(instructions.len() as u32);
                    sm.queue.push(at);
                    instructions.push(Instruction {
                        id: at,
                        op: Op::Opaque(Opaque { tag: 1 }),
                        reads: vec![Access { buffer, region, phase: 0 }],
                        writes: Vec::new(),
                        waits: Vec::new(),
                        signals: Vec::new(),
                        run: Some(id),
                    });
                }
                lo = hi;
            }
        }
        for sm in &mut sms {
            let id = InstrId(instructions.len() as u32);
            sm.queue.push(id);
            instructions.push(Instruction {
                id,
                op: Op::Boundary(BoundaryArrive {}),
                reads: Vec::new(),
                writes: Vec::new(),
                waits: Vec::new(),
                signals: Vec::new(),
                run: None,
            });
        }
        let counters = (0..if self.packets { 0 } else { self.stages })
            .map(|s| Counter {
                id: CounterId(s as u32),
                name: format!("done {s}"),
                init: 0,
                per_step: self.sms as u64,
            })
            .collect();
        Program {
            version: FORMAT_VERSION,
            name: "chain".to_owned(),
            sm_arch: "sm_90a".to_owned(),
            bucket: amk_schedule_ir::Bucket { first: 0, last: 1023 },
            tokens: 1,
            max_steps: 64,
            epochs: Epochs { per_step: 1, tags: 1 << 31 },
            meta: BTreeMap::new(),
            resources: Resources {
                consumer_warps: 8,
                ring_slots: self.slots,
                slot_bytes: 16_384,
                registers: 168,
                barriers: 2,
                shared: Vec::new(),
            },
            buffers,
            counters,
            boundary: Boundary { op: BoundaryOp::Plain, reads: Vec::new(), writes: Vec::new() },
            sms,
            instructions,
        }
    }
}

/// A record with every cost above nothing, drawn.
fn drawn(rng: &mut Rng) -> Calibration {
    let mut draw = |low: f64, high: f64| low + (high - low) * rng.unit();
    let op = OpCost {
        fixed: draw(0.0, 2000.0),
        per_warp: draw(0.0, 50.0),
        per_kb: draw(0.0, 40.0),
        per_kb_warp: draw(0.0, 300.0),
        group: draw(0.0, 800.0),
        ..OpCost::default()
    };
    Calibration {
        clock_mhz: draw(900.0, 2500.0),
        stream_efficiency: draw(0.5, 1.0),
        stream_latency_ns: draw(0.0, 1500.0),
        latency_spread: draw(0.0, 0.3),
        sm_gbps: draw(20.0, 200.0),
        store_ns: draw(0.0, 500.0),
        tail_ns: draw(0.0, 400.0),
        load_ns: draw(0.0, 600.0),
        counter_ns: draw(0.0, 500.0),
        queue_share: draw(0.0, 1.5),
        poll_share: draw(0.0, 1.0),
        l2_gbps: draw(500.0, 9000.0),
        sm_l2_gbps: draw(20.0, 120.0),
        boundary_ns: draw(0.0, 3000.0),
        launch_ns: draw(0.0, 8000.0),
        dispatch: draw(0.0, 800.0),
        chunk: draw(0.0, 800.0),
        ops: [("opaque".to_owned(), op)].into(),
        ..Calibration::ideal()
    }
}

fn us(p: &Program, t: &Target, c: &Calibration) -> f64 {
    let options = Options { position: 500, steps: 1, stamps: false, taken: 0 };
    simulate(p, t, c, options).unwrap().launch_us
}

#[test]
fn nothing_is_faster_than_reading() {
    let mut rng = Rng::new(11);
    for round in 0..400 {
        let sms = 1 + rng.below(24) as usize;
        let mut chain = Chain::new(sms, 1 + rng.below(5) as usize);
        chain.tiles = (0..sms).map(|_| 1 + rng.below(12)).collect();
        chain.slots = 2 + rng.below(14) as u32;
        chain.window = 1 + rng.below(u64::from(chain.slots)) as u32;
        chain.packets = rng.chance(0.5);
        chain.kv = rng.chance(0.3).then_some(1);
        let (t, c) = (target(sms as u32, 50.0 + 5000.0 * rng.unit()), drawn(&mut rng));
        let p = chain.program();
        for c in
            [&c, &Calibration::ideal(), &Calibration { sm_gbps: c.sm_gbps, ..Calibration::ideal() }]
        {
            let steps = 1 + rng.below(3) as u32;
            let s = simulate(&p, &t, c, Options { position: 500, steps, stamps: true, taken: 0 })
                .unwrap();
            let bytes: u64 = chain.tiles.iter().sum::<u64>() * 8 * 1024 * 2 * chain.stages as u64;
            assert!(s.floor.bytes >= bytes as f64);
            let share = *chain.tiles.iter().max().unwrap() * 8 * 1024 * 2 * chain.stages as u64;
            let n = f64::from(steps);
            let least = n * bytes as f64 / t.bandwidth() * 1e6;
            let own = n * share as f64 / (c.sm_gbps * 1e3);
            assert!(s.launch_us >= least * (1.0 - 1e-9), "{round}: {} < {least}", s.launch_us);
            assert!(s.launch_us >= own * (1.0 - 1e-9), "{round}: {} < {own}", s.launch_us);
            for stamp in &s.stamps {
                assert!(stamp.begin <= stamp.ready && stamp.ready <= stamp.products);
                assert!(stamp.products <= stamp.end && stamp.end <= s.launch_us);
            }
            assert_eq!(s.stamps.len(), p.instructions.len() - sms);
        }
    }
}

#[test]
fn what_costs_nothing_takes_the_time_of_reading() {
    let (chain, t) = (Chain::new(4, 3), target(4, 400.0));
    let p = chain.program();
    let s = simulate(
        &p,
        &t,
        &Calibration::ideal(),
        Options { position: 0, steps: 1, stamps: false, taken: 0 },
    );
    let s = s.unwrap();
    assert!((s.launch_us / s.floor.us() - 1.0).abs() < 1e-6, "{s:?}");
    // One more step takes as long again.
    let two = simulate(
        &p,
        &t,
        &Calibration::ideal(),
        Options { position: 0, steps: 2, stamps: false, taken: 0 },
    );
    assert!((two.unwrap().launch_us / s.launch_us - 2.0).abs() < 1e-6);
}

/// SMs share the memory: what one of them fetches earlier another gets later. Where all do the same there is no such
/// trade, and what must be monotone is so to this part; where they do not, to the other.
const ALIKE: f64 = 0.02;
const UNLIKE: f64 = 0.08;

#[test]
fn more_of_what_helps_is_never_slower() {
    let mut rng = Rng::new(5);
    for _ in 0..150 {
        let sms = 2 + rng.below(20) as usize;
        let mut chain = Chain::new(sms, 2 + rng.below(6) as usize);
        chain.tiles = (0..sms).map(|_| 1 + rng.below(8)).collect();
        chain.packets = rng.chance(0.7);
        let alike = rng.chance(0.5);
        if alike {
            chain.tiles.fill(1 + rng.below(8));
        }
        let (t, mut c) =
            (target(sms as u32, 20.0 * sms as f64 + 600.0 * rng.unit()), drawn(&mut rng));
        if alike {
            c.latency_spread = 0.0;
        }
        let slack = if alike { ALIKE } else { UNLIKE };
        // Alone, hops do not depend on what streams beside them: then the schedule's own order decides.
        let c = Calibration { queue_share: 0.0, poll_share: 0.0, ..c };
        let mut last = f64::INFINITY;
        for slots in [2, 3, 4, 6, 8, 12, 16] {
            chain.slots = slots;
            chain.window = 2;
            let now = us(&chain.program(), &t, &c);
            assert!(now <= last * (1.0 + slack), "{slots} slots: {now} after {last}");
            last = last.min(now);
        }
        let p = chain.program();
        let base = us(&p, &t, &c);
        let slower = [
            Calibration { store_ns: c.store_ns + 300.0, ..c.clone() },
            Calibration { load_ns: c.load_ns + 300.0, ..c.clone() },
            Calibration { boundary_ns: c.boundary_ns + 1000.0, ..c.clone() },
            Calibration { stream_efficiency: c.stream_efficiency / 2.0, ..c.clone() },
            Calibration { clock_mhz: c.clock_mhz / 2.0, ..c.clone() },
            Calibration { stream_latency_ns: c.stream_latency_ns + 500.0, ..c.clone() },
        ];
        for s in &slower {
            let now = us(&p, &t, s);
            assert!(now >= base * (1.0 - slack), "{now} < {base} with {s:?}");
        }
        let wider = target(sms as u32, t.nominal_gbps * 2.0);
        assert!(us(&p, &wider, &c) <= base * (1.0 + slack));
    }
}

#[test]
fn hops_and_load_cost_what_they_should() {
    let t = target(8, 1000.0);
    let mut chain = Chain::new(8, 6);
    chain.tiles = vec![1; 8];
    let c = Calibration {
        store_ns: 400.0,
        load_ns: 300.0,
        counter_ns: 100.0,
        stream_latency_ns: 10.0,
        ..Calibration::ideal()
    };
    let packets = us(&chain.program(), &t, &c);
    // Five hops between six products, each a store and a round of loads.
    let hops = 5.0 * 0.7;
    assert!(packets >= hops && packets < hops + 1.5, "{packets}");
    chain.packets = false;
    let counters = us(&chain.program(), &t, &c);
    assert!((counters - packets - 5.0 * 0.5).abs() < 0.2, "{counters} {packets}");
    // Weights in flight beside them make hops longer.
    chain.packets = true;
    chain.tiles = vec![12; 8];
    let loaded = Calibration { queue_share: 1.0, ..c.clone() };
    for (slots, window) in [(8, 8), (8, 2)] {
        (chain.slots, chain.window) = (slots, window);
        assert!(us(&chain.program(), &t, &loaded) > us(&chain.program(), &t, &c));
    }
}

#[test]
fn cache_in_the_stream_waits_for_its_boundary() {
    let t = target(2, 100.0);
    let mut chain = Chain::new(2, 2);
    let plain = chain.program();
    chain.kv = Some(1);
    let gated = chain.program();
    let c = Calibration { boundary_ns: 50_000.0, ..Calibration::ideal() };
    let run = |p: &Program, position| {
        simulate(p, &t, &c, Options { position, steps: 3, stamps: false, taken: 0 }).unwrap()
    };
    assert!(run(&gated, 500).launch_us > run(&plain, 500).launch_us);
    // Rows past the position are not there yet.
    assert!(run(&gated, 500).floor.bytes > run(&gated, 10).floor.bytes);
    assert!(run(&gated, 10).floor.bytes > run(&gated, 0).floor.bytes);
}

#[test]
fn what_never_ends_or_is_no_program_is_said() {
    let t = target(3, 100.0);
    let c = Calibration::ideal();
    let options = Options { position: 0, steps: 1, stamps: false, taken: 0 };
    let mut chain = Chain::new(3, 2);
    chain.packets = false;
    // A threshold nobody reaches.
    let mut p = chain.program();
    p.instructions[3].waits[0].threshold = 99;
    assert!(matches!(simulate(&p, &t, &c, options), Err(CostError::Stuck { .. })));
    // No boundary, no instruction, no run.
    let mut p = chain.program();
    p.sms[1].queue.pop();
    assert!(matches!(simulate(&p, &t, &c, options), Err(CostError::Stuck { sm: 1, .. })));
    let mut p = chain.program();
    p.sms[0].queue[0] = InstrId(1000);
    assert!(matches!(simulate(&p, &t, &c, options), Err(CostError::Malformed { .. })));
    let mut p = chain.program();
    p.sms[0].stream.clear();
    assert!(matches!(simulate(&p, &t, &c, options), Err(CostError::Malformed { .. })));
    // More consumed than is streamed, and sizes from nowhere.
    let mut p = chain.program();
    p.instructions[0].run = Some(RunId(0));
    p.sms[0].stream.truncate(1);
    p.sms[0].stream[0].source =
        RunSource::Weight { buffer: BufferId(0), lo: 0, hi: u64::MAX, tiles: 1, blocks: 1 };
    assert!(simulate(&p, &t, &c, options).is_err());
    let predicted = Simulated::new(c).predict(&p, &t, 0, 0);
    assert!(predicted.us.is_finite() && predicted.us > 1e9);
}

#[test]
fn shipped_records_are_sound_and_others_say_that_they_are_assumed() {
    let shipped = Calibration::shipped();
    assert!(!shipped.is_empty());
    for record in &shipped {
        assert!(record.provenance.measured && !record.provenance.from.is_empty(), "{record:?}");
        let text = serde_json::to_string(record).unwrap();
        assert_eq!(Calibration::parse(&text).unwrap(), *record);
    }
    let other = Calibration::for_target(&target(8, 100.0));
    assert!(!other.provenance.measured);
    assert!(other.name.contains("as if it were") && other.provenance.from[0].contains("test part"));
    let text = serde_json::to_string(&shipped[0]).unwrap();
    let wrong = |from: &str, to: &str| {
        let edited = text.replacen(from, to, 1);
        assert_ne!(edited, text);
        Calibration::parse(&edited).unwrap_err().to_string()
    };
    assert!(wrong("\"format\":2", "\"format\":7").contains("format 7"));
    assert!(wrong("\"clock_mhz\":", "\"clock_mhz\":-").contains("clock_mhz"));
    assert!(wrong("\"norm_qkv\"", "\"norm_qvk\"").contains("norm_qvk"));
    assert!(wrong("\"store_ns\"", "\"stone_ns\"").contains("stone_ns"));
}

#[test]
fn ranks_are_compared() {
    assert_eq!(spearman(&[1.0, 2.0, 3.0], &[10.0, 20.0, 25.0]), Some(1.0));
    assert_eq!(spearman(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), Some(-1.0));
    // Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4.
    let tied = spearman(&[1.0, 5.0, 5.0, 9.0], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    assert!((tied - 0.948_683).abs() < 1e-6, "{tied}");
    assert_eq!(spearman(&[1.0, 1.0, 1.0], &[1.0, 2.0, 3.0]), None);
    assert_eq!(spearman(&[1.0, 2.0], &[1.0, 2.0]), None);
    let ranked = rank(&[(1.0, 2.0), (2.0, 2.0), (3.3, 3.0)]);
    assert_eq!(ranked.rows, 3);
    assert!((ranked.median_error - 0.1).abs() < 1e-9);
}
