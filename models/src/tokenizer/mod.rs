//! Text to ids and back.
//!
//! The vocabulary and its rules are the checkpoint's `tokenizer.json`, run by the `tokenizers` crate; special tokens
//! and the chat template come from `tokenizer_config.json` (and `special_tokens_map.json`, `chat_template.jinja`).
//! `stream.rs` turns a stream of ids into text without splitting a character, `stop.rs` ends it at a stop string;
//! `chat.rs` renders chat templates: `blocks.rs` looks through their source, `python.rs` writes values as Python does,
//! `methods.rs` has Python's methods, `arguments.rs` what is passed to them, `strftime.rs` is the clock they may ask for.

mod arguments;
mod blocks;
mod chat;
mod methods;
mod python;
mod stop;
mod stream;
mod strftime;

pub use chat::{ChatTemplate, Message, TemplateValue};
pub use stop::StopStrings;
pub use stream::StreamDecoder;

use crate::config::ConfigError;
use crate::files::{FileError, Files};
use crate::limits;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Why text could not be handled.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// A file could not be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// `tokenizer_config.json` or a neighbour is not what it should be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `tokenizer.json` is not understood.
    #[error(
        "tokenizer.json cannot be read: {0}; download it again, or convert the tokenizer with a current transformers"
    )]
    Unreadable(String),
    /// Encoding or decoding failed inside the tokenizer.
    #[error("the tokenizer refused the text: {0}")]
    Refused(String),
    /// There is no chat template.
    #[error("the checkpoint has no chat template; give a plain prompt instead of messages")]
    NoTemplate,
    /// The chat template does not compile or render.
    #[error("the chat template failed: {0}")]
    Template(String),
    /// The chat template itself refused the messages.
    #[error("the chat template refuses these messages: {0}")]
    RefusedByTemplate(String),
    /// A special token that the vocabulary does not have.
    #[error(
        "tokenizer_config.json names {role} {token:?}, which is not in the vocabulary of tokenizer.json"
    )]
    UnknownSpecial {
        /// Which special token.
        role: String,
        /// Its text.
        token: String,
    },
}

/// A checkpoint's tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    special: BTreeMap<String, String>,
    template: Option<ChatTemplate>,
    bos: Option<u32>,
    eos: Option<u32>,
    bos_rule: BosRule,
}

/// Whether a raw prompt starts with BOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BosRule {
    /// As the post-processor of `tokenizer.json` has it.
    PostProcessor,
    /// Always.
    Add,
    /// Never.
    Omit,
}

const SPECIAL_ROLES: &[&str] =
    &["bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token"];

impl Tokenizer {
    /// Loads the tokenizer of a checkpoint; none where the checkpoint has no `tokenizer.json`.
    pub fn load(files: &Files) -> Result<Option<Self>, TokenizerError> {
        if !files.has("tokenizer.json") {
            return Ok(None);
        }
        let read_object = |name: &str| -> Result<Map<String, Value>, TokenizerError> {
            if !files.has(name) {
                return Ok(Map::new());
            }
            let bytes = files.read(name, limits::MAX_CONFIG_BYTES)?;
            Ok(crate::config::parse_object(name, &bytes)?)
        };
        let template = match files.has("chat_template.jinja") {
            true => {
                let bytes = files.read("chat_template.jinja", limits::MAX_CONFIG_BYTES)?;
                Some(
                    String::from_utf8(bytes)
                        .map_err(|e| TokenizerError::Template(e.to_string()))?,
                )
            }
            false => None,
        };
        let tokenizer = files.read("tokenizer.json", limits::MAX_TOKENIZER_BYTES)?;
        Self::from_parts(
            &tokenizer,
            &read_object("tokenizer_config.json")?,
            &read_object("special_tokens_map.json")?,
            template,
        )
        .map(Some)
    }

