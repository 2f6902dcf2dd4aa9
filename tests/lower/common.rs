//! Shapes, targets, and the checks every lowering must pass.

use std::collections::BTreeMap;

use amk::lower::{Knobs, LowerError, Mode, Shape, Sizes, lower};
use amk::lowered::Lowered;
use amk_schedule_ir::program::*;
use amk_schedule_ir::{Bucket, DType, Features, OpContext, Target};

/// A Hopper part, or one with fewer SMs.
pub fn target(sm_count: u32) -> Target {
    Target {
        name: "test part".to_owned(),
        sm: "sm_90a".to_owned(),
        sm_count,
        shared_per_block: 232_448,
        shared_per_sm: 233_472,
        reserved_shared: 1024,
        registers_per_sm: 65_536,
        registers_per_thread: 255,
        threads_per_block: 1024,
        barriers: 16,
        l2_bytes: 50 << 20,
        nominal_gbps: 4800.0,
        measured_gbps: Some(4591.0),
        features: Features {
            cp_async: true,
            bulk_copy: true,
            wgmma: true,
            setmaxnreg: true,
            cluster: true,
        },
    }
}

/// A part with 99 KB of shared memory per block.
pub fn small_target() -> Target {
    Target {
        name: "small test part".to_owned(),
        sm: "sm_120".to_owned(),
        sm_count: 170,
        shared_per_block: 101_376,
        shared_per_sm: 102_400,
        nominal_gbps: 1792.0,
        measured_gbps: None,
        ..target(170)
    }
}

/// Sizes with the usual scale and epsilon.
#[allow(clippy::too_many_arguments)]
pub fn sizes(
    hidden: u64,
    layers: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    inner: u64,
    vocab: u64,
    max_positions: u64,
) -> Sizes {
    let scale = (head_dim as f32).sqrt().recip();
    Sizes {
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        inner,
        vocab,
        max_positions,
        eps: 1e-5,
        scale,
    }
}

/// A small shape with sizes that are no multiple of a tile.
pub fn odd_shape() -> Shape {
    Shape::llama("odd", sizes(60, 2, 6, 2, 10, 173, 509, 512), false, DType::Bf16)
}

/// Lowers for the first positions.
pub fn first(
    shape: &Shape,
    target: &Target,
    knobs: &Knobs,
    mode: Mode,
) -> Result<Lowered, LowerError> {
    let last = 255.min(shape.sizes.max_positions - u64::from(knobs.tokens));
    lower(shape, target, knobs, Bucket { first: 0, last }, mode)
}

/// Declared accesses are the footprint of the op, and operands fit it.
pub fn check_footprints(p: &Program) {
    let cx = OpContext { tokens: u64::from(p.tokens) };
    for i in &p.instructions {
        assert_eq!(i.op.check(), Ok(()), "{}", i.id);
        let f = i.op.footprint(cx);
        for (operands, accesses) in [(&f.reads, &i.reads), (&f.writes, &i.writes)] {
            assert_eq!(operands.len(), accesses.len(), "{} {}", i.id, i.op.name());
            for (o, a) in operands.iter().zip(accesses) {
                let b = p.buffer(a.buffer).unwrap();
                assert_eq!(o.region, a.region, "{} {}", i.id, o.role);
                assert!(o.kinds.contains(&b.kind), "{} {}", i.id, o.role);
                assert!(o.dtypes.contains(&b.dtype), "{} {}", i.id, o.role);
                assert_eq!(o.shape.len(), b.shape.len(), "{} {}", i.id, o.role);
                for (want, have) in o.shape.iter().zip(&b.shape) {
                    assert!(want.is_none_or(|w| w == *have), "{} {}", i.id, o.role);
                }
            }
        }
    }
}

/// Each run belongs to one instruction, in queue order, and holds the rows the op consumes; over all
/// SMs the runs of a matrix cut its rows into whole tiles, each once.
pub fn check_runs(p: &Program) {
    let cx = OpContext { tokens: u64::from(p.tokens) };
    let mut rows: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
    for sm in &p.sms {
        let mut next = 0;
        for id in &sm.queue {
            let i = p.instruction(*id).unwrap();
            let weight = i.op.footprint(cx).weight;
            assert_eq!(weight.is_some(), i.run.is_some(), "{id}");
            let Some(run) = i.run else { continue };
            assert_eq!(run.index(), next, "runs are consumed in stream order");
            next += 1;
            let run = &sm.stream[run.index()];
            let RunSource::Weight { buffer, lo, hi, tiles, blocks } = run.source else {
                panic!("{id} has a kv run");
            };
            let w = weight.unwrap();
            let b = p.buffer(buffer).unwrap();
            assert_eq!((w.lo, w.hi, w.shape.as_slice()), (lo, hi, b.shape.as_slice()), "{id}");
            assert!(lo.is_multiple_of(TILE_ROWS) && lo < hi && hi <= b.shape[0], "{id}");
            assert!(tiles == 1 || u64::from(blocks) == weight_blocks(b).unwrap(), "{id}");
            assert!(run.source.chunk_bytes(b).unwrap() <= p.resources.slot_bytes, "{id}");
            assert!(run.source.chunks(b).unwrap() > 0, "{id}");
            assert!((1..=p.resources.ring_slots).contains(&run.window), "{id}");
            rows.entry(buffer.0).or_default().push((lo, hi));
        }
        assert_eq!(next, sm.stream.len(), "every run is consumed");
        let last = p.instruction(*sm.queue.last().unwrap()).unwrap();
        assert_eq!(last.op.name(), "boundary");
    }
    for b in p.buffers.iter().filter(|b| b.kind == BufferKind::Weight) {
        let mut parts = rows.remove(&b.id.0).unwrap_or_default();
        parts.sort_unstable();
        let mut at = 0;
        for (lo, hi) in parts {
            assert_eq!(lo, at, "rows of {} overlap or are missing", b.name);
            at = hi;
        }
        assert_eq!(at, b.shape[0], "{}", b.name);
    }
}

