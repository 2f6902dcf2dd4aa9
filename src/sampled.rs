//! Decoding at random with any executor that gives logits: tokens drawn by a [`Sampler`], each handed over with the
//! logits it was drawn from, until the caller has enough.

use std::ops::ControlFlow;
use std::time::Instant;

use amk_models::Sampler;
use amk_models::golden::{LogitSource, SourceError};

use crate::generate::{FinishReason, GenerateError, Generation, Request};

/// A sequence on an executor, of which the executor keeps what was fed.
pub struct Sequence<'a> {
    source: &'a mut dyn LogitSource,
    fed: Vec<u32>,
}

impl<'a> Sequence<'a> {
    /// An empty sequence; the executor forgets its own.
    ///
    /// # Errors
    /// The executor's.
    pub fn new(source: &'a mut dyn LogitSource) -> Result<Self, SourceError> {
        source.reset()?;
        Ok(Self { source, fed: Vec::new() })
    }

    /// Feeds what of `tokens` is not fed yet and gives the logits after the last. A sequence that does not continue the
    /// last one is begun anew.
    fn feed(&mut self, tokens: &[u32]) -> Result<Vec<f32>, SourceError> {
        // The last token is fed again if need be: its logits are wanted.
        let kept = match tokens.starts_with(&self.fed) && self.fed.len() < tokens.len() {
            true => self.fed.len(),
            false => 0,
        };
        if kept == 0 {
            self.fed.clear();
            self.source.reset()?;
            let last = self.source.prompt(tokens)?;
            self.fed.extend_from_slice(tokens);
            return Ok(last);
        }
        let mut last = Vec::new();
        self.source.prefill(&tokens[kept..], kept, &mut |_, logits| last = logits.to_vec())?;
        self.fed.extend_from_slice(&tokens[kept..]);
        Ok(last)
    }
}

