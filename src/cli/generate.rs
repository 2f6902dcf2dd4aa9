//! `amk generate`: text or tokens from a model.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use amk::decode::decode;
use amk::generate::{FinishReason, GenerateError, Generation, Request};
use amk::lower::{Mode, Shape};
use amk::pipeline::default_mode;
use amk::sampled::{Sequence, sample};
use amk::scheduled::Scheduled;
use amk::target::resolve;
use amk_models::golden::LogitSource;
use amk_models::sampling::{LogProbs, log_probs};
use amk_models::tokenizer::StopStrings;
use amk_models::{Checkpoint, Message, Reference, Sampling, Tokenizer};
use amk_schedule_ir::limits::MAX_SAMPLED;
use clap::{ArgGroup, Args, ValueEnum};
use serde::Serialize;

use super::compile::Compute;
use super::device::{CudaArgs, Plan, Ready, driver_is_there, source_failure};
use super::sampling::SamplingArgs;
use super::{Failure, Outcome, Verdict, model};
use crate::output::{self, Output};

/// The part whose schedule the VM executes.
const VM_TARGET: &str = "sm_90a";

/// Generate tokens and print them as text.
#[derive(Args)]
#[command(after_help = "\
Decoding is greedy unless a temperature is given: the largest logit wins, the lowest id on ties. Without a
tokenizer ids are printed. The same seed draws the same tokens on every device, as far as its logits are the
same. On a CUDA device whole launches of many tokens run at once, and the kernel draws them; log probabilities
take a launch for each token. Ctrl-C ends the generation at the next token, and a launch that hangs is ended
and named (exit code 1).

Examples:
  amk generate --prompt \"In the beginning\"
  amk generate path/to/checkpoint --prompt-ids 1,450,7483 --max-tokens 32 --json
  amk generate owner/name --chat --prompt \"Name three rivers.\" --stream
  amk generate path/to/checkpoint --prompt \"In the beginning\" --temperature 0.8 --top-p 0.95 --seed 7
  amk generate path/to/checkpoint --prompt \"In the beginning\" --device cuda --activations f32")]
pub struct GenerateArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Most tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 64)]
    max_tokens: usize,
    /// Print each token as soon as it is known, as is done on a terminal anyway; with --json a document a token, and
    /// the whole last.
    #[arg(long, overrides_with = "no_stream")]
    stream: bool,
    /// Print everything at the end.
    #[arg(long, overrides_with = "stream")]
    no_stream: bool,
    /// End before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Go on after an end-of-sequence token.
    #[arg(long)]
    ignore_eos: bool,
    /// With --json: log probabilities of each token and of the N best beside it.
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// What runs the model.
    #[arg(long, value_enum, default_value_t)]
    pub device: Device,
    /// Type of activations and KV cache; the CPU computes in f32 alone.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    #[command(flatten)]
    cuda: CudaArgs,
}

/// The prompt, as text or as ids.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("prompt_source").required(true).args(["prompt", "prompt_ids"]))]
#[group(skip)]
struct PromptArgs {
    /// The prompt as text; a BOS token is put before it where the tokenizer says so.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// The prompt as token ids, separated by commas; nothing is put before them.
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    prompt_ids: Option<Vec<u32>>,
    /// Put the text into the model's chat template as a user's message.
    #[arg(long, conflicts_with = "prompt_ids")]
    chat: bool,
}

/// What runs the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Device {
    /// A CUDA device where driver, device and compiler are there, else the CPU.
    #[default]
    Auto,
    /// The float32 CPU reference.
    Cpu,
    /// The model's schedule for sm_90a, executed step by step; slow.
    Vm,
    /// One launch on a CUDA device.
    Cuda,
}

impl Device {
    pub fn name(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Cpu => "cpu",
            Device::Vm => "vm",
            Device::Cuda => "cuda",
        }
    }

    /// What `auto` means for a model on this machine.
    pub fn choose(self, cuda: &CudaArgs, checkpoint: &Checkpoint) -> Device {
        let usable = || {
            driver_is_there()
                && Shape::of(checkpoint).check().is_ok()
                && amk::device::Device::open(cuda.ordinal).is_ok()
                && cuda.compiler().is_ok()
        };
        match self {
            Device::Auto if usable() => Device::Cuda,
            Device::Auto => Device::Cpu,
            chosen => chosen,
        }
    }
}

