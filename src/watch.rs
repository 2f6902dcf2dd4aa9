//! A process watched by its parent, so that nothing a device does can freeze a terminal.
//!
//! A command that uses a device runs in a child process. The child writes what it is doing, and until when that
//! must be over, into a small file; the parent looks at it and ends the child by its process id when the time has
//! passed. A child that knows why it will not return says so first ([`lost`]), and the parent passes it on.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Names the watch file to the child.
pub const VARIABLE: &str = "AMK_WATCH_FILE";
/// Bytes of a record; longer texts are cut.
const RECORD: usize = 1024;
/// How often the parent looks.
const LOOK: Duration = Duration::from_millis(20);

/// What a child is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When it must be over, in milliseconds since 1970; 0 for no limit.
    pub deadline: u64,
    pub phase: String,
    /// Why the child will not come back, where it knows.
    pub message: String,
}

impl Record {
    /// As lines of a fixed number of bytes.
    pub fn encode(&self) -> Vec<u8> {
        let line = |text: &str| text.replace(['\n', '\0'], " ");
        let mut bytes =
            format!("{}\n{}\n{}", self.deadline, line(&self.phase), line(&self.message))
                .into_bytes();
        bytes.resize(RECORD, b' ');
        bytes
    }

    /// Has its deadline passed?
    pub fn overdue(&self) -> bool {
        self.deadline > 0 && now() > self.deadline
    }

    /// The record in a watch file; one without a deadline if there is none.
    pub fn read(path: &Path) -> Record {
        let mut bytes = Vec::new();
        let ok = File::open(path).and_then(|f| f.take(RECORD as u64).read_to_end(&mut bytes));
        ok.map_or_else(|_| Record::default(), |_| Record::decode(&bytes))
    }

    /// Reads a record; one that is half written or damaged has no deadline.
    pub fn decode(bytes: &[u8]) -> Record {
        let text = String::from_utf8_lossy(bytes);
        let mut lines = text.splitn(3, '\n').map(str::trim);
        let deadline = lines.next().and_then(|l| l.parse().ok()).unwrap_or(0);
        let mut next = || lines.next().unwrap_or_default().to_owned();
        Record { deadline, phase: next(), message: next() }
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn file() -> Option<&'static Mutex<File>> {
    static FILE: OnceLock<Option<Mutex<File>>> = OnceLock::new();
    let open = || {
        let path = std::env::var_os(VARIABLE)?;
        std::fs::OpenOptions::new().write(true).open(path).ok().map(Mutex::new)
    };
    FILE.get_or_init(open).as_ref()
}

/// Is this process the child of a watching parent?
pub fn is_child() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

fn put(record: &Record) {
    if let Some(file) = file()
        && let Ok(mut file) = file.lock()
    {
        // A parent that has gone away watches nothing.
        let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(&record.encode()));
    }
}

/// Says what is being done and how long it may take. Without a watching parent nothing happens.
pub fn begin(phase: &str, limit: Duration) {
    if file().is_some() {
        let limit = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX / 2);
        let deadline = now().saturating_add(limit);
        put(&Record { deadline, phase: phase.to_owned(), message: String::new() });
    }
}

/// Says that it is over.
pub fn end() {
    if file().is_some() {
        put(&Record::default());
    }
}

/// Says why this process may not come back, and gives it a second to try.
pub fn lost(message: &str) {
    if file().is_some() {
        let deadline = now().saturating_add(1000);
        put(&Record { deadline, phase: "leaving".to_owned(), message: message.to_owned() });
    }
}

/// How a watched child ended.
#[derive(Debug)]
pub enum Ended {
    /// By itself.
    Itself(ExitStatus),
    /// It was ended at its deadline; what it was doing and what it said.
    Killed { phase: String, message: Option<String> },
}

/// Runs a command as a watched child. Its standard streams are its own affair.
///
/// # Errors
/// It cannot be started, or the watch file cannot be made.
pub fn supervise(command: &mut Command) -> std::io::Result<Ended> {
    let watch = tempfile::NamedTempFile::new()?;
    watch.as_file().write_all_at_start(&Record::default().encode())?;
    let mut child = command.env(VARIABLE, watch.path()).spawn()?;
    wait(&mut child, watch.path())
}

/// Waits for a child and ends it at the deadline its watch file states.
fn wait(child: &mut Child, path: &Path) -> std::io::Result<Ended> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Itself(status));
        }
        let record = Record::read(path);
        if record.overdue() {
            child.kill()?;
            child.wait()?;
            let message = Some(record.message).filter(|m| !m.is_empty());
            return Ok(Ended::Killed { phase: record.phase, message });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LOOK);
    }
}

/// The program that is running, to be run again as a child.
///
/// # Errors
/// The system does not say.
pub fn own_program() -> std::io::Result<PathBuf> {
    std::env::current_exe()
}

trait WriteAtStart {
    fn write_all_at_start(&self, bytes: &[u8]) -> std::io::Result<()>;
}

impl WriteAtStart for File {
    fn write_all_at_start(&self, bytes: &[u8]) -> std::io::Result<()> {
        let mut file = self;
        file.seek(SeekFrom::Start(0))?;
        file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Stdio;
    use std::time::Instant;

    #[test]
    fn records_come_back() {
        let record = Record {
            deadline: 12_345,
            phase: "a launch\nof 3 steps".into(),
            message: "x".repeat(5000),
        };
        let back = Record::decode(&record.encode());
        assert_eq!(back.deadline, 12_345);
        assert_eq!(back.phase, "a launch of 3 steps");
        assert!(back.message.starts_with("xxxx") && back.message.len() < RECORD);
        assert_eq!(Record::decode(b""), Record::default());
        assert_eq!(
            Record::decode(b"12x\n\xff"),
            Record { phase: "\u{fffd}".into(), ..Record::default() }
        );
    }

    fn shell(script: &str) -> Ended {
        let mut command = Command::new("sh");
        supervise(command.args(["-c", script]).stdin(Stdio::null())).unwrap()
    }

    #[test]
    fn a_child_without_a_deadline_ends_by_itself() {
        match shell("sleep 0.1; exit 7") {
            Ended::Itself(status) => assert_eq!(status.code(), Some(7)),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_child_past_its_deadline_is_ended_with_what_it_said() {
        let start = Instant::now();
        let script = format!("printf '1\\na launch\\nno answer' > \"${VARIABLE}\"; exec sleep 30");
        match shell(&script) {
            Ended::Killed { phase, message } => {
                assert_eq!((phase.as_str(), message.as_deref()), ("a launch", Some("no answer")));
            }
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    }
}
