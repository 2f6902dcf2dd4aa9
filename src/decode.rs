//! Decoding in launches of many steps: which program runs next and for how long, as a function of plain
//! numbers, and the loop that drives any [`Executor`] with it: an engine on a device, or the VM in tests.
//!
//! Programs of several positions per step take the prompt as far as whole steps go; programs of one position
//! take the rest and everything after it. All share one cache and one line of tokens.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amk_models::golden::SourceError;
use amk_schedule_ir::Bucket;

use crate::generate::{FinishReason, GenerateError, Generation, Request};

/// What is to be known of a program to plan launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProgramFacts {
    /// First positions a step may have.
    pub bucket: Bucket,
    /// Positions of one step.
    pub tokens: u64,
    /// Most steps of one launch.
    pub max_steps: u64,
}

/// One launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaunchPlan {
    /// Index of the program.
    pub program: usize,
    /// First position.
    pub position: u64,
    pub steps: u64,
    /// Positions of one step.
    pub tokens: u64,
}

impl LaunchPlan {
    /// The position after the last step.
    pub fn end(&self) -> u64 {
        self.position + self.steps * self.tokens
    }
}

/// The next launch of a sequence whose positions before `at` are done: `prompt` tokens are known, positions up to
/// `end` (not included) are wanted, and a launch has at most `cap` steps. None when no program starts at `at`, or
/// nothing is wanted.
///
/// As many positions a step as the prompt has left; among programs that take equally many, the first listed.
pub fn next_launch(
    programs: &[ProgramFacts],
    at: u64,
    prompt: u64,
    end: u64,
    cap: u64,
) -> Option<LaunchPlan> {
    let left = prompt.min(end).saturating_sub(at);
    let fits = |p: &ProgramFacts| {
        let starts = p.bucket.first <= at && at <= p.bucket.last;
        starts && (p.tokens == 1 && at < end || p.tokens > 1 && p.tokens <= left)
    };
    let usable = programs.iter().enumerate().filter(|(_, p)| fits(p));
    // The first of the largest: max_by_key would give the last.
    let (program, facts) = usable.min_by_key(|(_, p)| u64::MAX - p.tokens)?;
    let wanted = match facts.tokens {
        1 => end - at,
        tokens => left / tokens,
    };
    let room = (facts.bucket.last - at) / facts.tokens + 1;
    let steps = wanted.min(room).min(facts.max_steps).min(cap).max(1);
    Some(LaunchPlan { program, position: at, steps, tokens: facts.tokens })
}

/// What a launch is told beside its plan.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchOptions<'a> {
    /// Tokens before this position are the host's and are not replaced.
    pub prompt_len: u64,
    /// Ids that end the launch; an executor may know only some of them.
    pub stop: &'a [u32],
    /// Keep the logits of the last step.
    pub logits: bool,
    /// Positions of a sequence fed in one pass, to which the launch belongs, where rotary frequencies depend on that;
    /// at least `prompt_len` counts.
    pub pass: u64,
}

impl LaunchOptions<'_> {
    /// Length of the sequence fed in one pass.
    pub fn pass_len(&self) -> u64 {
        self.pass.max(self.prompt_len)
    }
}

/// Something that runs launches of a set of programs over one sequence.
pub trait Executor {
    /// Length of a logit vector.
    fn vocab_size(&self) -> usize;

    /// The programs, by index.
    fn programs(&self) -> Vec<ProgramFacts>;

    /// Most steps of one launch.
    fn steps_cap(&self) -> u64;

    /// Puts tokens at positions `at ..`.
    ///
    /// # Errors
    /// The executor fails.
    fn put_tokens(&mut self, at: u64, tokens: &[u32]) -> Result<(), SourceError>;

    /// Runs a launch and gives the steps that were done. `each` sees the token that follows each step, in order and as
    /// soon as it is known; where it says false, the launch ends after the step under way.
    ///
    /// # Errors
    /// The executor fails.
    fn launch(
        &mut self,
        plan: &LaunchPlan,
        options: &LaunchOptions<'_>,
        each: &mut dyn FnMut(u32) -> bool,
    ) -> Result<u64, SourceError>;
}