#[derive(Serialize)]
struct GenerateDocument<'a> {
    tokens: &'a [u32],
    text: Option<String>,
    prompt_tokens: usize,
    finish_reason: FinishReason,
    /// How tokens were chosen; greedily where the temperature is 0.
    sampling: &'a Sampling,
    /// Of each token, where they were asked for.
    logprobs: Option<&'a [LogProbs]>,
    device: &'static str,
    /// Of the images that decoded; null without images, empty where the test was left out.
    self_test: Option<&'a [amk::selftest::Verdict]>,
    /// Which stored schedules the device decoded with, and where they come from, or why one was left out: a sentence each.
    stored: &'a [String],
    timings: Timings,
}

#[derive(Serialize)]
struct Timings {
    load_seconds: f64,
    prefill_seconds: f64,
    decode_seconds: f64,
    tokens_per_second: Option<f64>,
}

#[derive(Serialize)]
struct TokenDocument<'a> {
    index: usize,
    token: u32,
    text: Option<&'a str>,
    logprobs: Option<&'a LogProbs>,
}

pub fn run(args: &GenerateArgs, out: &Output) -> Outcome {
    let start = Instant::now();
    let sampler = args.sampling.sampler()?;
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let tokenizer = checkpoint.tokenizer().map_err(|e| model::failure(&e))?;
    let prompt = args.prompt.ids(&checkpoint, tokenizer)?;
    if tokenizer.is_none() && !args.stop.is_empty() {
        return Err(Failure::input(format!(
            "{} has no tokenizer.json, so there is no text to look for --stop in",
            checkpoint.name()
        )));
    }
    let stop = match args.ignore_eos {
        true => BTreeSet::new(),
        false => checkpoint.eos_ids().map_err(|e| model::failure(&e))?,
    };
    let capacity = checkpoint.config().capacity();
    let positions = prompt.len().saturating_add(args.max_tokens).min(capacity);
    let request = Request { prompt: &prompt, max_tokens: args.max_tokens, stop: &stop, capacity };
    // Before anything is compiled for it.
    request.check(checkpoint.config().vocab_size).map_err(failure)?;
    let device = args.device.choose(&args.cuda, &checkpoint);
    let terminal = std::io::stdout().is_terminal() && !out.json();
    let stream = args.stream || terminal && !args.no_stream;
    let mut executor = match device {
        Device::Cuda => {
            let mode = args.compute.map_or_else(|| default_mode(&checkpoint), Mode::from);
            let plan = Plan::sequence(mode, prompt.len(), positions);
            // Where logits are wanted, or there are too many for a kernel, the host draws.
            let few = checkpoint.config().vocab_size as u64 <= MAX_SAMPLED;
            let sampled = !args.sampling.is_plain() && args.logprobs.is_none() && few;
            let mut ready = args.cuda.open(&checkpoint, &Plan { sampled, ..plan }, out)?;
            if sampled {
                ready.opened.engine.draw_by(sampler.settings());
            }
            Runner::Cuda { ready: Box::new(ready), sampled }
        }
        other => Runner::Host(source(other, args.compute, &checkpoint, positions)?),
    };
    let load_seconds = start.elapsed().as_secs_f64();
    let mut printer = Printer::new(tokenizer, stream, &args.stop, out);
    let spinner = (!stream).then(|| out.spinner("generating"));
    let interrupt = interrupt();
    let mut logprobs = Vec::new();
    let result = match &mut executor {
        Runner::Cuda { ready, sampled }
            if *sampled || args.sampling.is_plain() && args.logprobs.is_none() =>
        {
            let engine = &mut ready.opened.engine;
            decode(engine, &request, &interrupt, &mut |token| {
                printer.push(token, None);
                if printer.stopped() {
                    interrupt.store(true, Ordering::Relaxed);
                }
            })
        }
        other => {
            let mut sequence = Sequence::new(other.source())
                .map_err(|e| source_failure(e.as_ref(), &e.to_string()))?;
            sample(&mut sequence, &request, &sampler, &mut |token, logits| {
                let known = args.logprobs.and_then(|n| log_probs(logits, token, n));
                printer.push(token, known.as_ref());
                logprobs.extend(known);
                match interrupt.load(Ordering::Relaxed) || printer.stopped() {
                    true => ControlFlow::Break(FinishReason::Cancelled),
                    false => ControlFlow::Continue(()),
                }
            })
        }
    };
    if let Some(spinner) = spinner {
        spinner.finish_and_clear();
    }
    let mut done = result.map_err(failure)?;
    if printer.stopped() {
        done.finish_reason = FinishReason::Stop;
    }
    let text = printer.finish(text_of(tokenizer, &done.tokens)?, &done)?;
    if done.finish_reason == FinishReason::Capacity {
        out.warn(format!(
            "the context of {} positions is full after {}",
            request.capacity,
            output::count(done.tokens.len(), "token")
        ));
    }
    if done.finish_reason == FinishReason::Cancelled {
        out.warn("interrupted");
    }
    out.note(summary(&done, prompt.len(), device));
    out.document(&GenerateDocument {
        tokens: &done.tokens,
        text,
        prompt_tokens: prompt.len(),
        finish_reason: done.finish_reason,
        sampling: sampler.sampling(),
        logprobs: args.logprobs.map(|_| logprobs.as_slice()),
        device: device.name(),
        self_test: executor.self_test(),
        stored: executor.stored(),
        timings: Timings {
            load_seconds,
            prefill_seconds: done.prefill_seconds,
            decode_seconds: done.decode_seconds,
            tokens_per_second: done.tokens_per_second(),
        },
    });
    Ok(Verdict::Yes)
}

