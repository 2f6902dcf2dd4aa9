//! The program: buffers, instructions, per-SM queues and weight streams, counters, resources.
//!
//! Every struct here is plain data that a file may fill with anything. Nothing in this module
//! checks; the checks are the validator's.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{BufferId, CounterId, InstrId, RunId, SmId};
use crate::op::Op;
use crate::region::{Bucket, Region};

/// Version of the text and JSON form this crate reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// Output rows of one weight tile: half the M dimension of `mma.m16n8k16`, whose other half has the second half of K.
pub const TILE_ROWS: u64 = 8;
/// K elements of one packed block: two `k16` fragments, one 16-byte shared-memory load per lane.
pub const BLOCK_K: u64 = 32;
/// Bytes of one packed block, `TILE_ROWS * BLOCK_K` bf16 values.
pub const BLOCK_BYTES: u64 = TILE_ROWS * BLOCK_K * 2;

/// A schedule for one target and one position bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Format version; see [`FORMAT_VERSION`].
    pub version: u32,
    /// What the program decodes, for people.
    pub name: String,
    /// Architecture the program is for, as [`crate::Target::sm`] spells it.
    pub sm_arch: String,
    /// First positions a step may have.
    pub bucket: Bucket,
    /// Positions handled by one step (1 = decode, up to 16 = prefill). `pos` grows by this per step.
    pub tokens: u32,
    /// Most steps of one launch.
    pub max_steps: u64,
    /// How packet epochs run.
    pub epochs: Epochs,
    /// Free-form provenance (model, shape, knobs). Part of the hash.
    #[serde(deserialize_with = "crate::unique::map")]
    pub meta: BTreeMap<String, String>,
    pub resources: Resources,
    pub buffers: Vec<Buffer>,
    pub counters: Vec<Counter>,
    pub boundary: Boundary,
    pub sms: Vec<Sm>,
    pub instructions: Vec<Instruction>,
}

/// The epoch a packet write of step `t` and phase `k` stores is `1 + (base + t*per_step + k) % tags`;
/// tag 0 is never stored. `base` continues from launch to launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Epochs {
    /// Phases per step: how often one packet buffer may be rewritten within a step.
    pub per_step: u32,
    /// Number of distinct tags.
    pub tags: u64,
}

/// Element types. `Key` is the 64-bit (value, token id) pair that argmax compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DType {
    Bf16,
    F16,
    F32,
    U32,
    Key,
}

impl DType {
    /// Bytes of one element.
    pub fn bytes(self) -> u64 {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::U32 => 4,
            DType::Key => 8,
        }
    }

    /// bf16 terms a weight of this type is split into, so that their sum is the weight exactly.
    pub fn terms(self) -> u64 {
        match self {
            DType::Bf16 => 1,
            DType::F16 => 2,
            _ => 3,
        }
    }

    /// Elements that share one 64-bit packet word with its 32-bit epoch; 0 if the type does not fit.
    pub fn per_word(self) -> u64 {
        match self {
            DType::Bf16 | DType::F16 => 2,
            DType::F32 | DType::U32 => 1,
            DType::Key => 0,
        }
    }
}

/// What a buffer is for; decides who may write it and what is there before the first step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferKind {
    /// Read-only matrix that reaches the SMs through their streams.
    Weight,
    /// Read-only data read directly (norm weights, tables, embedding rows).
    Constant,
    /// KV cache. Rows `[0, pos)` exist when a step starts; a step appends `[pos, pos+tokens)`.
    Kv,
    /// Intermediate values; nothing is there when a step starts, except in `Carried` buffers.
    Activation,
    /// Token ids by position: the host writes the prompt, the boundary appends.
    Tokens,
    /// Results for the host; every element is written exactly once per step.
    Output,
}

/// How accesses of a buffer are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BufferSync {
    /// Plain memory: conflicting accesses must be ordered by happens-before.
    Plain,
    /// Every 64-bit word carries value and epoch; a reader waits for its epoch.
    Packet,
    /// Plain memory private to one SM (shared memory or registers): each element is touched by one SM.
    Local,
}

