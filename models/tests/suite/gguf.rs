//! GGUF: numbers as the `gguf` package dequantises them, tokens as transformers decodes them, tokenizers as the
//! checkpoint has them, and damage refused.

use crate::common;
use amk_models::golden::{Golden, Limits, verify_f32};
use amk_models::{Checkpoint, Reference, RopeScaling, Want, greedy};
use common::gguf::{Gguf, Meta, convert};
use serde_json::Value;

const FILE: &str = "mixed.gguf";

fn golden() -> Value {
    serde_json::from_str(&std::fs::read_to_string(common::golden("gguf.json")).unwrap()).unwrap()
}

/// A row of `[rows, cols]` values in the order of GGUF, of the rows in the checkpoint's order.
fn gguf_row(name: &str, row: usize) -> usize {
    let head = 64;
    if !(name.contains("attn_q.") || name.contains("attn_k.")) {
        return row;
    }
    let (h, r) = (row / head, row % head);
    h * head + (r % 2) * (head / 2) + r / 2
}

#[test]
fn every_type_is_dequantised_as_the_gguf_package_does() {
    let checkpoint = Checkpoint::from_folder(&common::checkpoint("gguf")).unwrap();
    let golden = golden();
    let tensors = golden["tensors"].as_object().unwrap();
    let mut types = std::collections::BTreeSet::new();
    for (name, t) in tensors {
        types.insert(t["type"].as_str().unwrap());
        let ours = checkpoint
            .weights()
            .iter()
            .find(|w| w.name() == hf_name(name))
            .unwrap_or_else(|| panic!("no {name}"));
        assert_eq!(ours.stored_dtype(), t["type"], "{name}");
        let values = ours.to_f32();
        let sum: f64 = values.iter().map(|v| f64::from(*v)).sum();
        let expected = t["sum"].as_f64().unwrap();
        assert!((sum - expected).abs() <= 1e-6 * values.len() as f64, "{name}: {sum} {expected}");
        let cols = ours.cols();
        for (at, bits) in t["at"].as_array().unwrap().iter().zip(t["bits"].as_array().unwrap()) {
            let at = at.as_u64().unwrap() as usize;
            let expected = f32::from_bits(bits.as_i64().unwrap() as u32);
            let found = values[gguf_row(name, at / cols) * cols + at % cols];
            assert_eq!(found, expected, "{name} at {at}");
        }
    }
    let all = ["BF16", "F16", "F32", "Q4_0", "Q4_1", "Q4_K", "Q6_K", "Q8_0"];
    assert_eq!(types.into_iter().collect::<Vec<_>>(), all);
}

fn hf_name(gguf: &str) -> String {
    let names = [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q", "self_attn.q_proj"),
        ("attn_k", "self_attn.k_proj"),
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("output", "lm_head"),
    ];
    let mut parts: Vec<&str> = gguf.split('.').collect();
    let at = parts.len() - 2;
    parts[at] = names.iter().find(|(g, _)| *g == parts[at]).unwrap().1;
    parts.join(".").replace("blk.", "model.layers.")
}

#[test]
fn a_gguf_file_decodes_as_transformers_decodes_it() {
    let golden = golden();
    // The folder and the file itself are the same model.
    for path in [common::checkpoint("gguf"), common::checkpoint("gguf").join(FILE)] {
        let checkpoint = Checkpoint::open(path.to_str(), false).unwrap();
        let mut reference = Reference::new(&checkpoint).unwrap();
        let ids = |key: &str| -> Vec<u32> {
            let list = golden[key].as_array().unwrap();
            list.iter().map(|v| v.as_u64().unwrap() as u32).collect()
        };
        let prompt = ids("prompt_ids");
        let mut logits = reference.prefill(&prompt, 0, Want::Last).unwrap().pop().unwrap();
        for (step, token) in ids("generated_ids").into_iter().enumerate() {
            assert_eq!(greedy(&logits), Some(token), "step {step}");
            let best = golden["best_logits"][step].as_f64().unwrap();
            assert!((f64::from(logits[token as usize]) - best).abs() <= 1e-3);
            logits = reference.forward(token, prompt.len() + step).unwrap();
        }
        let tokenizer = checkpoint.tokenizer().unwrap().unwrap();
        assert!(checkpoint.config().stated_dtype.is_none());
        let ids = tokenizer.encode_prompt("the river").unwrap();
        assert_eq!(ids[0], 1);
        assert_eq!(tokenizer.decode(&ids, true).unwrap(), "the river");
        assert_eq!(checkpoint.eos_ids().unwrap().into_iter().collect::<Vec<_>>(), [2]);
    }
}

