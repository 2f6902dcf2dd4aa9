//! Lines and their hashes.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use super::entry::{Entry, Event};

/// Longest line that is read, bytes.
const LONGEST: u64 = 64 << 20;
/// What the first line follows.
pub(super) const NOTHING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Between the part of a line that is hashed and its hash.
const SEAM: &str = ",\"hash\":\"";
const HEX: usize = 64;

/// Why a journal is none, or cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    #[error("cannot {doing} the journal {}: {source}", .path.display())]
    Io { doing: &'static str, path: PathBuf, source: std::io::Error },
    #[error(
        "another process is writing the journal {}; wait for it, or name another journal", .path.display()
    )]
    Locked { path: PathBuf },
    #[error("{}, line {line}: {what}; the journal was edited or damaged, and nothing after the line before can be believed", .path.display())]
    Broken { path: PathBuf, line: u64, what: String },
    #[error("{}, line {line}: {what}", .path.display())]
    Contradiction { path: PathBuf, line: u64, what: String },
    #[error("{} has no entry yet", .path.display())]
    Empty { path: PathBuf },
    #[error("{} is there already; --resume goes on with it, or name another journal", .path.display())]
    Exists { path: PathBuf },
    #[error("the journal {} is about {field} {journal} and this run is about {run}; name another journal", .path.display())]
    Other { path: PathBuf, field: &'static str, journal: String, run: String },
}

impl JournalError {
    pub(super) fn io(
        doing: &'static str,
        path: &Path,
    ) -> impl FnOnce(std::io::Error) -> JournalError + use<> {
        let path = path.to_owned();
        move |source| JournalError::Io { doing, path, source }
    }

    /// Is it the machine's fault rather than the journal's or the user's?
    pub fn is_environment(&self) -> bool {
        matches!(self, JournalError::Io { source, .. } if source.kind() != std::io::ErrorKind::NotFound)
    }
}

fn digest(text: &[u8]) -> String {
    blake3::Hasher::new_derive_key("amk autoresearch journal line v1")
        .update(text)
        .finalize()
        .to_hex()
        .to_string()
}

/// The line of an event, with its line end, and its hash. The hash covers every byte before it.
pub fn seal(seq: u64, prev: &str, at_ms: u64, event: &Event) -> (String, String) {
    // Events hold numbers, texts and maps with text keys, which are always JSON.
    let event = serde_json::to_string(event).unwrap_or_default();
    let open = format!("{{\"seq\":{seq},\"prev\":\"{prev}\",\"at_ms\":{at_ms},\"event\":{event}");
    let hash = digest(open.as_bytes());
    (format!("{open}{SEAM}{hash}\"}}\n"), hash)
}

/// Checks one line against its own hash and the one before; `line` has no line end.
fn unseal(line: &str, seq: u64, prev: &str) -> Result<Entry, String> {
    let tail = SEAM.len() + HEX + 2;
    let cut = line.len().checked_sub(tail).filter(|&at| line.is_char_boundary(at));
    let Some((open, seal)) = cut.map(|at| line.split_at(at)) else {
        return Err("it is no entry".to_owned());
    };
    let hash = seal.strip_prefix(SEAM).and_then(|s| s.strip_suffix("\"}"));
    let Some(hash) = hash.filter(|h| h.len() == HEX) else {
        return Err("it does not end with a hash".to_owned());
    };
    if hash != digest(open.as_bytes()) {
        return Err("its hash does not fit what it says".to_owned());
    }
    let entry: Entry =
        serde_json::from_str(line).map_err(|e| format!("it is no entry of this form: {e}"))?;
    if entry.seq != seq {
        return Err(format!("it is entry {} where {seq} is due", entry.seq));
    }
    if entry.prev != prev {
        return Err("it does not follow the line before".to_owned());
    }
    if (seq == 0) != matches!(entry.event, Event::Header(_)) {
        return Err("the header is the first entry and no other".to_owned());
    }
    Ok(entry)
}

/// The entries of a journal, one line in memory at a time. What is left of a line that was never finished ends the
/// iteration; see [`Lines::torn`].
pub struct Lines {
    path: PathBuf,
    reader: BufReader<File>,
    next: u64,
    prev: String,
    /// Bytes of whole lines so far.
    whole: u64,
    torn: u64,
    over: bool,
}

impl Lines {
    /// Opens a journal to be read; needs no lock, for lines are only ever added.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> Result<Lines, JournalError> {
        let file = File::open(path).map_err(JournalError::io("open", path))?;
        Ok(Lines::of(path, file))
    }

    pub(super) fn of(path: &Path, file: File) -> Lines {
        Lines {
            path: path.to_owned(),
            reader: BufReader::new(file),
            next: 0,
            prev: NOTHING.to_owned(),
            whole: 0,
            torn: 0,
            over: false,
        }
    }

    /// Hash of the last line that was read.
    pub fn head(&self) -> &str {
        &self.prev
    }

    /// Entries read.
    pub fn entries(&self) -> u64 {
        self.next
    }

    /// Bytes of the whole lines read.
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Bytes after the last line end, known once the iteration is over.
    pub fn torn(&self) -> u64 {
        self.torn
    }

    fn read(&mut self) -> Result<Option<Entry>, JournalError> {
        use std::io::Read;
        let mut bytes = Vec::new();
        let mut limited = (&mut self.reader).take(LONGEST);
        limited.read_until(b'\n', &mut bytes).map_err(JournalError::io("read", &self.path))?;
        let broken = |what: String| JournalError::Broken {
            path: self.path.clone(),
            line: self.next + 1,
            what,
        };
        if bytes.last() != Some(&b'\n') {
            if bytes.len() as u64 == LONGEST {
                return Err(broken(format!("it is longer than {LONGEST} bytes")));
            }
            self.torn = bytes.len() as u64;
            return Ok(None);
        }
        let text = std::str::from_utf8(&bytes[..bytes.len() - 1])
            .map_err(|_| broken("it is not UTF-8".to_owned()))?;
        let entry = unseal(text, self.next, &self.prev).map_err(broken)?;
        self.next += 1;
        self.prev.clone_from(&entry.hash);
        self.whole += bytes.len() as u64;
        Ok(Some(entry))
    }
}

impl Iterator for Lines {
    type Item = Result<Entry, JournalError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let read = self.read().transpose();
        self.over = !matches!(read, Some(Ok(_)));
        read
    }
}

/// The header of a journal, without reading on. `None`: the file holds no whole line yet.
///
/// # Errors
/// It cannot be opened, or its first line is no header.
pub fn header(path: &Path) -> Result<Option<super::Header>, JournalError> {
    match Lines::open(path)?.next().transpose()? {
        Some(Entry { event: Event::Header(header), .. }) => Ok(Some(header)),
        _ => Ok(None),
    }
}
