//! The loop: ask, judge, write down, tell, until it is over.
//!
//! The journal is the only state. A campaign that goes on reads it, tells its proposer every trial again, asks once
//! more for the batch the last process was in, and goes on behind the trials that were judged: a run that was killed at
//! any moment and resumed has the trials of one that was not. `path` is the one path of a batch of candidates, `finish`
//! measures the winner against the original.

mod finish;
mod path;

pub use path::sentences;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::candidate::Candidate;
use crate::history::History;
use crate::journal::{Confirmation, Event, Header, Journal, JournalError, Trial};
use crate::rng;
use crate::seams::{Ask, NoProposal, Observer, Proposal, Proposer, Worker};
use crate::space::Space;
use crate::verdict::Verdict;

/// Batches without a single new program after which the proposer has nothing more to say.
const BARREN: u32 = 50;

/// Who takes part.
pub struct Parts<'a> {
    pub space: &'a Space,
    pub worker: &'a dyn Worker,
    pub proposer: &'a mut dyn Proposer,
    pub observer: &'a mut dyn Observer,
    /// Set from outside, by Ctrl-C: the campaign ends as soon as nothing is lost by it.
    pub stop: &'a AtomicBool,
}

/// When to end, and how much to do at once. None of it changes what a candidate's verdict is.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Trials in the journal, those of earlier processes and the start included.
    pub iters: Option<u64>,
    /// Time of this process.
    pub time: Option<Duration>,
    /// Trials in a row of which none was kept.
    pub plateau: Option<u64>,
    /// Candidates lowered and compiled at once.
    pub jobs: usize,
    /// Candidates measured at once: as many as there are devices.
    pub devices: usize,
    /// Candidates predicted to take more than so many times the incumbent's predicted time are not measured.
    pub prune: Option<f64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { iters: None, time: None, plateau: None, jobs: 1, devices: 1, prune: None }
    }
}

/// Why a campaign did not end as it should. What is in the journal stays good.
#[derive(Debug, thiserror::Error)]
pub enum CampaignError {
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error(transparent)]
    Proposer(#[from] NoProposal),
    #[error("the start cannot be the one to beat: {0}")]
    Start(String),
}

/// How a campaign ended.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub header: Header,
    pub history: History,
    /// Why, as a sentence.
    pub reason: String,
    /// Was it stopped from outside?
    pub stopped: bool,
    /// The winner against the original, where something was kept.
    pub confirmation: Option<Confirmation>,
    /// Hash of the journal's last line, and how many there are.
    pub head: String,
    pub entries: u64,
}

struct Campaign<'a> {
    parts: Parts<'a>,
    limits: Limits,
    header: Header,
    journal: Journal,
    history: History,
    began: Instant,
}

/// Begins a journal at `path` and runs the campaign `header` describes.
///
/// # Errors
/// The journal is there already or cannot be written, the start is refused, the proposer fails.
pub fn begin(
    path: &Path,
    header: Header,
    parts: Parts<'_>,
    limits: Limits,
) -> Result<Outcome, CampaignError> {
    let mut journal = Journal::create(path)?;
    journal.append(&Event::Header(header.clone()))?;
    let history = History::new(header.original.clone());
    let campaign = Campaign { parts, limits, header, journal, history, began: Instant::now() };
    campaign.run(Vec::new())
}

