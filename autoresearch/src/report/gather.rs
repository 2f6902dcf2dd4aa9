//! A journal as what the page shows.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use super::ReportError;
use super::effects::{Effects, KnobEffects};
use crate::candidate::Point;
use crate::journal::{self, Entry, Event, Trial};
use crate::verdict::{Interval, Verdict};

/// Most candidates drawn: of more, every so many-th that was not kept.
const DRAWN: usize = 3000;
/// Most characters of a reason that is shown.
const REASON: usize = 400;

/// A candidate with a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tried {
    /// Running time of the campaign when it was judged, minutes; pauses between processes are left out.
    pub minutes: f64,
    /// Microseconds per token.
    pub us: f64,
    pub kept: bool,
}

/// A candidate that became the incumbent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kept {
    pub entry: u64,
    pub minutes: f64,
    pub source: String,
    pub us: f64,
    /// Over the incumbent before, where it was measured.
    pub speedup: Option<Interval>,
    /// What it changed, as `name: old to new`.
    pub changes: Vec<String>,
    pub note: Option<String>,
}

/// A row of two columns and an example.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    pub what: String,
    pub count: u64,
    pub example: String,
}

/// What the page shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub title: String,
    /// Is every time a prediction?
    pub predicted: bool,
    /// What the campaign gained against its start, as a sentence.
    pub gain: String,
    /// Does the gain hold? `None`: it was not measured against the original at the end.
    pub holds: Option<bool>,
    pub speedup: Option<Interval>,
    pub original_us: Option<f64>,
    pub best_us: Option<f64>,
    /// The least time in which the device reads what a token must read, at the last time with one.
    pub floor_us: Option<f64>,
    pub minutes: f64,
    pub trials: u64,
    pub tried: Vec<Tried>,
    pub kept: Vec<Kept>,
    /// Trials by verdict, and refusals by stage.
    pub verdicts: Vec<Row>,
    pub refusals: Vec<Row>,
    /// Trials by proposer.
    pub sources: Vec<Row>,
    pub knobs: Vec<KnobEffects>,
    /// The incumbent's knobs, where they differ from the start's: name, start, incumbent.
    pub differences: Vec<(String, String, String)>,
    /// Where everything comes from, name and value.
    pub provenance: Vec<(String, String)>,
}

impl Report {
    /// Reads a journal from end to end, checking all of it.
    ///
    /// # Errors
    /// The journal cannot be read, was edited, or contradicts itself.
    pub fn read(path: &Path) -> Result<Report, ReportError> {
        let mut gather = Gather::default();
        let summary = journal::check(path, &mut |entry| gather.take(entry))?;
        let mut report = gather.finish();
        let header = &summary.header;
        report.title = format!("{} on {}", header.model, header.target);
        report.predicted = header.device.is_none();
        report.original_us = summary.history.original_us;
        report.best_us = summary.history.incumbent_us;
        report.trials = summary.history.len();
        report.differences = differences(&header.original, &summary.history.incumbent);
        if let Some(c) = &summary.confirmation {
            report.gain = c.text.clone();
            report.holds = Some(c.holds);
            report.speedup = c.measurement.as_ref().map(|m| m.speedup);
        } else {
            report.gain = match report.kept.len() {
                0 => "Nothing beat the start.".to_owned(),
                _ => format!(
                    "Not measured against the start at the end; the gains of what was kept multiply to {:.4}.",
                    summary.history.gain
                ),
            };
        }
        let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let device =
            header.device.clone().unwrap_or_else(|| "none: every time is predicted".into());
        let (first, last) = header.bucket;
        let ended = summary.ended.clone().unwrap_or_else(|| "it was cut off".to_owned());
        let rows = [
            ("model", header.model.clone()),
            ("shape", header.shape.clone()),
            ("arithmetic", header.mode.clone()),
            ("position", format!("{} of {first} to {last}", header.position)),
            ("target", format!("{} ({})", header.target, header.sm)),
            ("device", device),
            ("model of cost", header.cost_model.clone()),
            ("amk", header.amk.clone()),
            ("space", header.space.clone()),
            ("proposer", header.proposer.clone()),
            ("seed", header.seed.to_string()),
            ("start", header.start.clone()),
            (
                "kept if",
                format!(
                    "faster by more than {} % with confidence {}",
                    header.threshold * 100.0,
                    header.confidence
                ),
            ),
            ("rounds", format!("{} to {}", header.min_rounds, header.max_rounds)),
            ("journal", file),
            ("entries", summary.entries.to_string()),
            ("hash of the last entry", summary.head.clone()),
            ("gone on with", format!("{} times", summary.resumed)),
            ("ended", ended),
        ];
        report.provenance = rows.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
        Ok(report)
    }
}