/// A buffer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Buffer {
    pub id: BufferId,
    pub name: String,
    pub kind: BufferKind,
    pub sync: BufferSync,
    pub dtype: DType,
    /// Extents, outermost first; rank 1 to 4.
    pub shape: Vec<u64>,
    /// The sequence a KV buffer belongs to; 0 elsewhere.
    #[serde(default)]
    pub sequence: u32,
}

/// A monotone counter. At step `t` a wait for `threshold` waits for `t*per_step + threshold`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    pub id: CounterId,
    pub name: String,
    /// Value before the first step; must be 0.
    pub init: u64,
    /// What all signals of one step add up to.
    pub per_step: u64,
}

/// An access to a rectangle of a buffer.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    pub buffer: BufferId,
    pub region: Region,
    /// Phase of the step a packet access belongs to; 0 elsewhere.
    #[serde(default)]
    pub phase: u32,
}

/// Acquire-wait until the counter has reached the step's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    pub counter: CounterId,
    pub threshold: u64,
}

/// Release-add to the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signal {
    pub counter: CounterId,
    pub amount: u64,
}

/// One instruction of one SM's queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instruction {
    pub id: InstrId,
    pub op: Op,
    /// In the operand order of the op.
    pub reads: Vec<Access>,
    /// In the operand order of the op.
    pub writes: Vec<Access>,
    pub waits: Vec<Wait>,
    pub signals: Vec<Signal>,
    /// The run of its SM's stream it consumes, whole.
    #[serde(default)]
    pub run: Option<RunId>,
}

/// A run of chunks in an SM's stream, consumed by one instruction.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    pub id: RunId,
    pub source: RunSource,
    /// Chunks of this run that may be in flight at once (issued, not landed); at most the ring.
    pub window: u32,
}

/// What the chunks of a run hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RunSource {
    /// Rows of a weight matrix `[rows, k]`, packed in fragment order: tile by tile of
    /// [`TILE_ROWS`] rows; a chunk holds `tiles` whole tiles, or `blocks` K blocks of one tile.
    Weight {
        buffer: BufferId,
        /// First row, a multiple of [`TILE_ROWS`].
        lo: u64,
        /// End row.
        hi: u64,
        /// Tiles per chunk; more than 1 only if `blocks` spans the whole of K.
        tiles: u32,
        /// Packed K blocks per chunk and tile.
        blocks: u32,
    },
    /// Past rows of a KV buffer `[kv_heads, capacity, head_dim]`, `rows` positions per chunk, for
    /// one kv head. `gate` = g: issued only after the boundary that ends step `t - g`.
    Kv { buffer: BufferId, region: Region, rows: u32, gate: u32 },
}

/// One SM: a block of the grid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sm {
    pub id: SmId,
    /// Instructions in the order the consumers run them.
    pub queue: Vec<InstrId>,
    /// Runs in the order the producer loads them.
    pub stream: Vec<Run>,
}

/// The boundary that ends each step: the last SM to arrive reads, decides and writes on behalf of all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Boundary {
    pub op: BoundaryOp,
    pub reads: Vec<Access>,
    pub writes: Vec<Access>,
}

/// What the last arriver does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BoundaryOp {
    /// Orders the steps and nothing else.
    Plain,
    /// The id of the largest key of the one read (the lowest on ties) becomes the token at `pos + tokens`,
    /// unless the host has already put a prompt token there; stop on an end-of-sequence id.
    Argmax,
}

/// What one block of the kernel uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resources {
    /// Consumer warps; the producer is one warp more.
    pub consumer_warps: u32,
    /// Slots of the shared-memory ring.
    pub ring_slots: u32,
    /// Bytes of one slot, the largest chunk.
    pub slot_bytes: u64,
    /// Register budget of one thread.
    pub registers: u32,
    /// Named barriers used, barrier 0 included: at least 1.
    pub barriers: u32,
    /// Shared-memory map.
    pub shared: Vec<SharedArea>,
}