/// Goes on with the journal at `path`, which must be about what `header` describes; its own header counts for all that
/// is the campaign's choice. A journal without a header is begun.
///
/// # Errors
/// As [`begin`]; also a journal that was edited, or is about something else.
pub fn resume(
    path: &Path,
    header: &Header,
    parts: Parts<'_>,
    limits: Limits,
) -> Result<Outcome, CampaignError> {
    let mut history = History::default();
    // Trials of the last batch: it may not have been over.
    let mut last: Vec<(u64, Trial)> = Vec::new();
    let proposer = &mut *parts.proposer;
    let opened = Journal::resume(path, &mut |entry| match &entry.event {
        Event::Header(h) => history = History::new(h.original.clone()),
        Event::Trial(trial) => {
            if trial.batch == trial.index {
                for (seq, old) in last.drain(..) {
                    history.add(seq, &old);
                    proposer.told(&old);
                }
            }
            last.push((entry.seq, trial.clone()));
        }
        Event::Confirmed(_) => history.confirmations += 1,
        Event::Resumed { .. } | Event::Ended { .. } => {}
    })?;
    let mut journal = opened.journal;
    let own = match opened.header {
        Some(own) => {
            alike(path, &own, header)?;
            own
        }
        None => {
            journal.append(&Event::Header(header.clone()))?;
            history = History::new(header.original.clone());
            header.clone()
        }
    };
    let device = header.device.clone();
    journal.append(&Event::Resumed { cut_bytes: opened.cut_bytes, device })?;
    if opened.cut_bytes > 0 {
        parts.observer.note(&format!(
            "the journal ended in the middle of a line; its {} bytes were removed, and the candidate they were about is judged again",
            opened.cut_bytes
        ));
    }
    let began = Instant::now();
    Campaign { parts, limits, header: own, journal, history, began }.run(last)
}

/// Is the journal about this model, this target, this device?
fn alike(path: &Path, own: &Header, run: &Header) -> Result<(), JournalError> {
    let device = |h: &Header| h.device.clone().unwrap_or_else(|| "no device".to_owned());
    let mut pairs = vec![
        ("the shape", own.shape.clone(), run.shape.clone()),
        ("the target", own.target.clone(), run.target.clone()),
        ("the architecture", own.sm.clone(), run.sm.clone()),
        ("the type", own.mode.clone(), run.mode.clone()),
        ("the position", own.position.to_string(), run.position.to_string()),
        ("the device", device(own), device(run)),
        ("the space", own.space.clone(), run.space.clone()),
    ];
    if own.device.is_none() {
        pairs.push(("the model of cost", own.cost_model.clone(), run.cost_model.clone()));
    }
    match pairs.into_iter().find(|(_, a, b)| a != b) {
        None => Ok(()),
        Some((field, journal, run)) => {
            Err(JournalError::Other { path: path.to_owned(), field, journal, run })
        }
    }
}

/// What comes next.
enum Next {
    Judge { batch: u64, candidates: Vec<Candidate> },
    Over(String),
}

