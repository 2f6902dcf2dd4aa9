//! Generations: what is asked for, what came of it, and greedy decoding with any executor that gives logits.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use amk_models::Sampler;
use amk_models::golden::{LogitSource, SourceError};
use serde::Serialize;

use crate::sampled::{Sequence, sample};

/// Why a generation cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    /// No prompt.
    #[error("the prompt is empty; give at least one token, such as the model's BOS")]
    EmptyPrompt,
    /// A token outside the vocabulary.
    #[error("prompt token {token} is outside the vocabulary of {vocab_size}")]
    Token {
        /// The token.
        token: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// The prompt is longer than the context.
    #[error("the prompt has {tokens} tokens and the context {capacity}; shorten the prompt")]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Positions there are.
        capacity: usize,
    },
    /// Logits that are no numbers.
    #[error("the logits after position {position} hold a NaN")]
    Nan {
        /// Position of the last token fed.
        position: usize,
    },
    /// No program starts there.
    #[error("no program was made for position {position}")]
    NoProgram {
        /// The position.
        position: u64,
    },
    /// The executor failed.
    #[error(transparent)]
    Source(SourceError),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end-of-sequence token, which is the last of the tokens.
    Stop,
    /// As many tokens as were asked for.
    Length,
    /// The context is full.
    Capacity,
    /// Whoever asked for it no longer wants it.
    Cancelled,
}

/// What to generate.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// Ids of the prompt, BOS included.
    pub prompt: &'a [u32],
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Tokens that end the generation; empty to go on whatever comes.
    pub stop: &'a BTreeSet<u32>,
    /// Positions the executor has.
    pub capacity: usize,
}

/// What was generated.
#[derive(Clone, Debug)]
pub struct Generation {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Seconds until the logits of the first token were there.
    pub prefill_seconds: f64,
    /// Seconds for all tokens after the first.
    pub decode_seconds: f64,
}

impl Request<'_> {
    /// Refuses what cannot be decoded.
    ///
    /// # Errors
    /// The prompt is empty, too long, or has a token that does not exist.
    pub fn check(&self, vocab_size: usize) -> Result<(), GenerateError> {
        if self.prompt.is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if let Some(&token) = self.prompt.iter().find(|t| **t as usize >= vocab_size) {
            return Err(GenerateError::Token { token, vocab_size });
        }
        if self.prompt.len() > self.capacity {
            return Err(GenerateError::TooLong {
                tokens: self.prompt.len(),
                capacity: self.capacity,
            });
        }
        Ok(())
    }
}

impl Generation {
    /// Nothing yet.
    pub(crate) fn none() -> Generation {
        Generation {
            tokens: Vec::new(),
            finish_reason: FinishReason::Length,
            prefill_seconds: 0.0,
            decode_seconds: 0.0,
        }
    }

    /// Tokens a second after the first; none before there are two.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let steps = self.tokens.len().saturating_sub(1);
        (steps > 0 && self.decode_seconds > 0.0).then(|| steps as f64 / self.decode_seconds)
    }
}

/// Decodes greedily, lowest id on ties. `each` sees every token as soon as it is known.
///
/// # Errors
/// [`GenerateError`]; nothing is decoded if the request is at fault.
pub fn generate(
    source: &mut dyn LogitSource,
    request: &Request<'_>,
    each: &mut dyn FnMut(u32),
) -> Result<Generation, GenerateError> {
    request.check(source.vocab_size())?;
    let mut sequence = Sequence::new(source).map_err(GenerateError::Source)?;
    sample(&mut sequence, request, &mut Sampler::greedy(), &mut |token, _| {
        each(token);
        ControlFlow::Continue(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says token + 1 after every token, and checks that positions follow one another.
    struct Counting {
        vocab: usize,
        fed: Vec<u32>,
    }

    impl LogitSource for Counting {
        fn vocab_size(&self) -> usize {
            self.vocab
        }
        fn reset(&mut self) -> Result<(), SourceError> {
            self.fed.clear();
            Ok(())
        }
        fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
            assert_eq!(position, self.fed.len());
            self.fed.push(token);
            let mut logits = vec![0.0; self.vocab];
            logits[(token as usize + 1) % self.vocab] = 1.0;
            Ok(logits)
        }
    }

    fn run(
        prompt: &[u32],
        max_tokens: usize,
        stop: &[u32],
        capacity: usize,
    ) -> Result<(Vec<u32>, FinishReason, usize), GenerateError> {
        let stop = stop.iter().copied().collect();
        let request = Request { prompt, max_tokens, stop: &stop, capacity };
        let mut source = Counting { vocab: 10, fed: Vec::new() };
        let mut seen = Vec::new();
        let done = generate(&mut source, &request, &mut |t| seen.push(t))?;
        assert_eq!(seen, done.tokens);
        Ok((done.tokens, done.finish_reason, source.fed.len()))
    }

    #[test]
    fn ends_at_the_length_at_a_stop_token_and_at_the_capacity() {
        assert_eq!(run(&[1, 2], 3, &[], 100).unwrap(), (vec![3, 4, 5], FinishReason::Length, 4));
        assert_eq!(run(&[1, 2], 9, &[4, 5], 100).unwrap(), (vec![3, 4], FinishReason::Stop, 3));
        assert_eq!(run(&[1, 2], 9, &[], 3).unwrap(), (vec![3, 4], FinishReason::Capacity, 3));
        assert_eq!(run(&[1, 2], 9, &[], 2).unwrap(), (vec![3], FinishReason::Capacity, 2));
        assert_eq!(run(&[1, 2], 0, &[], 9).unwrap(), (vec![], FinishReason::Length, 0));
    }

    #[test]
    fn refuses_prompts_that_cannot_be_fed() {
        assert!(matches!(run(&[], 1, &[], 9), Err(GenerateError::EmptyPrompt)));
        assert!(matches!(
            run(&[10], 1, &[], 9),
            Err(GenerateError::Token { token: 10, vocab_size: 10 })
        ));
        assert!(matches!(
            run(&[1, 2, 3], 1, &[], 2),
            Err(GenerateError::TooLong { tokens: 3, capacity: 2 })
        ));
    }
}
