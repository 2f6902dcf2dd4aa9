//! Loading: what is wrong with a folder is said in a sentence, and nothing that changes the maths is let through.

use crate::common;
use amk_models::golden::{Golden, Limits, verify_f32};
use amk_models::{Checkpoint, DType, Reference, Role};
use common::{
    Tensor, edit_config, refusal, remove_field, safetensors, small_config, small_tensors,
    with_header, write,
};
use serde_json::json;

/// Case 1: an explicit head_dim decides the widths of q, k, v, o and of the rotary embedding.
#[test]
fn explicit_head_dim() {
    let folder = write(&small_config(), &small_tensors());
    let c = common::load(folder.path()).unwrap();
    let shape = |role| c.weights().layer(0, role).unwrap().shape().to_vec();
    assert_eq!(
        (shape(Role::Query), shape(Role::Key), shape(Role::Output)),
        (vec![64, 40], vec![32, 40], vec![40, 64])
    );
    assert_eq!(c.config().rope.inv_freq(c.config().head_dim).len(), 8);
    assert_eq!(Reference::new(&c).unwrap().forward(3, 0).unwrap().len(), 50);
    // Without it head_dim is 10, and the tensors do not fit.
    remove_field(folder.path(), "head_dim");
    assert_eq!(
        refusal(folder.path()),
        "the tensor model.layers.0.self_attn.q_proj.weight has shape [64, 40], but config.json gives it [40, 40]"
    );
}

/// Case 2: tied and untied heads, present and absent.
#[test]
fn tied_and_untied_heads() {
    let tie = |tied: bool| {
        let mut c = small_config();
        c["tie_word_embeddings"] = json!(tied);
        c
    };
    let with_head = || {
        let mut t = small_tensors();
        t.push(Tensor::bf16("lm_head.weight", &[50, 40]));
        t
    };
    let tied = common::load(write(&tie(true), &small_tensors()).path()).unwrap();
    let w = tied.weights();
    assert!(w.is_tied() && w.shared(Role::LmHead).unwrap().name() == "model.embed_tokens.weight");
    let untied = common::load(write(&tie(false), &with_head()).path()).unwrap();
    assert_eq!(untied.weights().shared(Role::LmHead).unwrap().name(), "lm_head.weight");

    let text = refusal(write(&tie(false), &small_tensors()).path());
    assert!(
        text.starts_with(
            "the tensor lm_head.weight is missing, and \"tie_word_embeddings\" is false"
        ),
        "{text}"
    );
    // The family reads an absent flag as false.
    let mut absent = small_config();
    absent.as_object_mut().unwrap().remove("tie_word_embeddings");
    assert!(refusal(write(&absent, &small_tensors()).path()).contains("lm_head.weight is missing"));
    // A head beside a tied embedding is redundant if it is the same matrix, and refused if it is another.
    let text = refusal(write(&tie(true), &with_head()).path());
    assert!(
        text.starts_with(
            "the tensor lm_head.weight (shape [50, 40], in model.safetensors) has no place"
        ),
        "{text}"
    );
    let mut same = small_tensors();
    let bytes = same[0].bytes.clone();
    same.push(Tensor { bytes, ..Tensor::bf16("lm_head.weight", &[50, 40]) });
    common::load(write(&tie(true), &same).path()).unwrap();
}