impl Campaign<'_> {
    fn run(mut self, last: Vec<(u64, Trial)>) -> Result<Outcome, CampaignError> {
        let rest = self.catch_up(last)?;
        let Campaign { parts, header, history, .. } = &mut self;
        parts.observer.started(header, history, &history.tally);
        if self.history.is_empty() {
            self.start()?;
        } else if self.history.original_us.is_none() {
            return Err(CampaignError::Start("an earlier run found that out".to_owned()));
        }
        let mut pending = rest;
        let mut barren = 0;
        let reason = loop {
            if let Some(reason) = self.over() {
                break reason;
            }
            let next = match pending.take() {
                Some(next) => next,
                None => self.ask()?,
            };
            let (batch, candidates) = match next {
                Next::Over(reason) => break reason,
                Next::Judge { batch, candidates } => (batch, candidates),
            };
            let before = self.history.tally.clone();
            self.judge_all(batch, candidates)?;
            let idle = |t: &crate::seams::Tally| {
                t.by_label.get("repeated").copied().unwrap_or(0)
                    + t.by_stage.get("proposal").copied().unwrap_or(0)
            };
            let now = &self.history.tally;
            let new = (now.trials - before.trials) - (idle(now) - idle(&before));
            barren = if new > 0 { 0 } else { barren + 1 };
            if barren == BARREN && self.over().is_none() {
                break format!("the proposer named nothing new in {BARREN} batches");
            }
        };
        self.finish(reason)
    }

    /// Takes in the trials of the batch the last process was in, and asks for that batch once more: what it did not
    /// come to is what comes next.
    fn catch_up(&mut self, last: Vec<(u64, Trial)>) -> Result<Option<Next>, CampaignError> {
        let Some(batch) = last.first().map(|(_, t)| t.batch) else { return Ok(None) };
        let again = match batch {
            // The start was asked for by nobody.
            0 => Next::Over(String::new()),
            // What somebody outside would say now is no part of that batch.
            _ if !self.parts.proposer.repeats() => Next::Over(String::new()),
            _ => self.ask()?,
        };
        let done = last.len();
        let same = |c: &[Candidate]| {
            c.len() > done && c.iter().zip(&last).all(|(c, (_, t))| *c == t.candidate)
        };
        let rest = match again {
            Next::Judge { candidates, .. } if same(&candidates) => {
                let candidates = candidates.into_iter().skip(done).collect();
                Some(Next::Judge { batch, candidates })
            }
            _ => None,
        };
        for (seq, trial) in last {
            self.history.add(seq, &trial);
            self.parts.proposer.told(&trial);
        }
        Ok(rest)
    }

    fn ask(&mut self) -> Result<Next, CampaignError> {
        let batch = self.history.len();
        let ask = Ask {
            space: self.parts.space,
            history: &self.history,
            count: usize::try_from(self.header.batch).unwrap_or(1).max(1),
            seed: rng::mix(self.header.seed, batch),
        };
        let count = ask.count;
        match self.parts.proposer.propose(&ask) {
            Ok(Proposal::Candidates(mut candidates)) if !candidates.is_empty() => {
                candidates.truncate(count);
                for candidate in &mut candidates {
                    // One that is no point of the space stays as it is, and is refused as it is.
                    if let Ok(point) = self.parts.space.complete(&candidate.knobs) {
                        candidate.knobs = point;
                    }
                }
                Ok(Next::Judge { batch, candidates })
            }
            Ok(Proposal::Candidates(_)) => Ok(Next::Over("the proposer named nothing".to_owned())),
            Ok(Proposal::Done(reason)) => Ok(Next::Over(reason)),
            Err(error) => {
                // What was found stays good.
                self.journal.append(&Event::Ended { reason: error.to_string() })?;
                Err(error.into())
            }
        }
    }

    /// Is it over, and why?
    fn over(&self) -> Option<String> {
        if self.stopped() {
            return Some("it was stopped".to_owned());
        }
        if let Some(n) = self.limits.iters
            && self.history.len() >= n
        {
            return Some(format!("{n} trials were asked for"));
        }
        if let Some(time) = self.limits.time
            && self.began.elapsed() >= time
        {
            return Some(format!("{:.0} minutes are over", time.as_secs_f64() / 60.0));
        }
        match self.limits.plateau {
            Some(n) if self.history.since_kept >= n => {
                Some(format!("plateau: none of the last {n} trials was kept"))
            }
            _ => None,
        }
    }

    fn stopped(&self) -> bool {
        self.parts.stop.load(Ordering::Relaxed)
    }

    /// Writes a trial down and tells everybody.
    fn write(&mut self, trial: Trial) -> Result<(), CampaignError> {
        let event = Event::Trial(trial);
        let seq = self.journal.append(&event)?;
        let Event::Trial(trial) = event else { return Ok(()) };
        self.history.add(seq, &trial);
        self.parts.proposer.told(&trial);
        self.parts.observer.judged(seq, &trial, &self.history, &self.history.tally);
        Ok(())
    }

    /// Judges the start: it must pass every gate, and where it is measured it must not beat itself.
    fn start(&mut self) -> Result<(), CampaignError> {
        let candidate = Candidate::new(self.header.original.clone(), "start");
        self.judge_all(0, vec![candidate])?;
        if self.stopped() && self.history.is_empty() {
            return Ok(());
        }
        if self.history.original_us.is_some() {
            return Ok(());
        }
        let verdict = self.history.recent.front().map(|t| t.verdict.clone());
        let reason = verdict.as_ref().map(Verdict::reason).unwrap_or_default();
        self.journal
            .append(&Event::Ended { reason: format!("the start was refused: {reason}") })?;
        Err(CampaignError::Start(reason))
    }
}
