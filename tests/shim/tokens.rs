//! Tokens of the kernel text equal the reference's, over seeds, rings, element types and edges, and no
//! rule of the GPU that the host can see is broken.

use std::fs;

use amk::codegen::InFlight;
use amk::lower::{EdgeKind, Edges, Knobs, Mode};
use amk_models::{Checkpoint, greedy};

use crate::build::{Build, Host};
use crate::support::{Case, Launch, checkpoint, folder};
use crate::tiny::Tiny;

/// Knobs for few threads and many chunks.
pub fn small() -> Knobs {
    Knobs {
        consumer_warps: 2,
        slot_bytes: Some(1024),
        ring_slots: Some(3),
        capacity: Some(64),
        ..Knobs::default()
    }
}

/// Plain memory and counters on every edge.
pub fn counters() -> Edges {
    Edges {
        hidden: EdgeKind::Counter,
        qkv: EdgeKind::Counter,
        attention: EdgeKind::Counter,
        act: EdgeKind::Counter,
        partial: EdgeKind::Counter,
    }
}

fn tiny(name: &str, tiny: Tiny) -> Checkpoint {
    tiny.checkpoint(&folder(name).join("model"))
}

/// Steps of a case: a prompt of 3 and as many new tokens.
const PROMPT: usize = 3;
const NEW: usize = 5;

/// Compares with the reference: logits of every position along the reference's own tokens, then
/// free-running tokens, one launch per step and one launch for all.
pub fn check(name: &str, case: &Case, mode: Mode, seeds: std::ops::Range<u64>) {
    check_steps(name, case, mode, seeds, NEW);
}

/// The same over `new` new tokens.
fn check_steps(name: &str, case: &Case, mode: Mode, seeds: std::ops::Range<u64>, new: usize) {
    let folder = folder(name);
    let host = Host::new(&case.render().text, &folder, Build::Plain);
    let prompt = case.prompt(PROMPT);
    let (tokens, logits) = case.expected(&prompt, new);
    let ok = |seed: u64| {
        let run = host.run(seed, 0);
        assert_eq!(run.code, Some(0), "{name} seed {seed}: {}{}", run.stdout, run.stderr);
        run
    };
    let steps = (PROMPT + new - 1) as u64;
    let single: Vec<Launch> = (0..steps)
        .map(|pos0| Launch { pos0, steps: 1, epoch_base: 7 + pos0, ..Launch::default() })
        .collect();
    let whole = [Launch { steps, epoch_base: u64::from(u32::MAX) - 3, ..Launch::default() }];
    let forced: Vec<u32> = prompt.iter().chain(&tokens).copied().collect();
    let mut first: Option<Vec<Vec<f32>>> = None;
    for seed in seeds {
        case.write(&folder, &forced, &single);
        ok(seed);
        let got: Vec<Vec<f32>> = (PROMPT - 1..steps as usize).map(|at| host.logits(at)).collect();
        for (at, (got, want)) in got.iter().zip(&logits).enumerate() {
            let spread = want.iter().fold(0f32, |m, v| m.max(v.abs()));
            let far = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            // Rounding adds up with the past.
            let bf16 = if new > NEW { 0.1 } else { 0.05 };
            let limit = if mode == Mode::F32 { 2e-5 } else { bf16 } * spread;
            assert!(far < limit, "{name} seed {seed} token {at}: logits off by {far} of {spread}");
        }
        // Every sum has one order, so the same bits come out of every interleaving.
        match &first {
            None => first = Some(got.clone()),
            Some(first) => assert_eq!(*first, got, "{name} seed {seed}"),
        }
        case.write(&folder, &prompt, &whole);
        let run = ok(seed + 1000);
        let free = run.tokens[0][PROMPT - 1..].to_vec();
        assert_eq!(free.len(), new, "{name} seed {seed}");
        // Up to its first departure from the reference the free run has seen the same tokens.
        for (at, token) in free.iter().enumerate() {
            assert_eq!(Some(*token), greedy(&got[at]), "{name} seed {seed} token {at}");
            if *token != tokens[at] {
                assert!(mode == Mode::Bf16, "{name} seed {seed} token {at}");
                break;
            }
        }
        case.write(&folder, &prompt, &single);
        let run = ok(seed + 2000);
        assert_eq!(run.tokens[PROMPT - 1..].concat(), free, "{name} seed {seed}");
    }
}

