//! Writing.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::chain::{JournalError, Lines, NOTHING, seal};
use super::check::Checker;
use super::entry::{Entry, Event, Header};

/// A journal this process alone may write to.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    next: u64,
    head: String,
}

/// A journal that was opened to go on.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// `None`: the file was empty, or held nothing but the beginning of a header.
    pub header: Option<Header>,
    /// Bytes of an unfinished line that were removed.
    pub cut_bytes: u64,
}

impl Journal {
    /// Begins a journal that is not there yet.
    ///
    /// # Errors
    /// The file exists and is not empty, is locked, or cannot be written.
    pub fn create(path: &Path) -> Result<Journal, JournalError> {
        let journal = Journal::lock(path)?;
        let length = journal.file.metadata().map_err(JournalError::io("open", path))?.len();
        match length {
            0 => Ok(journal),
            _ => Err(JournalError::Exists { path: path.to_owned() }),
        }
    }

    /// Opens a journal to go on with it, whatever state a killed process left it in. `each` gets its entries in order;
    /// they were checked as [`super::check`] does.
    ///
    /// # Errors
    /// The file is locked, edited, contradicts itself, or cannot be read or written.
    pub fn resume(path: &Path, each: &mut dyn FnMut(&Entry)) -> Result<Opened, JournalError> {
        let mut journal = Journal::lock(path)?;
        let reading = journal.file.try_clone().map_err(JournalError::io("open", path))?;
        let mut lines = Lines::of(path, reading);
        let mut checker = Checker::new(path);
        for entry in &mut lines {
            let entry = entry?;
            checker.take(&entry)?;
            each(&entry);
        }
        let cut_bytes = lines.torn();
        if cut_bytes > 0 {
            journal.file.set_len(lines.whole()).map_err(JournalError::io("cut", path))?;
            journal.file.sync_all().map_err(JournalError::io("sync", path))?;
        }
        journal.next = lines.entries();
        journal.head = lines.head().to_owned();
        Ok(Opened { journal, header: checker.header().cloned(), cut_bytes })
    }

    fn lock(path: &Path) -> Result<Journal, JournalError> {
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let file = options.open(path).map_err(JournalError::io("open", path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(JournalError::Locked { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => {
                return Err(JournalError::Io { doing: "lock", path: path.to_owned(), source });
            }
        }
        // The name of a new file is on disk once its folder is; where folders cannot be synced there is no more to do.
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            let _ = File::open(folder).and_then(|f| f.sync_all());
        }
        Ok(Journal { path: path.to_owned(), file, next: 0, head: NOTHING.to_owned() })
    }

    /// Appends an event and waits until it is on disk; gives its entry's number.
    ///
    /// # Errors
    /// The disk is full or gone. What was written of the line is removed by the next [`Journal::resume`].
    pub fn append(&mut self, event: &Event) -> Result<u64, JournalError> {
        let (line, hash) = seal(self.next, &self.head, now_ms(), event);
        self.file.write_all(line.as_bytes()).map_err(JournalError::io("write", &self.path))?;
        self.file.sync_data().map_err(JournalError::io("sync", &self.path))?;
        self.head = hash;
        self.next += 1;
        Ok(self.next - 1)
    }

    /// Entries in the journal.
    pub fn len(&self) -> u64 {
        self.next
    }

    /// Is there no entry?
    pub fn is_empty(&self) -> bool {
        self.next == 0
    }

    /// Hash of the last line.
    pub fn head(&self) -> &str {
        &self.head
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