/// Case 3: both spellings of the rotary parameters, conflicts, and no invented theta.
#[test]
fn rope_spellings() {
    let load = |edits: &[(&str, serde_json::Value)], remove: &[&str]| {
        let folder = write(&small_config(), &small_tensors());
        edit_config(folder.path(), edits);
        remove.iter().for_each(|f| remove_field(folder.path(), f));
        common::load(folder.path()).map(|c| c.config().rope.clone()).map_err(|e| e.to_string())
    };
    let llama3 = json!({"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32});
    let mut old = llama3.clone();
    old["rope_type"] = json!("llama3");
    let mut older = llama3.clone();
    older["type"] = json!("llama3");
    let mut new = old.clone();
    new["rope_theta"] = json!(500_000.0);
    let a = load(&[("rope_scaling", old.clone()), ("rope_theta", json!(500_000))], &[]).unwrap();
    let b = load(&[("rope_scaling", older), ("rope_theta", json!(5e5))], &[]).unwrap();
    let c = load(&[("rope_parameters", new.clone())], &["rope_theta"]).unwrap();
    assert!(a == b && b == c && a.theta == 5e5);
    assert_ne!(a.inv_freq(16), load(&[("rope_theta", json!(5e5))], &[]).unwrap().inv_freq(16));
    // Said twice and alike is fine; said twice and otherwise is an error.
    load(
        &[
            ("rope_parameters", new.clone()),
            ("rope_scaling", old.clone()),
            ("rope_theta", json!(5e5)),
        ],
        &[],
    )
    .unwrap();
    let text = load(&[("rope_parameters", new.clone())], &[]).unwrap_err();
    assert_eq!(
        text,
        "config.json: \"rope_theta\" (10000) and \"rope_parameters.rope_theta\" (500000) disagree; keep the one that is right"
    );
    let mut other = old.clone();
    other["factor"] = json!(4.0);
    let text =
        load(&[("rope_parameters", new), ("rope_scaling", other)], &["rope_theta"]).unwrap_err();
    assert!(
        text.contains("\"rope_scaling\"")
            && text.contains("\"rope_parameters\"")
            && text.contains("disagree"),
        "{text}"
    );
    let text = load(
        &[("rope_scaling", json!({"type": "linear", "rope_type": "llama3", "factor": 2.0}))],
        &[],
    )
    .unwrap_err();
    assert!(text.contains("\"rope_scaling.rope_type\" (\"llama3\") and \"rope_scaling.type\" (\"linear\") disagree"), "{text}");
    // Theta is not invented.
    let text = load(&[], &["rope_theta"]).unwrap_err();
    assert!(text.starts_with("config.json has no \"rope_theta\""), "{text}");
    // A part that is missing is named.
    let text =
        load(&[("rope_scaling", json!({"rope_type": "llama3", "factor": 8.0}))], &[]).unwrap_err();
    assert!(text.contains("rope_scaling.original_max_position_embeddings"), "{text}");
    let text = load(&[("rope_scaling", json!({"factor": 8.0}))], &[]).unwrap_err();
    assert!(text.contains("rope_scaling.rope_type"), "{text}");
}

/// Case 4: biases and unknown tensors are refused, whatever the config says.
#[test]
fn no_tensor_is_dropped() {
    for name in [
        "self_attn.q_proj.bias",
        "self_attn.o_proj.bias",
        "self_attn.q_norm.weight",
        "something.new",
    ] {
        let name = format!("model.layers.0.{name}");
        let mut tensors = small_tensors();
        tensors.push(Tensor::bf16(&name, &[64]));
        let text = refusal(write(&small_config(), &tensors).path());
        let expected = format!(
            "the tensor {name} (shape [64], in model.safetensors) has no place in LlamaForCausalLM"
        );
        assert!(text.starts_with(&expected), "{text}");
    }
    // The biased fixture with a config that denies its biases.
    let folder = common::copy("llama-attnbias-f32");
    edit_config(folder.path(), &[("attention_bias", json!(false))]);
    assert!(refusal(folder.path()).contains("bias (shape"));
    // Frequencies stored by old exporters: checked against the config, not ignored.
    let stored = |theta: f64| {
        let c = common::load(write(&small_config(), &small_tensors()).path()).unwrap();
        let f = amk_models::Rope { theta, ..c.config().rope.clone() }.inv_freq(16);
        let mut tensors = small_tensors();
        tensors.push(Tensor::f32("model.layers.0.self_attn.rotary_emb.inv_freq", &[8], &f));
        write(&small_config(), &tensors)
    };
    common::load(stored(10_000.0).path()).unwrap();
    assert!(refusal(stored(20_000.0).path()).contains("rotary_emb.inv_freq"));
    // A layer too many, a layer too few.
    let folder = common::copy("llama-gqa-bf16");
    edit_config(folder.path(), &[("num_hidden_layers", json!(3))]);
    assert!(refusal(folder.path()).starts_with(
        "the tensor model.layers.2.input_layernorm.weight is missing: config.json asks for 3 layers"
    ));
    edit_config(folder.path(), &[("num_hidden_layers", json!(4096))]);
    assert!(refusal(folder.path()).starts_with(
        "the tensor model.layers.2.input_layernorm.weight is missing: config.json asks for 4096 layers"
    ));
    edit_config(folder.path(), &[("num_hidden_layers", json!(1))]);
    assert!(refusal(folder.path()).starts_with("the tensor model.layers.1."));
}

/// Case 5: the index names a shard that is not there.
#[test]
fn missing_shard() {
    let folder = common::copy("llama-sharded-bf16");
    std::fs::remove_file(folder.path().join("model-00003-of-00004.safetensors")).unwrap();
    let text = refusal(folder.path());
    let expected = format!(
        "model.safetensors.index.json names the shard model-00003-of-00004.safetensors, which is not in {}; download that shard",
        folder.path().display()
    );
    assert_eq!(text, expected);
}

/// Case 6: the index is of another cut of the checkpoint.
#[test]
fn stale_index() {
    let folder = common::copy("llama-sharded-bf16");
    for i in 1..=4 {
        let name =
            |total: u32| folder.path().join(format!("model-0000{i}-of-000{total:02}.safetensors"));
        std::fs::rename(name(4), name(8)).unwrap();
    }
    let text = refusal(folder.path());
    assert!(text.contains("names the shard model-00001-of-00004.safetensors"), "{text}");
    assert!(
        text.contains(
            "so the index is stale: it belongs to a checkpoint cut into another number of shards"
        ),
        "{text}"
    );

    let spoil = |edit: &dyn Fn(&mut serde_json::Value)| {
        let folder = common::copy("llama-sharded-bf16");
        let path = folder.path().join("model.safetensors.index.json");
        let mut index: serde_json::Value =
            serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut index);
        std::fs::write(&path, index.to_string()).unwrap();
        refusal(folder.path())
    };
    let text =
        spoil(&|i| i["weight_map"]["lm_head.weight"] = json!("model-00001-of-00004.safetensors"));
    assert!(text.contains("puts the tensor lm_head.weight in model-00001-of-00004.safetensors, which does not hold it"), "{text}");
    let text =
        spoil(&|i| drop(i["weight_map"].as_object_mut().unwrap().remove("model.norm.weight")));
    assert!(
        text.contains("the tensor model.norm.weight of model-0000")
            && text.contains("is not listed"),
        "{text}"
    );
    let text = spoil(&|i| i["weight_map"]["lm_head.weight"] = json!("../elsewhere.safetensors"));
    assert!(text.contains("not the name of a safetensors file"), "{text}");
    assert!(spoil(&|i| *i = json!({})).contains("no \"weight_map\""));
    // A tensor in two shards, of which the index names one.
    let folder = common::copy("llama-sharded-bf16");
    let shard = |n: u32| folder.path().join(format!("model-0000{n}-of-00004.safetensors"));
    std::fs::copy(shard(1), shard(2)).unwrap();
    let text = refusal(folder.path());
    assert!(text.contains("which does not hold it") || text.contains("as well as in"), "{text}");
    let twice = common::copy("llama-sharded-bf16");
    let first = twice.path().join("model-00001-of-00004.safetensors");
    let bytes = std::fs::read(&first).unwrap();
    let n = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..n]).unwrap();
    let end = bytes.len() - n;
    header["model.norm.weight"] =
        json!({"dtype": "BF16", "shape": [1], "data_offsets": [end, end + 2]});
    let data = [&bytes[n..], &[0; 2]].concat();
    std::fs::write(&first, with_header(&header.to_string(), &data)).unwrap();
    let text = refusal(twice.path());
    assert!(
        text.contains(
            "model.norm.weight is in model-00001-of-00004.safetensors as well as in model-0000"
        ),
        "{text}"
    );
    assert!(spoil(&|i| i["weight_map"] = json!({})).contains("is empty"));
    let folder = common::copy("llama-sharded-bf16");
    std::fs::remove_file(folder.path().join("model.safetensors.index.json")).unwrap();
    assert!(refusal(folder.path()).contains("put the index beside the shards"));
}

