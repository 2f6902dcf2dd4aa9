//! `amk fuzz`: attacks the validator with random programs and mutants.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use amk::fuzz::lowerings::{Models, names};
use amk::fuzz::{Options, Report, run as fuzz};
use clap::Args;

use super::{Failure, Outcome, Verdict, files};
use crate::output::{self, Output, Tone};

/// Attack the validator: is anything accepted that an independent judge calls unsafe?
#[derive(Args)]
#[command(after_help = "\
Programs that are valid by construction and lowerings of real shapes must be accepted; mutants of both that
are accepted are judged by predicates, exploration and seeded executions. With the same seed and count the
result is the same on any number of threads. Exit code 1 if validator and oracle disagree about any program.

Examples:
  amk fuzz --count 20000 --seed 7
  amk fuzz --count 1000000 --seed 1 --threads 2 --json fuzz.json
  amk fuzz --minutes 10 --count 10000000 --models llama-3.1-8b,random")]
pub struct FuzzArgs {
    /// Programs to judge.
    #[arg(long, default_value_t = 10_000, value_name = "N")]
    count: u64,
    /// What everything random is made from.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Models to lower, by name, with `random` for made-up shapes; by default all.
    #[arg(long, value_delimiter = ',', value_name = "LIST")]
    models: Vec<String>,
    /// Stop after this many minutes, however many programs that makes.
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Threads; by default one per processor.
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Of the rejected mutants judge one of this many, to see that they were unsafe.
    #[arg(long, default_value_t = 8, value_name = "K")]
    sample: usize,
    /// Write the report here, and beside it the smallest program of every disagreement.
    #[arg(value_name = "OUT")]
    out: Option<PathBuf>,
}

pub fn run(args: &FuzzArgs, out: &Output) -> Outcome {
    let models = match args.models.is_empty() {
        true => Models::default(),
        false => Models::only(&args.models).map_err(|name| {
            Failure::input(format!("no model is called `{name}`"))
                .help(format!("there are {}", names().join(", ")))
        })?,
    };
    let limit = match args.minutes {
        None => None,
        Some(m) => Some(Duration::try_from_secs_f64(60.0 * m).map_err(|_| {
            Failure::input(format!("`--minutes {m}` is no time; give a positive number"))
        })?),
    };
    let threads = match args.threads {
        Some(0) => return Err(Failure::input("`--threads 0` runs nothing; give at least 1")),
        Some(n) => n,
        None => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let options = Options {
        count: args.count,
        seed: args.seed,
        models,
        limit,
        threads,
        sample: args.sample,
        commit: commit(),
        ..Options::default()
    };
    out.detail(format!("seed {}, {} programs, {threads} threads", args.seed, args.count));
    let bar = out.bar(args.count, "judged");
    let result = fuzz(&options, &|n| bar.inc(n));
    bar.finish_and_clear();
    let mut report = result.map_err(Failure::environment)?;
    if let Some(path) = &args.out {
        write(path, &mut report)?;
    }
    out.document(&report);
    show(&report, out);
    Ok(Verdict::of(report.ok))
}

/// The commit of the working folder, marked where it has changes; nothing outside a repository.
fn commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "HEAD"])?;
    let clean = git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if clean { head } else { format!("{head} with changes") })
}

/// The report, and the programs beside it.
fn write(path: &Path, report: &mut Report) -> Result<(), Failure> {
    for (i, d) in report.disagreements.iter_mut().enumerate() {
        let how = d.how.to_lowercase();
        let file = path.with_extension(format!("{how}-{i}.sched"));
        let note = format!("# {}: {}\n# for {}\n", d.how, d.evidence.replace('\n', " "), d.target);
        files::write(&file, format!("{note}{}", d.text).as_bytes())?;
        d.file = Some(file.display().to_string());
    }
    let mut json = serde_json::to_vec_pretty(&report).map_err(Failure::environment)?;
    json.push(b'\n');
    files::write(path, &json)
}

fn show(r: &Report, out: &Output) {
    let width = r.mutators.iter().map(|m| m.name.len()).max().unwrap_or(0);
    out.detail(format!(
        "{:width$}    made  rejected  accepted  refuted  unsafe/judged alone  rejected by",
        "mutator"
    ));
    for m in &r.mutators {
        let by: Vec<String> = m.rejected_by.iter().map(|(i, n)| format!("{i} {n}")).collect();
        out.detail(format!(
            "{:width$} {} {:>6} {:>9} {:>9} {:>8} {:>9}/{:<9}  {}",
            m.name,
            m.invariant,
            m.made,
            m.rejected,
            m.accepted,
            m.refuted,
            m.unsafe_by_oracle,
            m.judged,
            by.join(", ")
        ));
    }
    for name in &r.mutators_without_effect {
        out.line(format!("{name}: seen making nothing unsafe in this run, so it does not count"));
    }
    for d in &r.disagreements {
        let file = d.file.as_deref().unwrap_or("give OUT to have it written");
        out.line(format!(
            "{}: {} [{}], {} instructions, {} after shrinking: {file}",
            out.paint(Tone::Bad, &d.how),
            super::place::printable(&d.evidence),
            d.mutators.join(" + "),
            d.instructions,
            d.shrunk.unwrap_or(d.instructions)
        ));
    }
    if r.count < r.asked {
        out.line(format!("time ran out after {} of {} programs", r.count, r.asked));
    }
    let cpu = r
        .cpu_seconds
        .map_or_else(String::new, |s| format!(" ({} of processor time)", output::seconds(s)));
    let verdict =
        if r.ok { out.paint(Tone::Good, "agreed") } else { out.paint(Tone::Bad, "disagreed") };
    out.line(format!(
        "{verdict}: {} programs ({} of at least 500 instructions, {} of at least 20000) in {}{cpu}, {:.0} a second; \
         {} false accepts, {} false rejects; accepted mutants: {}, each not refuted in {}, {} or {} executions by size",
        r.count,
        r.at_least_500_instructions,
        r.at_least_20000_instructions,
        output::seconds(r.seconds),
        r.schedules_per_second,
        r.false_accepts,
        r.false_rejects,
        r.mutants_accepted,
        r.runs.small,
        r.runs.large,
        r.runs.huge
    ));
}
