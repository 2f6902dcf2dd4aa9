//! Large shapes on real parts, from configs alone, and repeatability.

use std::path::Path;

use amk::graph::DependenceGraph;
use amk::lower::{Knobs, LowerError, Mode, Shape, lower_for, most_tokens};
use amk_models::shape_only;

use crate::common::{check, small_target, target};

fn config(file: &str) -> Shape {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/shapes").join(file);
    Shape::of_config(file, &shape_only(&path).unwrap())
}

const SHAPES: [&str; 10] = [
    "gemma-2-2b.json",
    "gemma-3-4b.json",
    "llama-3.1-70b.json",
    "llama-3.1-8b.json",
    "llama-3.2-1b.json",
    "llama-3.2-3b.json",
    "olmo-2-7b.json",
    "smollm2-1.7b.json",
    "smollm2-360m.json",
    "tinyllama-1.1b.json",
];

#[test]
fn every_shape_lowers_from_its_config_alone() {
    for file in SHAPES {
        let shape = config(file);
        let target = target(132);
        let lowered = lower_for(&shape, &target, &Knobs::default(), 0, Mode::Bf16).unwrap();
        check(&lowered, &target, Mode::Bf16);
    }
}

/// Long contexts (split attention, merges), small parts, float32 activations.
#[test]
fn a_large_shape_lowers_for_every_bucket_and_mode() {
    for target in [target(132), small_target()] {
        for (position, mode) in [(300, Mode::Bf16), (100_000, Mode::Bf16), (1500, Mode::F32)] {
            let shape = config("llama-3.2-1b.json");
            let lowered = lower_for(&shape, &target, &Knobs::default(), position, mode).unwrap();
            check(&lowered, &target, mode);
        }
    }
}

#[test]
fn a_part_too_small_for_a_shape_is_refused_with_numbers() {
    // Three bf16 terms of a row of 28,672 do not fit 99 KB.
    let shape = config("llama-3.1-70b.json");
    let error = lower_for(&shape, &small_target(), &Knobs::default(), 0, Mode::F32).unwrap_err();
    assert!(matches!(error, LowerError::SharedMemory { .. }), "{error}");
    assert!(error.to_string().contains("101376"), "{error}");
}

#[test]
fn prefill_takes_as_many_positions_as_leave_a_ring() {
    let knobs = Knobs::default();
    let ring = |l: &amk::lowered::Lowered| {
        let r = &l.program.resources;
        u64::from(r.ring_slots) * r.slot_bytes
    };
    for file in ["llama-3.2-1b.json", "smollm2-360m.json"] {
        let shape = config(file);
        for (target, mode) in [(target(132), Mode::Bf16), (small_target(), Mode::F32)] {
            let tokens = most_tokens(&shape, &target, &knobs, 0, mode);
            let with = |tokens| {
                let knobs = Knobs { tokens, ..knobs.clone() };
                lower_for(&shape, &target, &knobs, 0, mode)
            };
            assert!(tokens >= 1 && u64::from(tokens) * mode.terms() <= 16);
            let most = with(tokens).unwrap();
            check(&most, &target, mode);
            let wanted = (64 << 10).min(ring(&with(1).unwrap()) / 2);
            assert!(tokens == 1 || ring(&most) >= wanted, "{file}: {}", ring(&most));
            // One more would leave too little.
            let more = u64::from(tokens + 1) * mode.terms() <= 16;
            assert!(!more || with(tokens + 1).map_or(0, |l| ring(&l)) < wanted, "{file}");
        }
    }
    // The last position of a model leaves room for one.
    let shape = config("llama-3.2-1b.json");
    assert_eq!(most_tokens(&shape, &target(132), &knobs, 131_071, Mode::Bf16), 1);
}

#[test]
fn same_inputs_give_the_same_text() {
    let once = || {
        let shape = config("llama-3.2-1b.json");
        let target = target(132);
        let l = lower_for(&shape, &target, &Knobs::default(), 1000, Mode::F32).unwrap();
        let dot = DependenceGraph::new(&l.program, &target).dot();
        (amk_schedule_ir::text::print(&l.program), dot)
    };
    assert_eq!(once(), once());
}
