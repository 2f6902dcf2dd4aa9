//! Text: ids as the tokenizers library gives them, stop tokens, BOS, streaming, chat templates.

use crate::common;
use amk_models::{Checkpoint, Message, Tokenizer};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[derive(Deserialize)]
struct File {
    tokenizers: BTreeMap<String, Goldens>,
}

#[derive(Deserialize)]
struct Goldens {
    cases: Vec<Case>,
    chats: Vec<Chat>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    ids: Vec<u32>,
    ids_no_special: Vec<u32>,
    decoded: String,
    decoded_keep_special: String,
}

#[derive(Deserialize)]
struct Chat {
    messages: Vec<Message>,
    add_generation_prompt: bool,
    text: String,
    ids: Vec<u32>,
}

fn goldens() -> BTreeMap<String, Goldens> {
    let file: File =
        serde_json::from_slice(&std::fs::read(common::golden("tokenizers.json")).unwrap()).unwrap();
    file.tokenizers
}

fn tokenizer(name: &str) -> Tokenizer {
    let files = amk_models::files::Files::folder(&common::checkpoint(name)).unwrap();
    Tokenizer::load(&files).unwrap().unwrap()
}

/// The fixtures with a tokenizer.
const NAMES: &[&str] =
    &["llama-mha-f32", "llama-gqa-tied-bf16", "llama-gqa-bf16", "qwen2-bf16", "gemma2-bf16"];

#[test]
fn ids_and_texts_are_the_goldens() {
    let goldens = goldens();
    for name in NAMES {
        let t = tokenizer(name);
        for c in &goldens[*name].cases {
            assert_eq!(t.encode(&c.text, true).unwrap(), c.ids, "{name} {:?}", c.text);
            assert_eq!(t.encode(&c.text, false).unwrap(), c.ids_no_special, "{name} {:?}", c.text);
            assert_eq!(t.decode(&c.ids, true).unwrap(), c.decoded, "{name} {:?}", c.text);
            assert_eq!(
                t.decode(&c.ids, false).unwrap(),
                c.decoded_keep_special,
                "{name} {:?}",
                c.text
            );
        }
        assert!(goldens[*name].cases.len() > 20);
    }
}

#[test]
fn chats_are_rendered_as_huggingface_renders_them() {
    let goldens = goldens();
    let mut n = 0;
    for name in NAMES {
        let t = tokenizer(name);
        for c in &goldens[*name].chats {
            let text = t.render_chat(&c.messages, c.add_generation_prompt).unwrap();
            assert_eq!(text, c.text, "{name}");
            assert_eq!(t.encode_rendered(&text).unwrap(), c.ids, "{name}");
            n += 1;
        }
    }
    assert_eq!(n, 16);
    let text = tokenizer("gemma2-bf16")
        .render_chat(&[Message::new("user", "x")], true)
        .unwrap_err()
        .to_string();
    assert!(text.starts_with("the checkpoint has no chat template"), "{text}");
}

/// Case 12: every source of stop tokens counts, numbers and lists alike.
#[test]
fn stop_tokens_are_the_union() {
    let ids = |c: &Checkpoint| c.eos_ids().unwrap();
    let folder = common::copy("llama-gqa-bf16");
    common::edit_config(folder.path(), &[("eos_token_id", json!([7, 9]))]);
    std::fs::write(
        folder.path().join("generation_config.json"),
        json!({"eos_token_id": 11, "do_sample": true}).to_string(),
    )
    .unwrap();
    let c = common::load(folder.path()).unwrap();
    // The tokenizer's own is <|eot_id|>, 511.
    assert_eq!(ids(&c), BTreeSet::from([7, 9, 11, 511]));
    assert_eq!(c.generation().not_applied, ["do_sample=true"]);
    std::fs::write(
        folder.path().join("generation_config.json"),
        json!({"eos_token_id": [12, 13], "pad_token_id": -1}).to_string(),
    )
    .unwrap();
    common::edit_config(folder.path(), &[("eos_token_id", json!(null))]);
    std::fs::remove_file(folder.path().join("tokenizer.json")).unwrap();
    let c = common::load(folder.path()).unwrap();
    assert_eq!(ids(&c), BTreeSet::from([12, 13]));
    assert!(c.tokenizer().unwrap().is_none());
    std::fs::remove_file(folder.path().join("generation_config.json")).unwrap();
    assert!(ids(&common::load(folder.path()).unwrap()).is_empty());
}