#[test]
fn bulk_packets_f32() {
    let name = "bulk_packets_f32";
    let case = Case::new(tiny(name, Tiny::default()), 3, true, &small(), Mode::F32);
    check(name, &case, Mode::F32, 0..3);
}

#[test]
fn bulk_packets_bf16() {
    let name = "bulk_packets_bf16";
    let model = tiny(name, Tiny { heads: 4, kv_heads: 2, ..Tiny::default() });
    let case = Case::new(model, 3, true, &small(), Mode::Bf16);
    check(name, &case, Mode::Bf16, 0..3);
}

#[test]
fn async_counters_f32() {
    let name = "async_counters_f32";
    let knobs = Knobs { edges: counters(), ..small() };
    let case =
        Case::new(tiny(name, Tiny { f32: true, ..Tiny::default() }), 2, false, &knobs, Mode::F32);
    check(name, &case, Mode::F32, 0..3);
}

#[test]
fn async_split_counters_bf16() {
    let name = "async_split_counters_bf16";
    let knobs = Knobs { edges: counters(), splits: Some(2), ..small() };
    let case = Case::new(tiny(name, Tiny::default()), 3, false, &knobs, Mode::Bf16);
    check(name, &case, Mode::Bf16, 0..2);
}

#[test]
fn bulk_split_packets_f32() {
    let name = "bulk_split_packets_f32";
    let knobs = Knobs { splits: Some(3), q_heads_per_unit: Some(1), ..small() };
    let case = Case::new(tiny(name, Tiny::default()), 4, true, &knobs, Mode::F32);
    check(name, &case, Mode::F32, 0..2);
}

#[test]
fn two_slots_one_block_chunks() {
    let name = "two_slots_one_block_chunks";
    let knobs = Knobs { ring_slots: Some(2), slot_bytes: Some(512), ..small() };
    let model = Tiny { hidden: 80, inner: 72, ..Tiny::default() };
    let case = Case::new(tiny(name, model), 2, true, &knobs, Mode::F32);
    check(name, &case, Mode::F32, 0..2);
}

/// A tile of four blocks in chunks of two, so that the first chunks can be taken before the input is there:
/// the logits do not depend on how many are, nor on what else is in flight.
#[test]
fn chunks_taken_early() {
    let sizes = Tiny { hidden: 128, inner: 256, layers: 1, ..Tiny::default() };
    let mut first: Option<Vec<u8>> = None;
    for (taken, in_flight) in [
        (0, InFlight::Many),
        (1, InFlight::Many),
        (3, InFlight::Many),
        (3, InFlight::Several),
        (3, InFlight::Few),
        (3, InFlight::One),
    ] {
        for bulk in [true, false] {
            let name = format!("taken_{taken}_{in_flight:?}_{bulk}");
            let knobs = Knobs { taken: Some(taken), ..small() };
            let mut case = Case::new(tiny(&name, sizes), 3, bulk, &knobs, Mode::Bf16);
            case.options.in_flight = in_flight;
            let text = case.render().text;
            let some = in_flight <= InFlight::Some && taken > 0;
            assert_eq!(text.contains("MOST_TAKEN = 0"), !some, "{name}");
            check(&name, &case, Mode::Bf16, 0..1);
            let logits =
                fs::read(folder(&name).join(format!("output.{}.bin", PROMPT - 1))).unwrap();
            assert_eq!(*first.get_or_insert_with(|| logits.clone()), logits, "{name}");
        }
    }
}

/// Head widths for every kind of load of the cache, and groups of more heads than one pass takes.
#[test]
fn heads_of_many_widths() {
    let two = Tiny { heads: 2, kv_heads: 1, layers: 1, ..Tiny::default() };
    for (head_dim, heads, mode) in [
        (10, 2, Mode::Bf16),
        (12, 3, Mode::Bf16),
        (18, 2, Mode::F32),
        (64, 2, Mode::F32),
        (128, 4, Mode::Bf16),
        (256, 2, Mode::F32),
    ] {
        let name = format!("head_{head_dim}");
        let model = tiny(&name, Tiny { head_dim, heads, ..two });
        let case = Case::new(model, 2, true, &Knobs { slot_bytes: Some(4096), ..small() }, mode);
        check(&name, &case, mode, 0..1);
    }
}

