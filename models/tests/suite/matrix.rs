//! The matrix of generated configurations: every family with tied and untied heads, heads grouped by 1, 4 and 8, sizes
//! that are multiples of nothing, one to three shards, every kind of rope. Weights are made here bit for bit as
//! `tools/make_matrix.py` made them; tokens, logits and hidden states are HuggingFace's. The same run writes the table
//! of families and features in the docs, which is therefore what was verified.

use crate::common::noise::noise;
use crate::common::{self, Tensor, safetensors};
use amk_models::{Checkpoint, Feature, ModelConfig, Observer, Place, Reference, Want, greedy};
use half::bf16;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

fn cases() -> Vec<Value> {
    let text = std::fs::read_to_string(common::golden("matrix.json")).unwrap();
    let mut doc: Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(doc["cases"].take()).unwrap()
}

/// The tensors of a case.
fn tensors(case: &Value, config: &ModelConfig) -> Vec<Tensor> {
    let seed = case["seed"].as_u64().unwrap();
    let halved = case["dtype"] == "bf16";
    let specs = config.tensor_specs();
    specs
        .into_iter()
        .map(|spec| {
            let kind: Vec<&str> =
                spec.name.split('.').filter(|p| p.parse::<usize>().is_err()).collect();
            let scale = &case["scales"][kind.join(".")];
            let (offset, scale) = (scale[0].as_f64().unwrap(), scale[1].as_f64().unwrap());
            let values = noise(seed, &spec.name, spec.shape.iter().product());
            let values = values.into_iter().map(|x| (offset + scale * x) as f32);
            let bytes = match halved {
                true => values.flat_map(|v| bf16::from_f32(v).to_le_bytes()).collect(),
                false => values.flat_map(f32::to_le_bytes).collect(),
            };
            let dtype = if halved { "BF16" } else { "F32" };
            Tensor { name: spec.name, dtype, shape: spec.shape, bytes }
        })
        .collect()
}

/// Writes a case as a checkpoint of so many shards.
fn write(case: &Value) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let text = case["config"].to_string();
    let config = ModelConfig::from_slice("config.json", text.as_bytes())
        .unwrap_or_else(|e| panic!("{}: {e}", case["name"]));
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    let shards = case["shards"].as_u64().unwrap() as usize;
    let mut parts: Vec<Vec<Tensor>> = (0..shards).map(|_| Vec::new()).collect();
    for (i, t) in tensors(case, &config).into_iter().enumerate() {
        parts[i % shards].push(t);
    }
    if let [all] = parts.as_slice() {
        std::fs::write(folder.path().join("model.safetensors"), safetensors(all)).unwrap();
        return folder;
    }
    let mut map = BTreeMap::new();
    for (i, part) in parts.iter().enumerate() {
        let name = format!("model-{:05}-of-{shards:05}.safetensors", i + 1);
        std::fs::write(folder.path().join(&name), safetensors(part)).unwrap();
        map.extend(part.iter().map(|t| (t.name.clone(), name.clone())));
    }
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
    folder
}

/// The residual stream of the last position, as HuggingFace's `output_hidden_states` has it.
struct Stream {
    last: usize,
    final_layer: usize,
    seen: Vec<Vec<f32>>,
}

impl Observer for Stream {
    fn hidden(&mut self, place: Place, position: usize, values: &[f32]) {
        if position == self.last && place != Place::Layer(self.final_layer) {
            self.seen.push(values.to_vec());
        }
    }
}

fn ids(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|n| n.as_f64().unwrap() as f32).collect()
}