fn differences(from: &Point, to: &Point) -> Vec<(String, String, String)> {
    let text = |p: &Point, n: &str| p.get(n).map_or_else(String::new, ToString::to_string);
    to.differs_in(from).into_iter().map(|n| (n.clone(), text(from, &n), text(to, &n))).collect()
}

#[derive(Default)]
struct Gather {
    /// Milliseconds of running time, and the clock at the last entry.
    running: u64,
    last: Option<u64>,
    incumbent: Point,
    floor_us: Option<f64>,
    tried: Vec<Tried>,
    kept: Vec<Kept>,
    verdicts: BTreeMap<String, (u64, String)>,
    refusals: BTreeMap<String, (u64, String)>,
    sources: BTreeMap<String, (u64, String)>,
    effects: Effects,
}

impl Gather {
    fn take(&mut self, entry: &Entry) {
        // From a process's last entry to the next one's first nobody worked.
        let pause = matches!(entry.event, Event::Resumed { .. });
        if let Some(last) = self.last.filter(|_| !pause) {
            self.running += entry.at_ms.saturating_sub(last);
        }
        self.last = Some(entry.at_ms);
        match &entry.event {
            Event::Header(header) => self.incumbent = header.original.clone(),
            Event::Trial(trial) => self.trial(entry.seq, trial),
            Event::Confirmed(c) => {
                if let Some(m) = &c.measurement {
                    self.floor_us = Some(m.floor_us);
                }
            }
            Event::Resumed { .. } | Event::Ended { .. } => {}
        }
    }

    fn trial(&mut self, seq: u64, trial: &Trial) {
        let minutes = self.running as f64 / 60_000.0;
        let verdict = &trial.verdict;
        let reason: String = verdict.reason().chars().take(REASON).collect();
        let count = |rows: &mut BTreeMap<String, (u64, String)>, what: &str, example: &str| {
            let row = rows.entry(what.to_owned()).or_default();
            row.0 += 1;
            if row.1.is_empty() {
                row.1 = example.to_owned();
            }
        };
        count(&mut self.verdicts, verdict.label(), &reason);
        count(&mut self.sources, &trial.candidate.source, "");
        let stage = match verdict {
            Verdict::Rejected { stage, .. }
            | Verdict::Crashed { stage, .. }
            | Verdict::TimedOut { stage, .. } => Some(*stage),
            _ => None,
        };
        if let Some(stage) = stage {
            count(&mut self.refusals, &format!("{}, {}", stage.name(), verdict.label()), &reason);
        }
        let (pair, speedup) = match verdict {
            Verdict::Measured(m) => {
                self.floor_us = Some(m.floor_us);
                (Some((m.candidate_us, m.incumbent_us)), Some(m.speedup))
            }
            Verdict::Predicted { us, floor_us, incumbent_us, .. } => {
                self.floor_us = Some(*floor_us);
                (Some((*us, *incumbent_us)), None)
            }
            _ => (None, None),
        };
        let Some((us, incumbent_us)) =
            pair.filter(|(a, b)| a.is_finite() && *a > 0.0 && b.is_finite())
        else {
            return;
        };
        let kept = verdict.kept();
        self.tried.push(Tried { minutes, us, kept: kept || trial.index == 0 });
        if trial.index > 0 {
            self.effects.add(trial, &self.incumbent, incumbent_us / us);
        }
        if kept {
            let point = &trial.candidate.knobs;
            let change =
                |(name, from, to): (String, String, String)| format!("{name}: {from} to {to}");
            self.kept.push(Kept {
                entry: seq,
                minutes,
                source: trial.candidate.source.clone(),
                us,
                speedup,
                changes: differences(&self.incumbent, point).into_iter().map(change).collect(),
                note: trial.candidate.note.clone(),
            });
            self.incumbent = point.clone();
        }
    }

    fn finish(self) -> Report {
        let rows = |rows: BTreeMap<String, (u64, String)>| {
            let row = |(what, (count, example))| Row { what, count, example };
            let mut rows: Vec<Row> = rows.into_iter().map(row).collect();
            rows.sort_by(|a, b| b.count.cmp(&a.count).then(a.what.cmp(&b.what)));
            rows
        };
        let every = self.tried.len().div_ceil(DRAWN).max(1);
        let drawn = |(i, t): (usize, &Tried)| (t.kept || i % every == 0).then_some(*t);
        Report {
            title: String::new(),
            predicted: true,
            gain: String::new(),
            holds: None,
            speedup: None,
            original_us: None,
            best_us: None,
            floor_us: self.floor_us,
            minutes: self.running as f64 / 60_000.0,
            trials: 0,
            tried: self.tried.iter().enumerate().filter_map(drawn).collect(),
            kept: self.kept,
            verdicts: rows(self.verdicts),
            refusals: rows(self.refusals),
            sources: rows(self.sources),
            knobs: self.effects.finish(),
            differences: Vec::new(),
            provenance: Vec::new(),
        }
    }
}
