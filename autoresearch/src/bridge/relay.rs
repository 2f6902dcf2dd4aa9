//! Candidates from another thread: a server hands them over and waits for what came of them, while the campaign runs as
//! with any proposer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::message::Offered;
use crate::candidate::Candidate;
use crate::journal::Trial;
use crate::seams::{Ask, NoProposal, Proposal, Proposer};

/// Candidates with the way back.
struct Batch {
    candidates: Vec<Candidate>,
    reply: Sender<Trial>,
}

/// The server's end.
#[derive(Clone)]
pub struct Relay {
    batches: Sender<Batch>,
    source: String,
}

/// What comes of candidates that were handed over: their trials, in order, as they are judged.
pub struct Submitted {
    trials: Receiver<Trial>,
    /// How many there will be.
    pub count: usize,
}

impl Submitted {
    /// The next trial; `None` once the campaign is over or all have come.
    pub fn next_trial(&self) -> Option<Trial> {
        self.trials.recv().ok()
    }
}

impl Relay {
    /// Hands candidates over; `None` where the campaign is over.
    pub fn submit(&self, offered: Vec<Offered>) -> Option<Submitted> {
        let (reply, trials) = channel();
        let count = offered.len();
        let candidates = offered.into_iter().map(|o| o.candidate(&self.source)).collect();
        self.batches.send(Batch { candidates, reply }).ok()?;
        Some(Submitted { trials, count })
    }
}

/// The campaign's end.
pub struct RelayProposer {
    name: String,
    batches: Receiver<Batch>,
    stop: Arc<AtomicBool>,
    /// Handed over and not asked for yet.
    waiting: VecDeque<(Candidate, Sender<Trial>)>,
    /// Asked for and not judged yet, in order.
    underway: VecDeque<Sender<Trial>>,
}

/// A server's end and a campaign's. `source` is what the candidates' source says.
pub fn relay(source: &str, stop: Arc<AtomicBool>) -> (Relay, RelayProposer) {
    let (sender, batches) = channel();
    let (waiting, underway) = (VecDeque::new(), VecDeque::new());
    let proposer = RelayProposer { name: source.to_owned(), batches, stop, waiting, underway };
    (Relay { batches: sender, source: source.to_owned() }, proposer)
}

impl Proposer for RelayProposer {
    fn name(&self) -> &str {
        &self.name
    }

    fn propose(&mut self, ask: &Ask<'_>) -> Result<Proposal, NoProposal> {
        // A batch that was cut short: nobody will be told of what was not judged.
        self.underway.clear();
        while self.waiting.is_empty() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(Proposal::Done("it was stopped".to_owned()));
            }
            match self.batches.recv_timeout(Duration::from_millis(50)) {
                Ok(batch) => {
                    let reply = &batch.reply;
                    self.waiting.extend(batch.candidates.into_iter().map(|c| (c, reply.clone())));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Ok(Proposal::Done("the agent has gone".to_owned()));
                }
            }
        }
        let mut candidates = Vec::new();
        while candidates.len() < ask.count
            && let Some((candidate, reply)) = self.waiting.pop_front()
        {
            candidates.push(candidate);
            self.underway.push_back(reply);
        }
        Ok(Proposal::Candidates(candidates))
    }

    fn repeats(&self) -> bool {
        false
    }

    fn told(&mut self, trial: &Trial) {
        // The start, and trials of an earlier process, were asked for by nobody here.
        if trial.index > 0
            && let Some(reply) = self.underway.pop_front()
        {
            // Who does not wait any more is not told.
            let _ = reply.send(trial.clone());
        }
    }
}
