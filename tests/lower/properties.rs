//! Random shapes, targets and knobs: every lowering passes every check.

use amk::lower::{EdgeKind, Edges, Knobs, LowerError, Mode, Shape, Windows, lower};
use amk_schedule_ir::{Bucket, DType};
use proptest::prelude::*;

use crate::common::{check, sizes, target};

fn edge() -> impl Strategy<Value = EdgeKind> {
    prop_oneof![Just(EdgeKind::Packet), Just(EdgeKind::Counter)]
}

prop_compose! {
    fn edges()(hidden in edge(), qkv in edge(), attention in edge(), act in edge(), partial in edge()) -> Edges {
        Edges { hidden, qkv, attention, act, partial }
    }
}

prop_compose! {
    fn shape()(
        hidden in 4u64..=150,
        layers in 1u64..=3,
        kv_heads in 1u64..=4,
        group in 1u64..=4,
        head_dim in 4u64..=32,
        inner in 1u64..=400,
        vocab in 1u64..=600,
        max_positions in 16u64..=300,
        tied in any::<bool>(),
        dtype in prop_oneof![Just(DType::Bf16), Just(DType::F16), Just(DType::F32)],
        other in prop_oneof![Just(DType::Bf16), Just(DType::F32)],
    ) -> Shape {
        let s = sizes(
            2 * hidden, layers, kv_heads * group, kv_heads, 2 * head_dim, inner, vocab, max_positions,
        );
        let mut shape = Shape::llama("random", s, tied, dtype);
        // Mixed storage types within one fused matrix.
        shape.layers[0].key.dtype = other;
        shape.layers[0].input_norm.iter_mut().for_each(|t| t.dtype = other);
        shape
    }
}

prop_compose! {
    fn knobs()(
        edges in edges(),
        consumer_warps in 1u32..=8,
        slot_blocks in proptest::option::of(1u64..=32),
        ring_slots in proptest::option::of(2u32..=20),
        window in (proptest::option::of(1u32..=30), proptest::option::of(1u32..=30), proptest::option::of(1u32..=30)),
        splits in proptest::option::of(1u32..=6),
        q_heads in proptest::option::of(1u64..=4),
        rotation in 0u32..=25,
        unit_stride in proptest::option::of(1u32..=25),
        tokens in prop_oneof![3 => Just(1u32), 1 => 1u32..=16],
    ) -> Knobs {
        Knobs {
            edges,
            consumer_warps,
            slot_bytes: slot_blocks.map(|n| n * 512),
            ring_slots,
            windows: Windows { dense: window.0, chain: window.1, head: window.2 },
            splits,
            q_heads_per_unit: q_heads,
            rotation,
            unit_stride,
            tokens,
            ..Knobs::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_lowering_passes_every_check(
        shape in shape(),
        mut knobs in knobs(),
        sms in 1u32..=20,
        f32_mode in any::<bool>(),
        cut in 0u64..=200,
    ) {
        let mode = if f32_mode { Mode::F32 } else { Mode::Bf16 };
        knobs.q_heads_per_unit = knobs.q_heads_per_unit.map(|n| n.min(shape.sizes.group()));
        let target = target(sms);
        let last = shape.sizes.max_positions - u64::from(knobs.tokens);
        let first = cut.min(last);
        let bucket = Bucket { first, last: last.min(first + cut) };
        match lower(&shape, &target, &knobs, bucket, mode) {
            Ok(lowered) => check(&lowered, &target, mode),
            // Many positions at once may need more than a block has; one position never does here.
            Err(LowerError::SharedMemory { available, staging, ring, .. }) => {
                prop_assert!(knobs.tokens > 4 && staging + ring > available);
            }
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }
}
