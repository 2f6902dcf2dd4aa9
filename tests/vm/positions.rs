//! Positions and sizes where kernels of this kind are known to go wrong: borders of buckets, splits and tiles, the end
//! of the context, and sizes that are no multiple of anything.

use amk::lower::{Knobs, Mode};
use amk::scheduled::Scheduled;
use amk::vm::Options;
use amk_models::golden::LogitSource;
use amk_models::{Checkpoint, Reference, Want};
use serde_json::{Value, json};

use crate::support::{Case, distance, target};

/// A Llama of these sizes with reproducible float32 weights.
fn made(sizes: Value) -> Checkpoint {
    let size = |name: &str| sizes[name].as_u64().unwrap() as usize;
    let mut config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": true, "num_hidden_layers": 1
    });
    for (name, value) in sizes.as_object().unwrap() {
        config[name] = value.clone();
    }
    let (hidden, inner, vocab) =
        (size("hidden_size"), size("intermediate_size"), size("vocab_size"));
    let head_dim = size("head_dim");
    let (q, kv) = (size("num_attention_heads") * head_dim, size("num_key_value_heads") * head_dim);
    let layer = |part: &str| format!("model.layers.0.{part}.weight");
    let tensors = [
        ("model.embed_tokens.weight".to_owned(), vec![vocab, hidden]),
        ("model.norm.weight".to_owned(), vec![hidden]),
        (layer("input_layernorm"), vec![hidden]),
        (layer("post_attention_layernorm"), vec![hidden]),
        (layer("self_attn.q_proj"), vec![q, hidden]),
        (layer("self_attn.k_proj"), vec![kv, hidden]),
        (layer("self_attn.v_proj"), vec![kv, hidden]),
        (layer("self_attn.o_proj"), vec![hidden, q]),
        (layer("mlp.gate_proj"), vec![inner, hidden]),
        (layer("mlp.up_proj"), vec![inner, hidden]),
        (layer("mlp.down_proj"), vec![hidden, inner]),
    ];
    let (mut header, mut data, mut state) = (json!({}), Vec::new(), 12345u32);
    for (name, shape) in tensors {
        let start = data.len();
        let centre = if name.contains("norm") { 1.0 } else { 0.0 };
        for _ in 0..shape.iter().product::<usize>() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = centre + ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 0.5;
            data.extend(value.to_le_bytes());
        }
        header[name] = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, data.len()]});
    }
    let header = header.to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), file).unwrap();
    // The file stays mapped after the folder is gone.
    Checkpoint::from_folder(folder.path()).unwrap()
}

/// A context over four buckets, fed to its end: at every position, and so at every border of bucket, split and tile,
/// the schedules say what the reference says; the position after the last is refused.
#[test]
fn every_position_up_to_the_capacity_says_what_the_reference_says() {
    const CAPACITY: usize = 4100;
    let checkpoint = made(json!({
        "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "vocab_size": 24, "max_position_embeddings": CAPACITY
    }));
    let tokens: Vec<u32> = (0..CAPACITY as u32).map(|i| i * 7919 % 24).collect();
    let expected = Reference::new(&checkpoint).unwrap().prefill(&tokens, 0, Want::All).unwrap();
    let mut scheduled = Scheduled::new(&checkpoint, target(2), Mode::F32, CAPACITY);
    let mut seen = 0;
    scheduled
        .prefill(&tokens, 0, &mut |position, logits| {
            assert_eq!(position, seen);
            let far = distance(logits, &expected[position]);
            assert!(far < 1e-3, "position {position}: {far}");
            seen += 1;
        })
        .unwrap();
    assert_eq!(seen, CAPACITY);
    let text = scheduled.step(1, CAPACITY).unwrap_err().to_string();
    assert!(text.contains("4100"), "{text}");
    let text = Reference::new(&checkpoint).unwrap().prefill(&[1; CAPACITY + 1], 0, Want::Last);
    assert!(text.unwrap_err().to_string().contains("beyond the model's 4100 positions"));
}

/// Vocabulary, widths and groups of heads that no tile divides.
#[test]
fn sizes_that_no_tile_divides() {
    let knobs = Knobs { capacity: Some(64), ..Knobs::default() };
    for kv_heads in [8, 2, 1] {
        let checkpoint = || {
            made(json!({
                "hidden_size": 96, "intermediate_size": 200, "num_attention_heads": 8,
                "num_key_value_heads": kv_heads, "head_dim": 12, "vocab_size": 1003,
                "max_position_embeddings": 64
            }))
        };
        let case = Case::new(checkpoint(), 5, &knobs, 63, Mode::F32);
        let prompt = case.prompt(18);
        let (tokens, _) = case.expected(&prompt, 8);
        let got = case.model(Options::default()).generate(&prompt, 8, 4).unwrap();
        assert_eq!(got.tokens, tokens, "{kv_heads} kv heads");
    }
}