/// A checkpoint of each architecture, written as GGUF, is the same model: config, weights bit for bit, tokens and logits.
#[test]
fn a_converted_checkpoint_is_the_same_model() {
    for name in
        ["llama-gqa-bf16", "llama-mha-f32", "llama-gqa-tied-bf16", "qwen2-bf16", "qwen3-bf16"]
    {
        let own = Checkpoint::from_folder(&common::checkpoint(name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("m.gguf"), convert(&own).bytes()).unwrap();
        let read = Checkpoint::from_folder(folder.path()).unwrap();
        let (a, b) = (own.config(), read.config());
        assert_eq!(
            (a.family, a.rms_norm_eps, &a.rope),
            (b.family, b.rms_norm_eps, &b.rope),
            "{name}"
        );
        assert_eq!(
            (&a.layers, a.tie_word_embeddings),
            (&b.layers, b.tie_word_embeddings),
            "{name}"
        );
        assert_eq!(a.tensor_specs(), b.tensor_specs(), "{name}");
        for (x, y) in own.weights().iter().zip(read.weights().iter()) {
            assert_eq!(
                (x.name(), x.dtype(), x.bytes()),
                (y.name(), y.dtype(), y.bytes()),
                "{name}"
            );
        }
        let golden = Golden::read(&common::golden(&format!("{name}.json"))).unwrap();
        let mut reference = Reference::new(&read).unwrap();
        let limits = Limits { prompts: 1, ..Limits::default() };
        assert!(verify_f32(&golden, &mut reference, limits).unwrap().ok, "{name}");
    }
}

/// Llama 3's scaling comes as divisors of the frequencies.
#[test]
fn divisors_of_frequencies_are_llama3_scaling() {
    let own = Checkpoint::from_folder(&common::checkpoint("llama-rope-llama3-bf16")).unwrap();
    let c = own.config();
    let plain = amk_models::Rope { scaling: RopeScaling::Default, ..c.rope.clone() };
    let (plain, scaled) = (plain.inv_freq(c.head_dim), c.rope.inv_freq(c.head_dim));
    let factors: Vec<f32> = plain.iter().zip(&scaled).map(|(p, s)| p / s).collect();
    let mut file = convert(&own);
    let bytes = |factors: &[f32]| factors.iter().flat_map(|f| f.to_le_bytes()).collect::<Vec<u8>>();
    file.tensor("rope_freqs.weight", &[factors.len()], 0, bytes(&factors));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    let read = Checkpoint::from_folder(folder.path()).unwrap();
    let found = read.config().rope.inv_freq(c.head_dim);
    for (a, b) in found.iter().zip(&scaled) {
        assert!((a - b).abs() <= 2.0 * f32::EPSILON * b, "{a} {b}");
    }
    assert_ne!(found, plain);
    let golden = Golden::read(&common::golden("llama-rope-llama3-bf16.json")).unwrap();
    let mut reference = Reference::new(&read).unwrap();
    let limits = Limits { prompts: 1, ..Limits::default() };
    assert!(verify_f32(&golden, &mut reference, limits).unwrap().ok);
    let says = |factors: &[f32]| {
        let mut file = convert(&own);
        file.tensor("rope_freqs.weight", &[factors.len()], 0, bytes(factors));
        std::fs::write(&path, file.bytes()).unwrap();
        common::refusal(folder.path())
    };
    let text = says(&factors[1..]);
    assert!(
        text.starts_with("the tensor rope_freqs.weight has 15 numbers, expected half"),
        "{text}"
    );
    let mut zero = factors.clone();
    zero[3] = 0.0;
    assert!(says(&zero).contains("all positive"));
}

/// Tokenizers written as GGUF give the ids that the checkpoint's own gives.
#[test]
fn tokenizers_are_the_checkpoints() {
    let text = std::fs::read_to_string(common::golden("tokenizers.json")).unwrap();
    let goldens: Value = serde_json::from_str(&text).unwrap();
    let ids = |v: &Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
    };
    for name in ["llama-mha-f32", "llama-gqa-bf16", "llama-gqa-tied-bf16", "qwen2-bf16"] {
        let bytes = std::fs::read(common::golden(&format!("gguf/{name}.gguf"))).unwrap();
        let tokenizer = amk_models::gguf::tokenizer(&bytes).unwrap().unwrap();
        let files = amk_models::files::Files::folder(&common::checkpoint(name)).unwrap();
        let own = amk_models::Tokenizer::load(&files).unwrap().unwrap();
        assert_eq!(
            (tokenizer.bos_id(), tokenizer.eos_id()),
            (own.bos_id(), own.eos_id()),
            "{name}"
        );
        let source = |t: &amk_models::Tokenizer| t.chat_template().map(|c| c.source().to_string());
        assert_eq!(source(&tokenizer), source(&own), "{name}");
        let cases = goldens["tokenizers"][name]["cases"].as_array().unwrap();
        assert!(cases.len() > 20);
        for case in cases {
            let text = case["text"].as_str().unwrap();
            let expected = ids(&case["ids_no_special"]);
            assert_eq!(tokenizer.encode(text, false).unwrap(), expected, "{name} {text:?}");
            assert_eq!(
                tokenizer.encode_prompt(text).unwrap(),
                own.encode_prompt(text).unwrap(),
                "{name} {text:?}"
            );
            let all = ids(&case["ids"]);
            for skip in [true, false] {
                let (a, b) = (tokenizer.decode(&all, skip), own.decode(&all, skip));
                assert_eq!(a.unwrap(), b.unwrap(), "{name} {text:?}");
            }
        }
    }
}