/// Case 7: damaged files are refused before anything is allocated by what they say.
#[test]
fn damaged_files() {
    let good = safetensors(&small_tensors());
    let with = |bytes: &[u8]| {
        let folder = write(&small_config(), &[]);
        std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
        refusal(folder.path())
    };
    let text = with(&good[..good.len() - 1]);
    assert!(
        text.starts_with("model.safetensors: the file is 1 bytes short of the")
            && text.contains("truncated"),
        "{text}"
    );
    let mut long = good.clone();
    long.extend([0; 8]);
    assert!(with(&long).contains("the file has 8 trailing bytes after the"));
    let mut huge = good.clone();
    huge[..8].copy_from_slice(&(1u64 << 63).to_le_bytes());
    assert!(with(&huge).contains("it says that its header has 9223372036854775808 bytes"));
    huge[..8].copy_from_slice(&(good.len() as u64).to_le_bytes());
    assert!(with(&huge).contains("it says that its header has"));
    let text = with(&[]);
    assert!(text.contains("it has 0 bytes, too few for a safetensors file"), "{text}");
    assert!(with(b"<html>not found</html>").contains("it says that its header has"));
    let header = |a: [u64; 2], b: [u64; 2]| {
        json!({"a": {"dtype": "F32", "shape": [2], "data_offsets": a}, "b": {"dtype": "F32", "shape": [2], "data_offsets": b}})
            .to_string()
    };
    let text = with(&with_header(&header([0, 8], [0, 8]), &[0; 8]));
    assert!(text.contains("overlaps another one or leaves a gap before it"), "{text}");
    assert!(
        with(&with_header(&header([0, 8], [12, 20]), &[0; 20])).contains("the tensor b overlaps")
    );
    let text = with(&with_header(&header([0, 12], [12, 20]), &[0; 20]));
    assert!(
        text.contains("the tensor a has more or fewer bytes than its shape and type take"),
        "{text}"
    );
    let overflow =
        json!({"a": {"dtype": "F32", "shape": [u64::MAX, 8], "data_offsets": [0, 8]}}).to_string();
    assert!(with(&with_header(&overflow, &[0; 8])).contains("too large to count"));
    assert!(with(&with_header("{\"a\": 5}", &[])).contains("its header cannot be read"));
    assert!(with(&with_header("{}", &[])).contains("is missing"));
}

