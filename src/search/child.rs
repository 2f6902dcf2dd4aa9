//! A process whose crash, hang or nonsense is an answer.
//!
//! The request goes to its standard input as one line, which then stays open: a child of amk whose parent is gone, killed
//! or not, ends by itself. Its standard output is one JSON document. It is ended when a time limit passes, its own or the one
//! it states in its watch file (see [`crate::watch`]), and when the campaign is stopped.

use std::ffi::OsString;
use std::io::{BufRead, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use amk_autoresearch::{Refusal, Stage};

use super::request::{Reply, Request};
use crate::watch::{self, Record};

/// Set for a process that is to end when its standard input does.
pub const VARIABLE: &str = "AMK_SEARCH_CHILD";
/// How often the parent looks.
const LOOK: Duration = Duration::from_millis(20);
/// Longest reply and longest complaint that are read, bytes.
const LONGEST: u64 = 16 << 20;
const COMPLAINT: usize = 2000;

/// A program that takes a request and gives a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub path: PathBuf,
    pub args: Vec<OsString>,
}

impl Program {
    /// This very program, as a worker.
    ///
    /// # Errors
    /// The system does not say where it is.
    pub fn own() -> std::io::Result<Program> {
        let args = ["evaluate", "-", "--json"].map(OsString::from).to_vec();
        Ok(Program { path: watch::own_program()?, args })
    }

    /// A command line, split at spaces.
    pub fn parse(line: &str) -> Option<Program> {
        let mut words = line.split_whitespace().map(OsString::from);
        Some(Program { path: words.next()?.into(), args: words.collect() })
    }
}

/// Asks a program; `stage` is what a crash is said to have happened in.
///
/// # Errors
/// It crashed, was ended, or said something that is no reply.
pub fn ask(
    program: &Program,
    request: &Request,
    stage: Stage,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Reply, Refusal> {
    let crashed = |reason: String| Refusal::Crashed { stage, reason };
    let watch = tempfile::NamedTempFile::new()
        .map_err(|e| crashed(format!("no watch file could be made: {e}")))?;
    let mut command = Command::new(&program.path);
    command
        .args(&program.args)
        .env(watch::VARIABLE, watch.path())
        .env(VARIABLE, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt;
        // Ctrl-C is the campaign's, which ends its children itself.
        command.process_group(0);
    }
    let mut child = command
        .spawn()
        .map_err(|e| crashed(format!("cannot start {}: {e}", program.path.display())))?;
    let mut line = serde_json::to_vec(request).unwrap_or_default();
    line.push(b'\n');
    let input = child.stdin.take();
    let reader = |from: Option<Box<dyn Read + Send>>| {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(from) = from {
                // What was read before an error is what there is.
                let _ = from.take(LONGEST).read_to_end(&mut bytes);
            }
            bytes
        })
    };
    let said = reader(child.stdout.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    let complaint = reader(child.stderr.take().map(|s| Box::new(s) as Box<dyn Read + Send>));
    if let Some(mut input) = input.as_ref() {
        // A child that ends before it has read its request shows in how it ended.
        let _ = input.write_all(&line);
    }
    let ended = wait(&mut child, watch.path(), limit, stop);
    drop(input);
    let said = said.join().unwrap_or_default();
    let complaint = complaint.join().unwrap_or_default();
    match ended.map_err(|e| crashed(format!("its process was lost: {e}")))? {
        Ended::Itself(status) => reply(&said, &complaint, status, stage),
        Ended::Late { seconds } => Err(Refusal::TimedOut { stage, seconds }),
        Ended::Overdue { phase, message } => Err(crashed(match message.is_empty() {
            true => format!("{phase} did not end in time, and the process was ended"),
            false => message,
        })),
        Ended::Stopped => Err(crashed("the campaign was stopped".to_owned())),
    }
}

fn reply(
    said: &[u8],
    complaint: &[u8],
    status: ExitStatus,
    stage: Stage,
) -> Result<Reply, Refusal> {
    let last = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        let text = text.trim();
        let from = text.char_indices().rev().nth(COMPLAINT).map_or(0, |(i, _)| i);
        text[from..].to_owned()
    };
    // A refusal ends with exit code 1, and is a reply.
    if !matches!(status.code(), Some(0 | 1)) {
        let words = last(complaint);
        let why = if words.is_empty() { String::new() } else { format!(": {words}") };
        let reason = format!("the process ended with {status}{why}");
        return Err(Refusal::Crashed { stage, reason });
    }
    let none = |what: String| Refusal::Rejected { stage: Stage::Reply, reason: what };
    let text = std::str::from_utf8(said)
        .map_err(|_| none("the worker's reply is not UTF-8".to_owned()))?;
    let mut lines = text.lines().filter(|l| !l.trim().is_empty());
    let (Some(line), None) = (lines.next(), lines.next()) else {
        return Err(none(format!(
            "the worker said {} lines where one JSON document is due",
            text.lines().count()
        )));
    };
    match serde_json::from_str(line) {
        Ok(Reply::Refused { refusal }) => Err(refusal),
        Ok(reply) => Ok(reply),
        Err(e) => Err(none(format!("the worker's reply is none: {e}"))),
    }
}

enum Ended {
    Itself(ExitStatus),
    /// After the parent's limit.
    Late {
        seconds: f64,
    },
    /// After its own deadline.
    Overdue {
        phase: String,
        message: String,
    },
    Stopped,
}

fn wait(
    child: &mut Child,
    path: &std::path::Path,
    limit: Duration,
    stop: &AtomicBool,
) -> std::io::Result<Ended> {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Itself(status));
        }
        let record = Record::read(path);
        let ended = match () {
            () if stop.load(Ordering::Relaxed) => Some(Ended::Stopped),
            () if began.elapsed() > limit => {
                Some(Ended::Late { seconds: began.elapsed().as_secs_f64() })
            }
            () if record.overdue() => {
                Some(Ended::Overdue { phase: record.phase, message: record.message })
            }
            () => None,
        };
        if let Some(ended) = ended {
            end(child)?;
            return Ok(ended);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK);
    }
}

/// Ends a child by its process id and waits for it.
fn end(child: &mut Child) -> std::io::Result<()> {
    child.kill()?;
    child.wait().map(drop)
}

/// In a child of a campaign: reads the request, and from then on ends this process when the parent goes away.
///
/// # Errors
/// There is no request.
pub fn read_request() -> std::io::Result<String> {
    let mut line = String::new();
    std::io::stdin().lock().take(LONGEST).read_line(&mut line)?;
    if std::env::var_os(VARIABLE).is_some() {
        std::thread::spawn(|| {
            let mut rest = [0u8; 256];
            while std::io::stdin().lock().read(&mut rest).is_ok_and(|n| n > 0) {}
            std::process::exit(3);
        });
    }
    Ok(line)
}
