//! What one sees of a campaign: a line that changes on a terminal, a log otherwise.

use std::time::{Duration, Instant};

use amk_autoresearch::{Candidate, Confirmation, Header, History, Observer, Tally, Trial};
use indicatif::ProgressBar;

use crate::output::{self, Output, Tone};

/// How often an unattended campaign says where it is.
const EVERY: Duration = Duration::from_secs(30);

/// The view.
pub struct Live {
    out: Output,
    bar: ProgressBar,
    began: Instant,
    minutes: Option<Duration>,
    iters: Option<u64>,
    predicted: bool,
    said: Instant,
}

impl Live {
    /// A view of a campaign with these limits.
    pub fn new(out: Output, minutes: Option<Duration>, iters: Option<u64>) -> Live {
        let now = Instant::now();
        let bar = out.spinner("opening the journal");
        Live { out, bar, began: now, minutes, iters, predicted: false, said: now }
    }

    /// Takes the changing line away.
    pub fn close(&self) {
        self.bar.finish_and_clear();
    }

    /// Where a campaign is, in a line.
    pub fn summary(history: &History, predicted: bool) -> String {
        let word = if predicted { "predicted " } else { "" };
        let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
        let share = history
            .ceiling_share()
            .map_or_else(String::new, |s| format!(", {:.1}% of the read ceiling", 100.0 * s));
        let tally = &history.tally;
        let count =
            |labels: &[&str]| -> u64 { labels.iter().filter_map(|l| tally.by_label.get(*l)).sum() };
        let lost = count(&["crashed", "timed out", "quarantined"]);
        let stages: Vec<String> =
            tally.by_stage.iter().map(|(stage, n)| format!("{stage} {n}")).collect();
        let stages =
            if stages.is_empty() { String::new() } else { format!(" ({})", stages.join(", ")) };
        format!(
            "{} trials: {word}{} us a token{share} (start {}), {} kept, {} not faster, {} rejected or lost{stages}, {} repeated",
            tally.trials,
            us(history.incumbent_us),
            us(history.original_us),
            count(&["kept", "kept (predicted)"]),
            count(&["not faster", "not faster (predicted)", "undecided"]),
            count(&["rejected"]) + lost,
            count(&["repeated"]),
        )
    }

    fn left(&self, history: &History) -> String {
        if let Some(all) = self.minutes {
            let left = all.saturating_sub(self.began.elapsed()).as_secs_f64();
            return format!(", {} left", output::seconds(left));
        }
        match self.iters {
            Some(n) => format!(", {} trials left", n.saturating_sub(history.len())),
            None => String::new(),
        }
    }
}

impl Observer for Live {
    fn started(&mut self, header: &Header, history: &History, _: &Tally) {
        self.predicted = header.device.is_none();
        let device = header.device.as_deref().unwrap_or("no device, every time is predicted");
        self.bar.suspend(|| {
            self.out.detail(format!(
                "{} ({}) for {} at position {}: {device}; {} proposes, seed {}, {} trials so far",
                header.model,
                header.mode,
                header.target,
                header.position,
                header.proposer,
                header.seed,
                history.len()
            ));
        });
    }

    fn proposed(&mut self, candidates: &[Candidate]) {
        if self.said.elapsed() < EVERY && candidates.len() > 1 {
            self.bar.tick();
        }
    }

    fn judged(&mut self, seq: u64, trial: &Trial, history: &History, _: &Tally) {
        let line = Live::summary(history, self.predicted) + &self.left(history);
        if trial.verdict.kept() {
            let us = trial.verdict.us().unwrap_or_default();
            let word = if self.predicted { "predicted " } else { "" };
            let start = history.original_us.unwrap_or(us);
            self.bar.suspend(|| {
                self.out.detail(format!(
                    "{}  entry {seq}, trial {}: {word}{us:.1} us a token, {:.3} times the start's speed, by {}",
                    self.out.paint(Tone::Good, "kept"),
                    trial.index,
                    if self.predicted { start / us } else { history.gain },
                    trial.candidate.source
                ));
            });
        }
        if self.out.shows_progress() {
            self.bar.set_message(line);
        } else if self.said.elapsed() >= EVERY {
            self.said = Instant::now();
            self.out.detail(line);
        }
    }

    fn confirmed(&mut self, confirmation: &Confirmation) {
        if !confirmation.holds {
            self.bar.suspend(|| self.out.warn(&confirmation.text));
        }
    }

    fn note(&mut self, text: &str) {
        self.bar.suspend(|| self.out.note(text));
    }
}
