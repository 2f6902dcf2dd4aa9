//! `amk autoresearch`: the search for a faster schedule.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use amk::search::child::Program;
use amk::search::request::{DeviceReply, Part, Request, Task};
use amk::search::{self, PRESETS, Patience, Processes, Subject, SubjectError, device_of, stored};
use amk::target::resolve;
use amk_autoresearch::bridge::{LinesOptions, LinesProposer};
use amk_autoresearch::report::{Report, page};
use amk_autoresearch::{
    CampaignError, Header, JournalError, Limits, NoProposal, Outcome as Ended, Parts, Point,
    Proposer, Space, begin, journal, proposers, resume,
};
use amk_models::Checkpoint;
use clap::{ArgGroup, Args};
use serde::Serialize;

use super::compile::Compute;
use super::live::Live;
use super::{Failure, Outcome, Verdict, files, journal as journal_cli, model};
use crate::output::Output;

/// Search for a faster schedule, unattended: propose, validate, compile, test, time, keep what is better, write everything down.
#[derive(Args)]
#[command(group = ArgGroup::new("until").required(true).multiple(true).args(["minutes", "iters", "until_plateau"]))]
#[command(after_help = "\
On a CUDA device candidates are tested and timed in processes of their own, round by round beside the best so far,
and kept only where that is certain. Without a device every time is predicted, and everything says so.
The journal is the only state: --resume goes on with it after a kill, a crash or Ctrl-C. What is measured and
confirmed is kept for compile, generate and bench, which use it unless told otherwise (--no-store).

Examples:
  amk autoresearch path/to/checkpoint --minutes 25
  amk autoresearch path/to/checkpoint --start naive --minutes 25 --resume --journal naive.jsonl
  amk autoresearch --iters 200 --target h200 --seed 7
  amk autoresearch --proposer stdio --iters 500
  amk autoresearch --shape-only config.json --until-plateau 300 --journal shape.jsonl")]
pub struct AutoresearchArgs {
    /// A checkpoint folder or a hub id; by default the embedded model.
    model: Option<String>,
    /// End after so many minutes of this process.
    #[arg(long, value_name = "M", value_parser = minutes)]
    minutes: Option<Duration>,
    /// End when the journal has so many trials.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    iters: Option<u64>,
    /// End when so many trials in a row were not kept.
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "200", value_parser = clap::value_parser!(u64).range(1..))]
    until_plateau: Option<u64>,
    /// Where everything is written down.
    #[arg(long, value_name = "FILE", default_value = "autoresearch.jsonl")]
    journal: PathBuf,
    /// Go on with the journal; begin it if it is not there.
    #[arg(long)]
    resume: bool,
    /// The schedule to begin with: default, naive, or a JSON file of schedule parameters.
    #[arg(long, value_name = "START", default_value = "default")]
    start: String,
    /// Who names candidates: mix, random, mutate, bandit, guided, sweep; stdio: whoever speaks JSON lines on standard input and
    /// output.
    #[arg(long, value_name = "WHO", default_value = "mix")]
    proposer: String,
    /// The same seed gives the same candidates, as long as the verdicts are the same.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Search for the positions around this one, and time a token at it.
    #[arg(long, value_name = "P", default_value_t = search::request::POSITION)]
    position: u64,
    /// Type of activations and KV cache; by default bf16 for bf16 weights, else f32.
    #[arg(long = "activations", visible_alias = "compute", value_enum)]
    compute: Option<Compute>,
    /// Without a device: the part to predict for.
    #[arg(long, value_name = "T")]
    target: Option<String>,
    /// Search for the shapes of a config.json, without weights; everything is predicted.
    #[arg(long, value_name = "CONFIG.json", conflicts_with = "model")]
    shape_only: Option<PathBuf>,
    /// Predict everything, even though a device may be there.
    #[arg(long)]
    predict: bool,
    /// How long an agent at `--proposer stdio` may take for an answer, seconds.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    agent_patience: u64,
    /// The page that says what came of it; by default the journal's name with .html.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Candidates asked for at once.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    batch: u64,
    /// Candidates lowered and compiled at once; by default as many as there are cores.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Candidates measured at once: only with a worker that has so many devices.
    #[arg(long, value_name = "N", default_value_t = 1)]
    devices: usize,
    /// Keep a candidate only if it is faster by more than this share.
    #[arg(long, value_name = "X", default_value_t = search::evaluate::THRESHOLD, value_parser = share)]
    threshold: f64,
    /// Probability that no candidate of the whole campaign is kept wrongly.
    #[arg(long, value_name = "P", default_value_t = search::evaluate::CONFIDENCE, value_parser = share)]
    confidence: f64,
    /// Do not measure what is predicted to take more than so many times as long as the best so far.
    #[arg(long, value_name = "X", default_value_t = 1.5)]
    prune: f64,
    /// Without a device: compile nothing; with one everything is compiled.
    #[arg(long)]
    no_compile: bool,
    /// Keep nothing for other commands.
    #[arg(long)]
    no_store: bool,
    /// The program that compiles and measures, instead of amk itself: takes a request on standard input and prints a
    /// reply, as `amk evaluate - --json` does.
    #[arg(long, value_name = "COMMAND")]
    worker: Option<String>,
    /// How long one candidate's measurement may take, seconds; then it is ended.
    #[arg(long, value_name = "S", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    patience: u64,
    /// A trace of this device, the trace.json of `amk trace`: how fast each SM was becomes shares of the rows that may be
    /// chosen (the knob `balance`).
    #[arg(long, value_name = "TRACE.json")]
    speeds: Option<PathBuf>,
    /// The NVRTC library to use, or the folder that holds it.
    #[arg(long, value_name = "PATH")]
    nvrtc: Option<PathBuf>,
    /// The device to use, as the driver counts.
    #[arg(long, value_name = "N", default_value_t = 0)]
    ordinal: usize,
}

