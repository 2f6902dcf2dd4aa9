//! An agent at the other end of two pipes, one JSON object a line.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use super::fault::Fault;
use super::message::{Answer, AskMessage, Hello, ToAgent, TrialMessage, answer_of};
use super::{LONGEST_LINE, VERSION, from_agent_schema};
use crate::journal::Trial;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};
use crate::space::Space;

/// How patient the bridge is.
#[derive(Clone, Debug)]
pub struct LinesOptions {
    /// Version of amk, for the greeting.
    pub amk: String,
    /// Longest wait for one answer.
    pub patience: Duration,
    /// Lines that are no answer before the agent is given up.
    pub attempts: u32,
    /// Set from outside to end the wait.
    pub stop: Arc<AtomicBool>,
}

/// What the reading thread saw.
enum Line {
    Text(String),
    TooLong,
    Failed(String),
}

/// Asks an agent over a writer and listens to a reader.
pub struct LinesProposer<W: Write> {
    out: W,
    lines: Receiver<Line>,
    options: LinesOptions,
    asks: u64,
    /// The writer's first failure; said at the next ask.
    broken: Option<String>,
}

const NAME: &str = "stdio";

impl<W: Write> LinesProposer<W> {
    /// Greets the agent. The reader is read by a thread of its own, so that waiting for it can end.
    pub fn new<R: BufRead + Send + 'static>(
        space: &Space,
        reader: R,
        out: W,
        options: LinesOptions,
    ) -> LinesProposer<W> {
        let (sender, lines) = sync_channel(16);
        std::thread::spawn(move || {
            let mut reader = reader;
            while let Some(line) = next_line(&mut reader) {
                let last = matches!(line, Line::Failed(_));
                if sender.send(line).is_err() || last {
                    return;
                }
            }
        });
        let hello = ToAgent::Hello(Hello {
            v: VERSION,
            amk: options.amk.clone(),
            space: space.clone(),
            knobs_schema: space.schema(),
            answer_schema: from_agent_schema(Some(space)),
        });
        let mut proposer = LinesProposer { out, lines, options, asks: 0, broken: None };
        proposer.say(&hello);
        proposer
    }

    /// Says that nothing more is asked.
    pub fn bye(&mut self, reason: &str) {
        self.say(&ToAgent::Bye { v: VERSION, reason: reason.to_owned() });
    }

    fn say(&mut self, message: &ToAgent) {
        if self.broken.is_some() {
            return;
        }
        let said = serde_json::to_string(message)
            .map_err(std::io::Error::from)
            .and_then(|text| writeln!(self.out, "{text}").and_then(|()| self.out.flush()));
        if let Err(error) = said {
            self.broken = Some(format!("it does not listen any more: {error}"));
        }
    }

    /// The next line, or why there is none: `Ok(None)` once the campaign is stopped.
    fn listen(&self) -> Result<Option<Line>, String> {
        let until = Instant::now() + self.options.patience;
        loop {
            if self.options.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match self.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => return Ok(Some(line)),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err("it closed its end without saying done".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() >= until => {
                    let seconds = self.options.patience.as_secs_f64();
                    return Err(format!("it did not answer within {seconds:.0} s"));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }
}

/// The next line that is not blank, without its end; `None` at the end of input.
fn next_line(reader: &mut impl BufRead) -> Option<Line> {
    let mut bytes = Vec::new();
    let mut too_long = false;
    loop {
        let buffer = match reader.fill_buf() {
            Ok(buffer) => buffer,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(e) => return Some(Line::Failed(e.to_string())),
        };
        if buffer.is_empty() {
            // A last line without an end counts; nothing does not.
            return (!bytes.is_empty() || too_long).then(|| finish(bytes, too_long));
        }
        let end = buffer.iter().position(|&b| b == b'\n');
        let taken = end.unwrap_or(buffer.len());
        if bytes.len() + taken > LONGEST_LINE {
            too_long = true;
            bytes.clear();
        } else if !too_long {
            bytes.extend_from_slice(&buffer[..taken]);
        }
        let used = taken + usize::from(end.is_some());
        reader.consume(used);
        if end.is_some() {
            if !too_long && bytes.iter().all(u8::is_ascii_whitespace) {
                bytes.clear();
                continue;
            }
            return Some(finish(bytes, too_long));
        }
    }
}

fn finish(bytes: Vec<u8>, too_long: bool) -> Line {
    match too_long {
        true => Line::TooLong,
        // What is no UTF-8 is no JSON either, and is refused as such.
        false => Line::Text(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

impl<W: Write> Proposer for LinesProposer<W> {
    fn name(&self) -> &str {
        NAME
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        let id = self.asks;
        self.asks += 1;
        self.say(&ToAgent::Ask(AskMessage {
            v: VERSION,
            id,
            count: ask.count,
            seed: ask.seed,
            trials: ask.history.len(),
            incumbent: ask.history.incumbent.clone(),
            incumbent_us: ask.history.incumbent_us,
        }));
        let given_up = |reason: String| NoProposal { proposer: NAME.to_owned(), reason };
        for left in (0..self.options.attempts.max(1)).rev() {
            if let Some(reason) = &self.broken {
                return Err(given_up(reason.clone()));
            }
            let faults = match self.listen().map_err(given_up)? {
                None => return Ok(Proposal::Done("it was stopped".to_owned())),
                Some(Line::Failed(reason)) => {
                    return Err(given_up(format!("it cannot be heard: {reason}")));
                }
                Some(Line::TooLong) => {
                    let message = format!("the line is longer than {LONGEST_LINE} bytes");
                    vec![Fault::new("too_long", message, "send fewer candidates, shorter notes")]
                }
                Some(Line::Text(line)) => match answer_of(&line, id, ask.count) {
                    Ok(Answer::Done(reason)) => return Ok(Proposal::Done(reason)),
                    Ok(Answer::Candidates(offered)) => {
                        let named = offered.into_iter().map(|o| o.candidate(NAME)).collect();
                        return Ok(Proposal::Candidates(named));
                    }
                    Err(faults) => faults,
                },
            };
            self.say(&ToAgent::Error { v: VERSION, id, faults, attempts_left: left });
        }
        let n = self.options.attempts.max(1);
        Err(given_up(format!("{n} lines in a row were no answer to ask {id}")))
    }

    fn repeats(&self) -> bool {
        false
    }

    fn told(&mut self, trial: &Trial) {
        let replayed = self.asks == 0 && trial.index > 0;
        self.say(&ToAgent::Trial(TrialMessage::new(trial, replayed)));
    }
}