    /// Builds a tokenizer from the contents of `tokenizer.json`, `tokenizer_config.json`, `special_tokens_map.json`
    /// and `chat_template.jinja`.
    pub fn from_parts(
        tokenizer: &[u8],
        config: &Map<String, Value>,
        special_map: &Map<String, Value>,
        template: Option<String>,
    ) -> Result<Self, TokenizerError> {
        let mut inner = tokenizers::Tokenizer::from_bytes(tokenizer)
            .map_err(|e| TokenizerError::Unreadable(e.to_string()))?;
        // Settings of training pipelines; a prompt is neither cut nor filled up.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| TokenizerError::Unreadable(e.to_string()))?;

        let mut special = BTreeMap::new();
        for role in SPECIAL_ROLES {
            if let Some(token) =
                [config, special_map].iter().find_map(|m| token_text(m.get(*role)?))
            {
                special.insert(role.to_string(), token);
            }
        }
        let id = |role: &str| -> Result<Option<u32>, TokenizerError> {
            let Some(token) = special.get(role) else { return Ok(None) };
            match inner.token_to_id(token) {
                Some(id) => Ok(Some(id)),
                None => Err(TokenizerError::UnknownSpecial {
                    role: role.to_string(),
                    token: token.clone(),
                }),
            }
        };
        let (bos, eos) = (id("bos_token")?, id("eos_token")?);
        // Llama's own tokenizer class rebuilds the post-processor from this flag; others leave it as the file has it.
        let class = config.get("tokenizer_class").and_then(Value::as_str).unwrap_or_default();
        let bos_rule = match config.get("add_bos_token").and_then(Value::as_bool) {
            Some(true) if bos.is_some() => BosRule::Add,
            Some(false) if class.starts_with("LlamaTokenizer") => BosRule::Omit,
            _ => BosRule::PostProcessor,
        };
        let template = template
            .or_else(|| config_template(config.get("chat_template")?))
            .map(ChatTemplate::new);
        Ok(Self { inner, special, template, bos, eos, bos_rule })
    }

    /// Ids of a raw prompt: special tokens in the text are recognised, and BOS stands at the start exactly once if the
    /// model's own rule wants it there.
    pub fn encode_prompt(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let mut ids = self.encode(text, self.bos_rule != BosRule::Omit)?;
        let Some(bos) = self.bos else { return Ok(ids) };
        if self.bos_rule == BosRule::Add && ids.first() != Some(&bos) {
            ids.insert(0, bos);
        }
        // The text itself may begin with the token the rule has just put there.
        if ids.len() >= 2 && ids[0] == bos && ids[1] == bos {
            ids.remove(0);
        }
        Ok(ids)
    }

    /// Ids of text that a chat template made: it carries its special tokens itself, none are added.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode(text, false)
    }

    /// Ids exactly as `tokenizer.json` gives them, with or without what its post-processor adds.
    pub fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self
            .inner
            .encode_fast(text, add_special_tokens)
            .map_err(|e| TokenizerError::Refused(e.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Text of ids; ids outside the vocabulary give nothing.
    pub fn decode(&self, ids: &[u32], skip_special_tokens: bool) -> Result<String, TokenizerError> {
        self.inner
            .decode(ids, skip_special_tokens)
            .map_err(|e| TokenizerError::Refused(e.to_string()))
    }

    /// A decoder for ids that arrive one after another.
    pub fn stream(&self, skip_special_tokens: bool) -> StreamDecoder<'_> {
        StreamDecoder::new(self, skip_special_tokens)
    }

    /// Renders messages with the checkpoint's chat template.
    pub fn render_chat(
        &self,
        messages: &[Message],
        add_generation_prompt: bool,
    ) -> Result<String, TokenizerError> {
        let template = self.template.as_ref().ok_or(TokenizerError::NoTemplate)?;
        template.render(messages, add_generation_prompt, &self.special)
    }

    /// The chat template, if there is one.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.template.as_ref()
    }

    /// Special tokens by role (`bos_token`, `eos_token`, …).
    pub fn special_tokens(&self) -> &BTreeMap<String, String> {
        &self.special
    }

    /// Id of the BOS token.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// Id of the EOS token.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos
    }

    /// Number of entries, added tokens included. May differ from the model's `vocab_size`.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// The entry of an id as the vocabulary spells it.
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    fn is_special(&self, token: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(token)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("special", &self.special)
            .finish()
    }
}

/// A special token is written as its text or as an object with `content`.
fn token_text(value: &Value) -> Option<String> {
    value.as_str().or_else(|| value.get("content")?.as_str()).map(str::to_string)
}

/// `chat_template` is one template or a list of named ones, of which `default` is used.
fn config_template(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Array(list) => {
            let named = |name: &str| {
                list.iter().find(|t| t.get("name").and_then(Value::as_str) == Some(name))
            };
            named("default").or(list.first())?.get("template")?.as_str().map(str::to_string)
        }
        _ => None,
    }
}