fn minutes(text: &str) -> Result<Duration, String> {
    let value: f64 = text.parse().map_err(|_| "a number of minutes is due".to_owned())?;
    match value > 0.0 && value <= 1e6 {
        true => Ok(Duration::from_secs_f64(value * 60.0)),
        false => Err("more than 0 and at most a million minutes".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "a number is due".to_owned())?;
    match (0.0..1.0).contains(&value) {
        true => Ok(value),
        false => Err("at least 0 and less than 1".to_owned()),
    }
}

#[derive(Serialize)]
struct Document<'a> {
    ok: bool,
    reason: &'a str,
    stopped: bool,
    /// Every time in the journal is a prediction.
    predicted: bool,
    trials: u64,
    tally: &'a amk_autoresearch::Tally,
    entry: Option<u64>,
    best: &'a Point,
    us: Option<f64>,
    original_us: Option<f64>,
    confirmation: Option<&'a amk_autoresearch::Confirmation>,
    journal: &'a Path,
    head: &'a str,
    /// The page that says what came of it.
    report: &'a Path,
    /// The file the best schedule is kept in for other commands.
    stored: Option<&'a Path>,
    /// Why it is not kept.
    not_stored: Option<&'a str>,
}

pub fn run(args: &AutoresearchArgs, out: &Output) -> Outcome {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        // The second time it ends the process at once.
        let _ = signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop));
        let _ = signal_hook::flag::register(signal, Arc::clone(&stop));
    }
    let program = worker(args)?;
    let base = request(args);
    let patience = Patience { measure: Duration::from_secs(args.patience), ..Patience::default() };
    let device = find_device(args, &program, &base, patience, &stop)?;
    let mut subject = subject(args, device.as_ref(), out)?;
    subject.balance = balance(args)?;
    if device.is_some() && args.worker.is_none() {
        for (variant, reason) in search::failing(&program, &base, patience.measure, &stop) {
            let (op, name) = (variant.op, variant.name);
            out.note(format!("{name} of {op} is no choice here: {reason}"));
            subject.refused.push((op.to_owned(), name.to_owned()));
        }
    }
    let base = Request {
        balance: subject.balance.clone(),
        target: Some(Part::Record(Box::new(subject.target.clone()))),
        mode: Some(subject.mode),
        ..base
    };
    let space = search::space(&subject);
    let fingerprint = device.map(|d| d.fingerprint);
    let cost = search::cost_model();
    let mut header = search::evaluate::header(&subject, fingerprint.clone(), cost.name());
    choose(args, &subject, &space, &mut header)?;
    let own = own_header(args)?;
    let settled = own.as_ref().unwrap_or(&header);
    note_ignored(args, own.as_ref(), &header, out);
    let worker = Processes::new(&subject, cost, program, base, fingerprint, patience, &stop);
    let agent = settled.proposer == STDIO;
    let speaks_over_stdout = out.off_stdout();
    let out = if agent { &speaks_over_stdout } else { out };
    let mut lines = agent.then(|| agent_lines(args, &space, &stop));
    let mut built_in = match agent {
        true => None,
        false => Some(proposer(settled, &worker, &stop)?),
    };
    let proposer: &mut dyn Proposer = match (&mut lines, &mut built_in) {
        (Some(lines), _) => lines,
        (None, Some(built_in)) => &mut **built_in,
        (None, None) => return Err(Failure::input("there is no proposer")),
    };
    let limits = Limits {
        iters: args.iters,
        time: args.minutes,
        plateau: args.until_plateau,
        jobs: args.jobs.unwrap_or_else(cores).max(1),
        devices: args.devices.max(1),
        prune: Some(args.prune).filter(|p| p.is_finite() && *p > 1.0),
    };
    let mut live = Live::new(*out, args.minutes, args.iters);
    let parts =
        Parts { space: &space, worker: &worker, proposer, observer: &mut live, stop: &stop };
    let ended = match args.resume {
        true => resume(&args.journal, &header, parts, limits),
        false => begin(&args.journal, header.clone(), parts, limits),
    };
    live.close();
    if let Some(lines) = &mut lines {
        lines.bye(&ended.as_ref().map_or_else(ToString::to_string, |e| e.reason.clone()));
    }
    let ended = ended.map_err(failure)?;
    report(args, &subject, &ended, out)
}

