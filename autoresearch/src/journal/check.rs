//! Does what a journal says hold together?

use std::path::{Path, PathBuf};

use super::chain::{JournalError, Lines};
use super::entry::{Confirmation, Entry, Event, FORMAT, Header, Trial};
use crate::history::History;
use crate::judge;
use crate::verdict::{Decision, Verdict};

/// What a whole journal says.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub header: Header,
    pub entries: u64,
    /// Hash of the last line. Whoever keeps it can tell later that nothing before was changed.
    pub head: String,
    pub history: History,
    /// The last confirmation.
    pub confirmation: Option<Confirmation>,
    /// Times a process went on.
    pub resumed: u64,
    /// Why the last process ended, if it ended as it should.
    pub ended: Option<String>,
    /// Bytes of an unfinished last line.
    pub torn_bytes: u64,
}

/// Reads a journal from end to end and checks all of it. `each` gets its entries in order.
///
/// # Errors
/// The first line at which it was edited or contradicts itself.
pub fn check(path: &Path, each: &mut dyn FnMut(&Entry)) -> Result<Summary, JournalError> {
    let mut lines = Lines::open(path)?;
    let mut checker = Checker::new(path);
    for entry in &mut lines {
        let entry = entry?;
        checker.take(&entry)?;
        each(&entry);
    }
    let Checker { header, history, confirmation, resumed, ended, .. } = checker;
    Ok(Summary {
        header: header.ok_or_else(|| JournalError::Empty { path: path.to_owned() })?,
        entries: lines.entries(),
        head: lines.head().to_owned(),
        history,
        confirmation,
        resumed,
        ended,
        torn_bytes: lines.torn(),
    })
}

/// Takes entries in order and says where one cannot be.
pub(super) struct Checker {
    path: PathBuf,
    header: Option<Header>,
    history: History,
    confirmation: Option<Confirmation>,
    resumed: u64,
    ended: Option<String>,
}

impl Checker {
    pub(super) fn new(path: &Path) -> Checker {
        Checker {
            path: path.to_owned(),
            header: None,
            history: History::default(),
            confirmation: None,
            resumed: 0,
            ended: None,
        }
    }

    pub(super) fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    pub(super) fn take(&mut self, entry: &Entry) -> Result<(), JournalError> {
        let wrong = |what: String| JournalError::Contradiction {
            path: self.path.clone(),
            line: entry.seq + 1,
            what,
        };
        match (&entry.event, &self.header) {
            (Event::Header(header), _) => {
                if header.format != FORMAT {
                    return Err(wrong(format!(
                        "the journal has form {} and this version of amk reads form {FORMAT}",
                        header.format
                    )));
                }
                self.history = History::new(header.original.clone());
                self.header = Some(header.clone());
            }
            (Event::Trial(trial), Some(header)) => {
                sound(trial, header, &self.history).map_err(wrong)?;
                self.history.add(entry.seq, trial);
                self.ended = None;
            }
            (Event::Confirmed(c), Some(header)) => {
                confirmed(c, header, &self.history).map_err(wrong)?;
                self.history.confirmations += 1;
                self.confirmation = Some(c.clone());
            }
            (Event::Resumed { .. }, _) => {
                self.resumed += 1;
                self.ended = None;
            }
            (Event::Ended { reason }, _) => self.ended = Some(reason.clone()),
            // The chain lets nothing but a header come first.
            (_, None) => return Err(wrong("there is no header before it".to_owned())),
        }
        Ok(())
    }
}

fn sound(trial: &Trial, header: &Header, history: &History) -> Result<(), String> {
    if trial.index != history.len() {
        return Err(format!("it is trial {} where {} is due", trial.index, history.len()));
    }
    if trial.batch > trial.index {
        return Err(format!("trial {} belongs to a batch that begins later", trial.index));
    }
    let start = trial.index == 0;
    if start && trial.candidate.knobs != header.original {
        return Err("the first trial is not the start".to_owned());
    }
    if start != trial.incumbent.is_none()
        || trial.incumbent.is_some() && trial.incumbent != history.incumbent_entry
    {
        return Err(format!(
            "it names entry {:?} as the incumbent, which is {:?}",
            trial.incumbent, history.incumbent_entry
        ));
    }
    let threshold = header.threshold;
    match &trial.verdict {
        Verdict::Measured(_) if header.device.is_none() => {
            Err("it has a measurement, and the journal is one of predictions".to_owned())
        }
        Verdict::Predicted { .. } if header.device.is_some() => {
            Err("it has a prediction for a verdict, and the journal is one of measurements"
                .to_owned())
        }
        Verdict::Measured(m) if !judge::recomputes(m, threshold) => {
            Err("its decision is not what its samples say".to_owned())
        }
        Verdict::Measured(m) if m.alpha > judge::share(header.confidence, 1) => {
            Err("its decision was allowed to err more than the campaign may".to_owned())
        }
        Verdict::Predicted { us, incumbent_us, decision, .. } => {
            if *decision != judge::predicted(*us, *incumbent_us, threshold) {
                return Err("its decision is not what its times say".to_owned());
            }
            let known = history.incumbent_us;
            match known.filter(|_| !start) {
                Some(known) if known != *incumbent_us => Err(format!(
                    "it says the incumbent takes {incumbent_us} us, and that is {known} us"
                )),
                _ => Ok(()),
            }
        }
        Verdict::Repeated { .. } if start => Err("the start repeats nothing".to_owned()),
        verdict if start && verdict.kept() => Err("the start is faster than itself".to_owned()),
        _ => Ok(()),
    }
}

fn confirmed(c: &Confirmation, header: &Header, history: &History) -> Result<(), String> {
    if c.original != header.original || c.winner != history.incumbent {
        return Err("it is about other points than the start and the incumbent".to_owned());
    }
    let holds = match &c.measurement {
        Some(_) if header.device.is_none() => {
            return Err("it has a measurement, and the journal is one of predictions".to_owned());
        }
        Some(m) if !judge::recomputes(m, 0.0) => {
            return Err("its decision is not what its samples say".to_owned());
        }
        Some(m) => m.decision == Decision::Kept,
        None => matches!((c.predicted_us, c.original_predicted_us), (Some(a), Some(b)) if a < b),
    };
    if holds != c.holds { Err("it does not say what its figures say".to_owned()) } else { Ok(()) }
}