/// Case 8: weights in other formats.
#[test]
fn other_formats() {
    let with = |files: &[&str]| {
        let folder = write(&small_config(), &[]);
        std::fs::remove_file(folder.path().join("model.safetensors")).unwrap();
        files.iter().for_each(|f| std::fs::write(folder.path().join(f), b"x").unwrap());
        (refusal(folder.path()), folder)
    };
    let (text, folder) = with(&["pytorch_model.bin", "training_args.bin"]);
    let expected = format!(
        "{} has weights only as pytorch_model.bin, a format that is not supported; convert them to safetensors, for example by loading the model in transformers and calling save_pretrained",
        folder.path().display()
    );
    assert_eq!(text, expected);
    let text = with(&["model.gguf"]).0;
    assert!(text.contains("its only weights are model.gguf, a GGUF file"), "{text}");
    assert!(
        with(&["training_args.bin"])
            .0
            .contains("has neither model.safetensors nor model.safetensors.index.json")
    );
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(empty.path()).contains("has no config.json"));
}

/// Case 9: every tensor keeps its type, and widening is exact at the ends of the range.
#[test]
fn types_per_tensor() {
    let mut tensors = small_tensors();
    let norm: Vec<f32> = (0..40).map(|i| 1.0 + i as f32 * 1e-7).collect();
    let at = tensors.iter().position(|t| t.name == "model.norm.weight").unwrap();
    tensors[at] = Tensor::f32("model.norm.weight", &[40], &norm);
    let extremes = [1e5f32, 3e38, -3e38, f32::MIN_POSITIVE];
    for (i, v) in extremes.iter().enumerate() {
        tensors[0].bytes[2 * i..2 * i + 2]
            .copy_from_slice(&((v.to_bits() >> 16) as u16).to_le_bytes());
    }
    let c = common::load(write(&small_config(), &tensors).path()).unwrap();
    let w = c.weights();
    assert_eq!(w.dtypes(), [DType::Bf16, DType::F32]);
    assert_eq!(w.shared(Role::FinalNorm).unwrap().to_f32(), norm);
    let row = w.shared(Role::Embedding).unwrap().rows_f32(0..1);
    let expected: Vec<f32> =
        extremes.iter().map(|v| f32::from_bits(v.to_bits() & 0xffff_0000)).collect();
    assert_eq!(row[..4], expected[..]);
    // Types that are not read are refused by name.
    let mut tensors = small_tensors();
    tensors[3].dtype = "I16";
    let text = refusal(write(&small_config(), &tensors).path());
    assert_eq!(
        text,
        "the tensor model.layers.0.self_attn.k_proj.weight is stored as I16; supported are BF16, F16 and F32"
    );
}

