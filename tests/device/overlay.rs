//! Arenas of programs with other buckets and other numbers of positions a step lie over each other.

use amk::codegen::Arena;
use amk::engine::{Memory, Want, choose, overlay, pack};
use amk::lower::{Knobs, Mode, Shape, lower, most_tokens};
use amk::lowered::Lowered;
use amk::pack::{StreamLayout, chunks};
use amk::target::{Target, resolve};
use amk::vm::RecipeData;
use amk_models::{Checkpoint, shape_only};
use amk_schedule_ir::{BufferKind, Program};
use amk_validator::validate;

fn target() -> Target {
    resolve("h200").unwrap().target
}

/// All programs of a run as the engine lowers them.
fn programs(shape: &Shape, mode: Mode, prompt: u64, positions: u64) -> Vec<Lowered> {
    programs_of(shape, mode, prompt, positions, &Knobs::default())
}

fn programs_of(
    shape: &Shape,
    mode: Mode,
    prompt: u64,
    positions: u64,
    knobs: &Knobs,
) -> Vec<Lowered> {
    let target = target();
    let prefill = most_tokens(shape, &target, knobs, 0, mode);
    let want = Want::Sequence { prompt, positions };
    let (ranges, capacity) = choose(shape.sizes.max_positions, &want, prefill);
    ranges
        .iter()
        .map(|r| {
            let knobs = Knobs { tokens: r.tokens, capacity: Some(capacity), ..knobs.clone() };
            lower(shape, &target, &knobs, r.bucket, mode).unwrap()
        })
        .collect()
}

#[test]
fn caches_and_constants_coincide_for_every_shape() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes");
    let mut shapes = vec![Shape::of(&Checkpoint::embedded().unwrap())];
    for name in ["smollm2-360m", "llama-3.2-1b", "tinyllama-1.1b"] {
        let config = shape_only(&folder.join(format!("{name}.json"))).unwrap();
        let mut shape = Shape::of_config(name, &config);
        // Layers are alike.
        shape.sizes.layers = 2;
        shape.layers.truncate(2);
        shapes.push(shape);
    }
    for shape in &shapes {
        for (mode, sampled) in [(Mode::Bf16, false), (Mode::F32, false), (Mode::Bf16, true)] {
            let positions = shape.sizes.max_positions.min(600);
            let knobs = Knobs { sampled, ..Knobs::default() };
            let lowered = programs_of(shape, mode, 300, positions, &knobs);
            assert!(lowered.iter().any(|l| l.program.tokens > 1), "{}", shape.name);
            let all: Vec<&Program> = lowered.iter().map(|l| &l.program).collect();
            let plan = overlay(&all).unwrap();
            let place = |p: &Program, shift: u64, kind: BufferKind| -> Vec<u64> {
                let arena = Arena::new(p);
                let of_kind = p.buffers.iter().filter(|b| b.kind == kind);
                of_kind.map(|b| shift + arena.offset(b.id)).collect()
            };
            for kind in [BufferKind::Kv, BufferKind::Constant, BufferKind::Output] {
                let first = place(all[0], plan.shifts[0], kind);
                assert!(!first.is_empty());
                for (p, shift) in all.iter().zip(&plan.shifts) {
                    assert_eq!(place(p, *shift, kind), first, "{} {kind:?}", shape.name);
                    assert!(shift + Arena::new(p).bytes <= plan.bytes);
                }
            }
            let memory = Memory::of(&all, &plan, 10, 20);
            let kv = shape.sizes.layers * 2 * shape.sizes.kv_heads * shape.sizes.head_dim;
            let capacity = shape.sizes.max_positions.min(4096);
            assert_eq!(memory.kv, kv * capacity * mode.dtype().bytes());
            assert_eq!(memory.total(), plan.bytes + 30);
        }
    }
}

#[test]
fn programs_with_other_streams_are_refused() {
    let shape = Shape::of(&Checkpoint::embedded().unwrap());
    let of = |knobs: Knobs| {
        let bucket = amk_schedule_ir::Bucket { first: 0, last: 255 };
        lower(&shape, &target(), &knobs, bucket, Mode::Bf16).unwrap().program
    };
    let plain = of(Knobs::default());
    let rotated = of(Knobs { rotation: 3, ..Knobs::default() });
    let text = overlay(&[&plain, &rotated]).unwrap_err().to_string();
    assert!(text.contains("different weights"), "{text}");
    let longer = of(Knobs { capacity: Some(300), ..Knobs::default() });
    let text = overlay(&[&plain, &longer]).unwrap_err().to_string();
    assert!(text.contains("caches"), "{text}");
    assert!(overlay(&[]).is_err());
}

/// Pieces packed on many threads are the stream the producer walks, byte after byte.
#[test]
fn pieces_are_the_stream_without_gaps() {
    let checkpoint = Checkpoint::embedded().unwrap();
    let shape = Shape::of(&checkpoint);
    let lowered = programs(&shape, Mode::Bf16, 1, 64).remove(0);
    let data = RecipeData::new(&lowered, &checkpoint).unwrap();
    let program = validate(lowered.program.clone(), &target()).unwrap();
    let tables = amk::codegen::tables(&program).unwrap();
    let (mut next, mut all) = (0, blake3::Hasher::new());
    pack(&program, &tables.weight_at, tables.weight_bytes, &data, &mut |at, bytes| {
        assert_eq!(at, next);
        next += bytes.len() as u64;
        all.update(bytes);
        Ok(())
    })
    .unwrap();
    assert_eq!(next, tables.weight_bytes);
    let walked: u64 = (0..program.sms.len())
        .map(|sm| chunks(&program, sm).unwrap().iter().map(|c| c.bytes).sum::<u64>())
        .sum();
    assert_eq!(walked, next);
    // Any size of piece gives the same bytes.
    let layout = StreamLayout::new(&program).unwrap();
    for size in [1, 5000, u64::MAX / 4] {
        let mut hasher = blake3::Hasher::new();
        for piece in layout.pieces(&program, size).unwrap() {
            hasher.update(&layout.pack_piece(&program, &piece, &data).unwrap());
        }
        assert_eq!(hasher.finalize(), all.finalize(), "{size}");
    }
    let mut fails = |_: u64, _: &[u8]| Err(amk::engine::EngineError::Mismatch("full".into()));
    assert!(pack(&program, &tables.weight_at, tables.weight_bytes, &data, &mut fails).is_err());
    let wrong = tables.weight_bytes + 1;
    assert!(pack(&program, &tables.weight_at, wrong, &data, &mut |_, _| Ok(())).is_err());
}
