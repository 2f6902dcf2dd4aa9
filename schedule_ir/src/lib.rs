//! The schedule IR of amk: what a persistent decode kernel does, as data.
//!
//! This page is the specification. The validator decides what it says, the reference VM and the test
//! oracle interpret it, and codegen may rely on it.
//!
//! # Programs
//!
//! A [`Program`] is for one target architecture and one *bucket* of decode positions. It has buffers,
//! instructions, counters and, per SM, a *queue* of instructions and a *stream* of chunks. Ids are
//! indices. "SM i" is block i of the grid, not a physical multiprocessor.
//!
//! A launch runs *steps* `t = 0, 1, ...`, at most `max_steps`, all of the same program. The first
//! position of step `t` is `pos = pos0 + t * tokens`, and the launch keeps every `pos` inside the bucket.
//! Instructions access *regions*: rectangles whose bounds may follow `pos` (see [`Bound`]).
//!
//! **Buffers.** Before the first step the host has filled `weight`, `constant` and `tokens` buffers
//! (`tokens[0..=pos0 + tokens - 1]`) and rows `[0, pos0)` of `kv` buffers. Nothing else is there.
//! Only `kv`, `activation`, `tokens` and `output` buffers may be written. A step leaves exactly what
//! its instructions wrote; an `activation` value lives for one step.
//!
//! **Synchronisation of a buffer.** `plain` memory is kept apart by happens-before alone. `local`
//! memory is plain and private: each element is touched by one SM only. In a `packet` buffer each
//! 64-bit word holds [`DType::per_word`] elements and an epoch tag; a region of packets starts and
//! ends on whole words.
//!
//! # Semantics
//!
//! **1. Agents.** Each SM has two agents. The producer P issues the chunks of the stream in order. The
//! consumer group C runs the queue in order. An instruction of C, in this order:
//!
//! - waits until each of its counter waits holds,
//! - waits until every packet word it reads carries the epoch of this step and of the access's phase,
//! - reads,
//! - for each chunk of its run, in order: waits until the chunk has landed, consumes it, releases its slot,
//! - writes: plain stores, and packets with the epoch of this step and the access's phase,
//! - performs its signals.
//!
//! A kernel may overlap these within an instruction (read a packet late, write a finished tile early)
//! as long as the waits come before the accesses they guard, the signals after all of them, and a packet word
//! that the instruction both reads and writes is read first.
//! Hazards in shared memory inside one instruction belong to the op's own tests.
//!
//! **2. The ring.** Chunks of an SM's stream are numbered through all steps: `u = t * n + i` for chunk
//! `i` of `n`. With `S` slots, P issues chunk `u` only after chunk `u - S` was released, and after all
//! earlier chunks of the stream were issued; C consumes `u` only after it landed. At most `window`
//! chunks are in flight at once, counted at issue; landing depends on nothing.
//!
//! **3. Happens-before** is the least transitive relation that contains: program order of each agent
//! (accesses of one instruction before its signals, its waits before its accesses); the ring (issue `u`
//! before consume `u`, release `u` before issue `u + S`); counters; boundaries. Packets add nothing.
//!
//! **4. Counters** are monotone, start at 0 and gain `per_step` in every step. At step `t` a wait with
//! threshold `T` waits for `t * per_step + T`. Signal `s` precedes wait `(c, T)` if the signals of `c` in
//! this step that can occur before that wait without `s` sum to less than `T`: those of earlier steps are
//! in the base. Signals are release-adds, waits acquire. A signal takes effect some time after its instruction:
//! after the earlier signals of its agent and before the boundary, but packets that the agent writes later may be
//! seen before.
//!
//! **5. Packets.** A word has one writer per step and phase. The tag stored is
//! `1 + (base + t * per_step + phase) mod tags` ([`Epochs`]); `base` is the number of epochs used by
//! all earlier launches, aborted ones included. A reader waits for exactly that tag, so a word may be
//! rewritten only happens-after every reader of the epoch it holds: a reader that missed it waits for ever.
//! The regions of packets are the same at every position. A packet access delivers its own word and orders nothing
//! else. Of two writes of a word in one step the earlier
//! happens before the later, or was read by an access that happens before the later or belongs to the instruction
//! that makes it: then the coherence of the word keeps them in order, and they are no race. The writes of one
//! instruction have no order.
//!
//! **6. The boundary.** Every queue ends with one `boundary` instruction, also on an SM with no work.
//! Arrivals are a chain of release read-modify-writes; the last arriver acquires the chain, makes the
//! accesses of [`Program::boundary`] and stores the token word with release; every SM acquires that
//! word before any access of the next step, P where a gate says so. So every access of step `t` by
//! any C, and the boundary's own, happen before every access of step `t + 1` by any C.
//!
//! **7. Kv in the stream.** A `kv` run reads rows of the cache through the ring. Its `gate` `g >= 1`
//! names the boundary P acquires before it issues the run's first chunk in step `t`: the one that ends
//! step `t - g` (for `t < g`, the start of the launch). Rows appended in step `t - g` or earlier are then
//! visible. Weight runs need no gate: nobody writes weights.
//!
//! **8. Stop.** The boundary decides for all SMs alike. P drains every issued copy before exit.
//!
//! # Files
//!
//! [`text`] is the canonical form and carries the hash; the JSON form is serde's of the same structs.
//! Unknown versions, unknown fields and repeated keys are refused, and so are hidden characters in a text
//! ([`text::is_hidden`]; a string may hold them as `\u{..}`).

#![forbid(unsafe_code)]

pub mod hash;
pub mod id;
pub mod limits;
pub mod op;
pub mod program;
pub mod region;
pub mod scalar;
pub mod target;
pub mod text;
pub mod unique;

pub use id::{BufferId, CounterId, InstrId, RunId, SmId};
pub use op::{Footprint, Op, OpContext, Operand, Rows, Source, WeightUse};
pub use program::*;
pub use region::{Bound, Bucket, Region, Span};
pub use scalar::Scalar;
pub use target::{Features, Target};

/// Most output tiles a matrix product of one token keeps partial sums of.
pub const MOST_TILE_GROUP: u32 = 16;

/// Output tiles a matrix product of `tokens` tokens keeps partial sums of before one block barrier sums them: as many as
/// take the room of [`MOST_TILE_GROUP`] tiles of one token, and no fewer than two.
pub const fn tile_group(tokens: u64) -> u32 {
    let share = MOST_TILE_GROUP as u64 / if tokens == 0 { 1 } else { tokens };
    if share < 2 { 2 } else { share as u32 }
}