/// The shared-memory map fits the target, every area is large enough and none overlap.
pub fn check_resources(p: &Program, target: &Target, mode: Mode) {
    let cx = OpContext { tokens: u64::from(p.tokens) };
    let r = &p.resources;
    assert!(r.ring_slots >= 2);
    let area = |a: Area| r.shared.iter().find(|s| s.area == a).map_or(0, |s| s.bytes);
    assert_eq!(area(Area::Ring), u64::from(r.ring_slots) * r.slot_bytes);
    assert_eq!(area(Area::Mbarrier), 16 * u64::from(r.ring_slots));
    assert!(area(Area::Control) > 0);
    for i in &p.instructions {
        for (kind, bytes) in i.op.shared(cx, r, mode.terms()) {
            assert!(bytes <= area(kind), "{} needs {bytes} bytes of {kind:?}", i.id);
        }
    }
    let mut at = 0;
    for s in &r.shared {
        assert!(s.offset >= at && s.offset.is_multiple_of(128));
        at = s.offset + s.bytes;
    }
    assert!(at <= target.shared_per_block);
    assert!(r.threads() * u64::from(r.registers) <= u64::from(target.registers_per_sm));
    assert!(r.registers.is_multiple_of(8) && r.registers <= target.registers_per_thread);
}

/// Counters add up, packet words are whole, recipes are where contents come from outside.
pub fn check_sync(lowered: &Lowered) {
    let p = &lowered.program;
    let mut sums = vec![0; p.counters.len()];
    for s in p.instructions.iter().flat_map(|i| &i.signals) {
        sums[s.counter.index()] += s.amount;
    }
    for c in &p.counters {
        assert_eq!(c.per_step, sums[c.id.index()], "{}", c.name);
        assert!(c.per_step > 0, "{}", c.name);
    }
    for w in p.instructions.iter().flat_map(|i| &i.waits) {
        assert_eq!(w.threshold, p.counters[w.counter.index()].per_step);
    }
    for b in p.buffers.iter().filter(|b| b.sync == BufferSync::Packet) {
        let words = b.dtype.per_word();
        assert!(b.shape.last().unwrap().is_multiple_of(words), "{}", b.name);
        let accesses = p.instructions.iter().flat_map(|i| i.reads.iter().chain(&i.writes));
        for a in accesses.filter(|a| a.buffer == b.id) {
            let span = a.region.0.last().unwrap();
            assert!(span.lo.eval(0) % i128::from(words) == 0, "{}", b.name);
            assert!(span.hi.eval(0) % i128::from(words) == 0, "{}", b.name);
        }
    }
    assert_eq!(lowered.recipes.len(), p.buffers.len());
    for (b, recipe) in p.buffers.iter().zip(&lowered.recipes) {
        // A launch brings the settings of its draws.
        let read_only = matches!(b.kind, BufferKind::Weight | BufferKind::Constant);
        let filled = read_only && b.dtype != DType::U32;
        assert_eq!(recipe.is_some(), filled, "{}", b.name);
    }
}

/// Everything above.
pub fn check(lowered: &Lowered, target: &Target, mode: Mode) {
    check_footprints(&lowered.program);
    check_runs(&lowered.program);
    check_resources(&lowered.program, target, mode);
    check_sync(lowered);
    let program = match amk_validator::validate(lowered.program.clone(), target) {
        Ok(program) => program,
        Err(rejected) => {
            let faults: Vec<String> =
                rejected.faults.iter().take(8).map(ToString::to_string).collect();
            panic!("{}: {} faults:\n{}", target.name, rejected.faults.len(), faults.join("\n"));
        }
    };
    // A kernel multiplies one block of 16 rows at once.
    let hidden = program.buffers.iter().find(|b| b.name == "layer 0 hidden after mlp").unwrap();
    if u64::from(program.tokens) * hidden.dtype.terms() <= 16 {
        amk::codegen::render(&program, target, amk::codegen::RenderOptions::default()).unwrap();
    }
    let text = amk_schedule_ir::text::print(&lowered.program);
    assert_eq!(amk_schedule_ir::text::parse(&text).unwrap(), lowered.program);
}