/// Every f16 value widens exactly, also where the tensor lies at an odd place in the file.
#[test]
fn f16_and_unaligned_tensors() {
    let f16: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let mut tensors = small_tensors();
    // 65,536 elements of an untied head of width 40 do not fit; use the embedding's width instead.
    let mut config = small_config();
    config["vocab_size"] = json!(1639);
    tensors[0] = Tensor {
        name: tensors[0].name.clone(),
        dtype: "F16",
        shape: vec![1639, 40],
        bytes: [f16.clone(), vec![0; 48]].concat(),
    };
    for pad in [0, 1] {
        let folder = write(&config, &tensors);
        // Padding of the header moves all data by one byte.
        let file = folder.path().join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header =
            String::from_utf8(bytes[8..8 + n].to_vec()).unwrap() + &" ".repeat(16 - n % 8 + pad);
        std::fs::write(&file, with_header(&header, &bytes[8 + n..])).unwrap();
        let c = common::load(folder.path()).unwrap();
        let t = c.weights().shared(Role::Embedding).unwrap();
        assert_eq!(t.words16().is_some(), pad == 0);
        assert_eq!(t.aligned().words16().unwrap()[..65536], (0..=u16::MAX).collect::<Vec<_>>()[..]);
        let wide = t.to_f32();
        for bits in 0..=u16::MAX {
            let (a, b) = (half::f16::from_bits(bits).to_f32(), wide[bits as usize]);
            assert!(a == b || (a.is_nan() && b.is_nan()), "{bits:#x}");
        }
    }
    let mut odd = small_tensors();
    odd.iter_mut().for_each(|t| t.dtype = "BF16");
    let folder = write(&small_config(), &odd);
    let file = folder.path().join("model.safetensors");
    let expected =
        Reference::new(&common::load(folder.path()).unwrap()).unwrap().forward(3, 0).unwrap();
    let bytes = std::fs::read(&file).unwrap();
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = String::from_utf8(bytes[8..8 + n].to_vec()).unwrap() + &" ".repeat(17 - n % 8);
    std::fs::write(&file, with_header(&header, &bytes[8 + n..])).unwrap();
    let c = common::load(folder.path()).unwrap();
    assert!(c.weights().shared(Role::Embedding).unwrap().words16().is_none());
    assert_eq!(Reference::new(&c).unwrap().forward(3, 0).unwrap(), expected);
}

/// Case 10: epsilon comes from the config and matters.
#[test]
fn epsilon_is_read() {
    let folder = common::copy("llama-mha-f32");
    remove_field(folder.path(), "rms_norm_eps");
    let text = refusal(folder.path());
    assert_eq!(
        text,
        "config.json has no \"rms_norm_eps\": the value is needed and none is assumed; add it as the model's authors published it"
    );
    edit_config(folder.path(), &[("rms_norm_eps", json!(1e-3))]);
    let golden = Golden::read(&common::golden("llama-mha-f32.json")).unwrap();
    let mut r = Reference::new(&common::load(folder.path()).unwrap()).unwrap();
    let report = verify_f32(&golden, &mut r, Limits { prompts: 1, ..Limits::default() }).unwrap();
    assert!(!report.ok && report.max_abs_logit_error > 1e-3);
}

/// Sizes that the computation needs are never invented, except where the model's own class defines them.
#[test]
fn absent_sizes() {
    for field in [
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ] {
        let folder = write(&small_config(), &small_tensors());
        remove_field(folder.path(), field);
        assert!(
            refusal(folder.path()).starts_with(&format!("config.json has no \"{field}\"")),
            "{field}"
        );
    }
    let folder = common::copy("llama-mha-f32");
    remove_field(folder.path(), "num_key_value_heads");
    assert_eq!(common::load(folder.path()).unwrap().config().num_kv_heads, 4);
    // Mistral's class assumes 8 heads and a window of 4096 where nothing is written.
    let folder = common::copy("mistral-full-bf16");
    remove_field(folder.path(), "num_key_value_heads");
    assert!(refusal(folder.path()).starts_with("config.json has no \"num_key_value_heads\""));
    let folder = common::copy("mistral-full-bf16");
    remove_field(folder.path(), "sliding_window");
    assert!(
        refusal(folder.path())
            .starts_with("config.json: \"sliding_window\" is absent, which MistralForCausalLM")
    );
}

/// Rows can be read without touching the rest, and nothing outside can be read.
#[test]
fn rows_of_a_tensor() {
    let c = Checkpoint::from_folder(&common::checkpoint("llama-gqa-bf16")).unwrap();
    let t = c.weights().layer(1, Role::Down).unwrap();
    let all = t.to_f32();
    assert_eq!((t.rows(), t.cols(), all.len()), (128, 320, 128 * 320));
    assert_eq!(t.rows_f32(5..7), all[5 * 320..7 * 320]);
    assert_eq!(t.row_bytes(5..7), &t.bytes()[5 * 640..7 * 640]);
    #[allow(clippy::reversed_empty_ranges)]
    let outside = [t.rows_f32(128..129), t.rows_f32(7..5), t.rows_f32(0..usize::MAX)];
    assert!(outside.iter().all(Vec::is_empty));
    assert!(c.weights().layer(2, Role::Down).is_err() && c.weights().shared(Role::Down).is_err());
    let bytes: u64 = c.weights().iter().map(|t| t.bytes().len() as u64).sum();
    assert_eq!(bytes, 2 * c.config().parameter_count().unwrap());
}
