//! Arbitrary configs and headers never panic the readers, never make them allocate more than the input warrants, and are
//! never loaded as something else than they say. A long run, whose figures are in `models/results/fuzz.jsonl`:
//!
//! ```text
//! AMK_FUZZ_CASES=200000 AMK_FUZZ_SEED=2 AMK_FUZZ_REPORT=fuzz.jsonl cargo test --release --workspace --test fuzz_models
//! ```

mod common;

use amk_models::config::FieldRule;
use amk_models::golden::Golden;
use amk_models::{Checkpoint, GenerationConfig, ModelConfig};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};
use serde_json::{Value, json};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io::Write;
use std::time::Instant;

/// Records the largest single allocation of each thread.
struct Watch;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system allocator.
unsafe impl GlobalAlloc for Watch {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|l| l.set(l.get().max(layout.size())));
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

fn load(config: &[u8], weights: &[u8]) -> Became {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), weights).unwrap();
    became(&Checkpoint::from_folder(folder.path()))
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

/// What became of a case.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Became {
    Accepted,
    Refused,
}

/// Cases of all properties together: what CI runs unless `AMK_FUZZ_CASES` says otherwise.
const CASES: u32 = 5000;

/// Checks a property over its share, in percent, of all cases. `AMK_FUZZ_SEED` makes a run the same again, and
/// `AMK_FUZZ_REPORT` names a file to which a line of figures is added.
fn property<S: Strategy>(
    name: &str,
    share: u32,
    strategy: S,
    check: impl Fn(S::Value) -> Result<Became, TestCaseError>,
) {
    let number = |name: &str| std::env::var(name).ok().map(|v| v.parse::<u64>().unwrap());
    let all = number("AMK_FUZZ_CASES").unwrap_or(u64::from(CASES));
    let cases = u32::try_from(all * u64::from(share) / 100).unwrap().max(1);
    let seed = number("AMK_FUZZ_SEED")
        .unwrap_or_else(|| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), name));
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let tally = [Cell::new(0u32), Cell::new(0u32)];
    let (start, most) = (Instant::now(), Cell::new(0usize));
    let result = runner.run(&strategy, |value| {
        LARGEST.set(0);
        let became = check(value)?;
        let largest = LARGEST.get();
        most.set(most.get().max(largest));
        let count = &tally[usize::from(became == Became::Refused)];
        count.set(count.get() + 1);
        prop_assert!(largest < ALLOWED, "{} bytes were asked for at once", largest);
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{name}, AMK_FUZZ_SEED={seed}: {failure}");
    }
    let Some(path) = std::env::var_os("AMK_FUZZ_REPORT") else { return };
    let line = json!({
        "property": name, "cases": cases, "accepted": tally[0].get(), "refused": tally[1].get(), "seed": seed,
        "largest_allocation_bytes": most.get(), "seconds": start.elapsed().as_secs_f64().round(),
    });
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// A sentence, and whether there is one.
fn became<T>(result: &Result<T, impl std::fmt::Display>) -> Became {
    match result {
        Ok(_) => Became::Accepted,
        Err(e) => {
            let text = e.to_string();
            assert!(text.len() > 20 && text.len() < 3000, "{text}");
            Became::Refused
        }
    }
}

/// Reads a config, and whatever it says, nothing of what follows from it panics.
fn read(config: &Value) -> (Option<ModelConfig>, Became) {
    let bytes = config.to_string().into_bytes();
    let result = ModelConfig::from_slice("config.json", &bytes);
    let all = ModelConfig::survey("config.json", config.as_object().unwrap());
    // A survey and a load agree, and the load's reason is the first.
    let first = all.1.first().map(ToString::to_string);
    assert_eq!(result.as_ref().err().map(ToString::to_string), first);
    for c in result.iter().chain(&all.0) {
        assert!(c.layers.len() == c.num_layers && c.parameter_count().is_some());
        assert!(c.rope.rotary_dim(c.head_dim) <= c.head_dim);
        assert!(c.group_size() * c.num_kv_heads == c.num_heads);
        if c.head_dim <= 4096 {
            let table = c.rope.table(c.head_dim, 1000);
            assert!(table.inv_freq.len() * 2 <= c.head_dim);
        }
        let _ = (c.features(), c.kv_bytes_f32(), c.capacity());
    }
    let outcome = became(&result);
    (result.ok(), outcome)
}

#[test]
fn configs_of_every_family() {
    let edits = (proptest::sample::select(family_fields()), value());
    let strategy = (
        proptest::sample::select(configs()),
        proptest::collection::vec(edits, 0..4),
        proptest::option::of((any::<bool>(), rope())),
    );
    property("configs of every family", 30, strategy, |(mut config, edits, rope)| {
        for (field, value) in edits {
            config[field] = value;
        }
        if let Some((new, rope)) = rope {
            config[if new { "rope_parameters" } else { "rope_scaling" }] = rope;
        }
        Ok(read(&config).1)
    });
}

/// Fields that change the maths, each with values that no fixture has.
fn telling() -> impl Strategy<Value = (&'static str, Value)> {
    let size = || proptest::sample::select(vec![6, 10, 14, 18, 22, 26, 34, 38, 1000, 3000]);
    let number = || prop_oneof![0.11f64..0.97, 1.5f64..900.0].prop_map(Value::from);
    let sizes = vec![
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
    ];
    let numbers = vec![
        "rms_norm_eps",
        "rope_theta",
        "rope_local_base_freq",
        "partial_rotary_factor",
        "query_pre_attn_scalar",
        "attn_logit_softcapping",
        "final_logit_softcapping",
        "attention_multiplier",
        "embedding_multiplier",
        "residual_multiplier",
        "logits_scaling",
    ];
    let names = |list: Vec<&'static str>| proptest::sample::select(list);
    let linear = (1.5f64..40.0).prop_map(|f| json!({"rope_type": "linear", "factor": f}));
    prop_oneof![
        (names(sizes), size().prop_map(Value::from)),
        (names(numbers), number()),
        (names(vec!["attention_bias", "mlp_bias"]), Just(json!(true))),
        (names(vec!["hidden_act", "hidden_activation"]), Just(json!("gelu"))),
        (names(vec!["tie_word_embeddings"]), any::<bool>().prop_map(Value::from)),
        (names(vec!["rope_scaling", "rope_parameters"]), linear),
        (names(vec!["sliding_window"]), (2u64..40).prop_map(Value::from)),
        (names(vec!["relu_alpha", "ffn_bias", "logit_scale", "clip_qkv"]), number()),
    ]
}

/// A field that changes the maths is refused or changes the model; none is passed over.
#[test]
fn no_field_is_passed_over() {
    let strategy = (proptest::sample::select(configs()), telling());
    property("one telling field", 20, strategy, |(base, (field, value))| {
        let mut config = base.clone();
        config[field] = value.clone();
        let (Some(model), became) = read(&config) else { return Ok(Became::Refused) };
        let (same, _) = read(&base);
        let same = same.unwrap();
        let harmless = same.family.fields.contains(&(field, FieldRule::Harmless));
        // What the fixture says already, and what says nothing new.
        let stated = base.get(field) == Some(&value)
            || field == "tie_word_embeddings" && value == same.tie_word_embeddings
            || field == "attention_bias" && same.attention_bias
            || value == "gelu" && same.family.hidden_act.gelu_is_tanh;
        // A window that the config says is not used.
        let unused = field == "sliding_window" && base["use_sliding_window"] == false;
        prop_assert!(model != same || harmless || stated || unused, "{} {}", field, value);
        Ok(became)
    });
}

#[test]
fn arbitrary_bytes() {
    let bytes = |n| proptest::collection::vec(any::<u8>(), 0..n);
    property("arbitrary bytes", 6, (bytes(200), bytes(300)), |(config, weights)| {
        let _ = ModelConfig::from_slice("config.json", &config);
        let _ = GenerationConfig::from_slice("generation_config.json", &config);
        let _ = Golden::from_slice("g.json", &config);
        let _ = amk_models::gguf::tokenizer(&[&b"GGUF\x03\0\0\0"[..], &weights].concat());
        Ok(load(common::small_config().to_string().as_bytes(), &weights))
    });
}

#[test]
fn configs_with_changed_fields() {
    let edits = (proptest::sample::select(fields()), value());
    let strategy = proptest::collection::vec(edits, 1..5);
    property("configs with weights", 6, strategy, |edits| {
        let mut config = common::small_config();
        for (field, value) in edits {
            config[field] = value;
        }
        read(&config);
        let weights = common::safetensors(&common::small_tensors());
        Ok(load(config.to_string().as_bytes(), &weights))
    });
}

#[test]
fn weights_with_flipped_bytes() {
    let flips = proptest::collection::vec((0usize..1600, any::<u8>()), 1..6);
    let strategy = (flips, proptest::option::of(0usize..40_000));
    property("flipped bytes of a safetensors header", 10, strategy, |(flips, cut)| {
        let mut bytes = common::safetensors(&common::small_tensors());
        for (i, b) in flips {
            bytes[i] = b;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        Ok(load(common::small_config().to_string().as_bytes(), &bytes))
    });
}

#[test]
fn headers_with_hostile_numbers() {
    let dims = proptest::collection::vec(any::<u64>(), 0..5);
    let strategy = (proptest::option::of(any::<u64>()), any::<u64>(), any::<u64>(), dims);
    property("hostile numbers in a safetensors header", 8, strategy, |(length, a, b, dims)| {
        let header =
            json!({"model.norm.weight": {"dtype": "BF16", "shape": dims, "data_offsets": [a, b]}});
        let mut bytes = common::with_header(&header.to_string(), &[0; 64]);
        if let Some(length) = length {
            bytes[..8].copy_from_slice(&length.to_le_bytes());
        }
        Ok(load(common::small_config().to_string().as_bytes(), &bytes))
    });
}

/// An index is refused or loads the very tensors that are there.
#[test]
fn indices_of_shards() {
    let original = Checkpoint::from_folder(&common::checkpoint("llama-sharded-bf16")).unwrap();
    let tensors: Vec<String> = original.weights().iter().map(|t| t.name().to_string()).collect();
    let index = common::checkpoint("llama-sharded-bf16").join("model.safetensors.index.json");
    let index: Value = serde_json::from_slice(&std::fs::read(index).unwrap()).unwrap();
    let folder = common::copy("llama-sharded-bf16");
    let shard = prop_oneof![
        (1u32..6).prop_map(|n| json!(format!("model-0000{n}-of-00004.safetensors"))),
        Just(json!("model.safetensors")),
        Just(json!("../x.safetensors")),
        value(),
    ];
    let name = prop_oneof![
        proptest::sample::select(tensors),
        Just("model.layers.9.mlp.up_proj.weight".to_string()),
        "[a-z.]{0,9}",
    ];
    let edits = proptest::collection::vec((name, proptest::option::of(shard)), 0..3);
    let flips = proptest::collection::vec((0usize..2000, any::<u8>()), 0..3);
    property("index of shards", 10, (edits, flips), |(edits, flips)| {
        let mut index = index.clone();
        for (name, shard) in edits {
            match shard {
                Some(shard) => index["weight_map"][name] = shard,
                None => drop(index["weight_map"].as_object_mut().unwrap().remove(&name)),
            }
        }
        let mut bytes = index.to_string().into_bytes();
        for (at, byte) in flips {
            let n = bytes.len();
            bytes[at % n] = byte;
        }
        std::fs::write(folder.path().join("model.safetensors.index.json"), bytes).unwrap();
        let loaded = Checkpoint::from_folder(folder.path());
        if let Ok(loaded) = &loaded {
            for (a, b) in original.weights().iter().zip(loaded.weights().iter()) {
                prop_assert!(a.name() == b.name() && a.bytes() == b.bytes());
            }
        }
        Ok(became(&loaded))
    });
}

fn load_gguf(bytes: &[u8]) -> Became {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let loaded = Checkpoint::from_folder(&path);
    if let Ok(loaded) = &loaded {
        assert!(loaded.weights().iter().all(|t| t.bytes().len() >= t.rows() * t.cols() * 2));
    }
    became(&loaded)
}

/// A number that headers may hold by malice.
fn hostile() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..70, (0u32..64).prop_map(|n| 1 << n), Just(u64::MAX)]
}