/// Case 13: BOS exactly once, by the model's own rule, and never twice after a chat template.
#[test]
fn bos_exactly_once() {
    for (name, bos) in [("llama-mha-f32", 1), ("llama-gqa-bf16", 507)] {
        let t = tokenizer(name);
        assert_eq!(t.bos_id(), Some(bos));
        let bos_text = t.special_tokens()["bos_token"].clone();
        for text in ["Hello".to_string(), format!("{bos_text}Hello"), String::new(), bos_text] {
            let ids = t.encode_prompt(&text).unwrap();
            assert!(ids[0] == bos && ids.get(1) != Some(&bos), "{name} {text:?} {ids:?}");
        }
        let chat = t.render_chat(&[Message::new("user", "Hi")], true).unwrap();
        let ids = t.encode_rendered(&chat).unwrap();
        assert_eq!(ids.iter().filter(|i| **i == bos).count(), 1, "{name}");
        assert_eq!(t.encode_prompt(&chat).unwrap(), ids);
    }
    // A vocabulary with a BOS token whose model does not put it before a text.
    let t = tokenizer("llama-gqa-tied-bf16");
    assert_eq!(t.bos_id(), Some(1));
    assert!(!t.encode_prompt("Hello").unwrap().contains(&1));
}

/// The flag `add_bos_token` of Llama's tokenizer class.
#[test]
fn add_bos_token_is_honoured() {
    let read = |name: &str, file: &str| std::fs::read(common::checkpoint(name).join(file)).unwrap();
    let build = |name: &str, edits: &[(&str, Value)]| {
        let mut config: Map<String, Value> =
            serde_json::from_slice(&read(name, "tokenizer_config.json")).unwrap();
        config.extend(edits.iter().map(|(k, v)| (k.to_string(), v.clone())));
        Tokenizer::from_parts(&read(name, "tokenizer.json"), &config, &Map::new(), None)
    };
    let ids = |t: Tokenizer| t.encode_prompt("Hello").unwrap();
    let plain = ids(build("llama-gqa-tied-bf16", &[]).unwrap());
    let with = ids(build("llama-gqa-tied-bf16", &[("add_bos_token", json!(true))]).unwrap());
    assert_eq!(with[0], 1);
    assert_eq!(with[1..], plain[..]);
    let class = ("tokenizer_class", json!("LlamaTokenizerFast"));
    let without = ids(build("llama-mha-f32", &[("add_bos_token", json!(false)), class]).unwrap());
    assert_ne!(without[0], 1);
    // A special token the vocabulary lacks, and objects in place of texts.
    let error = build("llama-mha-f32", &[("eos_token", json!({"content": "<nope>"}))])
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "tokenizer_config.json names eos_token \"<nope>\", which is not in the vocabulary of tokenizer.json"
    );
    assert_eq!(
        build("llama-mha-f32", &[("eos_token", json!({"content": "</s>"}))]).unwrap().eos_id(),
        Some(2)
    );
    let named =
        json!([{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}]);
    let t = build("llama-mha-f32", &[("chat_template", named)]).unwrap();
    assert_eq!(t.render_chat(&[], false).unwrap(), "yes");
    let error =
        Tokenizer::from_parts(b"{}", &Map::new(), &Map::new(), None).unwrap_err().to_string();
    assert!(error.starts_with("tokenizer.json cannot be read"), "{error}");
}

fn streamed(t: &Tokenizer, ids: &[u32], skip: bool) -> (String, Vec<String>) {
    let mut s = t.stream(skip);
    let mut pieces: Vec<String> = ids.iter().map(|id| s.push(*id).unwrap()).collect();
    pieces.push(s.finish().unwrap());
    (pieces.concat(), pieces)
}

