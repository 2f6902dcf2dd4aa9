//! Tokens of the schedule are those of the plain reference, in every interleaving.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use amk::lower::{EdgeKind, Edges, Knobs, Mode, Tiles};
use amk::vm::{
    Data, DataError, FaultKind, Options, Policy, RecipeData, Vm, VmError, VmFault, VmModel,
};
use amk_models::Checkpoint;
use amk_models::golden::{Golden, Limits, LogitSource, verify_f32};
use amk_schedule_ir::{BufferId, Instruction, Op};

use crate::support::{CHECKPOINTS, Case, checkpoint, distance, policies, root};

const NEW: usize = 20;

fn small() -> Knobs {
    Knobs { capacity: Some(64), ..Knobs::default() }
}

#[test]
fn float32_tokens_equal_the_reference() {
    for name in CHECKPOINTS {
        let case = Case::new(checkpoint(name), 7, &small(), 63, Mode::F32);
        let prompt = case.prompt(9);
        let (tokens, _) = case.expected(&prompt, NEW);
        for (i, options) in policies().enumerate() {
            let launch = [1, 5, 32][i % 3];
            let got = case.model(options.clone()).generate(&prompt, NEW, launch).unwrap();
            assert_eq!(got.tokens, tokens, "{name} {options:?}");
        }
    }
}

#[test]
fn the_embedded_model_decodes_over_many_seeds() {
    let case = Case::new(Checkpoint::embedded().unwrap(), 12, &small(), 63, Mode::F32);
    let prompt = case.prompt(5);
    let (tokens, logits) = case.expected(&prompt, 17);
    for seed in 0..4 {
        for policy in Policy::ALL {
            let options = Options { seed, policy, ..Options::default() };
            let got = case.model(options.clone()).generate(&prompt, 17, 16).unwrap();
            assert_eq!(got.tokens, tokens, "{options:?}");
        }
    }
    // And token by token, with the logits.
    let mut model = case.model(Options::default());
    let mut last = model.prompt(&prompt).unwrap();
    for (i, want) in logits.iter().enumerate() {
        assert!(distance(&last, want) < 1e-3, "position {}", prompt.len() + i);
        last = model.step(tokens[i], prompt.len() + i).unwrap();
    }
}

/// One choice of knobs per way in which schedules differ.
fn variants() -> Vec<(&'static str, Knobs)> {
    let counters = Edges {
        hidden: EdgeKind::Counter,
        qkv: EdgeKind::Counter,
        attention: EdgeKind::Counter,
        act: EdgeKind::Counter,
        partial: EdgeKind::Counter,
    };
    let tiles = |most| Tiles { qkv: most, gate_up: most, head: most };
    let mixed = Edges { qkv: EdgeKind::Counter, act: EdgeKind::Counter, ..Edges::default() };
    vec![
        ("packets", small()),
        ("counters", Knobs { edges: counters, ..small() }),
        ("mixed", Knobs { edges: mixed, ..small() }),
        ("splits", Knobs { splits: Some(3), ..small() }),
        ("split counters", Knobs { edges: counters, splits: Some(2), ..small() }),
        ("single heads", Knobs { q_heads_per_unit: Some(1), splits: Some(4), ..small() }),
        ("two slots", Knobs { ring_slots: Some(2), slot_bytes: Some(512), ..small() }),
        ("one SM", Knobs { grid: Some(1), ..small() }),
        ("shifted", Knobs { rotation: 3, unit_stride: Some(2), ..small() }),
        ("balanced", Knobs { balance: Some("459505059".to_owned()), rotation: 2, ..small() }),
        ("small instructions", Knobs { tiles: tiles(Some(1)), edges: mixed, ..small() }),
        (
            "fused",
            Knobs { tiles: tiles(Some(2)), splits: Some(2), merge_heads: Some(2), ..small() },
        ),
    ]
}