fn small() -> Gguf {
    let folder = common::write(&common::small_config(), &common::small_tensors());
    convert(&Checkpoint::from_folder(folder.path()).unwrap())
}

fn says_of(bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), bytes).unwrap();
    common::refusal(folder.path())
}

fn says(change: impl FnOnce(&mut Gguf)) -> String {
    let mut file = small();
    change(&mut file);
    says_of(&file.bytes())
}

#[track_caller]
fn refuses(text: String, part: &str) {
    assert!(text.contains(part), "{part:?} is not in {text}");
}

#[test]
fn damaged_files_are_refused() {
    refuses(says_of(b"GGML"), "does not begin with GGUF");
    let good = small().bytes();
    for cut in [4, 9, 30, 100, 300, 700] {
        let text = says_of(&good[..cut]);
        assert!(text.contains("ends inside its header") || text.contains("has room for"), "{text}");
    }
    refuses(says_of(&good[..good.len() - 64]), "cut off");
    refuses(says_of(&[&good[..], &[0; 64]].concat()), "behind its last tensor");
    refuses(says(|f| f.version = 1), "is of version 1");
    for count in [1 << 63, u64::MAX, 1 << 40] {
        refuses(says(|f| f.tensor_count = Some(count)), "tensors, more than its size has room for");
        refuses(says(|f| f.value_count = Some(count)), "metadata values, more than its size");
        let long = Meta::Raw(8, count.to_le_bytes().to_vec());
        refuses(says(|f| f.set("x", long)), "bytes of text, more than its size");
        for kind in [0u32, 4, 8, 9] {
            let list = [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
            refuses(says(|f| f.set("x", Meta::Raw(9, list))), "list entries, more than its size");
        }
    }
    let deep: Vec<u8> = (0..9).flat_map(|_| [9, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]).collect();
    refuses(says(|f| f.set("x", Meta::Raw(9, deep))), "a value of type 9");
    refuses(says(|f| f.set("x", Meta::Raw(99, vec![]))), "a value of type 99");
    let bad = Meta::Raw(8, vec![1, 0, 0, 0, 0, 0, 0, 0, 0xff]);
    refuses(says(|f| f.set("x", bad)), "not UTF-8");
    refuses(says(|f| f.metadata.push(f.metadata[0].clone())), "general.architecture twice");
    refuses(says(|f| f.set("general.alignment", Meta::U32(3))), "no alignment");
}

#[test]
fn hostile_tensors_are_refused() {
    let name = "blk.0.attn_v.weight";
    refuses(says(|f| f.tensors.push(f.tensors[0].clone())), "twice");
    refuses(says(|f| f.find(name).offset += 1), "which is no multiple of 32");
    refuses(says(|f| f.find(name).offset = 1 << 63), "is not inside its");
    refuses(says(|f| f.find(name).offset = u64::MAX - 31), "is not inside its");
    let first = small().tensors[0].name.clone();
    refuses(says(|f| f.tensors[1].offset = f.tensors[0].offset), &format!("{first} and "));
    refuses(says(|f| f.find(name).dimensions = vec![u64::MAX, 2]), "has the shape");
    refuses(says(|f| f.find(name).dimensions = vec![0, 2]), "a dimension that is no size");
    refuses(says(|f| f.find(name).dimensions = vec![1; 5]), "has 5 dimensions");
    refuses(says(|f| f.find(name).dimensions = vec![]), "has 0 dimensions");
    // Rows of 40 elements are no whole blocks.
    refuses(says(|f| f.find(name).code = 8), "which Q8_0 cannot have");
    let text = says(|f| f.find(name).code = 10);
    assert_eq!(
        text,
        "the tensor blk.0.attn_v.weight is stored as GGUF type 10; supported are F32, F16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, BF16"
    );
    let rename = |to: &str| {
        let to = to.to_string();
        says(move |f| f.find(name).name = to)
    };
    refuses(rename("blk.0.attn_sinks.weight"), "blk.0.attn_sinks.weight has no place");
    refuses(rename("blk.00.attn_q.weight"), "blk.00.attn_q.weight has no place");
    refuses(rename("blk.7.attn_v.weight"), "model.layers.7.self_attn.v_proj.weight");
    refuses(says(|f| f.tensors.pop().map(|_| ()).unwrap()), "is missing");
    let bias = |f: &mut Gguf| f.tensor("blk.0.attn_q.bias", &[64], 0, vec![0; 256]);
    refuses(says(bias), "q_proj.bias (shape [64], in m.gguf) has no place");
    refuses(says(|f| f.set("llama.embedding_length", Meta::U32(48))), "has shape");
}

#[test]
fn metadata_that_may_change_the_maths_are_refused() {
    let with = |key: &'static str, value: Meta| says(move |f| f.set(key, value));
    let text = with("general.architecture", Meta::Text("gemma".into()));
    assert_eq!(
        text,
        "GGUF files of the architecture \"gemma\" are not supported; supported are llama, qwen2, qwen3, and all families as safetensors"
    );
    for (key, value) in [
        ("llama.nope", Meta::U32(1)),
        ("llama.expert_count", Meta::U32(8)),
        ("llama.attention.sliding_window", Meta::U32(8)),
        ("llama.attention.head_count_kv", Meta::List(vec![2])),
        ("llama.rope.dimension_count", Meta::U32(8)),
        ("llama.attention.value_length", Meta::U32(8)),
        ("llama.rope.scaling.type", Meta::Text("longrope".into())),
        ("llama.rope.scaling.attn_factor", Meta::F32(1.1)),
    ] {
        let text = with(key, value);
        let expected = format!("the metadata {key} has a value that is not supported or not known");
        assert!(text.starts_with(&expected), "{text}");
    }
    assert_eq!(
        with("split.count", Meta::U32(3)),
        "the GGUF file m.gguf says that it is one of 3, and by its name it is one of 1; give the parts their names back (name-00001-of-00003.gguf), or join them with gguf-split --merge"
    );
    for key in ["llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"] {
        let text = says(move |f| f.remove(key));
        assert!(text.starts_with("m.gguf has no \"r"), "{text}");
    }
    refuses(with("llama.rope.freq_base", Meta::F32(f32::NAN)), "rope_theta");
    refuses(with("llama.block_count", Meta::U64(1 << 63)), "num_hidden_layers");
    // What means nothing is passed over, and neutral values are accepted.
    let mut file = small();
    file.set("general.name", Meta::Text("x".into()));
    file.set("general.file_type", Meta::U32(7));
    file.set("quantize.imatrix.entries_count", Meta::U32(7));
    file.set("llama.expert_count", Meta::U32(0));
    file.set("llama.rope.scaling.type", Meta::Text("none".into()));
    file.set("llama.rope.scaling.finetuned", Meta::Bool(true));
    file.set("tokenizer.ggml.eos_token_id", Meta::U32(2));
    file.set("tokenizer.ggml.eot_token_id", Meta::U32(7));
    let flags = [&[7, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0][..], &[1; 3]].concat();
    file.set("x", Meta::Raw(9, flags));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), file.bytes()).unwrap();
    let read = Checkpoint::from_folder(folder.path()).unwrap();
    assert_eq!(read.eos_ids().unwrap().into_iter().collect::<Vec<_>>(), [2, 7]);
    assert!(read.config().tie_word_embeddings && read.tokenizer().unwrap().is_none());
    file.set("llama.rope.scaling.type", Meta::Text("linear".into()));
    file.set("llama.rope.scaling.factor", Meta::F32(4.0));
    std::fs::write(folder.path().join("m.gguf"), file.bytes()).unwrap();
    let read = Checkpoint::from_folder(folder.path()).unwrap();
    assert_eq!(read.config().rope.scaling, RopeScaling::Linear { factor: 4.0 });
    // Which of several files is meant is not guessed, nor is a config beside one.
    std::fs::write(folder.path().join("n.gguf"), b"").unwrap();
    refuses(common::refusal(folder.path()), "has several GGUF files (m.gguf, n.gguf)");
    std::fs::write(folder.path().join("config.json"), common::small_config().to_string()).unwrap();
    refuses(common::refusal(folder.path()), "a GGUF file, which brings a config of its own");
}