/// Decodes greedily with an executor. `each` sees every new token as soon as it is known; `cancel` ends the
/// generation at the next step.
///
/// # Errors
/// [`GenerateError`]; nothing is decoded if the request is at fault.
pub fn decode(
    executor: &mut dyn Executor,
    request: &Request<'_>,
    cancel: &AtomicBool,
    each: &mut dyn FnMut(u32),
) -> Result<Generation, GenerateError> {
    request.check(executor.vocab_size())?;
    let start = Instant::now();
    let prompt = request.prompt.len() as u64;
    // The last token is never fed back.
    let wanted = (request.max_tokens as u64).saturating_add(prompt).saturating_sub(1);
    let end = wanted.min(request.capacity as u64);
    let mut done = Generation::none();
    if request.max_tokens == 0 {
        return Ok(done);
    }
    let stop: Vec<u32> = request.stop.iter().copied().collect();
    let programs = executor.programs();
    let cap = executor.steps_cap();
    executor.put_tokens(0, request.prompt).map_err(GenerateError::Source)?;
    let options = LaunchOptions { prompt_len: prompt, stop: &stop, ..LaunchOptions::default() };
    let mut first: Option<Instant> = None;
    let mut at = 0;
    while at < end {
        let plan = next_launch(&programs, at, prompt, end, cap)
            .ok_or(GenerateError::NoProgram { position: at })?;
        let mut step = 0;
        let (tokens, finish) = (&mut done.tokens, &mut done.finish_reason);
        let steps = executor
            .launch(&plan, &options, &mut |token| {
                step += 1;
                let next = plan.position + step * plan.tokens;
                let over = *finish != FinishReason::Length;
                if next >= prompt && !over {
                    first.get_or_insert_with(Instant::now);
                    tokens.push(token);
                    each(token);
                    if request.stop.contains(&token) {
                        *finish = FinishReason::Stop;
                    }
                }
                if *finish == FinishReason::Length && cancel.load(Ordering::Relaxed) {
                    *finish = FinishReason::Cancelled;
                }
                *finish == FinishReason::Length
            })
            .map_err(GenerateError::Source)?;
        at += steps * plan.tokens;
        if done.finish_reason != FinishReason::Length {
            break;
        }
        if steps == 0 {
            return Err(GenerateError::Source("a launch ended without a step".into()));
        }
    }
    if done.finish_reason == FinishReason::Length && done.tokens.len() < request.max_tokens {
        done.finish_reason = FinishReason::Capacity;
    }
    let first = first.unwrap_or_else(Instant::now);
    done.prefill_seconds = (first - start).as_secs_f64();
    done.decode_seconds = first.elapsed().as_secs_f64();
    Ok(done)
}

