//! The tokenizer in the metadata as the `tokenizer.json` it was made from.

use super::GgufError;
use super::read::{Contents, Meta};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Kinds of token that are looked for in a text before anything else.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Splits of byte-level vocabularies, by the name GGUF gives them.
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// `tokenizer.json` and `tokenizer_config.json`.
pub(super) type TokenizerFiles = (Vec<u8>, Map<String, Value>);

/// The files a tokenizer is read from; none where the GGUF file has no tokenizer.
pub(super) fn tokenizer(contents: &Contents) -> Result<Option<TokenizerFiles>, GgufError> {
    let bad = |what: &str| GgufError::Tokenizer(what.to_string());
    let Some(model) = contents.text("tokenizer.ggml.model") else { return Ok(None) };
    let texts = |key: &str| -> Option<Vec<&str>> {
        let Meta::List(list) = contents.metadata.get(key)? else { return None };
        list.iter().map(|m| if let Meta::Text(s) = m { Some(s.as_str()) } else { None }).collect()
    };
    let tokens = texts("tokenizer.ggml.tokens").ok_or_else(|| bad("it has no tokens"))?;
    let vocab: HashMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (*t, i)).collect();
    let kinds: Vec<i64> = match contents.metadata.get("tokenizer.ggml.token_type") {
        Some(Meta::List(list)) => list
            .iter()
            .map(|m| match m {
                Meta::Signed(n) => *n,
                Meta::Unsigned(n) => *n as i64,
                _ => 0,
            })
            .collect(),
        _ => Vec::new(),
    };
    let added: Vec<Value> = tokens
        .iter()
        .zip(&kinds)
        .enumerate()
        .filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED))
        .map(|(id, (text, kind))| {
            json!({"id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": *kind == CONTROL})
        })
        .collect();
    let byte_level = |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let split = |pattern: &str| {
        let split = json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
        json!({"type": "Sequence", "pretokenizers": [split, byte_level(false)]})
    };
    let mut out = json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
                         "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null});
    let mut bpe = json!({"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                         "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab});
    let mut bpe_of_llama3 = false;
    match model {
        "gpt2" => {
            let merges = texts("tokenizer.ggml.merges").ok_or_else(|| bad("it has no merges"))?;
            bpe["merges"] = merges.into();
            let pre = contents.text("tokenizer.ggml.pre").unwrap_or("default");
            out["pre_tokenizer"] = match pre {
                "llama-bpe" | "llama3" | "llama-v3" => {
                    bpe_of_llama3 = true;
                    bpe["ignore_merges"] = true.into();
                    split(LLAMA3)
                }
                "qwen2" => {
                    out["normalizer"] = json!({"type": "NFC"});
                    split(QWEN2)
                }
                "smollm" => json!({"type": "Sequence", "pretokenizers": [
                    {"type": "Digits", "individual_digits": true}, byte_level(true)]}),
                "gpt-2" | "default" => byte_level(true),
                other => {
                    return Err(GgufError::Tokenizer(format!(
                        "its splitting rule {other:?} is not known"
                    )));
                }
            };
            out["decoder"] = byte_level(true);
        }
        "llama" => {
            let Some(Meta::List(scores)) = contents.metadata.get("tokenizer.ggml.scores") else {
                return Err(bad("it has no scores"));
            };
            let scores: Vec<f64> =
                scores.iter().map(|m| if let Meta::Float(x) = m { *x } else { 0.0 }).collect();
            bpe["merges"] = merges(&tokens, &vocab, &scores).into();
            bpe["byte_fallback"] = true.into();
            bpe["fuse_unk"] = true.into();
            if let Some(unk) = contents.unsigned("tokenizer.ggml.unknown_token_id") {
                bpe["unk_token"] = tokens.get(unk as usize).copied().into();
            }
            let prefix = contents.flag("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            let mut normalizers =
                vec![json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})];
            let mut decoders = vec![
                json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "}),
                json!({"type": "ByteFallback"}),
                json!({"type": "Fuse"}),
            ];
            if prefix {
                normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
                decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
            }
            out["normalizer"] = json!({"type": "Sequence", "normalizers": normalizers});
            out["decoder"] = json!({"type": "Sequence", "decoders": decoders});
        }
        other => return Err(GgufError::Tokenizer(format!("its kind {other:?} is not supported"))),
    }
    out["model"] = bpe;
    let mut config = Map::new();
    for (role, key) in [
        ("bos_token", "bos"),
        ("eos_token", "eos"),
        ("unk_token", "unknown"),
        ("pad_token", "padding"),
    ] {
        let id = contents.unsigned(&format!("tokenizer.ggml.{key}_token_id"));
        if let Some(text) = id.and_then(|id| tokens.get(usize::try_from(id).ok()?)) {
            config.insert(role.into(), (*text).into());
        }
    }
    // Texts begin with BOS unless the file says otherwise: in sentence-piece vocabularies, and in Llama 3's.
    let usual = model == "llama" || bpe_of_llama3;
    let add = contents.flag("tokenizer.ggml.add_bos_token").unwrap_or(usual);
    config.insert("add_bos_token".into(), add.into());
    config.insert("tokenizer_class".into(), "LlamaTokenizer".into());
    if let Some(template) = contents.text("tokenizer.chat_template") {
        config.insert("chat_template".into(), template.into());
    }
    Ok(Some((out.to_string().into_bytes(), config)))
}

/// The merges a scored vocabulary stands for, in the order transformers puts them: every way to put a token together
/// from two others, better tokens first, longer parts first among equals.
fn merges<'a>(tokens: &[&'a str], vocab: &HashMap<&'a str, usize>, scores: &[f64]) -> Vec<String> {
    let mut found: Vec<(f64, usize, usize, &str, &str)> = Vec::new();
    for (token, score) in tokens.iter().zip(scores) {
        let mut ways: Vec<(usize, usize, &str, &str)> = Vec::new();
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(l), Some(r)) = (vocab.get(left), vocab.get(right)) {
                ways.push((*l, *r, left, right));
            }
        }
        ways.sort_unstable();
        let length = |t: &str| t.chars().count();
        found.extend(ways.into_iter().map(|(_, _, l, r)| (*score, length(l), length(r), l, r)));
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then((b.1, b.2).cmp(&(a.1, a.2))));
    found.into_iter().map(|(_, _, _, l, r)| format!("{l} {r}")).collect()
}