/// Cuts a file as `gguf-split` does: metadata in the first part, tensors in all.
fn cut(file: &Gguf, parts: usize) -> Vec<Gguf> {
    let size = file.tensors.len().div_ceil(parts);
    let mut out: Vec<Gguf> = (0..parts).map(|_| Gguf::new(&[])).collect();
    out[0].metadata = file.metadata.clone();
    for (number, part) in out.iter_mut().enumerate() {
        let short = |n: usize| Meta::Raw(2, u16::try_from(n).unwrap().to_le_bytes().to_vec());
        part.set("split.no", short(number));
        part.set("split.count", short(parts));
        let total = i32::try_from(file.tensors.len()).unwrap();
        part.set("split.tensors.count", Meta::Raw(5, total.to_le_bytes().to_vec()));
        for t in file.tensors.iter().skip(number * size).take(size) {
            let shape: Vec<usize> = t.dimensions.iter().rev().map(|d| *d as usize).collect();
            part.tensor(&t.name, &shape, t.code, t.bytes.clone());
        }
    }
    out
}

fn write_parts(folder: &std::path::Path, stem: &str, parts: &[Gguf]) {
    for (i, part) in parts.iter().enumerate() {
        let name = format!("{stem}-{:05}-of-{:05}.gguf", i + 1, parts.len());
        std::fs::write(folder.join(name), part.bytes()).unwrap();
    }
}