/// The logits after a prompt: all of it in launches, the last with logits. The executor's own way to read them
/// follows.
///
/// # Errors
/// No program covers a position, or the executor fails.
pub fn feed(executor: &mut dyn Executor, tokens: &[u32]) -> Result<(), SourceError> {
    let end = tokens.len() as u64;
    let (programs, cap) = (executor.programs(), executor.steps_cap());
    executor.put_tokens(0, tokens)?;
    let mut at = 0;
    while at < end {
        let plan = next_launch(&programs, at, end, end, cap)
            .ok_or(GenerateError::NoProgram { position: at })?;
        let logits = plan.end() >= end;
        let options = LaunchOptions { prompt_len: end, logits, ..LaunchOptions::default() };
        let steps = executor.launch(&plan, &options, &mut |_| true)?;
        if steps == 0 {
            return Err("a launch ended without a step".into());
        }
        at += steps * plan.tokens;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn facts(first: u64, last: u64, tokens: u64) -> ProgramFacts {
        let max_steps = if tokens > 1 { 1 } else { last - first + 1 };
        ProgramFacts { bucket: Bucket { first, last }, tokens, max_steps }
    }

    fn programs() -> Vec<ProgramFacts> {
        vec![facts(0, 31, 1), facts(32, 63, 1), facts(0, 31, 8), facts(32, 56, 8)]
    }

    fn plan(at: u64, prompt: u64, end: u64, cap: u64) -> Option<(usize, u64, u64)> {
        let p = next_launch(&programs(), at, prompt, end, cap)?;
        assert_eq!(p.position, at);
        Some((p.program, p.steps, p.tokens))
    }

    #[test]
    fn whole_prefill_steps_first_then_single_positions() {
        assert_eq!(plan(0, 20, 40, 99), Some((2, 1, 8)));
        assert_eq!(plan(8, 20, 40, 99), Some((2, 1, 8)));
        assert_eq!(plan(16, 20, 40, 99), Some((0, 16, 1)));
        assert_eq!(plan(32, 20, 40, 99), Some((1, 8, 1)));
        assert_eq!(plan(40, 20, 40, 99), None);
        assert_eq!(plan(64, 80, 80, 99), None);
    }

    #[test]
    fn launches_stay_in_bucket_cap_and_wish() {
        assert_eq!(plan(0, 1, 64, 99), Some((0, 32, 1)));
        assert_eq!(plan(0, 1, 64, 5), Some((0, 5, 1)));
        assert_eq!(plan(0, 1, 3, 99), Some((0, 3, 1)));
        // A prompt cut short by the end is no reason to go past it.
        assert_eq!(plan(0, 20, 4, 99), Some((0, 4, 1)));
    }

    /// Says token + 1 after every token.
    struct Counting {
        line: Vec<u32>,
        launches: Vec<LaunchPlan>,
        /// Stop ids the executor itself knows.
        known: usize,
    }

    impl Executor for Counting {
        fn vocab_size(&self) -> usize {
            100
        }
        fn programs(&self) -> Vec<ProgramFacts> {
            programs()
        }
        fn steps_cap(&self) -> u64 {
            10
        }
        fn put_tokens(&mut self, at: u64, tokens: &[u32]) -> Result<(), SourceError> {
            self.line.resize(at as usize, 0);
            self.line.extend(tokens);
            Ok(())
        }
        fn launch(
            &mut self,
            plan: &LaunchPlan,
            options: &LaunchOptions<'_>,
            each: &mut dyn FnMut(u32) -> bool,
        ) -> Result<u64, SourceError> {
            self.launches.push(*plan);
            for step in 1..=plan.steps {
                let next = (plan.position + step * plan.tokens) as usize;
                if next >= options.prompt_len as usize {
                    assert_eq!(next, self.line.len(), "every position is handled once, in order");
                    self.line.push(self.line[next - 1] + 1);
                }
                let token = self.line[next];
                let known = &options.stop[..self.known.min(options.stop.len())];
                let stop = next >= options.prompt_len as usize && known.contains(&token);
                if !each(token) || stop {
                    return Ok(step);
                }
            }
            Ok(plan.steps)
        }
    }

    fn run(
        prompt: usize,
        max_tokens: usize,
        stop: &[u32],
        known: usize,
        cancel_after: Option<usize>,
    ) -> (Vec<u32>, FinishReason, Counting) {
        let prompt: Vec<u32> = (0..prompt as u32).collect();
        let stop: BTreeSet<u32> = stop.iter().copied().collect();
        let request = Request { prompt: &prompt, max_tokens, stop: &stop, capacity: 64 };
        let mut executor = Counting { line: Vec::new(), launches: Vec::new(), known };
        let cancel = AtomicBool::new(false);
        let mut seen = Vec::new();
        let done = decode(&mut executor, &request, &cancel, &mut |t| {
            seen.push(t);
            if Some(seen.len()) == cancel_after {
                cancel.store(true, Ordering::Relaxed);
            }
        })
        .unwrap();
        assert_eq!(seen, done.tokens);
        (done.tokens, done.finish_reason, executor)
    }

    #[test]
    fn prompts_of_every_length_continue_alike() {
        for prompt in 1..=40 {
            let (tokens, finish, executor) = run(prompt, 12, &[], 8, None);
            let first = prompt as u32;
            assert_eq!(tokens, (first..first + 12).collect::<Vec<_>>(), "{prompt}");
            assert_eq!(finish, FinishReason::Length);
            let passes = executor.launches.iter().filter(|l| l.tokens == 8).count();
            assert_eq!(passes, prompt / 8);
            assert!(executor.launches.iter().all(|l| l.steps <= 10));
        }
    }

    #[test]
    fn stops_whether_the_executor_knows_the_id_or_not() {
        for known in [0, 8] {
            let (tokens, finish, _) = run(5, 20, &[9], known, None);
            assert_eq!((tokens, finish), (vec![5, 6, 7, 8, 9], FinishReason::Stop));
        }
        // A stop id inside the prompt is no end.
        assert_eq!(run(5, 3, &[2], 8, None).0, vec![5, 6, 7]);
    }

    #[test]
    fn cancelling_keeps_what_was_said() {
        let (tokens, finish, _) = run(5, 50, &[], 8, Some(3));
        assert_eq!((tokens, finish), (vec![5, 6, 7], FinishReason::Cancelled));
    }

    #[test]
    fn the_context_is_filled_and_not_overrun() {
        let (tokens, finish, executor) = run(60, 20, &[], 8, None);
        assert_eq!((tokens.len(), finish), (5, FinishReason::Capacity));
        assert_eq!(executor.launches.last().unwrap().end(), 64);
        assert_eq!(run(60, 5, &[], 8, None).1, FinishReason::Length);
        assert_eq!(run(60, 0, &[], 8, None).0, Vec::<u32>::new());
    }

    #[test]
    fn a_position_without_a_program_is_said() {
        let prompt: Vec<u32> = (0..70).collect();
        let stop = BTreeSet::new();
        let request = Request { prompt: &prompt, max_tokens: 5, stop: &stop, capacity: 99 };
        let mut executor = Counting { line: Vec::new(), launches: Vec::new(), known: 8 };
        let error = decode(&mut executor, &request, &AtomicBool::new(false), &mut |_| {});
        assert!(error.unwrap_err().to_string().contains("position 64"));
    }
}
