//! `amk chat`: a conversation in the terminal.

use std::io::{BufRead, IsTerminal};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use amk::generate::{FinishReason, Request};
use amk::sampled::{Sequence, sample};
use amk_models::sampling::{LogProbs, log_probs};
use amk_models::tokenizer::StopStrings;
use amk_models::{Message, Reference};
use clap::Args;
use serde::Serialize;

use super::sampling::SamplingArgs;
use super::{Failure, Outcome, Verdict, model};
use crate::output::Output;

/// Talk with a model; each line of standard input is a message.
#[derive(Args)]
#[command(after_help = "\
Answers come as they are made. Ctrl-C stops the answer, not the program; /exit or Ctrl-D ends it,
/clear forgets the conversation. The model needs a tokenizer and a chat template. Runs on the CPU.

Examples:
  amk chat path/to/checkpoint
  amk chat path/to/checkpoint --system \"Be brief.\" --temperature 0.7 --top-p 0.9 --seed 1
  amk chat path/to/checkpoint --json --logprobs 5 --stop END")]
pub struct ChatArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// A message of the system before the conversation.
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// Most tokens of an answer.
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_tokens: usize,
    /// End an answer before this text; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// With --json: log probabilities of each token and of the N best beside it.
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
}

#[derive(Serialize)]
struct AnswerDocument<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: usize,
    finish_reason: FinishReason,
    /// Whether Ctrl-C ended it.
    interrupted: bool,
    logprobs: Option<&'a [LogProbs]>,
}

pub fn run(args: &ChatArgs, out: &Output) -> Outcome {
    let sampler = args.sampling.sampler()?;
    let checkpoint = model::open(args.model.as_deref(), out)?;
    let tokenizer = checkpoint.tokenizer().map_err(|e| model::failure(&e))?;
    let Some(tokenizer) = tokenizer.filter(|t| t.chat_template().is_some()) else {
        return Err(Failure::input(format!(
            "{} has no chat template, so there is nothing to chat with",
            checkpoint.name()
        ))
        .help("amk generate --prompt takes plain text"));
    };
    let ends = checkpoint.eos_ids().map_err(|e| model::failure(&e))?;
    let capacity = checkpoint.config().capacity();
    let mut reference = Reference::new(&checkpoint).map_err(Failure::input)?;
    let mut sequence = Sequence::new(&mut reference).map_err(Failure::input)?;
    let interrupted = interrupts();
    let system = args.system.as_deref().map(|text| Message::new("system", text));
    let mut history: Vec<Message> = system.clone().into_iter().collect();
    let terminal = std::io::stdin().is_terminal() && !out.json();
    let mut lines = std::io::stdin().lock().lines();
    loop {
        if terminal {
            out.piece("> ");
        }
        let line = match lines.next() {
            None => break,
            Some(Ok(line)) => line,
            Some(Err(e)) => return Err(Failure::input(format!("standard input: {e}"))),
        };
        match line.trim() {
            "" => continue,
            "/exit" => break,
            "/clear" => {
                history = system.clone().into_iter().collect();
                continue;
            }
            _ => history.push(Message::new("user", &line)),
        }
        let rendered = tokenizer.render_chat(&history, true).map_err(Failure::input)?;
        let prompt = tokenizer.encode_rendered(&rendered).map_err(Failure::input)?;
        let request =
            Request { prompt: &prompt, max_tokens: args.max_tokens, stop: &ends, capacity };
        interrupted.store(false, Ordering::Relaxed);
        let mut decoder = tokenizer.stream(true);
        let mut stops = StopStrings::new(args.stop.iter().cloned());
        let mut text = String::new();
        let mut broken = None;
        let mut logprobs = Vec::new();
        let mut show = |piece: String| {
            out.piece(&piece);
            text.push_str(&piece);
        };
        let done = sample(&mut sequence, &request, &sampler, &mut |token, logits| {
            if let Some(n) = args.logprobs {
                logprobs.extend(log_probs(logits, token, n));
            }
            match decoder.push(token) {
                Ok(piece) => show(stops.push(&piece)),
                Err(e) => broken = Some(e),
            }
            if stops.stopped() || broken.is_some() {
                return ControlFlow::Break(FinishReason::Stop);
            }
            match interrupted.load(Ordering::Relaxed) {
                true => ControlFlow::Break(FinishReason::Cancelled),
                false => ControlFlow::Continue(()),
            }
        })
        .map_err(Failure::input)?;
        if let Some(e) = broken {
            return Err(Failure::input(e));
        }
        if !stops.stopped() {
            let tail = decoder.finish().map_err(Failure::input)?;
            show(stops.push(&tail));
        }
        if !stops.stopped() {
            show(stops.finish());
        }
        out.line("");
        let stopped_by_hand = interrupted.swap(false, Ordering::Relaxed);
        if done.finish_reason == FinishReason::Capacity {
            out.warn(format!("the context of {capacity} positions is full; /clear begins anew"));
        }
        out.document(&AnswerDocument {
            text: &text,
            tokens: &done.tokens,
            prompt_tokens: prompt.len(),
            finish_reason: done.finish_reason,
            interrupted: stopped_by_hand,
            logprobs: args.logprobs.map(|_| logprobs.as_slice()),
        });
        history.push(Message::new("assistant", &text));
    }
    if terminal {
        out.line("");
    }
    Ok(Verdict::Yes)
}

/// Set by Ctrl-C, which then ends nothing by itself.
fn interrupts() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    // Without a handler an interrupt ends the program, which is no worse than before.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, flag.clone());
    flag
}
