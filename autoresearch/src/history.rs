//! What a campaign has found so far, as a function of its journal and in little memory: a night's trials are not kept,
//! only the last few, the best few, and a short hash of each.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::candidate::{CandidateId, Point};
use crate::journal::Trial;
use crate::seams::Tally;
use crate::verdict::{Stage, Verdict};

/// Trials kept, the last ones.
pub const RECENT: usize = 256;
/// Trials kept, the best ones.
pub const BEST: usize = 32;

/// What was found so far. Raw samples are in the journal alone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    /// The last [`RECENT`] trials, oldest first.
    pub recent: VecDeque<Trial>,
    /// Up to [`BEST`] trials whose time counts, fastest first.
    pub best: Vec<Trial>,
    /// The point to beat: the start's, or the last kept one's.
    pub incumbent: Point,
    /// Its time as last measured or predicted, microseconds per token.
    pub incumbent_us: Option<f64>,
    /// The entry it was kept by; that of the start, if nothing was.
    pub incumbent_entry: Option<u64>,
    /// What the model of cost said of it.
    pub incumbent_predicted_us: Option<f64>,
    /// Its program.
    pub incumbent_program: Option<String>,
    /// Its time over that of the plain read beside it; `None` where it was predicted.
    pub incumbent_share: Option<f64>,
    /// The start's time.
    pub original_us: Option<f64>,
    /// Product of the speed-ups of everything kept: an estimate, not the final measurement.
    pub gain: f64,
    /// Trials since one was kept.
    pub since_kept: u64,
    /// Candidates that were measured, so that their share of the error is known.
    pub measured: u64,
    /// Measurements of a winner against the original.
    pub confirmations: u64,
    pub tally: Tally,
    tried: BTreeSet<u64>,
    programs: BTreeMap<u64, u64>,
}

impl History {
    /// Nothing was tried yet.
    pub fn new(original: Point) -> History {
        History { incumbent: original, gain: 1.0, ..History::default() }
    }

    /// Trials so far.
    pub fn len(&self) -> u64 {
        self.tally.trials
    }

    /// No trial yet?
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Was the point judged already? It must be complete.
    pub fn was_tried(&self, id: &CandidateId) -> bool {
        self.tried.contains(&short(&id.0))
    }

    /// The entry that a program was judged by which does the same; see [`crate::Prepared::body`].
    pub fn judged_as(&self, body: &str) -> Option<u64> {
        self.programs.get(&short(body)).copied()
    }

    /// Takes in the trial of entry `seq`.
    pub fn add(&mut self, seq: u64, trial: &Trial) {
        self.tally.trials += 1;
        *self.tally.by_label.entry(trial.verdict.label().to_owned()).or_default() += 1;
        let stage = match &trial.verdict {
            Verdict::Rejected { stage, .. } | Verdict::Crashed { stage, .. } => Some(*stage),
            Verdict::TimedOut { stage, .. } => Some(*stage),
            _ => None,
        };
        if let Some(stage) = stage {
            *self.tally.by_stage.entry(stage.name().to_owned()).or_default() += 1;
        }
        self.tried.insert(short(&trial.candidate.id().0));
        let pruned = stage == Some(Stage::Predict);
        if let (Some(body), false) = (&trial.body, pruned) {
            self.programs.entry(short(body)).or_insert(seq);
        }
        if let Verdict::Measured(_) | Verdict::Quarantined { measurement: Some(_), .. } =
            trial.verdict
        {
            self.measured += 1;
        }
        self.since_kept += 1;
        let start = trial.index == 0;
        if start || trial.verdict.kept() {
            self.crown(seq, trial, start);
        } else if let Verdict::Measured(m) = &trial.verdict {
            // The incumbent ran beside it, too.
            self.incumbent_us = Some(m.incumbent_us);
        }
        let trial = light(trial);
        if let Some(us) = trial.verdict.us() {
            let at = self.best.partition_point(|t| t.verdict.us().is_some_and(|u| u <= us));
            if at < BEST {
                self.best.insert(at, trial.clone());
                self.best.truncate(BEST);
            }
        }
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(trial);
    }

    fn crown(&mut self, seq: u64, trial: &Trial, start: bool) {
        self.incumbent = trial.candidate.knobs.clone();
        self.incumbent_us = trial.verdict.us();
        self.incumbent_entry = Some(seq);
        self.incumbent_predicted_us = trial.predicted_us;
        self.incumbent_program = trial.program.clone();
        self.since_kept = 0;
        let (share, speedup) = match &trial.verdict {
            Verdict::Measured(m) => (Some(m.candidate_us / m.floor_us), m.speedup.median),
            Verdict::Predicted { us, incumbent_us, .. } => (None, incumbent_us / us),
            _ => (None, 1.0),
        };
        self.incumbent_share = share;
        if start {
            self.original_us = trial.verdict.us();
        } else {
            self.gain *= speedup;
        }
    }

    /// Share of the read ceiling the incumbent reaches, as last measured or predicted.
    pub fn ceiling_share(&self) -> Option<f64> {
        let by_program =
            |t: &&Trial| t.program == self.incumbent_program && t.verdict.us().is_some();
        let trial = self.best.iter().find(by_program)?;
        match &trial.verdict {
            Verdict::Measured(m) => Some(m.floor_us / m.candidate_us),
            Verdict::Predicted { us, floor_us, .. } => Some(floor_us / us),
            _ => None,
        }
    }
}

/// A trial without its raw samples.
fn light(trial: &Trial) -> Trial {
    let mut trial = trial.clone();
    if let Verdict::Measured(m) | Verdict::Quarantined { measurement: Some(m), .. } =
        &mut trial.verdict
    {
        m.samples = Vec::new();
    }
    trial
}

fn short(text: &str) -> u64 {
    let hash = blake3::hash(text.as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b))
}