impl Resources {
    /// Threads of one block: consumers and the producer warp.
    pub fn threads(&self) -> u64 {
        (u64::from(self.consumer_warps) + 1) * 32
    }
}

/// What an area of shared memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Area {
    /// The chunk ring, `ring_slots * slot_bytes`.
    Ring,
    /// Two 8-byte mbarriers per slot.
    Mbarrier,
    /// Staged input vector of a matrix product, bf16.
    Input,
    /// Partial sums of the output tiles of a matrix product, float32, per warp.
    Partial,
    /// Scratch of attention, float32, and of drawing a token.
    Scratch,
    /// Elements of `Local` buffers this SM owns, float32.
    Local,
    /// Step state (token, stop, sums of squares) and prefetched instructions.
    Control,
}

/// One area of the shared-memory map of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SharedArea {
    pub area: Area,
    /// Offset from the start of dynamic shared memory, a multiple of 16.
    pub offset: u64,
    pub bytes: u64,
}

impl Program {
    /// The buffer an access names, if there is one.
    pub fn buffer(&self, id: BufferId) -> Option<&Buffer> {
        self.buffers.get(id.index())
    }

    /// The instruction with this id, if there is one.
    pub fn instruction(&self, id: InstrId) -> Option<&Instruction> {
        self.instructions.get(id.index())
    }

    /// Canonical hash: SHA-256 of the canonical text form.
    pub fn hash(&self) -> [u8; 32] {
        crate::hash::sha256(crate::text::print(self).as_bytes())
    }
}

impl RunSource {
    /// The buffer the run reads.
    pub fn buffer(&self) -> BufferId {
        match self {
            RunSource::Weight { buffer, .. } | RunSource::Kv { buffer, .. } => *buffer,
        }
    }

    /// Number of chunks in every step; `None` if the run is malformed or does not match the buffer.
    ///
    /// A kv run always has as many chunks as its largest extent needs; at a position where a chunk
    /// has no rows it is issued empty, so that ring order never depends on the position.
    pub fn chunks(&self, buffer: &Buffer) -> Option<u64> {
        match self {
            RunSource::Weight { lo, hi, tiles, blocks, .. } => {
                let k_blocks = weight_blocks(buffer)?;
                let (tiles, blocks) = (u64::from(*tiles), u64::from(*blocks));
                if tiles == 0 || blocks == 0 || hi <= lo || blocks > k_blocks {
                    return None;
                }
                let rows = (hi - lo).div_ceil(TILE_ROWS);
                rows.div_ceil(tiles).checked_mul(k_blocks.div_ceil(blocks))
            }
            RunSource::Kv { region, rows, .. } => {
                let span = region.0.get(1)?;
                let limit = match span.hi {
                    crate::Bound::At(x) | crate::Bound::Clip(x) => x,
                    _ => *buffer.shape.get(1)?,
                };
                let start = match span.lo {
                    crate::Bound::At(x) => x,
                    _ => 0,
                };
                if *rows == 0 {
                    return None;
                }
                Some(limit.saturating_sub(start).div_ceil(u64::from(*rows)))
            }
        }
    }

    /// Bytes of the largest chunk; `None` if the run is malformed or does not match the buffer.
    pub fn chunk_bytes(&self, buffer: &Buffer) -> Option<u64> {
        match self {
            RunSource::Weight { tiles, blocks, .. } => {
                u64::from(*tiles).checked_mul(u64::from(*blocks))?.checked_mul(BLOCK_BYTES)
            }
            RunSource::Kv { rows, .. } => u64::from(*rows)
                .checked_mul(*buffer.shape.get(2)?)?
                .checked_mul(buffer.dtype.bytes()),
        }
    }
}

/// Packed K blocks of one tile of a weight matrix `[rows, k]`, all bf16 terms included.
pub fn weight_blocks(buffer: &Buffer) -> Option<u64> {
    match buffer.shape.as_slice() {
        [_, k] => k.div_ceil(BLOCK_K).checked_mul(buffer.dtype.terms()),
        _ => None,
    }
}
