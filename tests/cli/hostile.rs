//! Damaged and hostile checkpoint folders: the right sentence, exit code 2, no crash.
//!
//! Each test starts from a sound folder and spoils one thing.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::support::{Run, amk, finish};

/// A copy of one of the tiny checkpoints, to be spoilt.
struct Folder {
    dir: TempDir,
}

impl Folder {
    fn of(name: &str) -> Self {
        let dir = TempDir::new().unwrap();
        for entry in fs::read_dir(Path::new("tests/checkpoints").join(name)).unwrap() {
            let from = entry.unwrap().path();
            let to = dir.path().join(from.file_name().unwrap());
            // Written anew: the fixtures may be read-only.
            fs::write(to, fs::read(&from).unwrap()).unwrap();
        }
        Self { dir }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    fn config(self, edit: impl FnOnce(&mut Map<String, Value>)) -> Self {
        let path = self.path("config.json");
        let mut config: Map<String, Value> =
            serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        edit(&mut config);
        fs::write(&path, Value::Object(config).to_string()).unwrap();
        self
    }

    fn bytes(self, file: &str, edit: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = fs::read(self.path(file)).unwrap();
        edit(&mut bytes);
        fs::write(self.path(file), bytes).unwrap();
        self
    }

    /// Rewrites the header of a safetensors file; the data stays as it is.
    fn header(self, edit: impl FnOnce(&mut Map<String, Value>)) -> Self {
        self.bytes("model.safetensors", |bytes| {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let mut header: Map<String, Value> =
                serde_json::from_slice(&bytes[8..8 + length]).unwrap();
            edit(&mut header);
            let mut text = Value::Object(header).to_string().into_bytes();
            text.resize(text.len().next_multiple_of(8), b' ');
            let mut out = (text.len() as u64).to_le_bytes().to_vec();
            out.extend(text);
            out.extend(&bytes[8 + length..]);
            *bytes = out;
        })
    }

    /// Adds a tensor of zeros.
    fn tensor(self, name: &str, dtype: &str, shape: &[u64], bytes: usize) -> Self {
        let mut end = 0;
        let folder = self.header(|header| {
            end = header.values().filter_map(|t| t["data_offsets"][1].as_u64()).max().unwrap();
            let tensor =
                json!({"dtype": dtype, "shape": shape, "data_offsets": [end, end + bytes as u64]});
            header.insert(name.to_owned(), tensor);
        });
        folder.bytes("model.safetensors", |b| b.resize(b.len() + bytes, 0))
    }

    fn remove(self, file: &str) -> Self {
        fs::remove_file(self.path(file)).unwrap();
        self
    }

    fn rename(self, from: &str, to: &str) -> Self {
        fs::rename(self.path(from), self.path(to)).unwrap();
        self
    }

    fn inspect(&self) -> Run {
        // A server that is not there: a local folder needs none.
        finish(amk().arg("inspect").arg(self.dir.path()).env("HF_ENDPOINT", "http://127.0.0.1:9"))
    }

    #[track_caller]
    fn is_refused(&self, parts: &[&str]) {
        let run = self.inspect().exits(2).says(parts);
        assert!(run.err.len() < 4000, "{}", run.err);
    }
}

const GQA: &str = "llama-gqa-bf16";
const SHARDED: &str = "llama-sharded-bf16";

#[test]
fn sound_folders_load_without_any_network() {
    for name in [GQA, SHARDED, "llama-headdim-bf16", "llama-v5config-bf16", "mistral-full-bf16"] {
        Folder::of(name).inspect().exits(0);
    }
}

#[test]
fn other_kinds_of_model_are_refused_by_name() {
    for (name, says) in [
        ("MixtralForCausalLM", "a mixture of experts"),
        ("DeepseekV3ForCausalLM", "latent attention"),
        ("T5ForConditionalGeneration", "encoder-decoder"),
        ("LlavaForConditionalGeneration", "multimodal"),
    ] {
        let folder = Folder::of(GQA).config(|c| {
            c.insert("architectures".into(), json!([name]));
        });
        folder.is_refused(&[name, says, "supported are dense decoder-only text models"]);
    }
}

// CASES 1: head_dim decides the width of the projections.
#[test]
fn a_head_dim_that_the_tensors_do_not_have_is_refused() {
    let folder = Folder::of("llama-headdim-bf16").config(|c| {
        c.insert("head_dim".into(), json!(10));
    });
    folder.is_refused(&["q_proj"]);
    Folder::of(GQA)
        .config(|c| {
            c.insert("head_dim".into(), json!(15));
        })
        .is_refused(&["head_dim", "even"]);
}

// CASES 2: the output head is tied when the config says so, and only then.
#[test]
fn tying_follows_the_config() {
    let absent = |c: &mut Map<String, Value>| {
        c.insert("tie_word_embeddings".into(), json!(false));
    };
    Folder::of("llama-gqa-tied-bf16").config(absent).is_refused(&["lm_head.weight"]);
    Folder::of(GQA).inspect().exits(0);
    Folder::of("llama-gqa-tied-bf16").inspect().exits(0);
}

// CASES 3: both spellings of the rope parameters, a conflict is an error, theta is never invented.
#[test]
fn rope_parameters_are_read_and_never_invented() {
    Folder::of(GQA)
        .config(|c| {
            c.insert(
                "rope_parameters".into(),
                json!({"rope_type": "default", "rope_theta": 10000.0}),
            );
        })
        .is_refused(&["rope_theta"]);
    Folder::of(GQA)
        .config(|c| {
            c.remove("rope_theta");
        })
        .is_refused(&["rope_theta"]);
    Folder::of(GQA)
        .config(|c| {
            c.insert("rope_scaling".into(), json!({"rope_type": "proportional", "factor": 4.0}));
        })
        .is_refused(&["proportional", "\"yarn\""]);
}

// CASES 4: every tensor is consumed or refused.
#[test]
fn unknown_tensors_and_biases_are_refused_by_name() {
    for name in
        ["model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.o_proj.bias", "extra"]
    {
        Folder::of(GQA).tensor(name, "BF16", &[4], 8).is_refused(&[name]);
    }
    Folder::of(GQA)
        .config(|c| {
            c.insert("attention_bias".into(), json!(true));
        })
        // The biases are then part of the model, and are not there.
        .is_refused(&["q_proj.bias", "missing"]);
    Folder::of(GQA)
        .config(|c| {
            c.insert("never_heard_of".into(), json!(2));
        })
        .is_refused(&["never_heard_of"]);
}

// CASES 5 and 6: shards and their index.
#[test]
fn missing_and_renamed_shards_are_named() {
    let shard = "model-00002-of-00004.safetensors";
    Folder::of(SHARDED).remove(shard).is_refused(&[shard]);
    let mut folder = Folder::of(SHARDED);
    for i in 1..=4 {
        folder = folder.rename(
            &format!("model-0000{i}-of-00004.safetensors"),
            &format!("model-0000{i}-of-00030.safetensors"),
        );
    }
    folder.is_refused(&["index", "of-00004"]);
    Folder::of(SHARDED)
        .bytes("model.safetensors.index.json", |b| b.truncate(b.len() / 2))
        .is_refused(&["model.safetensors.index.json"]);
}

// CASES 7: damaged safetensors files.
#[test]
fn damaged_weight_files_are_refused_before_anything_is_allocated() {
    let file = "model.safetensors";
    Folder::of(GQA).bytes(file, |b| b.truncate(b.len() - 1)).is_refused(&[file]);
    Folder::of(GQA).bytes(file, |b| b.extend([0; 8])).is_refused(&[file]);
    Folder::of(GQA).bytes(file, |b| b.clear()).is_refused(&[file]);
    Folder::of(GQA).bytes(file, |b| b.truncate(5)).is_refused(&[file]);
    for length in [1u64 << 63, u64::MAX, 1 << 40, 0] {
        Folder::of(GQA)
            .bytes(file, |b| b[..8].copy_from_slice(&length.to_le_bytes()))
            .is_refused(&[file]);
    }
    Folder::of(GQA).bytes(file, |b| b[9] = 0xff).is_refused(&[file]);
    // Two tensors that share their bytes.
    Folder::of(GQA)
        .header(|h| {
            let offsets = h["model.layers.0.self_attn.k_proj.weight"]["data_offsets"].clone();
            h["model.layers.0.self_attn.v_proj.weight"]["data_offsets"] = offsets;
        })
        .is_refused(&[file]);
    for (shape, what) in
        [(json!([1u64 << 63, 1u64 << 63]), "overflow"), (json!([-1, 4]), "negative")]
    {
        Folder::of(GQA)
            .header(|h| h["model.norm.weight"]["shape"] = shape)
            .inspect()
            .exits(2)
            .says(&[file])
            .err
            .is_empty()
            .then(|| panic!("{what}: no sentence"));
    }
}

// CASES 8: pickled weights alone.
#[test]
fn pickled_weights_alone_get_a_hint() {
    Folder::of(GQA)
        .rename("model.safetensors", "pytorch_model.bin")
        .is_refused(&["pytorch_model.bin", "safetensors"]);
}

// CASES 9: each tensor has its own type, and types that are not read are refused.
#[test]
fn types_that_are_not_read_are_refused_with_tensor_and_type() {
    let norm = "model.norm.weight";
    Folder::of(GQA).header(|h| h[norm]["dtype"] = json!("I16")).is_refused(&[norm, "I16"]);
}

// CASES 10: the norm's epsilon is never assumed.
#[test]
fn fields_that_the_maths_needs_are_never_assumed() {
    for field in
        ["rms_norm_eps", "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size"]
    {
        Folder::of(GQA)
            .config(|c| {
                c.remove(field);
            })
            .is_refused(&[field]);
    }
    Folder::of(GQA)
        .config(|c| {
            c.insert("rms_norm_eps".into(), json!(0));
        })
        .is_refused(&["rms_norm_eps"]);
}

#[test]
fn configs_that_are_no_configs_are_refused() {
    for text in ["", "{", "[]", "null", "{\"architectures\": 7}", "\u{feff}{}"] {
        Folder::of(GQA)
            .bytes("config.json", |b| *b = text.as_bytes().to_vec())
            .is_refused(&["config.json"]);
    }
    Folder::of(GQA)
        .bytes("config.json", |b| *b = [b"{\"a\":".repeat(50_000), vec![b'1']].concat())
        .is_refused(&["config.json"]);
    Folder::of(GQA).remove("config.json").is_refused(&["config.json"]);
    Folder::of(GQA)
        .config(|c| {
            c.insert("num_hidden_layers".into(), json!(1_000_000_000));
        })
        .is_refused(&["num_hidden_layers"]);
}

#[test]
fn damaged_tokenizers_are_refused() {
    Folder::of(GQA)
        .bytes("tokenizer.json", |b| b.truncate(b.len() / 2))
        .is_refused(&["tokenizer.json"]);
}