/// The parts of a model are the model, whether their folder or one of them is named.
#[test]
fn a_model_in_parts_is_the_whole_model() {
    let own = Checkpoint::from_folder(&common::checkpoint("qwen3-bf16")).unwrap();
    let parts = cut(&convert(&own), 3);
    assert!(parts.iter().all(|p| p.tensors.len() > 5));
    let folder = tempfile::tempdir().unwrap();
    write_parts(folder.path(), "m", &parts);
    let part = |n: u32| folder.path().join(format!("m-{n:05}-of-00003.gguf"));
    for path in [folder.path().to_path_buf(), part(1), part(2), part(3)] {
        let read = Checkpoint::from_folder(&path).unwrap();
        for (x, y) in own.weights().iter().zip(read.weights().iter()) {
            assert_eq!((x.name(), x.dtype(), x.bytes()), (y.name(), y.dtype(), y.bytes()));
        }
        let golden = Golden::read(&common::golden("qwen3-bf16.json")).unwrap();
        let mut reference = Reference::new(&read).unwrap();
        let limits = Limits { prompts: 1, ..Limits::default() };
        assert!(verify_f32(&golden, &mut reference, limits).unwrap().ok);
        let files = read.files();
        assert!(amk_models::Survey::of_files(files).unwrap().refusals.is_empty());
    }
    // Another model beside it: which is meant is not guessed.
    write_parts(folder.path(), "n", &parts);
    refuses(
        common::refusal(folder.path()),
        "has several GGUF files (m-00001-of-00003.gguf, n-00001-of-00003.gguf)",
    );
    assert!(Checkpoint::from_folder(&part(2)).is_ok());
}

