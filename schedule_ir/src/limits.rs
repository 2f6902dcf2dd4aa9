//! All numeric caps in one place. They bound single values, never the number of instructions.

/// Largest extent of one dimension and of any row or position number.
pub const MAX_EXTENT: u64 = 1 << 40;
/// Largest number of elements of one buffer.
pub const MAX_ELEMENTS: u64 = 1 << 48;
/// Largest rank of a buffer.
pub const MAX_RANK: usize = 4;
/// Most positions of one step: four products of four tokens for every packed block of weights.
pub const MAX_TOKENS: u32 = 16;
/// Largest head dimension.
pub const MAX_HEAD_DIM: u64 = 256;
/// Most splits of one attention.
pub const MAX_SPLITS: u64 = 1 << 16;
/// Most ids a token is drawn among.
pub const MAX_SAMPLED: u64 = 1 << 19;
/// Largest text or JSON file that is read, bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 30;