/// The name of the proposer that is an agent at standard input and output.
const STDIO: &str = "stdio";
/// Lines in a row that may be no answer.
const ATTEMPTS: u32 = 8;

fn agent_lines(
    args: &AutoresearchArgs,
    space: &Space,
    stop: &Arc<AtomicBool>,
) -> LinesProposer<std::io::Stdout> {
    let options = LinesOptions {
        amk: env!("CARGO_PKG_VERSION").to_owned(),
        patience: Duration::from_secs(args.agent_patience),
        attempts: ATTEMPTS,
        stop: Arc::clone(stop),
    };
    let input = std::io::BufReader::new(std::io::stdin());
    LinesProposer::new(space, input, std::io::stdout(), options)
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get)
}

fn worker(args: &AutoresearchArgs) -> Result<Program, Failure> {
    match &args.worker {
        None => Program::own().map_err(Failure::environment),
        Some(line) => Program::parse(line)
            .ok_or_else(|| Failure::input("--worker is empty; name a program and its arguments")),
    }
}

fn request(args: &AutoresearchArgs) -> Request {
    Request {
        model: args.model.clone(),
        shape_only: args.shape_only.clone(),
        position: args.position,
        nvrtc: args.nvrtc.clone(),
        ordinal: args.ordinal,
        compile: !args.no_compile,
        ..Request::new(Task::Device)
    }
}

fn find_device(
    args: &AutoresearchArgs,
    program: &Program,
    base: &Request,
    patience: Patience,
    stop: &AtomicBool,
) -> Result<Option<DeviceReply>, Failure> {
    let asked = args.worker.is_some() || super::device::driver_is_there();
    if args.predict || args.shape_only.is_some() || !asked {
        return Ok(None);
    }
    let refused = |r: amk_autoresearch::Refusal| {
        let reason = amk_autoresearch::Verdict::from(r).reason();
        Failure::environment(format!("the device cannot be used: {reason}"))
            .help("--predict searches without it")
    };
    device_of(program, base, patience, stop).map_err(refused)
}

fn subject(
    args: &AutoresearchArgs,
    device: Option<&DeviceReply>,
    out: &Output,
) -> Result<Subject, Failure> {
    let target = match (device, &args.target) {
        (Some(_), Some(_)) => {
            return Err(Failure::input(
                "--target is for predictions, and there is a device, whose own part is used; add --predict to search without it",
            ));
        }
        (Some(device), None) => device.target.clone(),
        (None, name) => {
            let name = name.as_deref().unwrap_or(search::evaluate::TARGET);
            resolve(name).map_err(Failure::input)?.target
        }
    };
    let mode = args.compute.map(Into::into);
    let wrong = |e: SubjectError| match e {
        SubjectError::Checkpoint(e) => model::failure(&e),
        e => Failure::input(e),
    };
    let subject = match &args.shape_only {
        Some(path) => Subject::of_config(path, target, mode, args.position),
        None => {
            let checkpoint: Checkpoint = model::open(args.model.as_deref(), out)?;
            Subject::of(checkpoint, args.model.as_deref(), target, mode, args.position)
        }
    };
    subject.map_err(wrong)
}

/// Most bytes of a trace that are read.
const TRACE_LIMIT: u64 = 1 << 30;

/// Shares of the SMs by the speeds of a trace.
fn balance(args: &AutoresearchArgs) -> Result<Vec<String>, Failure> {
    let Some(path) = &args.speeds else { return Ok(Vec::new()) };
    let wrong = |e: String| Failure::input(format!("{}: {e}", path.display()));
    let text = files::read_limited(path, TRACE_LIMIT)?;
    let trace = serde_json::from_slice(&text).map_err(|e| wrong(format!("it is no JSON: {e}")))?;
    let speeds = search::speeds(&trace).map_err(|e| wrong(e.to_string()))?;
    Ok(search::profiles(&speeds))
}

