//! Baselines in a child process: `benches/baseline.py` decodes the same weights with PyTorch and answers one JSON
//! line to each line it is sent.
//!
//! ```text
//! > {"cmd": "prepare", "what": "graph", "position": 16}
//! < {"ok": true, "seconds": 1.9, "token": 17, "versions": {...}}
//! > {"cmd": "sample", "what": "graph", "count": 10}
//! < {"ok": true, "us": 1698.2}
//! > {"cmd": "quit"}
//! ```

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::{BenchError, Contender};

/// The script, so that a binary alone can measure.
pub const SCRIPT: &str = include_str!("../../benches/baseline.py");

/// Why a baseline gives no sample.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    #[error("{program} cannot be started: {source}")]
    Start { program: String, source: std::io::Error },
    #[error("{0}")]
    Said(String),
    #[error("no answer to {cmd} within {seconds} s; the process was ended")]
    Silent { cmd: String, seconds: u64 },
    #[error("the process ended in the middle of {cmd}; what it wrote to standard error says why")]
    Gone { cmd: String },
    #[error("the answer to {cmd} is no JSON object: {line}")]
    Unreadable { cmd: String, line: String },
}

/// The child.
pub struct Baseline {
    child: Child,
    to: ChildStdin,
    from: Receiver<String>,
}

impl Baseline {
    /// Starts a command that speaks the protocol. Its standard error goes where ours goes.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(command: &mut Command) -> Result<Baseline, BaselineError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|source| BaselineError::Start { program, source })?;
        let lost = || BaselineError::Gone { cmd: "start".to_owned() };
        let to = child.stdin.take().ok_or_else(lost)?;
        let out = child.stdout.take().ok_or_else(lost)?;
        let (send, from) = channel();
        // Ends with the child's standard output, or when nobody listens any more.
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Baseline { child, to, from })
    }

    /// Sends a request and waits for its answer. Lines that are no JSON objects, such as notes of libraries, are
    /// passed over.
    ///
    /// # Errors
    /// The child is gone, silent for `limit`, or says that it failed.
    pub fn ask(&mut self, request: &Value, limit: Duration) -> Result<Value, BaselineError> {
        let cmd = request["cmd"].as_str().unwrap_or_default().to_owned();
        let sent = writeln!(self.to, "{request}").and_then(|()| self.to.flush());
        if sent.is_err() {
            return Err(BaselineError::Gone { cmd });
        }
        let until = std::time::Instant::now() + limit;
        loop {
            let left = until.saturating_duration_since(std::time::Instant::now());
            let line = match self.from.recv_timeout(left) {
                Ok(line) => line,
                Err(RecvTimeoutError::Disconnected) => return Err(BaselineError::Gone { cmd }),
                Err(RecvTimeoutError::Timeout) => {
                    let _ = self.child.kill();
                    return Err(BaselineError::Silent { cmd, seconds: limit.as_secs() });
                }
            };
            if !line.starts_with('{') {
                continue;
            }
            let answer: Value = serde_json::from_str(&line)
                .map_err(|_| BaselineError::Unreadable { cmd: cmd.clone(), line: line.clone() })?;
            return match answer["ok"].as_bool() {
                Some(true) => Ok(answer),
                _ => Err(BaselineError::Said(
                    answer["error"].as_str().unwrap_or("it failed without a reason").to_owned(),
                )),
            };
        }
    }

    /// Prepares one kind of baseline at a position; the answer tells versions, time taken and the token decoded.
    ///
    /// # Errors
    /// As [`Baseline::ask`].
    pub fn prepare(
        &mut self,
        what: &str,
        position: u64,
        limit: Duration,
    ) -> Result<Value, BaselineError> {
        self.ask(&json!({ "cmd": "prepare", "what": what, "position": position }), limit)
    }

    /// One sample of a prepared kind: microseconds per token over `count` tokens.
    ///
    /// # Errors
    /// As [`Baseline::ask`].
    pub fn sample(&mut self, what: &str, count: usize) -> Result<f64, BaselineError> {
        let request = json!({ "cmd": "sample", "what": what, "count": count });
        let answer = self.ask(&request, Duration::from_secs(30))?;
        answer["us"].as_f64().ok_or_else(|| BaselineError::Unreadable {
            cmd: "sample".to_owned(),
            line: answer.to_string(),
        })
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        let _ = writeln!(self.to, "{}", json!({ "cmd": "quit" }));
        // It has nothing to save.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One kind of a shared child, as a contender.
pub struct Kind<'a> {
    pub name: String,
    pub what: String,
    pub count: usize,
    pub child: &'a std::cell::RefCell<Baseline>,
}

impl Contender for Kind<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn sample(&mut self) -> Result<f64, BenchError> {
        Ok(self.child.borrow_mut().sample(&self.what, self.count)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn shell(script: &str) -> Baseline {
        Baseline::start(Command::new("sh").args(["-c", script])).unwrap()
    }

    #[test]
    fn answers_are_read_and_chatter_is_passed_over() {
        let mut b = shell(
            r#"read a; echo "some library says hello"; echo '{"ok": true, "token": 3}'
               read b; echo '{"ok": true, "us": 12.5}'"#,
        );
        let answer = b.prepare("graph", 16, Duration::from_secs(10)).unwrap();
        assert_eq!(answer["token"], 3);
        assert_eq!(b.sample("graph", 10).unwrap(), 12.5);
    }

    #[test]
    fn failures_are_told_apart() {
        let limit = Duration::from_secs(10);
        let mut b = shell(r#"read a; echo '{"ok": false, "error": "no GPU"}'; read b; echo '{"'"#);
        assert_eq!(b.prepare("graph", 1, limit).unwrap_err().to_string(), "no GPU");
        assert!(matches!(b.prepare("graph", 1, limit), Err(BaselineError::Unreadable { .. })));
        let mut b = shell("read a; exit 3");
        assert!(matches!(b.prepare("graph", 1, limit), Err(BaselineError::Gone { .. })));
        assert!(matches!(
            Baseline::start(&mut Command::new("/no/such/python")),
            Err(BaselineError::Start { .. })
        ));
    }

    #[test]
    fn a_silent_child_is_ended() {
        let mut b = shell("sleep 60");
        let start = Instant::now();
        let error = b.prepare("graph", 1, Duration::from_millis(200)).unwrap_err();
        assert!(matches!(error, BaselineError::Silent { .. }), "{error}");
        drop(b);
        assert!(start.elapsed() < Duration::from_secs(10));
    }
}