/// Widths that are no multiple of anything.
#[test]
fn odd_inner_width() {
    for (name, edges, mode) in [
        ("inner_49_packets", Edges::default(), Mode::Bf16),
        ("inner_49_counters", counters(), Mode::Bf16),
        ("inner_49_f32", Edges::default(), Mode::F32),
    ] {
        let model = tiny(name, Tiny { inner: 49, hidden: 38, layers: 1, ..Tiny::default() });
        let case = Case::new(model, 3, false, &Knobs { edges, ..small() }, mode);
        check(name, &case, mode, 0..1);
    }
}

#[test]
fn odd_sizes() {
    let name = "odd_sizes";
    let knobs = Knobs { slot_bytes: Some(4096), ..small() };
    let case = Case::new(checkpoint("llama-odd-f32"), 3, false, &knobs, Mode::F32);
    check(name, &case, Mode::F32, 0..1);
}

#[test]
fn f16_weights() {
    let name = "f16_weights";
    let knobs = Knobs { consumer_warps: 3, slot_bytes: Some(8192), ..small() };
    let case = Case::new(checkpoint("llama-rope-linear-f16"), 2, true, &knobs, Mode::F32);
    check(name, &case, Mode::F32, 0..1);
}

#[test]
fn default_knobs_gqa_bf16() {
    let name = "default_knobs_gqa_bf16";
    let knobs = Knobs { capacity: Some(64), ..Knobs::default() };
    let case = Case::new(checkpoint("llama-gqa-bf16"), 2, true, &knobs, Mode::Bf16);
    check(name, &case, Mode::Bf16, 0..1);
}

/// What families have beside the plain block: biases, norms of heads, factors, windows, heads that are not
/// rotated, norms of outputs, soft caps, other activations.
#[test]
fn families() {
    for (name, splits, mode) in [
        ("llama-attnbias-f32", 1, Mode::F32),
        ("qwen2-bf16", 2, Mode::F32),
        ("qwen3-bf16", 1, Mode::Bf16),
        ("smollm3-nope-bf16", 1, Mode::F32),
        ("phi3-swa-bf16", 2, Mode::F32),
        ("granite-tied-bf16", 1, Mode::F32),
        ("gemma2-bf16", 2, Mode::F32),
        ("gemma3-text-bf16", 1, Mode::Bf16),
        ("olmo2-f32", 2, Mode::F32),
    ] {
        let knobs = Knobs { splits: Some(splits), slot_bytes: Some(8192), ..small() };
        let case = Case::new(checkpoint(name), 2, true, &knobs, mode);
        check(&format!("family_{name}"), &case, mode, 0..1);
    }
}

/// A part of each head is rotated, and a window of two positions moves through several splits and steps.
#[test]
fn partial_rotary_and_a_small_window() {
    for (name, splits, bulk) in [("partial_1", 1, true), ("partial_3", 3, false)] {
        let model = tiny(name, Tiny { head_dim: 16, phi3: Some(2), ..Tiny::default() });
        let knobs = Knobs { splits: Some(splits), ..small() };
        let case = Case::new(model, 3, bulk, &knobs, Mode::F32);
        check(name, &case, Mode::F32, 0..2);
    }
}

/// Several positions per step, and the logits of the last of each.
fn check_prefill(name: &str, tokens: u32, bulk: bool, edges: Edges, splits: u32, mode: Mode) {
    let knobs = Knobs { tokens, edges, splits: Some(splits), ..small() };
    check_prefill_of(
        name,
        &Case::new(tiny(name, Tiny::default()), 2, bulk, &knobs, mode),
        tokens,
        mode,
    );
}