/// Compares one case; its config.
fn verify(case: &Value) -> ModelConfig {
    let name = &case["name"];
    let folder = write(case);
    let checkpoint =
        Checkpoint::from_folder(folder.path()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut reference = Reference::new(&checkpoint).unwrap();
    let prompt = ids(&case["prompt_ids"]);

    let mut stream = Stream {
        last: prompt.len() - 1,
        final_layer: checkpoint.config().num_layers - 1,
        seen: Vec::new(),
    };
    reference.run(&prompt, 0, Want::Last, Some(&mut stream), &mut |_, _| {}).unwrap();
    let hidden = case["hidden"].as_array().unwrap();
    assert_eq!(stream.seen.len(), hidden.len(), "{name}");
    for (layer, (found, expected)) in stream.seen.iter().zip(hidden).enumerate() {
        let expected = floats(expected);
        let scale = expected.iter().fold(0f32, |m, e| m.max(e.abs()));
        let far = expected.iter().zip(found).fold(0f32, |m, (e, a)| m.max((e - a).abs()));
        assert_eq!(expected.len(), found.len(), "{name}");
        assert!(far <= 1e-4 * scale, "{name}: place {layer}: {far} of {scale}");
    }

    reference.reset();
    let mut logits = reference.prefill(&prompt, 0, Want::Last).unwrap().pop().unwrap();
    let tokens = ids(&case["generated_ids"]);
    for (step, (token, best)) in tokens.iter().zip(floats(&case["best_logits"])).enumerate() {
        assert_eq!(greedy(&logits), Some(*token), "{name}: step {step}");
        let far = (logits[*token as usize] - best).abs();
        assert!(far <= 1e-3, "{name}: step {step}: logit off by {far}");
        logits = reference.forward(*token, prompt.len() + step).unwrap();
    }
    checkpoint.config().clone()
}

/// A mark per family and feature, from what was verified.
fn table(verified: &[(String, ModelConfig)]) -> String {
    let mut rows: BTreeMap<usize, BTreeMap<Feature, Vec<&str>>> = BTreeMap::new();
    let mut count: BTreeMap<usize, usize> = BTreeMap::new();
    for (name, config) in verified {
        let family = amk_models::config::FAMILIES.iter().position(|f| f == config.family).unwrap();
        *count.entry(family).or_default() += 1;
        for feature in config.features() {
            rows.entry(family).or_default().entry(feature).or_default().push(name);
        }
    }
    let mut out = String::from(
        "# Families\n\nWritten by the test `matrix` of `models/`; do not edit. Each row is a family, each entry a \
         feature with the cases that verify it: tokens, logits within 1e-3 and the residual stream after every layer \
         within 1e-4 of HuggingFace transformers, float32 on the CPU. A case `x-n` is one of \
         `tests/goldens/hf/matrix.json`, the others are checkpoints in `tests/checkpoints/`. Features marked with a \
         star are those that schedules express too (`--device vm`, `cuda`); a model with another one is refused there \
         by the feature's name.\n",
    );
    for (family, features) in rows {
        let f = &amk_models::config::FAMILIES[family];
        let _ = write!(
            out,
            "\n## {} (`{}`), {} cases\n\n| feature | verified by |\n| --- | --- |\n",
            f.name, f.architecture, count[&family]
        );
        for (feature, cases) in features {
            let star = if common::SCHEDULED.contains(&feature) { " *" } else { "" };
            let _ = writeln!(out, "| {}{star} | {} |", feature.describe(), cases.join(", "));
        }
    }
    out
}

#[test]
fn every_configuration_says_what_huggingface_says() {
    let cases = cases();
    assert!(cases.len() >= 40);
    let mut verified: Vec<(String, ModelConfig)> = cases
        .iter()
        .map(|case| (case["name"].as_str().unwrap().to_string(), verify(case)))
        .collect();
    let families: BTreeSet<&str> = verified.iter().map(|(_, c)| c.family.architecture).collect();
    assert_eq!(families.len(), amk_models::config::FAMILIES.len());
    let seen: BTreeSet<Feature> = verified.iter().flat_map(|(_, c)| c.features()).collect();
    let missing: Vec<_> = Feature::ALL.iter().filter(|f| !seen.contains(f)).collect();
    assert!(missing.is_empty(), "no case has {missing:?}");
    // The checkpoints have their own test, which compares more; here they only enter the table.
    for name in common::SUPPORTED {
        let config = Checkpoint::from_folder(&common::checkpoint(name)).unwrap().config().clone();
        verified.push((name.to_string(), config));
    }
    let page = common::docs("families.md");
    let text = table(&verified);
    if std::env::var_os("AMK_BLESS").is_some() {
        std::fs::write(&page, &text).unwrap();
    }
    let there = std::fs::read_to_string(&page).unwrap_or_default();
    assert!(there == text, "docs/families.md is stale: run this test with AMK_BLESS=1");
}