/// Decodes by drawing. `each` sees every token with the logits it was drawn from, and may end the generation after it
/// with the reason it gives. The last token is never fed back, so a context of `capacity` positions takes prompt and
/// tokens of `capacity + 1` together.
///
/// # Errors
/// [`GenerateError`]; nothing is decoded if the request is at fault.
pub fn sample(
    sequence: &mut Sequence<'_>,
    request: &Request<'_>,
    sampler: &Sampler,
    each: &mut dyn FnMut(u32, &[f32]) -> ControlFlow<FinishReason>,
) -> Result<Generation, GenerateError> {
    request.check(sequence.source.vocab_size())?;
    let mut done = Generation::none();
    if request.max_tokens == 0 {
        return Ok(done);
    }
    let start = Instant::now();
    let mut context = request.prompt.to_vec();
    let mut logits = sequence.feed(&context).map_err(GenerateError::Source)?;
    done.prefill_seconds = start.elapsed().as_secs_f64();
    let start = Instant::now();
    loop {
        let position = context.len() - 1;
        let token = sampler.pick(&logits, &context).ok_or(GenerateError::Nan { position })?;
        done.tokens.push(token);
        let flow = each(token, &logits);
        context.push(token);
        if request.stop.contains(&token) {
            done.finish_reason = FinishReason::Stop;
            break;
        }
        if let ControlFlow::Break(reason) = flow {
            done.finish_reason = reason;
            break;
        }
        if done.tokens.len() >= request.max_tokens {
            break;
        }
        if context.len() > request.capacity {
            done.finish_reason = FinishReason::Capacity;
            break;
        }
        logits = sequence.feed(&context).map_err(GenerateError::Source)?;
    }
    done.decode_seconds = start.elapsed().as_secs_f64();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use amk_models::{Checkpoint, Reference, Sampling};

    use super::*;
    use crate::generate::generate;

    fn run(sampling: Sampling, limit: usize) -> Vec<u32> {
        let checkpoint = Checkpoint::embedded().unwrap();
        let mut reference = Reference::new(&checkpoint).unwrap();
        let stop = BTreeSet::new();
        let request = Request { prompt: &[3, 4, 5], max_tokens: 12, stop: &stop, capacity: 512 };
        let sampler = Sampler::new(sampling).unwrap();
        let mut sequence = Sequence::new(&mut reference).unwrap();
        let mut n = 0;
        let done = sample(&mut sequence, &request, &sampler, &mut |_, logits| {
            assert_eq!(logits.len(), 1024);
            n += 1;
            if n == limit {
                ControlFlow::Break(FinishReason::Stop)
            } else {
                ControlFlow::Continue(())
            }
        });
        done.unwrap().tokens
    }

    #[test]
    fn without_temperature_it_is_greedy_and_a_seed_repeats() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let mut reference = Reference::new(&checkpoint).unwrap();
        let stop = BTreeSet::new();
        let request = Request { prompt: &[3, 4, 5], max_tokens: 12, stop: &stop, capacity: 512 };
        let greedy = generate(&mut reference, &request, &mut |_| {}).unwrap().tokens;
        assert_eq!(run(Sampling::default(), 99), greedy);
        assert_eq!(run(Sampling::default(), 5), greedy[..5]);
        let warm = |seed| Sampling { temperature: 1.0, seed, ..Sampling::default() };
        assert_eq!(run(warm(1), 99), run(warm(1), 99));
        assert_ne!(run(warm(1), 99), run(warm(2), 99));
    }

    /// Pearson's chi-square of first tokens over many seeds against the exact probabilities of the embedded model.
    #[test]
    fn first_tokens_follow_the_models_distribution() {
        let checkpoint = Checkpoint::embedded().unwrap();
        let mut reference = Reference::new(&checkpoint).unwrap();
        let prompt = [3, 4, 5];
        let logits = reference.prefill(&prompt, 0, amk_models::Want::Last).unwrap().remove(0);
        let sampling = Sampling { temperature: 1.3, top_k: Some(12), ..Sampling::default() };
        let expected = sampling.distribution(&logits, &prompt).unwrap();
        assert_eq!(expected.len(), 12);
        let (n, stop) = (20_000u64, BTreeSet::new());
        let request = Request { prompt: &prompt, max_tokens: 1, stop: &stop, capacity: 512 };
        /// Gives the logits that were computed once.
        struct Fixed(Vec<f32>);
        impl LogitSource for Fixed {
            fn vocab_size(&self) -> usize {
                self.0.len()
            }
            fn reset(&mut self) -> Result<(), SourceError> {
                Ok(())
            }
            fn step(&mut self, _: u32, _: usize) -> Result<Vec<f32>, SourceError> {
                Ok(self.0.clone())
            }
        }
        let mut source = Fixed(logits);
        let mut sequence = Sequence::new(&mut source).unwrap();
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..n {
            let sampler = Sampler::new(Sampling { seed, ..sampling.clone() }).unwrap();
            let go_on = &mut |_, _: &[f32]| ControlFlow::Continue(());
            let done = sample(&mut sequence, &request, &sampler, go_on).unwrap();
            *counts.entry(done.tokens[0]).or_insert(0u32) += 1;
        }
        assert!(counts.keys().all(|id| expected.iter().any(|(e, _)| e == id)));
        let square: f64 = expected
            .iter()
            .map(|(id, p)| {
                let e = p * n as f64;
                (f64::from(counts.get(id).copied().unwrap_or(0)) - e).powi(2) / e
            })
            .sum();
        // The 0.9999 quantile of chi-square with 11 degrees of freedom.
        assert!(square < 37.4, "{square}");
    }

    #[test]
    fn a_sequence_that_goes_on_is_not_fed_twice() {
        struct Counting(Reference, usize);
        impl LogitSource for Counting {
            fn vocab_size(&self) -> usize {
                self.0.config().vocab_size
            }
            fn reset(&mut self) -> Result<(), SourceError> {
                LogitSource::reset(&mut self.0)
            }
            fn step(&mut self, token: u32, position: usize) -> Result<Vec<f32>, SourceError> {
                self.1 += 1;
                LogitSource::step(&mut self.0, token, position)
            }
        }
        let checkpoint = Checkpoint::embedded().unwrap();
        let mut source = Counting(Reference::new(&checkpoint).unwrap(), 0);
        let mut sequence = Sequence::new(&mut source).unwrap();
        let a = sequence.feed(&[3, 4, 5]).unwrap();
        sequence.feed(&[3, 4, 5, 6]).unwrap();
        assert_eq!(sequence.feed(&[3, 4, 5]).unwrap(), a);
        drop(sequence);
        assert_eq!(source.1, 3 + 1 + 3);
    }
}
