//! `amk journal`: what a campaign wrote down.

use std::path::{Path, PathBuf};

use amk::search::request::{Part, Request, Task};
use amk::search::{Subject, cost_model, evaluate, knobs_of};
use amk_autoresearch::journal::{Summary, check};
use amk_autoresearch::{Candidate, Entry, Event, JournalError, Trial};
use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::json;

use super::{Failure, Outcome, Verdict, files};
use crate::output::{self, Output, Tone};

/// Read a journal of autoresearch: check it, show it, take the best schedule out of it.
#[derive(Args)]
pub struct JournalArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Verify(VerifyArgs),
    Show(ShowArgs),
    Best(BestArgs),
    Export(ExportArgs),
    Replay(ReplayArgs),
}

/// Check every line: hashes, order, incumbents, and each decision anew from its raw samples.
#[derive(Args)]
#[command(after_help = "\
Exit code 1 if a line was edited, is missing or contradicts another. Whoever rewrites a whole journal changes
its last hash: --head says whether a hash that was noted before is still in it.

Examples:
  amk journal verify autoresearch.jsonl
  amk journal verify autoresearch.jsonl --head 3f0c5d7e --json")]
struct VerifyArgs {
    journal: PathBuf,
    /// A hash, or its beginning, that must be one of the journal's.
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
}

/// List the entries, or print one.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk journal show autoresearch.jsonl
  amk journal show autoresearch.jsonl --kept
  amk journal show autoresearch.jsonl 17 --json")]
struct ShowArgs {
    journal: PathBuf,
    /// One entry alone, in full.
    entry: Option<u64>,
    /// Kept candidates alone.
    #[arg(long)]
    kept: bool,
}

/// The best schedule: its knobs, its time, and the gain over the start.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk journal best autoresearch.jsonl
  amk journal best autoresearch.jsonl --json")]
struct BestArgs {
    journal: PathBuf,
}

/// Write the schedule parameters of an entry, by default the best, for --knobs of other commands.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk journal export autoresearch.jsonl --out knobs.json
  amk journal export autoresearch.jsonl 17 --out knobs.json")]
struct ExportArgs {
    journal: PathBuf,
    entry: Option<u64>,
    /// The file to write.
    #[arg(long, value_name = "FILE", default_value = "knobs.json")]
    out: PathBuf,
}

/// Judge the candidate of an entry once more, against the incumbent it met then.
#[derive(Args)]
#[command(after_help = "\
Lowering and prediction must come out the same, bit by bit; a measurement is made anew and shown beside the old
one. Exit code 1 if the program is another one now.

Examples:
  amk journal replay autoresearch.jsonl 17
  amk journal replay autoresearch.jsonl 17 --model path/to/checkpoint --json")]
struct ReplayArgs {
    journal: PathBuf,
    entry: u64,
    /// The model, where it is not to be found under the name in the journal.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Instead of a model, the shapes of a config.json.
    #[arg(long, value_name = "CONFIG.json", conflicts_with = "model")]
    shape_only: Option<PathBuf>,
}

pub fn run(args: &JournalArgs, out: &Output) -> Outcome {
    match &args.action {
        Action::Verify(args) => verify(args, out),
        Action::Show(args) => show(args, out),
        Action::Best(args) => best(args, out),
        Action::Export(args) => export(args, out),
        Action::Replay(args) => replay(args, out),
    }
}

/// The failure of a journal.
pub fn failure(error: JournalError) -> Failure {
    match &error {
        JournalError::Broken { .. } | JournalError::Contradiction { .. } => Failure::answer(error),
        e if e.is_environment() => Failure::environment(error),
        _ => Failure::input(error),
    }
}

fn read(path: &Path, each: &mut dyn FnMut(&Entry)) -> Result<Summary, Failure> {
    check(path, each).map_err(failure)
}

fn verify(args: &VerifyArgs, out: &Output) -> Outcome {
    let mut found = args.head.is_none();
    let summary = read(&args.journal, &mut |e| {
        found |= args.head.as_ref().is_some_and(|h| h.len() >= 8 && e.hash.starts_with(h.as_str()));
    })?;
    let h = &summary.header;
    out.line(format!(
        "{}  {} about {} on {}: {}, {} kept, head {}",
        out.paint(Tone::Good, "whole"),
        output::count(summary.entries as usize, "entry").replace("entrys", "entries"),
        h.model,
        h.device.as_deref().unwrap_or("no device (predicted)"),
        output::count(summary.history.len() as usize, "trial"),
        kept(&summary),
        summary.head
    ));
    if summary.torn_bytes > 0 {
        out.warn(format!(
            "the last line was never finished; its {} bytes are removed when the journal is resumed",
            summary.torn_bytes
        ));
    }
    if !found {
        let head = args.head.clone().unwrap_or_default();
        out.line(format!(
            "{}  no line has a hash that begins with {head} (at least 8 digits): the journal is another one, or was rewritten",
            out.paint(Tone::Bad, "not found")
        ));
    }
    out.document(&json!({
        "ok": found,
        "entries": summary.entries,
        "trials": summary.history.len(),
        "kept": kept(&summary),
        "resumed": summary.resumed,
        "ended": summary.ended,
        "torn_bytes": summary.torn_bytes,
        "head": summary.head,
        "predicted": h.device.is_none(),
    }));
    Ok(Verdict::of(found))
}