/// Puts the user's choices into a header.
fn choose(
    args: &AutoresearchArgs,
    subject: &Subject,
    space: &Space,
    header: &mut Header,
) -> Result<(), Failure> {
    let original = match search::preset(&args.start, space) {
        Some(point) => point,
        None => {
            let path = Path::new(&args.start);
            if !path.exists() {
                return Err(Failure::input(format!(
                    "--start is {}, which is neither {} nor a file",
                    args.start,
                    PRESETS.join(" nor ")
                )));
            }
            let mut point = search::point_of(&super::device::read_knobs(Some(path))?);
            // Knobs that have one value here are no knobs of this space.
            point.0.retain(|name, _| space.knob(name).is_some());
            space.complete(&point).map_err(|errors| {
                Failure::input(format!(
                    "{}: {}",
                    path.display(),
                    amk_autoresearch::campaign::sentences(&errors)
                ))
            })?
        }
    };
    subject.knobs(&original).map_err(Failure::input)?;
    header.original = original;
    header.start.clone_from(&args.start);
    header.proposer.clone_from(&args.proposer);
    (header.seed, header.batch) = (args.seed, args.batch);
    (header.threshold, header.confidence) = (args.threshold, args.confidence);
    Ok(())
}

/// The header of the journal that is gone on with, if it has one.
fn own_header(args: &AutoresearchArgs) -> Result<Option<Header>, Failure> {
    if !args.resume {
        return Ok(None);
    }
    match journal::header(&args.journal) {
        Err(JournalError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            Ok(None)
        }
        other => other.map_err(journal_cli::failure),
    }
}

/// A campaign's choices are made once.
fn note_ignored(args: &AutoresearchArgs, own: Option<&Header>, header: &Header, out: &Output) {
    let Some(own) = own else { return };
    let same = (&own.proposer, own.seed, own.batch, own.threshold, own.confidence, &own.original)
        == (
            &header.proposer,
            header.seed,
            header.batch,
            header.threshold,
            header.confidence,
            &header.original,
        );
    if !same {
        out.note(format!(
            "{} was begun with start {}, proposer {} and seed {}, and goes on with them",
            args.journal.display(),
            own.start,
            own.proposer,
            own.seed
        ));
    }
}

fn proposer<'a>(
    header: &Header,
    worker: &'a Processes<'a>,
    stop: &'a AtomicBool,
) -> Result<Box<dyn Proposer + 'a>, Failure> {
    // Nothing is made of what a proposer says once the campaign is stopped.
    let cost = move |point: &Point| match stop.load(Ordering::Relaxed) {
        true => None,
        false => worker.guess(point),
    };
    proposers::by_name(&header.proposer, Box::new(cost)).ok_or_else(|| {
        let known = proposers::NAMES.join(", ");
        Failure::input(format!(
            "there is no proposer {}; there are {known}, {STDIO}",
            header.proposer
        ))
    })
}

fn failure(error: CampaignError) -> Failure {
    match error {
        CampaignError::Journal(e) => journal_cli::failure(e),
        CampaignError::Proposer(e @ NoProposal { .. }) => Failure::input(e),
        CampaignError::Start(_) => Failure::answer(error),
    }
}

fn report(args: &AutoresearchArgs, subject: &Subject, ended: &Ended, out: &Output) -> Outcome {
    let mut kept = Err("it was not asked for (--no-store)".to_owned());
    if !args.no_store {
        kept = match stored::store() {
            Ok(store) => {
                stored::keep(&store, subject, ended, &args.journal).map_err(Failure::environment)?
            }
            Err(error) => Err(error.to_string()),
        };
    }
    let path = args.report.clone().unwrap_or_else(|| args.journal.with_extension("html"));
    let read = Report::read(&args.journal).map_err(Failure::environment)?;
    let text = page(&read).map_err(Failure::environment)?;
    files::write(&path, text.as_bytes())?;
    let h = &ended.history;
    let predicted = ended.header.device.is_none();
    out.line(format!("{}: {}", args.journal.display(), ended.reason));
    out.line(Live::summary(h, predicted));
    if let Some(c) = &ended.confirmation {
        out.line(&c.text);
    }
    out.line(format!("report: {}", path.display()));
    match &kept {
        Ok(path) => out.line(format!("kept for other commands: {}", path.display())),
        Err(why) => out.detail(format!("not kept for other commands: {why}")),
    }
    out.document(&Document {
        ok: true,
        reason: &ended.reason,
        stopped: ended.stopped,
        predicted,
        trials: h.len(),
        tally: &h.tally,
        entry: h.incumbent_entry,
        best: &h.incumbent,
        us: h.incumbent_us,
        original_us: h.original_us,
        confirmation: ended.confirmation.as_ref(),
        journal: &args.journal,
        head: &ended.head,
        report: &path,
        stored: kept.as_deref().ok(),
        not_stored: kept.as_ref().err().map(String::as_str),
    });
    Ok(Verdict::Yes)
}