fn check_prefill_of(name: &str, case: &Case, tokens: u32, mode: Mode) {
    let folder = folder(name);
    let host = Host::new(&case.render().text, &folder, Build::Plain);
    let steps = 3;
    let prompt = case.prompt((tokens * steps) as usize);
    let launches: Vec<Launch> = (0..u64::from(steps))
        .map(|i| Launch {
            pos0: i * u64::from(tokens),
            steps: 1,
            epoch_base: i,
            ..Launch::default()
        })
        .collect();
    case.write(&folder, &prompt, &launches);
    for seed in 0..2 {
        let run = host.run(seed, 0);
        assert_eq!(run.code, Some(0), "{name} seed {seed}: {}{}", run.stdout, run.stderr);
        for launch in 0..steps as usize {
            let end = (launch + 1) * tokens as usize;
            let (_, logits) = case.expected(&prompt[..end], 1);
            let got = host.logits(launch);
            let spread = logits[0].iter().fold(0f32, |m, v| m.max(v.abs()));
            let far = got.iter().zip(&logits[0]).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
            let limit = if mode == Mode::F32 { 2e-5 } else { 0.05 } * spread;
            assert!(far < limit, "{name} seed {seed} launch {launch}: off by {far} of {spread}");
        }
    }
}

#[test]
fn prefill_three_terms_on_both_halves_of_the_tile() {
    check_prefill("prefill_4_f32", 4, true, Edges::default(), 1, Mode::F32);
    check_prefill("prefill_5_f32", 5, false, counters(), 2, Mode::F32);
}

/// Norms over whole rows of several positions, with counters on every edge.
#[test]
fn prefill_of_families() {
    for (model, bulk) in [("gemma3-text-bf16", true), ("olmo2-f32", false)] {
        let (tokens, edges) = (3, counters());
        let knobs = Knobs { tokens, edges, splits: Some(2), slot_bytes: Some(8192), ..small() };
        let case = Case::new(checkpoint(model), 3, bulk, &knobs, Mode::F32);
        check_prefill_of(&format!("prefill_{model}"), &case, tokens, Mode::F32);
    }
}

#[test]
fn prefill_twelve_tokens() {
    check_prefill("prefill_12_bf16", 12, true, Edges::default(), 2, Mode::Bf16);
}

#[test]
fn not_a_number_ends_the_launch_with_a_report() {
    let name = "not_a_number";
    let case = Case::new(tiny(name, Tiny::default()), 2, true, &small(), Mode::Bf16);
    let folder = folder(name);
    let host = Host::new(&case.render().text, &folder, Build::Plain);
    case.write(&folder, &case.prompt(2), &[Launch { steps: 4, ..Launch::default() }]);
    // The last packed block of the head: 0xffff is a NaN.
    let mut weights = std::fs::read(folder.join("weights.bin")).unwrap();
    let end = weights.len();
    weights[end - 512..].fill(0xff);
    std::fs::write(folder.join("weights.bin"), weights).unwrap();
    let run = host.run(0, 0);
    assert_eq!(run.code, Some(1), "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("given up 2:"), "{}", run.stdout);
    assert_eq!(run.tokens[0].len(), 1, "{}", run.stdout);
}

/// A past of more positions than a warp takes in at once: of one block, of several, and of more than there are warps.
#[test]
fn a_past_of_many_blocks() {
    let sizes = Tiny { hidden: 64, head_dim: 64, layers: 1, ..Tiny::default() };
    for (warps, mode) in [(2, Mode::Bf16), (4, Mode::Bf16), (4, Mode::F32)] {
        let name = format!("past_{warps}_{mode:?}");
        let knobs = Knobs { consumer_warps: warps, slot_bytes: Some(4096), ..small() };
        let case = Case::new(tiny(&name, sizes), 2, true, &knobs, mode);
        check_steps(&name, &case, mode, 0..1, 56);
    }
}

/// The widths of SmolLM2-135M: K blocks that the warps do not share evenly, and a projection whose chunks are all taken.
#[test]
fn widths_of_smollm2() {
    let name = "widths_of_smollm2";
    let model =
        Tiny { hidden: 576, inner: 1536, heads: 9, kv_heads: 3, head_dim: 64, ..Tiny::default() };
    let knobs = Knobs { capacity: Some(64), ..Knobs::default() };
    let case = Case::new(tiny(name, Tiny { layers: 1, ..model }), 24, true, &knobs, Mode::Bf16);
    check(name, &case, Mode::Bf16, 0..1);
}