fn kept(summary: &Summary) -> u64 {
    let by = &summary.history.tally.by_label;
    ["kept", "kept (predicted)"].iter().filter_map(|l| by.get(*l)).sum()
}

fn show(args: &ShowArgs, out: &Output) -> Outcome {
    let mut found = false;
    let mut rows: Vec<Entry> = Vec::new();
    read(&args.journal, &mut |e| {
        let wanted = match (args.entry, &e.event) {
            (Some(n), _) => e.seq == n,
            (None, Event::Trial(t)) if args.kept => t.index == 0 || t.verdict.kept(),
            (None, _) => !args.kept,
        };
        if wanted {
            found = true;
            rows.push(e.clone());
        }
    })?;
    if !found && let Some(n) = args.entry {
        return Err(Failure::input(format!("{} has no entry {n}", args.journal.display())));
    }
    for entry in &rows {
        out.document(entry);
        match args.entry {
            Some(_) if !out.json() => {
                out.line(serde_json::to_string_pretty(entry).map_err(Failure::environment)?);
            }
            _ => out.line(line(entry)),
        }
    }
    Ok(Verdict::Yes)
}

fn line(entry: &Entry) -> String {
    let text = match &entry.event {
        Event::Header(h) => {
            format!("{} for {} ({}) at position {}", h.model, h.target, h.mode, h.position)
        }
        Event::Trial(t) => trial_line(t),
        Event::Confirmed(c) => format!("confirmed: {}", c.text),
        Event::Resumed { cut_bytes: 0, .. } => "resumed".to_owned(),
        Event::Resumed { cut_bytes, .. } => format!("resumed; {cut_bytes} bytes were cut"),
        Event::Ended { reason } => format!("ended: {reason}"),
    };
    format!("{:>6}  {text}", entry.seq)
}

fn trial_line(t: &Trial) -> String {
    let us = t.verdict.us().map_or_else(String::new, |us| format!(" {us:.1} us"));
    let reason = t.verdict.reason();
    let gap = if reason.is_empty() { "" } else { ": " };
    let reason: String = reason.chars().take(160).collect();
    format!("{} {:<9} {}{us}{gap}{reason}", t.candidate.id(), t.candidate.source, t.verdict.label())
}

#[derive(Serialize)]
struct BestDocument<'a> {
    ok: bool,
    entry: Option<u64>,
    candidate: String,
    knobs: &'a amk_autoresearch::Point,
    us: Option<f64>,
    original_us: Option<f64>,
    /// Product of the gains of everything kept; the confirmation says what holds.
    estimated_gain: f64,
    predicted: bool,
    confirmation: Option<&'a amk_autoresearch::Confirmation>,
    head: &'a str,
}

fn best(args: &BestArgs, out: &Output) -> Outcome {
    let summary = read(&args.journal, &mut |_| {})?;
    let h = &summary.history;
    let predicted = summary.header.device.is_none();
    out.document(&BestDocument {
        ok: true,
        entry: h.incumbent_entry,
        candidate: h.incumbent.id().to_string(),
        knobs: &h.incumbent,
        us: h.incumbent_us,
        original_us: h.original_us,
        estimated_gain: h.gain,
        predicted,
        confirmation: summary.confirmation.as_ref(),
        head: &summary.head,
    });
    let word = if predicted { "predicted" } else { "measured" };
    let us = |us: Option<f64>| us.map_or_else(|| "-".to_owned(), |us| format!("{us:.1}"));
    out.line(format!(
        "entry {}, candidate {}: {word} {} us a token; the start took {} us",
        h.incumbent_entry.map_or_else(|| "-".to_owned(), |n| n.to_string()),
        h.incumbent.id(),
        us(h.incumbent_us),
        us(h.original_us)
    ));
    for name in h.incumbent.differs_in(&summary.header.original) {
        let value = |p: &amk_autoresearch::Point| {
            p.get(&name).map_or_else(|| "auto".to_owned(), ToString::to_string)
        };
        let (now, before) = (value(&h.incumbent), value(&summary.header.original));
        out.line(format!("  {name}: {now} (start: {before})"));
    }
    match &summary.confirmation {
        Some(c) => out.line(&c.text),
        None => out.line("not confirmed against the start yet"),
    }
    Ok(Verdict::Yes)
}