/// Case 14: the stream's pieces, joined, are the whole decoding.
#[test]
fn streaming_equals_decoding() {
    let goldens = goldens();
    for name in NAMES {
        let t = tokenizer(name);
        let everything: Vec<u32> =
            goldens[*name].cases.iter().flat_map(|c| c.ids.clone()).collect();
        let lists = goldens[*name].cases.iter().map(|c| c.ids.clone()).chain([everything]);
        for ids in lists {
            for skip in [true, false] {
                let whole = t.decode(&ids, skip).unwrap();
                let (joined, _) = streamed(&t, &ids, skip);
                assert_eq!(joined, whole, "{name} {ids:?}");
            }
        }
    }
}

/// Arbitrary ids, as an untrained model emits them: broken characters, byte runs, special tokens in their midst.
#[test]
fn streaming_equals_decoding_for_arbitrary_ids() {
    for name in NAMES {
        let t = tokenizer(name);
        let mut s = 1u32;
        for round in 0..30 {
            let ids: Vec<u32> = (0..20 + round * 12)
                .map(|_| {
                    s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Half of the ids among the bytes and special tokens at the start.
                    if s & 0x100 == 0 { (s >> 12) % 270 } else { (s >> 12) % t.vocab_size() as u32 }
                })
                .collect();
            for skip in [true, false] {
                assert_eq!(
                    streamed(&t, &ids, skip).0,
                    t.decode(&ids, skip).unwrap(),
                    "{name} {ids:?}"
                );
            }
        }
    }
}

#[test]
fn characters_are_never_split_and_a_real_replacement_character_survives() {
    for name in NAMES {
        let t = tokenizer(name);
        for text in ["🙂👍🏽🇺🇸", "한국어", "a\u{FFFD}b", "end\u{FFFD}", "👨‍👩‍👧‍👦 ok"]
        {
            let ids = t.encode(text, false).unwrap();
            let (joined, pieces) = streamed(&t, &ids, true);
            assert_eq!(joined, t.decode(&ids, true).unwrap());
            assert!(joined.ends_with(text), "{name}: {joined:?}");
            if !text.contains('\u{FFFD}') {
                assert!(pieces.iter().all(|p| !p.contains('\u{FFFD}')), "{name}: {pieces:?}");
            }
        }
    }
    // Text comes as soon as it is certain, not only at the end.
    let t = tokenizer("llama-mha-f32");
    let ids = t.encode("The river runs past the mill.", false).unwrap();
    let (_, pieces) = streamed(&t, &ids, true);
    assert!(pieces.iter().filter(|p| !p.is_empty()).count() > ids.len() / 2, "{pieces:?}");
}

/// Templates that exercise one construct each, rendered by transformers' own renderer.
#[test]
fn constructs_are_rendered_as_huggingface_renders_them() {
    use amk_models::tokenizer::{ChatTemplate, TemplateValue};
    let text = std::fs::read_to_string(common::golden("chat.json")).unwrap();
    let common::ordered::Ordered(doc) = serde_json::from_str(&text).unwrap();
    let get = |v: &TemplateValue, key: &str| v.get_attr(key).unwrap();
    let now = i64::try_from(get(&doc, "now")).unwrap();
    let (mut count, mut wrong) = (0, Vec::new());
    for case in get(&doc, "cases").try_iter().unwrap() {
        let special = get(&case, "special");
        let special: std::collections::BTreeMap<String, String> = special
            .try_iter()
            .unwrap()
            .map(|k| (k.to_string(), special.get_item(&k).unwrap().to_string()))
            .collect();
        let extra = get(&case, "extra");
        let names: Vec<String> = extra.try_iter().unwrap().map(|k| k.to_string()).collect();
        let mut values: Vec<(&str, TemplateValue)> =
            names.iter().map(|n| (n.as_str(), get(&extra, n))).collect();
        for name in ["messages", "add_generation_prompt", "tools"] {
            values.push((name, get(&case, name)));
        }
        let name = get(&case, "name").to_string();
        let template = ChatTemplate::new(get(&case, "template").to_string());
        let rendered = template.render_values(values, &special, now);
        let refused = get(&case, "refused");
        count += 1;
        if !refused.is_undefined() {
            let error = rendered.unwrap_err().to_string();
            assert_eq!(error, format!("the chat template refuses these messages: {refused}"));
            continue;
        }
        let expected = get(&case, "rendered").to_string();
        match rendered {
            Ok(text) if text == expected => {}
            other => wrong.push(format!("{name}:\n  found    {other:?}\n  expected {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(count >= 25);
}
