//! The text form: one statement a line, readable and diffable, read back to an equal program.
//!
//! ```text
//! amk-schedule 1
//! name "example"
//! target sm_90a
//! bucket 0..=511
//! tokens 1
//! steps 64
//! epochs per_step 1 tags 4294967295
//! resources warps 8 slots 12 slot_bytes 16384 registers 168 barriers 2
//! shared ring 0+196608
//! buffer 0 "h" activation packet bf16 [1, 64]
//! counter 0 "qkv" init 0 per_step 2
//! boundary argmax reads 5[0..2] writes 6[pos+1..pos+2]
//! sm 0
//!   run 0 weight 7 rows 0..24 tiles 1 blocks 2 window 3
//!   run 1 kv 9 [0..1, 0..min(64,pos), 0..64] rows 64 gate 1 window 3
//!   queue 0 1 2
//! instr 0 embed{hidden=64, vocab=512, rows=0..64}
//!   reads 6[pos..pos+1] 3[0..512, 0..64]
//!   writes 8[0..1, 0..64]@1
//!   wait 0>=2
//!   signal 0+1
//!   run 0
//! ```
//!
//! `@n` is the phase of a packet access (absent = 0); `split(i/n)` is `floor(pos*i/n)`; `#` starts a
//! comment. Characters that do not show stand in strings as `\u{202e}` and nowhere else. Everything after `signal`/`wait` may repeat. Canonical text, the form [`print()`] gives, is
//! what the program hash is taken over.

mod hidden;
mod lexer;
mod parse;
mod print;

pub use hidden::{is_hidden, visible};
pub use parse::{ParseError, SourceMap, parse, parse_with_map};
pub use print::{print, print_access, print_bound, print_op};