/// The trial of an entry and the incumbent it met, and what the journal is about.
fn trial_of(
    path: &Path,
    wanted: Option<u64>,
) -> Result<(Summary, Trial, amk_autoresearch::Point), Failure> {
    let summary = read(path, &mut |_| {})?;
    let seq = wanted.or(summary.history.incumbent_entry).unwrap_or(0);
    let mut met = summary.header.original.clone();
    let mut found = None;
    let mut incumbent = met.clone();
    read(path, &mut |e| {
        if let Event::Trial(t) = &e.event {
            if e.seq == seq {
                found = Some(t.clone());
                met = incumbent.clone();
            }
            if t.verdict.kept() {
                incumbent = t.candidate.knobs.clone();
            }
        }
    })?;
    let trial = found.ok_or_else(|| {
        Failure::input(format!("entry {seq} of {} is no candidate's", path.display()))
    })?;
    Ok((summary, trial, met))
}

fn export(args: &ExportArgs, out: &Output) -> Outcome {
    let (summary, trial, _) = trial_of(&args.journal, args.entry)?;
    let knobs = knobs_of(&trial.candidate.knobs).map_err(Failure::input)?;
    let mut bytes = serde_json::to_vec_pretty(&knobs).map_err(Failure::environment)?;
    bytes.push(b'\n');
    files::write(&args.out, &bytes)?;
    let h = &summary.header;
    out.line(format!(
        "{} written: {} for {} at positions {} to {}, {}",
        args.out.display(),
        h.model,
        h.target,
        h.bucket.0,
        h.bucket.1,
        trial.verdict.label()
    ));
    out.document(&json!({
        "ok": true, "out": args.out, "knobs": knobs, "verdict": trial.verdict.label(),
    }));
    Ok(Verdict::Yes)
}

fn replay(args: &ReplayArgs, out: &Output) -> Outcome {
    let (summary, trial, incumbent) = trial_of(&args.journal, Some(args.entry))?;
    let h = &summary.header;
    let candidate = Candidate { note: None, ..trial.candidate.clone() };
    let model =
        args.model.clone().or_else(|| Some(h.model.clone()).filter(|m| Path::new(m).exists()));
    let request = Request {
        model,
        shape_only: args.shape_only.clone(),
        target: Some(Part::Name(h.target.clone())),
        mode: serde_json::from_value(json!(h.mode)).ok(),
        position: h.position,
        ..Request::new(Task::Evaluate { candidate, incumbent: Some(incumbent) })
    };
    let subject: Subject = evaluate::subject(&request).map_err(Failure::input)?;
    if subject.shape_hash() != h.shape {
        return Err(Failure::input(format!(
            "the journal is about {} and this model has another shape; name the model with --model",
            h.model
        )));
    }
    let made = subject.make(&trial.candidate.knobs, &*cost_model());
    let program = made.as_ref().ok().map(|m| m.prepared.program.clone());
    let us = made.as_ref().ok().map(|m| m.prepared.prediction.us);
    let same = program == trial.program;
    let model_of_cost = cost_model().name().to_owned();
    let predicted = (us == trial.predicted_us || model_of_cost != h.cost_model).then_some(us);
    let now = match h.device {
        // Only where it was measured is it measured again.
        Some(_) => Some(evaluate::answer(&request).map_err(Failure::input)?),
        None => None,
    };
    let ok = same && predicted.is_some();
    let verdict = |ok: bool| if ok { Tone::Good } else { Tone::Bad };
    out.line(format!(
        "{}  entry {}: {}",
        out.paint(verdict(ok), if ok { "the same" } else { "another" }),
        args.entry,
        trial_line(&trial)
    ));
    if !same {
        let text = |p: &Option<String>| p.clone().unwrap_or_else(|| "none".to_owned());
        out.line(format!("  program {} then, {} now", text(&trial.program), text(&program)));
    }
    if predicted.is_none() {
        out.line(format!("  predicted {:?} us then, {us:?} us now", trial.predicted_us));
    }
    if let Some(reply) = &now {
        out.line(format!("  now: {}", serde_json::to_string(reply).map_err(Failure::environment)?));
    }
    out.document(&json!({
        "ok": ok, "same_program": same, "entry": args.entry, "verdict": trial.verdict,
        "program": program, "predicted_us": us, "now": now,
    }));
    Ok(Verdict::of(ok))
}
