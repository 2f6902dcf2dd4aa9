//! `amk evaluate`: one candidate in, one verdict out.

use std::path::{Path, PathBuf};

use amk::search::child::read_request;
use amk::search::evaluate::answer;
use amk::search::request::{Reply, Request};
use amk_autoresearch::Refusal;
use clap::Args;

use super::{Failure, Outcome, Verdict, files};
use crate::output::{Output, Tone};

/// Longest request that is read, bytes.
const LIMIT: u64 = 4 << 20;

/// Judge one candidate schedule: validate, compile, self-test, time, or predict where there is no device.
#[derive(Args)]
#[command(after_help = "\
The request is a JSON object, the reply one too (docs/autoresearch.md has both). Nothing is remembered, so any
number of these may run, on any machines. Exit code 0 for a verdict, 1 for a refusal, which is a reply too,
2 for a request that is none.

Examples:
  amk evaluate request.json --json
  amk evaluate - --json")]
pub struct EvaluateArgs {
    /// A file with the request, or - for standard input.
    #[arg(value_name = "FILE", default_value = "-")]
    request: PathBuf,
}

pub fn run(args: &EvaluateArgs, out: &Output) -> Outcome {
    let text = match args.request == Path::new("-") {
        true => read_request().map_err(Failure::input)?,
        false => String::from_utf8_lossy(&files::read_limited(&args.request, LIMIT)?).into_owned(),
    };
    let request: Request = serde_json::from_str(&text).map_err(|e| {
        Failure::input(format!("the request is none: {e}"))
            .help("docs/autoresearch.md says what a request is")
    })?;
    let reply = answer(&request).map_err(Failure::input)?;
    out.document(&reply);
    show(&reply, out);
    Ok(Verdict::of(reply.ok()))
}

fn show(reply: &Reply, out: &Output) {
    let line = match reply {
        Reply::Device { device: Some(d) } => format!("{} ({})", d.fingerprint, d.target.name),
        Reply::Device { device: None } => "no CUDA device: everything is predicted".to_owned(),
        Reply::Prepared { prepared: p } => format!(
            "{}  program {}, predicted {:.1} us a token",
            out.paint(Tone::Good, "validated"),
            &p.program[..12.min(p.program.len())],
            p.prediction.us
        ),
        Reply::Compiled { image: Some(key) } => format!("compiled: image {key}"),
        Reply::Compiled { image: None } => "not compiled: there is no compiler".to_owned(),
        Reply::Measured { evidence } => format!("measured: {} rounds", evidence.samples.len()),
        Reply::Evaluated { verdict, .. } => {
            let us = verdict.us().map_or_else(String::new, |us| format!(", {us:.1} us a token"));
            format!("{}{us}  {}", verdict.label(), verdict.reason())
        }
        Reply::Refused { refusal } => refused(refusal),
    };
    out.line(line.trim_end());
}

fn refused(refusal: &Refusal) -> String {
    let verdict = amk_autoresearch::Verdict::from(refusal.clone());
    format!("{}: {}", verdict.label(), verdict.reason())
}