/// What decodes.
enum Runner<'a> {
    /// The kernel draws, or else it says the best.
    Cuda {
        ready: Box<Ready>,
        sampled: bool,
    },
    Host(Box<dyn LogitSource + 'a>),
}

impl Runner<'_> {
    /// What gives logits.
    fn source(&mut self) -> &mut dyn LogitSource {
        match self {
            Runner::Cuda { ready, .. } => &mut ready.opened.engine,
            Runner::Host(source) => source.as_mut(),
        }
    }

    fn stored(&self) -> &[String] {
        match self {
            Runner::Cuda { ready, .. } => &ready.opened.stored,
            Runner::Host(_) => &[],
        }
    }

    fn self_test(&self) -> Option<&[amk::selftest::Verdict]> {
        match self {
            Runner::Cuda { ready, .. } => Some(&ready.verdicts),
            Runner::Host(_) => None,
        }
    }
}

/// Set by the first Ctrl-C; the second ends the process.
fn interrupt() -> Arc<AtomicBool> {
    use signal_hook::{consts::SIGINT, flag};
    let asked = Arc::new(AtomicBool::new(false));
    // In this order: the flag is looked at before it is set. Without handlers an interrupt ends the process at
    // once, which is no loss.
    let _ = flag::register_conditional_shutdown(SIGINT, 130, asked.clone());
    let _ = flag::register(SIGINT, asked.clone());
    asked
}

/// The executor of a device of the host, ready for one sequence of this many positions. The CPU reference computes
/// in float32 and in nothing else.
pub fn source<'a>(
    device: Device,
    compute: Option<Compute>,
    checkpoint: &'a Checkpoint,
    positions: usize,
) -> Result<Box<dyn LogitSource + 'a>, Failure> {
    match (device, compute) {
        (Device::Cpu | Device::Auto, Some(Compute::Bf16)) => Err(Failure::input(
            "the CPU reference computes in float32; --activations bf16 needs --device vm or cuda",
        )),
        (Device::Cpu | Device::Auto, _) => {
            Ok(Box::new(Reference::new(checkpoint).map_err(Failure::input)?))
        }
        (Device::Vm, compute) => {
            let target = resolve(VM_TARGET).map_err(Failure::input)?.target;
            let mode = compute.map_or_else(|| default_mode(checkpoint), Mode::from);
            Ok(Box::new(Scheduled::new(checkpoint, target, mode, positions)))
        }
        (Device::Cuda, _) => Err(Failure::input("a CUDA device is none of the host's")),
    }
}

/// A generation that failed: the request's fault, or a fault found in the schedule, which is an answer of
/// its own and reads as one.
fn failure(error: GenerateError) -> Failure {
    match &error {
        GenerateError::Source(inner) => source_failure(inner.as_ref(), &error.to_string()),
        _ => Failure::input(error),
    }
}

/// The decoded text; none without a tokenizer.
pub fn text_of(tokenizer: Option<&Tokenizer>, tokens: &[u32]) -> Result<Option<String>, Failure> {
    tokenizer.map(|t| t.decode(tokens, true)).transpose().map_err(Failure::input)
}

fn summary(done: &Generation, prompt: usize, device: Device) -> String {
    let mut text = format!(
        "{} after {}, {} on {}",
        output::count(done.tokens.len(), "token"),
        output::count(prompt, "prompt token"),
        output::seconds(done.prefill_seconds + done.decode_seconds),
        device.name()
    );
    if let Some(rate) = done.tokens_per_second() {
        text += &format!(", {rate:.1} tokens/s");
    }
    text
}