#[test]
fn parts_that_are_not_one_model_are_refused() {
    let says = |change: &dyn Fn(&mut Vec<Gguf>)| {
        let mut parts = cut(&small(), 2);
        change(&mut parts);
        let folder = tempfile::tempdir().unwrap();
        write_parts(folder.path(), "m", &parts);
        common::refusal(folder.path())
    };
    let short = |n: u16| Meta::Raw(2, n.to_le_bytes().to_vec());
    let name = "m-00002-of-00002.gguf";
    let text = says(&|p| p[1].set("split.no", Meta::U32(0)));
    assert_eq!(
        text,
        format!(
            "the GGUF file is not usable: {name} does not say that it is part 2 of 2; it belongs to another model, download it again"
        )
    );
    refuses(says(&|p| p[1].set("split.count", short(3))), "is part 2 of 2");
    refuses(
        says(&|p| p[0].set("split.count", short(3))),
        "one of 3, and by its name it is one of 2",
    );
    refuses(says(&|p| p[0].remove("split.count")), "says that it is one of 1, and by its name");
    let again = |p: &mut Vec<Gguf>| {
        let t = p[0].tensors[0].clone();
        let shape: Vec<usize> = t.dimensions.iter().rev().map(|d| *d as usize).collect();
        p[1].tensor(&t.name, &shape, t.code, t.bytes);
    };
    refuses(says(&again), "twice");
    let fewer = |p: &mut Vec<Gguf>| {
        let wrong = 3i32.to_le_bytes().to_vec();
        p[0].set("split.tensors.count", Meta::Raw(5, wrong));
    };
    refuses(says(&fewer), "its parts have 11 tensors, and the first says 3; download them again");
    let other = |p: &mut Vec<Gguf>| p[1].set("llama.rope.freq_base", Meta::F32(5.0));
    refuses(says(&other), &format!("{name} has another llama.rope.freq_base than the first part"));
    // A part that is not there, the first or another.
    for missing in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        write_parts(folder.path(), "m", &cut(&small(), 2));
        let part = format!("m-0000{missing}-of-00002.gguf");
        std::fs::remove_file(folder.path().join(&part)).unwrap();
        assert_eq!(
            common::refusal(folder.path()),
            format!(
                "{} has no {part}, one of the parts of the model; download it",
                folder.path().display()
            )
        );
    }
}

