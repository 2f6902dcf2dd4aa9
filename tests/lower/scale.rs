//! Large shapes on real parts, and repeatability.

use amk::lower::{Knobs, Mode, Shape, lower_for};
use amk_schedule_ir::DType;

use crate::common::{check, sizes, small_target, target};

fn llama_1b() -> Shape {
    Shape::llama("1b", sizes(2048, 16, 32, 8, 64, 8192, 128_256, 131_072), true, DType::Bf16)
}

fn llama_8b() -> Shape {
    Shape::llama("8b", sizes(4096, 32, 32, 8, 128, 14_336, 128_256, 131_072), false, DType::Bf16)
}

#[test]
fn large_shapes_fit_both_kinds_of_part() {
    for shape in [llama_1b(), llama_8b()] {
        for target in [target(132), small_target()] {
            for position in [0, 300, 1500, 100_000] {
                let knobs = Knobs::default();
                let lowered = lower_for(&shape, &target, &knobs, position, Mode::Bf16).unwrap();
                check(&lowered, &target, Mode::Bf16);
            }
        }
    }
}

#[test]
fn same_inputs_give_the_same_text() {
    let once = || {
        let l = lower_for(&llama_1b(), &target(132), &Knobs::default(), 1000, Mode::F32).unwrap();
        amk_schedule_ir::text::print(&l.program)
    };
    assert_eq!(once(), once());
}