impl PromptArgs {
    fn ids(
        &self,
        checkpoint: &Checkpoint,
        tokenizer: Option<&Tokenizer>,
    ) -> Result<Vec<u32>, Failure> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(ids.clone());
        }
        let text = self.prompt.as_deref().unwrap_or_default();
        encode(text, self.chat, &checkpoint.name(), tokenizer)
    }
}

/// Ids of a raw prompt or of a user's message in the chat template.
pub fn encode(
    text: &str,
    chat: bool,
    model: &str,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<u32>, Failure> {
    let Some(tokenizer) = tokenizer else {
        return Err(Failure::input(format!(
            "{model} has no tokenizer.json, so it takes no text; give ids with --prompt-ids"
        )));
    };
    let ids = match chat {
        true => tokenizer
            .render_chat(&[Message::new("user", text)], true)
            .and_then(|rendered| tokenizer.encode_rendered(&rendered)),
        false => tokenizer.encode_prompt(text),
    };
    ids.map_err(Failure::input)
}

/// Prints tokens as they come, or all at the end, and looks for stop strings.
struct Printer<'a> {
    out: &'a Output,
    stream: bool,
    decoder: Option<amk_models::tokenizer::StreamDecoder<'a>>,
    /// Where there are stop strings: they, and the text before them.
    stops: Option<(StopStrings, String)>,
    count: usize,
    /// The first failure to decode; printing stops there.
    failed: Option<Failure>,
}

impl<'a> Printer<'a> {
    fn new(
        tokenizer: Option<&'a Tokenizer>,
        stream: bool,
        stops: &[String],
        out: &'a Output,
    ) -> Self {
        let some = stops.iter().any(|s| !s.is_empty());
        let decoder = tokenizer.filter(|_| stream || some).map(|t| t.stream(true));
        let stops = some.then(|| (StopStrings::new(stops.iter().cloned()), String::new()));
        Self { out, stream, decoder, stops, count: 0, failed: None }
    }

    /// Whether a stop string has come.
    fn stopped(&self) -> bool {
        self.stops.as_ref().is_some_and(|(stops, _)| stops.stopped())
    }

    /// What of a piece of text is certain to be wanted.
    fn certain(&mut self, piece: String) -> String {
        let Some((stops, text)) = &mut self.stops else { return piece };
        let piece = stops.push(&piece);
        text.push_str(&piece);
        piece
    }

    fn push(&mut self, token: u32, logprobs: Option<&LogProbs>) {
        if !(self.stream || self.stops.is_some()) || self.failed.is_some() {
            return;
        }
        let piece = match self.decoder.as_mut().map(|d| d.push(token)).transpose() {
            Ok(piece) => piece.map(|piece| self.certain(piece)),
            Err(e) => {
                self.failed = Some(Failure::input(e));
                return;
            }
        };
        if !self.stream {
            return;
        }
        match &piece {
            Some(piece) => self.out.piece(piece),
            None if self.count == 0 => self.out.piece(&token.to_string()),
            None => self.out.piece(&format!(",{token}")),
        }
        let text = piece.as_deref();
        self.out.document(&TokenDocument { index: self.count, token, text, logprobs });
        self.count += 1;
    }

    /// Prints what is left, the end of the stream or everything, and gives the whole text: `text`, or what of it comes
    /// before a stop string.
    fn finish(
        mut self,
        text: Option<String>,
        done: &Generation,
    ) -> Result<Option<String>, Failure> {
        if let Some(failure) = self.failed {
            return Err(failure);
        }
        let tail = self.decoder.take().map(|d| d.finish()).transpose().map_err(Failure::input)?;
        let mut tail = self.certain(tail.unwrap_or_default());
        let text = match self.stops {
            Some((stops, mut certain)) => {
                let rest = if stops.stopped() { String::new() } else { stops.finish() };
                certain.push_str(&rest);
                tail.push_str(&rest);
                Some(certain)
            }
            None => text,
        };
        if self.stream {
            self.out.piece(&tail);
            self.out.line("");
            return Ok(text);
        }
        match &text {
            Some(text) => self.out.line(text),
            None => {
                let ids: Vec<String> = done.tokens.iter().map(u32::to_string).collect();
                self.out.line(ids.join(","));
            }
        }
        Ok(text)
    }
}
