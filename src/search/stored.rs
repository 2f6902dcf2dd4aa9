//! The best schedules, for the commands that use a model.
//!
//! An entry is used if it is intact, about this model, part, arithmetic and bucket, and gives the very program that was
//! measured: another version of amk may make another program of the same parameters, and that one was never measured.
//! Everything that is left out is said. Whatever is used goes through validator, lint and self-test like any schedule.

use std::path::PathBuf;

use amk_autoresearch::store::{FORMAT, Provenance, Store, StoreError, Stored};
use amk_autoresearch::{Confirmation, Event, Outcome, journal};
use amk_schedule_ir::hash::hex;
use amk_schedule_ir::{Bucket, Target};

use super::space::knobs_of;
use super::subject::key;
use super::{Subject, cost_model};
use crate::lower::{Knobs, Mode, Shape, Tiles};
use crate::toolchain::{CacheDirError, cache_root};

/// The store below amk's cache folder.
///
/// # Errors
/// The environment names no folder.
pub fn store() -> Result<Store, CacheDirError> {
    Ok(Store::at(cache_root()?.join("schedules")))
}

/// What was chosen for one bucket.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The schedule parameters, with `tokens` and `capacity` at their defaults; `None`: those of the lowering.
    pub knobs: Option<Knobs>,
    /// Where they come from, or why a stored entry was left out; empty without an entry.
    pub text: String,
}

/// The best schedule of a bucket, if one is stored.
pub fn choose(store: &Store, shape: &Shape, target: &Target, mode: Mode, bucket: Bucket) -> Choice {
    let left_out = |why: String| Choice {
        knobs: None,
        text: format!(
            "the stored schedule for positions {} to {} is not used: {why}",
            bucket.first, bucket.last
        ),
    };
    let entry = match store.load(&key(shape, target, mode, bucket)) {
        Ok(None) => return Choice::default(),
        Err(error) => return left_out(error.to_string()),
        Ok(Some(entry)) => entry,
    };
    let knobs = match knobs_of(&entry.knobs) {
        Ok(knobs) => knobs,
        Err(why) => return left_out(why),
    };
    match program(shape, target, mode, bucket, &entry) {
        Err(why) => left_out(why),
        Ok(hash) if hash != entry.program => {
            left_out("this version of amk makes another program of it than was measured".to_owned())
        }
        Ok(_) => Choice { knobs: Some(knobs), text: describe(&entry, bucket) },
    }
}

/// The program an entry gives, as a hash.
fn program(
    shape: &Shape,
    target: &Target,
    mode: Mode,
    bucket: Bucket,
    entry: &Stored,
) -> Result<String, String> {
    let (name, target) = (shape.name.clone(), target.clone());
    let subject =
        Subject::new(name, shape.clone(), target, mode, bucket.first).map_err(|e| e.to_string())?;
    let made = subject.make(&entry.knobs, &*cost_model());
    let made = made.map_err(|r| amk_autoresearch::Verdict::from(r).reason())?;
    Ok(hex(&made.program.hash()))
}

fn describe(entry: &Stored, bucket: Bucket) -> String {
    let p = &entry.provenance;
    format!(
        "positions {} to {}: the schedule of entry {} of {}, {:.3} times as fast as {} on {} ({:.1} us a token); --no-store leaves it out",
        bucket.first, bucket.last, p.entry, p.journal, p.speedup.median, p.original, p.device, p.us
    )
}

/// What decides which rows each SM streams, in which runs.
fn dealt(k: &Knobs) -> (u32, Option<u32>, Tiles, Option<&str>) {
    (k.rotation, k.grid, k.tiles, k.balance.as_deref())
}

/// Stored schedules for several buckets that one engine holds: they share packed weights, so all deal rows to SMs alike.
/// The first entry decides; a later one that deals otherwise is left out.
pub fn choose_all(
    store: &Store,
    shape: &Shape,
    target: &Target,
    mode: Mode,
    buckets: &[Bucket],
) -> (Vec<Option<Knobs>>, Knobs, Vec<String>) {
    let mut common: Option<Knobs> = None;
    let mut texts = Vec::new();
    let mut chosen = Vec::new();
    for bucket in buckets {
        let mut choice = choose(store, shape, target, mode, *bucket);
        if let (Some(mine), Some(first)) = (&choice.knobs, &common)
            && dealt(mine) != dealt(first)
        {
            choice = Choice {
                knobs: None,
                text: format!(
                    "the stored schedule for positions {} to {} is not used: it deals weights to SMs otherwise than the one before",
                    bucket.first, bucket.last
                ),
            };
        }
        if common.is_none()
            && let Some(k) = &choice.knobs
        {
            common = Some(Knobs {
                rotation: k.rotation,
                grid: k.grid,
                tiles: k.tiles,
                balance: k.balance.clone(),
                ..Knobs::default()
            });
        }
        if !choice.text.is_empty() {
            texts.push(choice.text);
        }
        chosen.push(choice.knobs);
    }
    (chosen, common.unwrap_or_default(), texts)
}

/// Keeps what a campaign found, if it was measured and confirmed; gives the file, or why nothing is kept.
///
/// # Errors
/// The store cannot be written.
pub fn keep(
    store: &Store,
    subject: &Subject,
    outcome: &Outcome,
    journal: &std::path::Path,
) -> Result<Result<PathBuf, String>, StoreError> {
    let Some(confirmation) = &outcome.confirmation else {
        return Ok(Err("nothing beat the start".to_owned()));
    };
    let Confirmation { measurement: Some(m), holds: true, winner, entry, .. } = confirmation else {
        return Ok(Err(match confirmation.measurement {
            None => "it is predicted, and only what was measured is kept".to_owned(),
            Some(_) => "the gain is not certain".to_owned(),
        }));
    };
    let program = match program_of(journal, *entry) {
        Some(program) => program,
        None => return Ok(Err("the journal does not say which program it is".to_owned())),
    };
    let stored = Stored {
        format: FORMAT,
        key: subject.key(),
        knobs: winner.clone(),
        program,
        provenance: Provenance {
            model: outcome.header.model.clone(),
            amk: outcome.header.amk.clone(),
            device: outcome.header.device.clone().unwrap_or_default(),
            journal: journal
                .file_name()
                .map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            entry: entry.unwrap_or(0),
            head: outcome.head.clone(),
            position: outcome.header.position,
            us: m.candidate_us,
            original_us: m.incumbent_us,
            speedup: m.speedup,
            original: format!("the {} start", outcome.header.start),
        },
    };
    store.save(&stored).map(Ok)
}

/// The program of a trial.
fn program_of(path: &std::path::Path, entry: Option<u64>) -> Option<String> {
    let lines = journal::Lines::open(path).ok()?;
    let found = lines.filter_map(Result::ok).find(|e| Some(e.seq) == entry)?;
    match found.event {
        Event::Trial(trial) => trial.program,
        _ => None,
    }
}