#[test]
fn tokenizers_that_are_not_read_are_refused() {
    let words = |key: &str, list: &[&str]| {
        let mut bytes = 8u32.to_le_bytes().to_vec();
        bytes.extend((list.len() as u64).to_le_bytes());
        for word in list {
            bytes.extend((word.len() as u64).to_le_bytes());
            bytes.extend(word.as_bytes());
        }
        (key.to_string(), Meta::Raw(9, bytes))
    };
    let model = |name: &str| ("tokenizer.ggml.model".to_string(), Meta::Text(name.into()));
    let tokens = || words("tokenizer.ggml.tokens", &["a", "b", "ab"]);
    let merges = || words("tokenizer.ggml.merges", &["a b"]);
    let pre = |name: &str| ("tokenizer.ggml.pre".to_string(), Meta::Text(name.into()));
    let with = |parts: Vec<(String, Meta)>| says(move |f| f.metadata.extend(parts));
    refuses(with(vec![model("t5"), tokens()]), "its kind \"t5\" is not supported");
    refuses(with(vec![model("gpt2")]), "it has no tokens");
    refuses(with(vec![model("gpt2"), tokens()]), "it has no merges");
    refuses(with(vec![model("llama"), tokens()]), "it has no scores");
    let parts = vec![model("gpt2"), tokens(), merges(), pre("tekken")];
    refuses(with(parts), "its splitting rule \"tekken\" is not known");
}

/// A survey goes on past the first fault, and loading ends with one of those that it lists.
#[test]
fn every_fault_is_listed() {
    let mut file = small();
    file.set("llama.nope", Meta::U32(1));
    file.set("llama.attention.value_length", Meta::U32(8));
    file.remove("llama.rope.freq_base");
    file.find("blk.0.ffn_up.weight").name = "blk.0.ffn_sideways.weight".into();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("m.gguf"), file.bytes()).unwrap();
    let files = amk_models::files::Files::folder(folder.path()).unwrap();
    let survey = amk_models::Survey::of_files(&files).unwrap();
    let names: Vec<&str> = survey.refusals.iter().filter_map(|r| r.name.as_deref()).collect();
    for name in
        ["llama.nope", "llama.attention.value_length", "rope_theta", "blk.0.ffn_sideways.weight"]
    {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(survey.tensors.len(), file.tensors.len());
    let first = common::refusal(folder.path());
    assert!(survey.refusals.iter().any(|r| r.message == first), "{first}");
    // A tensor too few, beside a config that is whole: what the others became is known.
    let mut file = small();
    file.find("blk.0.ffn_up.weight").name = "blk.0.ffn_sideways.weight".into();
    std::fs::write(folder.path().join("m.gguf"), file.bytes()).unwrap();
    let survey = amk_models::Survey::of_files(&files).unwrap();
    let names: Vec<&str> = survey.refusals.iter().filter_map(|r| r.name.as_deref()).collect();
    assert_eq!(names, ["blk.0.ffn_sideways.weight", "model.layers.0.mlp.up_proj.weight"]);
    let without: Vec<&str> =
        survey.tensors.iter().filter(|t| t.1.is_none()).map(|t| t.0.name()).collect();
    assert_eq!(without, ["blk.0.ffn_sideways.weight"]);
    // Nothing to say of a sound one.
    std::fs::write(folder.path().join("m.gguf"), small().bytes()).unwrap();
    assert!(amk_models::Survey::of_files(&files).unwrap().refusals.is_empty());
    let files = amk_models::files::Files::folder(&common::checkpoint("gguf")).unwrap();
    assert!(amk_models::Survey::of_files(&files).unwrap().refusals.is_empty());
}
