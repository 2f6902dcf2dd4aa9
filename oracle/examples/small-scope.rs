//! Compares the validator with the oracle over every program of the small scope, and writes what it found.
//!
//! `cargo run --release -p amk-oracle --example small-scope -- [SIZE] [OUT.json]`; SIZE is 0 (seconds), 1
//! (minutes) or 2 (the whole scope, default). Exit code 1: a false accept, or a rejection without explanation.
//!
//! `commit` of the file is what `HEAD` of this checkout was when the comparison began, `with changes` where tracked files
//! differed; `pin` is the hash of the sources that were built. Both are asked for before anything is compared, and a
//! commit that was rewritten since is found again by its pin alone.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use amk_oracle::Limits;
use amk_oracle::scope::{Class, Summary, compare, families};
use serde::Serialize;

#[path = "../tests/classes/mod.rs"]
mod classes;

#[derive(Serialize)]
struct Explained<'a> {
    why: &'a str,
    #[serde(flatten)]
    class: &'a Class,
}

/// The file.
#[derive(Serialize)]
struct Results<'a> {
    commit: String,
    /// Hash of the sources of the validator that was judged.
    pin: &'static str,
    bound: &'a str,
    seconds: f64,
    threads: usize,
    #[serde(flatten)]
    summary: &'a Summary,
    false_reject_classes: BTreeMap<&'a str, Explained<'a>>,
}

const BOUND: &str = "1 or 2 SMs, 1 to 4 instructions besides the boundaries, 2 synchronisation objects \
    (counters, packet words, or one of each), 0 to 2 plain regions, packets in 1 or 2 phases with 2 or 3 tags, a stream of up to 3 \
    chunks in up to 3 runs through 1 or 2 slots, a cache with kv runs behind gates 1 and 2, 3 steps; every program of up to 8 marks \
    (5 beside the runs where there is a stream) that uses what it declares; symmetric programs once";

/// The commit that is checked out, wherever the example is started from; empty outside a repository.
fn commit() -> String {
    let git = |args: &[&str]| {
        let here = ["-C", env!("CARGO_MANIFEST_DIR")];
        let out = std::process::Command::new("git").args(here).args(args).output().ok()?;
        let text = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        out.status.success().then_some(text)
    };
    let Some(head) = git(&["rev-parse", "HEAD"]) else { return String::new() };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changed) if changed.is_empty() => head,
        _ => head + " with changes",
    }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let size = match args.first().map(|a| a.parse()) {
        None => 2,
        Some(Ok(size @ 0..=2)) => size,
        Some(_) => {
            eprintln!("usage: small-scope [0|1|2] [OUT.json]");
            return ExitCode::from(2);
        }
    };
    // Until the file is written `HEAD` may move on.
    let commit = commit();
    let start = Instant::now();
    let said = AtomicU64::new(0);
    let summary = compare(&families(size), Limits::default(), classes::judge, |n| {
        let tenths = start.elapsed().as_secs() / 10;
        if said.fetch_max(tenths, Ordering::Relaxed) < tenths {
            eprintln!("{n} programs in {} s", 10 * tenths);
        }
    });
    let why = |name: &str| classes::CLASSES.iter().find(|c| c.0 == name).map(|c| c.3);
    let explained = summary.false_reject_classes.iter().map(|(name, class)| {
        (*name, Explained { why: why(name).unwrap_or("not explained"), class })
    });
    let results = Results {
        commit,
        pin: amk_validator::PIN,
        bound: BOUND,
        seconds: (start.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        threads: rayon::current_num_threads(),
        summary: &summary,
        false_reject_classes: explained.collect(),
    };
    let text = match serde_json::to_string_pretty(&results) {
        Ok(text) => text + "\n",
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(3);
        }
    };
    let written = match args.get(1) {
        Some(path) => {
            let part = format!("{path}.part");
            std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path))
        }
        None => {
            print!("{text}");
            Ok(())
        }
    };
    if let Err(e) = written {
        eprintln!("cannot write the results: {e}");
        return ExitCode::from(3);
    }
    let unexplained = summary.false_reject_classes.keys().any(|name| why(name).is_none());
    let good = summary.false_accepts == 0 && summary.undecided == 0 && !unexplained;
    ExitCode::from(u8::from(!good))
}