#[test]
fn gguf_headers() {
    let folder = common::write(&common::small_config(), &common::small_tensors());
    let file = common::gguf::convert(&Checkpoint::from_folder(folder.path()).unwrap());
    let good = file.bytes();
    let whole = std::fs::read(common::checkpoint("gguf").join("mixed.gguf")).unwrap();
    assert!(load_gguf(&good) == Became::Accepted && load_gguf(&whole) == Became::Accepted);
    let edit = (0usize..20, 0u8..7, hostile());
    let flips = proptest::collection::vec((0usize..3000, any::<u8>()), 0..4);
    let strategy = (
        proptest::collection::vec(edit, 0..3),
        flips,
        proptest::option::weighted(0.1, 0usize..30_000),
    );
    property("GGUF headers", 10, strategy, |(edits, flips, cut)| {
        let mut file = file.clone();
        for (at, what, n) in edits {
            let (t, v) = (at % file.tensors.len(), at % file.metadata.len());
            match what {
                0 => file.tensors[t].offset = n,
                1 => file.tensors[t].dimensions[0] = n,
                2 => file.tensors[t].dimensions.push(n),
                3 => file.tensors[t].code = n as u32,
                4 => file.metadata[v].1 = common::gguf::Meta::U64(n),
                5 => file.metadata[v].1 = common::gguf::Meta::F32(f32::from_bits(n as u32)),
                _ if at < 10 => file.tensor_count = Some(n),
                _ => file.value_count = Some(n),
            }
        }
        let mut bytes = file.bytes();
        for (at, byte) in flips {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(usize::MAX));
        Ok(load_gguf(&bytes))
    });
}
