//! Files that commands read and write: whole or not at all.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use super::Failure;

/// Writes a file through a temporary one beside it and a rename, so that nobody sees half of it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    let folder = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let fail = |e: &std::io::Error| Failure::writing(path, e);
    let mut builder = tempfile::Builder::new();
    builder.prefix(".amk-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // What a file made by any other program gets: the umask decides.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder).map_err(|e| fail(&e))?;
    file.write_all(bytes).map_err(|e| fail(&e))?;
    file.persist(path).map_err(|e| fail(&e.error))?;
    Ok(())
}

/// Makes the folder and those above it.
pub fn create_folder(path: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(path).map_err(|e| {
        Failure::environment(format!("cannot make the folder {}: {e}", path.display()))
    })
}

/// Reads a text, or standard input for `-`, of at most `limit` bytes. Nothing beyond the limit is
/// read, whatever the file claims to be.
pub fn read_limited(path: &Path, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let result = if path == Path::new("-") {
        std::io::stdin().lock().take(limit + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes))
    };
    result.map_err(|e| Failure::reading(path, &e))?;
    if bytes.len() as u64 > limit {
        return Err(Failure::input(format!(
            "{} has more than {limit} bytes, the most that a file of this kind may have",
            path.display()
        )));
    }
    let mark = [&b"\xef\xbb\xbf"[..], b"\xff\xfe", b"\xfe\xff"];
    if mark.iter().any(|m| bytes.starts_with(m)) {
        return Err(Failure::input(format!(
            "{} begins with a byte-order mark; save it as UTF-8 without one",
            path.display()
        )));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writing_replaces_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn writing_into_a_missing_folder_is_the_environments_fault() {
        let dir = tempfile::tempdir().unwrap();
        let failure = write(&dir.path().join("no/such/a.txt"), b"x").unwrap_err();
        assert_eq!(failure.code(), 3);
    }

    #[test]
    fn reading_stops_at_the_limit() {
        let failure = read_limited(Path::new("/dev/zero"), 1000).unwrap_err();
        assert!(failure.message.contains("more than 1000 bytes"), "{}", failure.message);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marked");
        for mark in [&b"\xef\xbb\xbf{}"[..], b"\xff\xfe{\0"] {
            std::fs::write(&path, mark).unwrap();
            let failure = read_limited(&path, 10).unwrap_err();
            assert!(failure.message.contains("byte-order mark"), "{}", failure.message);
            assert_eq!(failure.code(), 2);
        }
        assert_eq!(read_limited(dir.path(), 10).unwrap_err().code(), 2);
        assert_eq!(read_limited(&dir.path().join("absent"), 10).unwrap_err().code(), 2);
    }
}