#[test]
fn every_knob_gives_the_same_tokens() {
    for name in ["llama-odd-f32", "llama-gqa-bf16"] {
        let plain = Case::new(checkpoint(name), 9, &small(), 63, Mode::F32);
        let prompt = plain.prompt(11);
        let (tokens, _) = plain.expected(&prompt, NEW);
        for (what, knobs) in variants() {
            let case = Case::new(checkpoint(name), 9, &knobs, 63, Mode::F32);
            for options in policies() {
                let got = case.model(options.clone()).generate(&prompt, NEW, 8).unwrap();
                assert_eq!(got.tokens, tokens, "{name} {what} {options:?}");
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_interleaving() {
    // The schedule fixes the order of every sum, so not only the tokens are the same.
    let knobs = Knobs { splits: Some(3), ..small() };
    let case = Case::new(checkpoint("llama-gqa-bf16"), 9, &knobs, 63, Mode::F32);
    let prompt = case.prompt(13);
    let logits: Vec<Vec<f32>> =
        policies().map(|o| case.model(o).prompt(&prompt).unwrap()).collect();
    assert!(logits.windows(2).all(|w| w[0] == w[1]));
}

#[test]
fn prefill_of_several_positions_then_decoding_gives_the_same_tokens() {
    for name in
        ["llama-mha-f32", "llama-odd-f32", "llama-rope-llama3-bf16", "phi3-swa-bf16", "qwen3-bf16"]
    {
        for (per_step, splits) in [(4, 1), (3, 2), (16, 1)] {
            let knobs = Knobs { tokens: per_step, splits: Some(splits), ..small() };
            let prefill = Case::new(checkpoint(name), 7, &knobs, 63, Mode::F32);
            let decode = Case::new(checkpoint(name), 5, &small(), 63, Mode::F32);
            let prompt = decode.prompt(21);
            let (tokens, _) = decode.expected(&prompt, NEW);
            for options in policies() {
                let whole = prompt.len() / per_step as usize * per_step as usize;
                let mut first = prefill.model(options.clone());
                let logits = first.feed(&prompt[..whole], 0).unwrap();
                assert_eq!(logits.len(), whole / per_step as usize);
                let mut model = decode.model(options.clone());
                model.take_over(&first, whole as u64).unwrap();
                model.vm().put_tokens(whole as u64, &prompt[whole..]).unwrap();
                // The last position of the prompt gives the first token: where it was prefilled,
                // the prefill's boundary has already put that token there.
                let done = whole as u64;
                let mut got = Vec::new();
                if whole == prompt.len() {
                    got.push(amk_models::greedy(&logits[logits.len() - 1]).unwrap());
                }
                let rest = model.resume(done, prompt.len(), NEW, 8).unwrap();
                got.extend(rest.tokens);
                assert_eq!(got, tokens, "{name} {per_step} {options:?}");
            }
        }
    }
}

#[test]
fn bf16_rounds_and_stays_close() {
    for name in ["llama-gqa-bf16", "llama-headdim-bf16", "mistral-full-bf16"] {
        let case = Case::new(checkpoint(name), 7, &small(), 63, Mode::Bf16);
        let prompt = case.prompt(9);
        let (tokens, logits) = case.expected(&prompt, NEW);
        let mut model = case.model(Options { policy: Policy::Shuffled, ..Options::default() });
        let mut last = model.prompt(&prompt).unwrap();
        let mut agree = 0;
        for (i, want) in logits.iter().enumerate() {
            let spread = distance(want, &vec![0.0; want.len()]);
            let off = distance(&last, want);
            assert!(off > 0.0 && off < 0.05 * spread, "{name}: {off} of {spread}");
            agree += usize::from(amk_models::greedy(&last) == Some(tokens[i]));
            last = model.step(tokens[i], prompt.len() + i).unwrap();
        }
        assert!(agree + 3 >= NEW, "{name}: {agree} of {NEW}");
    }
}

#[test]
fn goldens_hold_for_the_schedule() {
    for name in [
        "llama-odd-f32",
        "llama-gqa-tied-bf16",
        "llama-attnbias-f32",
        "qwen2-bf16",
        "qwen3-bf16",
        "smollm3-nope-bf16",
        "phi3-swa-bf16",
        "granite-tied-bf16",
        "mistral-swa-bf16",
    ] {
        let knobs = Knobs { capacity: Some(256), ..Knobs::default() };
        let case = Case::new(checkpoint(name), 8, &knobs, 255, Mode::F32);
        let path = root().join("goldens/hf").join(format!("{name}.json"));
        let golden = Golden::read(&path).unwrap();
        golden.check_files(case.checkpoint.files()).unwrap();
        let limits = Limits { prompts: 1, perplexity: false, ..Limits::default() };
        let mut model = case.model(Options { policy: Policy::RunAhead, ..Options::default() });
        let report = verify_f32(&golden, &mut model, limits).unwrap();
        assert!(report.mismatched == 0 && report.exact > 0, "{name}: {report:?}");
    }
}

#[test]
fn an_end_of_sequence_token_ends_the_launch() {
    let case = Case::new(checkpoint("llama-gqa-bf16"), 7, &small(), 63, Mode::F32);
    let prompt = case.prompt(6);
    let (tokens, _) = case.expected(&prompt, NEW);
    let eos = tokens[4];
    let first = tokens.iter().position(|&t| t == eos).unwrap();
    for options in policies() {
        let got = case.model(Options { eos: vec![eos], ..options });
        let mut got = got;
        let got = got.generate(&prompt, NEW, 16).unwrap();
        assert!(got.stopped);
        assert_eq!(got.tokens, tokens[..=first]);
    }
}

#[test]
fn contents_are_the_same_widened_at_once_or_row_by_row() {
    for name in ["llama-rope-linear-f16", "llama-odd-f32", "llama-gqa-tied-bf16"] {
        let case = Case::new(checkpoint(name), 7, &small(), 63, Mode::F32);
        let lazy = RecipeData::keeping(&case.lowered, &case.checkpoint, 0).unwrap();
        let mut compared = 0;
        for buffer in &case.program.buffers {
            let rows = if buffer.shape.len() == 1 { 1 } else { buffer.shape[0] };
            // Ranges of every length up to a tile, across the seams between tensors.
            for lo in 0..rows {
                let hi = (lo + 1 + lo % 8).min(rows);
                match (case.data.rows(buffer.id, lo..hi), lazy.rows(buffer.id, lo..hi)) {
                    (Ok(a), Ok(b)) => {
                        assert_eq!(a, b, "{name} {} {lo}..{hi}", buffer.name);
                        compared += 1;
                    }
                    (Err(a), Err(b)) => assert_eq!(a, b),
                    (a, b) => panic!("{} {lo}..{hi}: {a:?} {b:?}", buffer.name),
                }
            }
            for data in [&lazy, &*case.data] {
                assert!(data.rows(buffer.id, rows - 1..rows + 1).is_err());
            }
        }
        assert!(compared > 1000, "{name}: {compared}");
        let prompt = case.prompt(4);
        let model = |data| VmModel::with_data(case.program.clone(), data, Options::default());
        let kept = model(case.data.clone()).unwrap().prompt(&prompt).unwrap();
        assert_eq!(model(Arc::new(lazy)).unwrap().prompt(&prompt).unwrap(), kept);
    }
}

/// Contents with one row that is not a number.
struct Poisoned {
    inner: Arc<RecipeData>,
    buffer: BufferId,
}

impl Data for Poisoned {
    fn rows(&self, buffer: BufferId, rows: Range<u64>) -> Result<Cow<'_, [f32]>, DataError> {
        let mut values = self.inner.rows(buffer, rows)?;
        if buffer == self.buffer {
            values.to_mut()[0] = f32::NAN;
        }
        Ok(values)
    }
}

#[test]
fn nan_names_the_op_and_its_weights() {
    let case = Case::new(checkpoint("llama-gqa-bf16"), 7, &small(), 63, Mode::F32);
    // The down projection of the last layer, as the last stage that adds to the residual.
    let program = &case.program;
    let residual = |i: &&Instruction| matches!(i.op, Op::LinearResidual(_));
    let last = program.instructions.iter().rev().find(residual).unwrap();
    let sm = program.sms.iter().find(|sm| sm.queue.contains(&last.id)).unwrap();
    let down = sm.stream[last.run.unwrap().index()].source.buffer();
    let name = &program.buffer(down).unwrap().name;
    assert!(name.contains("layer"));
    let data = Poisoned { inner: case.data.clone(), buffer: down };
    let mut vm = Vm::new(case.program.clone(), Some(Box::new(data)), Options::default()).unwrap();
    vm.put_tokens(0, &[3]).unwrap();
    let faults = vm.run(0, 1).unwrap_err();
    assert_eq!(faults[0].kind(), FaultKind::NotANumber);
    let text = faults[0].to_string();
    assert!(text.contains("linear_residual") && text.contains(&format!("`{name}`")), "{text}");
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let case = Case::new(checkpoint("llama-gqa-bf16"), 7, &small(), 63, Mode::F32);
    let mut model = case.model(Options::default());
    let vocab = case.checkpoint.config().vocab_size as u32;
    let VmError::Faults(faults) = model.feed(&[vocab], 0).unwrap_err() else { panic!() };
    assert!(faults[0].to_string().contains("is not in the vocabulary"), "{}", faults[0]);
    // No token was ever put at position 3.
    let mut model = case.model(Options::default());
    let faults = model.vm().run(3, 1).unwrap_err();
    assert!(matches!(&faults[0], VmFault::Unwritten { place, .. } if &*place.name == "tokens"));
    // Another capacity is another cache.
    let other = Case::new(
        checkpoint("llama-gqa-bf16"),
        7,
        &Knobs { capacity: Some(48), ..small() },
        40,
        Mode::F32,
    );
    let error = case.model(Options::default()).take_over(&other.model(Options::default()), 0);
    assert!(matches!(error, Err(VmError::NotShared(_))));
}
