//! Caps on what is read from a checkpoint folder, all in one place.
//!
//! They bound the memory a hostile or damaged folder can ask for; each is far above what real checkpoints need.

/// Largest `config.json`, `generation_config.json`, `tokenizer_config.json` or chat template, in bytes.
pub const MAX_CONFIG_BYTES: u64 = 16 << 20;
/// Largest `model.safetensors.index.json`, in bytes.
pub const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Largest `tokenizer.json`, in bytes.
pub const MAX_TOKENIZER_BYTES: u64 = 256 << 20;
/// Largest golden file, in bytes.
pub const MAX_GOLDEN_BYTES: u64 = 256 << 20;
/// Largest safetensors header, in bytes (the format's own limit).
pub const MAX_HEADER_BYTES: u64 = 100_000_000;
/// Largest value of any size in `config.json` (heads, widths, vocabulary, layers, positions).
pub const MAX_DIMENSION: u64 = 1 << 31;
/// Most decoder layers a config may ask for.
pub const MAX_LAYERS: usize = 1 << 12;
/// Steps a chat template may take before it is stopped; what it makes counts by its size.
pub const MAX_TEMPLATE_STEPS: u64 = 20_000_000;
/// Calls within calls of a chat template before it is stopped, and levels of a value that it writes.
pub const MAX_TEMPLATE_RECURSION: usize = 200;
/// Longest text, bytes, that a chat template may have one value written as.
pub const MAX_TEMPLATE_TEXT: usize = 1 << 24;
/// Greatest indent a chat template may ask JSON to be written with.
pub const MAX_TEMPLATE_INDENT: usize = 64;
/// Greatest width a chat template may fill a text up to.
pub const MAX_TEMPLATE_WIDTH: usize = 1 << 12;
