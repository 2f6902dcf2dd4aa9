//! Draws the next token from the logits of a step.

use super::params::{op_params, positive};
use super::{Footprint, OpContext, Operand};
use crate::limits::MAX_SAMPLED;
use crate::program::{Area, BufferKind, DType, Resources};
use crate::region::{Bound, Region, Span};

op_params! {
    /// The token at `pos + tokens`, drawn from the logits of the step: the repetition penalty of every id at
    /// `0..pos + tokens`, temperature, top-k, top-p, min-p, and a draw that is a function of the seed and
    /// of that position. All of these are data, in the `settings` buffer. With temperature 0 it is the
    /// largest penalised logit. The token is handed on as the one key of `choice`.
    pub struct Sample {
        /// Ids to choose among.
        pub vocab: u64,
    }
}

/// Words of the settings: temperature and repetition penalty (float32), top-k (0: all), top-p in units of
/// `2^-32` (0: all), the logarithm of min-p (float32, minus infinity: all), seed (low word first).
pub const SETTINGS_WORDS: u64 = 7;
/// Scratch bytes beside those of each warp: a histogram and what the block agrees on.
const SCRATCH_BYTES: u64 = 4096;
/// Scratch bytes of each warp, 16 a thread.
const SCRATCH_BYTES_PER_WARP: u64 = 512;

impl Sample {
    pub(crate) fn check(&self) -> Result<(), String> {
        positive("vocab", self.vocab, MAX_SAMPLED)
    }

    /// Reads: logits, ids of all positions before the one drawn, settings. Writes: the penalised logits, which
    /// nobody else reads, and the choice.
    pub(crate) fn footprint(&self, cx: OpContext) -> Footprint {
        let vector = |role, kinds, dtype: &'static [DType], n| Operand {
            role,
            kinds,
            dtypes: dtype,
            shape: vec![Some(n)],
            region: Region::whole(&[n]),
        };
        let before = Span { lo: Bound::At(0), hi: Bound::Pos(cx.tokens as i64) };
        Footprint {
            reads: vec![
                vector(
                    "logits",
                    &[BufferKind::Output, BufferKind::Activation],
                    &[DType::F32],
                    self.vocab,
                ),
                Operand {
                    role: "context",
                    kinds: &[BufferKind::Tokens],
                    dtypes: &[DType::U32],
                    shape: vec![None],
                    region: Region(vec![before]),
                },
                vector("settings", &[BufferKind::Constant], &[DType::U32], SETTINGS_WORDS),
            ],
            writes: vec![
                vector("scores", &[BufferKind::Activation], &[DType::F32], self.vocab),
                vector("choice", &[BufferKind::Activation], &[DType::Key], 1),
            ],
            ..Footprint::default()
        }
    }

    pub(crate) fn shared(&self, _: OpContext, r: &Resources, _: u64) -> Vec<(Area, u64)> {
        let warps = u64::from(r.consumer_warps).saturating_mul(SCRATCH_BYTES_PER_WARP);
        vec![(Area::Scratch, warps.saturating_add(SCRATCH_BYTES))]
    }
}
