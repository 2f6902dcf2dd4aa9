//! Each knob: two values give two programs, beyond the provenance they carry. Bad values are refused
//! by name.

use amk::codegen::RenderOptions;
use amk::lower::{
    EdgeKind, Edges, Groups, Knobs, LowerError, Mode, Shape, Tiles, Variants, Windows,
};
use amk_schedule_ir::DType;

use crate::common::{check, first, odd_shape, sizes, target};

/// The program's text without its provenance.
fn body(knobs: &Knobs) -> String {
    // Three heads a group, two splits: every class of edge and every choice of unit exists.
    let shape = Shape::llama("knobs", sizes(96, 2, 6, 2, 16, 200, 300, 512), true, DType::Bf16);
    let target = target(12);
    let mut lowered = first(&shape, &target, knobs, Mode::Bf16).unwrap();
    check(&lowered, &target, Mode::Bf16);
    lowered.program.meta.clear();
    amk_schedule_ir::text::print(&lowered.program)
}

/// The kernel's text, without the line that holds the program's hash.
fn source(knobs: &Knobs) -> String {
    let shape = Shape::llama("knobs", sizes(96, 2, 6, 2, 16, 200, 300, 512), true, DType::Bf16);
    let target = target(12);
    let lowered = first(&shape, &target, knobs, Mode::Bf16).unwrap();
    let program = amk_validator::validate(lowered.program, &target).unwrap();
    let options = knobs.render_options(RenderOptions::default());
    let text = amk::codegen::render(&program, &target, options).unwrap().text;
    text.lines().filter(|l| !l.contains("amk_program_hash")).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_knob_changes_the_program() {
    let base = Knobs { splits: Some(2), slot_bytes: Some(1024), ..Knobs::default() };
    let counter = EdgeKind::Counter;
    let with_edges = |edges: Edges| Knobs { edges, ..base.clone() };
    let with_windows = |windows: Windows| Knobs { windows, ..base.clone() };
    let d = Edges::default();
    let w = Windows::default();
    let t = Tiles::default();
    let changed = [
        ("edges.hidden", with_edges(Edges { hidden: counter, ..d })),
        ("edges.qkv", with_edges(Edges { qkv: counter, ..d })),
        ("edges.attention", with_edges(Edges { attention: counter, ..d })),
        ("edges.act", with_edges(Edges { act: counter, ..d })),
        ("edges.partial", with_edges(Edges { partial: counter, ..d })),
        ("consumer_warps", Knobs { consumer_warps: 4, ..base.clone() }),
        ("slot_bytes", Knobs { slot_bytes: Some(512), ..base.clone() }),
        ("ring_slots", Knobs { ring_slots: Some(3), ..base.clone() }),
        ("windows.dense", with_windows(Windows { dense: Some(1), ..w })),
        ("windows.chain", with_windows(Windows { chain: Some(1), ..w })),
        ("windows.head", with_windows(Windows { head: Some(1), ..w })),
        ("splits", Knobs { splits: Some(3), ..base.clone() }),
        ("q_heads_per_unit", Knobs { q_heads_per_unit: Some(2), ..base.clone() }),
        ("rotation", Knobs { rotation: 5, ..base.clone() }),
        ("unit_stride", Knobs { unit_stride: Some(2), ..base.clone() }),
        ("grid", Knobs { grid: Some(11), ..base.clone() }),
        ("tokens", Knobs { tokens: 2, ..base.clone() }),
        ("capacity", Knobs { capacity: Some(256), ..base.clone() }),
        ("registers", Knobs { registers: Some(128), ..base.clone() }),
        ("tiles.qkv", Knobs { tiles: Tiles { qkv: Some(1), ..t }, ..base.clone() }),
        ("tiles.gate_up", Knobs { tiles: Tiles { gate_up: Some(2), ..t }, ..base.clone() }),
        ("tiles.head", Knobs { tiles: Tiles { head: Some(1), ..t }, ..base.clone() }),
        ("balance", Knobs { balance: Some("555555755555".to_owned()), ..base.clone() }),
        ("merge_heads", Knobs { merge_heads: Some(3), ..base.clone() }),
    ];
    // The kernel's text alone.
    let g = Groups::default();
    let sum = Some("pairs".to_owned());
    let text_alone = [
        ("taken", Knobs { taken: Some(2), ..base.clone() }),
        ("accumulators", Knobs { accumulators: Some(2), ..base.clone() }),
        ("unroll", Knobs { unroll: Some(2), ..base.clone() }),
        ("fragments", Knobs { fragments: Some(0), ..base.clone() }),
        ("groups.layers", Knobs { groups: Groups { layers: Some(4), ..g }, ..base.clone() }),
        ("groups.head", Knobs { groups: Groups { head: Some(4), ..g }, ..base.clone() }),
        ("variants.sum", Knobs { variants: Variants { sum }, ..base.clone() }),
    ];
    let json = serde_json::to_value(&base).unwrap();
    let mut names: Vec<String> = Vec::new();
    for (name, value) in json.as_object().unwrap() {
        match value.as_object() {
            Some(inner) => names.extend(inner.keys().map(|k| format!("{name}.{k}"))),
            None => names.push(name.clone()),
        }
    }
    names.sort_unstable();
    let mut tested: Vec<&str> = changed.iter().chain(&text_alone).map(|(name, _)| *name).collect();
    tested.sort_unstable();
    assert_eq!(tested, names, "a knob has no case here");

    let text = body(&base);
    for (name, knobs) in changed {
        assert_ne!(body(&knobs), text, "{name} changes nothing");
    }
    for (name, knobs) in text_alone {
        assert_eq!(body(&knobs), text, "{name}");
        assert_ne!(source(&knobs), source(&base), "{name} changes nothing");
    }
    // The bound of registers is in both.
    assert!(source(&Knobs { registers: Some(128), ..base.clone() }).contains("__maxnreg__(128)"));
    // What is no choice of the search, and is not said where it is not asked for.
    let drawn = Knobs { sampled: true, ..base.clone() };
    assert_ne!(body(&drawn), text, "sampled changes nothing");
    assert!(serde_json::from_str::<Knobs>(r#"{"sampled": true}"#).unwrap().sampled);
}

#[test]
fn knobs_survive_json_and_unknown_ones_are_refused() {
    let knobs = Knobs { splits: Some(4), rotation: 3, ..Knobs::default() };
    let json = serde_json::to_string(&knobs).unwrap();
    assert_eq!(serde_json::from_str::<Knobs>(&json).unwrap(), knobs);
    assert_eq!(serde_json::from_str::<Knobs>("{}").unwrap(), Knobs::default());
    assert!(serde_json::from_str::<Knobs>(r#"{"rotations": 1}"#).is_err());
}

#[test]
fn bad_knobs_are_refused_by_name() {
    let base = Knobs::default();
    let cases = [
        ("consumer_warps", Knobs { consumer_warps: 0, ..base.clone() }),
        ("consumer_warps", Knobs { consumer_warps: 32, ..base.clone() }),
        ("slot_bytes", Knobs { slot_bytes: Some(1000), ..base.clone() }),
        ("slot_bytes", Knobs { slot_bytes: Some(1 << 30), ..base.clone() }),
        ("ring_slots", Knobs { ring_slots: Some(1), ..base.clone() }),
        (
            "windows.chain",
            Knobs { windows: Windows { chain: Some(0), ..Windows::default() }, ..base.clone() },
        ),
        ("splits", Knobs { splits: Some(0), ..base.clone() }),
        ("q_heads_per_unit", Knobs { q_heads_per_unit: Some(4), ..base.clone() }),
        ("unit_stride", Knobs { unit_stride: Some(0), ..base.clone() }),
        ("grid", Knobs { grid: Some(13), ..base.clone() }),
        ("tokens", Knobs { tokens: 17, ..base.clone() }),
        ("capacity", Knobs { capacity: Some(513), ..base.clone() }),
        ("registers", Knobs { registers: Some(255), ..base.clone() }),
        (
            "tiles.head",
            Knobs { tiles: Tiles { head: Some(0), ..Tiles::default() }, ..base.clone() },
        ),
        ("balance", Knobs { balance: Some("5555".to_owned()), ..base.clone() }),
        ("balance", Knobs { balance: Some("5555x5555555".to_owned()), ..base.clone() }),
        ("merge_heads", Knobs { merge_heads: Some(0), ..base.clone() }),
        ("taken", Knobs { taken: Some(4), ..base.clone() }),
        ("accumulators", Knobs { accumulators: Some(3), ..base.clone() }),
        ("unroll", Knobs { unroll: Some(0), ..base.clone() }),
        ("fragments", Knobs { fragments: Some(17), ..base.clone() }),
        (
            "groups.head",
            Knobs { groups: Groups { head: Some(1), ..Groups::default() }, ..base.clone() },
        ),
        (
            "variants.sum",
            Knobs { variants: Variants { sum: Some("best".to_owned()) }, ..base.clone() },
        ),
    ];
    for (name, knobs) in cases {
        let error = first(&odd_shape(), &target(12), &knobs, Mode::Bf16).unwrap_err();
        assert!(matches!(error, LowerError::Knob { knob, .. } if knob == name), "{name}: {error}");
        assert!(error.to_string().contains(name));
    }
}

#[test]
fn models_and_parts_that_do_not_fit_are_refused_with_numbers() {
    let knobs = Knobs::default();
    let odd = Shape::llama("odd", sizes(61, 1, 2, 1, 16, 64, 64, 64), true, DType::Bf16);
    let error = first(&odd, &target(4), &knobs, Mode::Bf16).unwrap_err().to_string();
    assert!(error.contains("hidden size is 61") && error.contains("even"), "{error}");

    let mut small = target(4);
    small.shared_per_block = 16 << 10;
    let error = first(&odd_shape(), &small, &knobs, Mode::F32).unwrap_err().to_string();
    assert!(error.contains("16384 bytes of shared memory"), "{error}");

    let short = Knobs { capacity: Some(100), ..knobs };
    let error = first(&odd_shape(), &target(4), &short, Mode::Bf16).unwrap_err().to_string();
    assert!(error.contains("256") && error.contains("100"), "{error}");
}
