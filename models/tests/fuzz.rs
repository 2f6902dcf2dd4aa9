//! Arbitrary bytes never panic the readers and never make them allocate more than the input warrants.

mod common;

use amk_models::golden::Golden;
use amk_models::{Checkpoint, GenerationConfig, ModelConfig};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Records the largest single allocation.
struct Watch;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system allocator.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static WATCH: Watch = Watch;

/// Far more than any reader needs for the inputs here, far less than what hostile sizes ask for.
const ALLOWED: usize = 4 << 20;

fn load(config: &[u8], weights: &[u8]) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    let outcome = Checkpoint::from_folder(folder.path());
    if let Err(e) = outcome {
        let text = e.to_string();
        assert!(text.len() > 20 && text.len() < 2000, "{text}");
    }
    assert!(LARGEST.load(Ordering::Relaxed) < ALLOWED);
}

/// A JSON value that configs may hold by mistake or malice.
fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..1 << 33).prop_map(Value::from),
        (0u64..100).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "[a-z_0-9\u{0}\u{e9}]{0,12}".prop_map(Value::from),
        proptest::collection::vec(any::<u32>(), 0..3).prop_map(Value::from),
        Just(json!({"rope_type": "llama3", "factor": 1e308, "rope_theta": -1})),
        Just(json!({"rope_type": "linear", "factor": 4.0})),
    ]
}

fn fields() -> Vec<String> {
    let mut names: Vec<String> =
        common::small_config().as_object().unwrap().keys().cloned().collect();
    names.extend(
        ["rope_scaling", "rope_parameters", "sliding_window", "attention_bias", "layer_types", "x"]
            .map(String::from),
    );
    names
}

/// The configs of the fixtures: every family.
fn configs() -> Vec<Value> {
    let names = common::SUPPORTED.iter().map(|n| common::checkpoint(n).join("config.json"));
    names.map(|p| serde_json::from_slice(&std::fs::read(p).unwrap()).unwrap()).collect()
}

/// Fields that some family reads.
fn family_fields() -> Vec<String> {
    let mut names: Vec<String> =
        configs().iter().flat_map(|c| c.as_object().unwrap().keys().cloned()).collect();
    names.extend(
        ["rope_parameters", "layer_types", "no_rope_layers", "partial_rotary_factor", "x"]
            .map(String::from),
    );
    names.sort();
    names.dedup();
    names
}

/// A rope object of keys that exist and values that may be wrong.
fn rope() -> impl Strategy<Value = Value> {
    let kinds = ["default", "linear", "dynamic", "llama3", "yarn", "longrope", "su", "x"];
    let keys = [
        "rope_theta",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
        "short_factor",
        "long_factor",
        "partial_rotary_factor",
        "full_attention",
    ];
    let number = prop_oneof![
        Just(json!(1)),
        (0.0f64..40.0).prop_map(Value::from),
        (1u64..600).prop_map(Value::from),
        Just(json!(true)),
        Just(json!([1.0, 2.0])),
        value(),
    ];
    let pairs = proptest::collection::vec((proptest::sample::select(keys.to_vec()), number), 0..6);
    (proptest::sample::select(kinds.to_vec()), pairs).prop_map(|(kind, pairs)| {
        let mut object = json!({"rope_type": kind});
        for (key, value) in pairs {
            object[key] = value;
        }
        object
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn configs_of_every_family(
        base in proptest::sample::select(configs()),
        edits in proptest::collection::vec((proptest::sample::select(family_fields()), value()), 0..4),
        rope in proptest::option::of((any::<bool>(), rope())),
    ) {
        let mut config = base;
        for (field, value) in edits {
            config[field] = value;
        }
        if let Some((new, rope)) = rope {
            config[if new { "rope_parameters" } else { "rope_scaling" }] = rope;
        }
        match ModelConfig::from_slice("config.json", config.to_string().as_bytes()) {
            Ok(c) => {
                prop_assert!(c.layers.len() == c.num_layers && c.parameter_count().is_some());
                prop_assert!(c.rope.rotary_dim(c.head_dim) <= c.head_dim);
                if c.head_dim <= 4096 {
                    let table = c.rope.table(c.head_dim, 1000);
                    prop_assert!(table.inv_freq.len() * 2 <= c.head_dim);
                }
                let _ = c.features();
            }
            Err(e) => prop_assert!(e.to_string().len() > 20),
        }
        prop_assert!(LARGEST.load(Ordering::Relaxed) < ALLOWED);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes(config in proptest::collection::vec(any::<u8>(), 0..200), weights in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ModelConfig::from_slice("config.json", &config);
        let _ = GenerationConfig::from_slice("generation_config.json", &config);
        let _ = Golden::from_slice("g.json", &config);
        load(common::small_config().to_string().as_bytes(), &weights);
    }

    #[test]
    fn configs_with_changed_fields(edits in proptest::collection::vec((proptest::sample::select(fields()), value()), 1..5)) {
        let mut config = common::small_config();
        for (field, value) in edits {
            config[field] = value;
        }
        let text = config.to_string();
        if let Ok(c) = ModelConfig::from_slice("config.json", text.as_bytes()) {
            prop_assert!(c.parameter_count().is_some() && c.group_size() * c.num_kv_heads == c.num_heads);
        }
        load(text.as_bytes(), &common::safetensors(&common::small_tensors()));
    }

    #[test]
    fn weights_with_flipped_bytes(at in proptest::collection::vec((0usize..1600, any::<u8>()), 1..6), cut in 0usize..40_000) {
        let mut bytes = common::safetensors(&common::small_tensors());
        for (i, b) in at {
            bytes[i] = b;
        }
        load(common::small_config().to_string().as_bytes(), &bytes);
        bytes.truncate(cut);
        load(common::small_config().to_string().as_bytes(), &bytes);
    }

    #[test]
    fn headers_with_hostile_numbers(length in any::<u64>(), a in any::<u64>(), b in any::<u64>(), dims in proptest::collection::vec(any::<u64>(), 0..5)) {
        let header = json!({"model.norm.weight": {"dtype": "BF16", "shape": dims, "data_offsets": [a, b]}}).to_string();
        let mut bytes = common::with_header(&header, &[0; 64]);
        load(common::small_config().to_string().as_bytes(), &bytes);
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        load(common::small_config().to_string().as_bytes(), &bytes);
    }
}
