//! Recipes: the tensors they name exist, with as many elements as the buffers they fill.

use std::collections::BTreeSet;

use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk::lowered::{Lowered, Recipe};
use amk_models::Checkpoint;
use amk_schedule_ir::DType;
use amk_schedule_ir::program::BufferKind;

use crate::common::{check, target};

fn lowered(checkpoint: &Checkpoint, mode: Mode) -> Lowered {
    let lowered =
        lower_for(&Shape::of(checkpoint), &target(12), &Knobs::default(), 0, mode).unwrap();
    check(&lowered, &target(12), mode);
    lowered
}

#[test]
fn recipes_of_the_embedded_model_fill_every_buffer_and_use_every_tensor() {
    let checkpoint = Checkpoint::embedded().unwrap();
    for mode in [Mode::Bf16, Mode::F32] {
        let lowered = lowered(&checkpoint, mode);
        let mut used = BTreeSet::new();
        for (buffer, recipe) in lowered.program.buffers.iter().zip(&lowered.recipes) {
            let names: Vec<&String> = match recipe {
                None => continue,
                Some(Recipe::Rope) => {
                    let c = checkpoint.config();
                    let table = [c.max_position_embeddings as u64, c.head_dim as u64];
                    assert_eq!(buffer.shape, table);
                    continue;
                }
                Some(Recipe::LocalRope) => panic!("it has one rotary base"),
                Some(Recipe::OnePlus(name)) => vec![name],
                Some(Recipe::Concat(names)) => names.iter().collect(),
                Some(Recipe::Interleave(a, b)) => vec![a, b],
            };
            let mut elements = 0;
            for name in names {
                let tensor = checkpoint.weights().iter().find(|t| t.name() == name).unwrap();
                let width = buffer.shape.get(1).copied().unwrap_or(buffer.shape[0]);
                assert_eq!(tensor.cols() as u64, width, "{name}");
                assert_eq!(tensor.dtype(), amk_models::DType::Bf16, "{name}");
                assert_eq!(buffer.dtype, DType::Bf16, "{}", buffer.name);
                elements += (tensor.rows() * tensor.cols()) as u64;
                used.insert(name.clone());
            }
            assert_eq!(elements, buffer.shape.iter().product::<u64>(), "{}", buffer.name);
        }
        let all: BTreeSet<String> =
            checkpoint.weights().iter().map(|t| t.name().to_owned()).collect();
        assert_eq!(used, all);
    }
}

#[test]
fn the_mode_decides_the_types_of_activations_and_cache() {
    let checkpoint = Checkpoint::embedded().unwrap();
    for (mode, dtype) in [(Mode::Bf16, DType::Bf16), (Mode::F32, DType::F32)] {
        let lowered = lowered(&checkpoint, mode);
        let of = |kind| lowered.program.buffers.iter().filter(move |b| b.kind == kind);
        assert!(of(BufferKind::Kv).all(|b| b.dtype == dtype));
        let hidden = of(BufferKind::Activation).filter(|b| b.name.contains("hidden after"));
        assert!(hidden.clone().count() > 0 && hidden.clone().all(|b| b.dtype == dtype));
    }
}
