//! Every file of `tests/schedules/`: what stands under `accept/` is accepted; what stands under
//! `reject/` gets exactly the faults its comments say. `#~ R: text` on a line asks for a fault of
//! invariant R whose place is on that line and whose message or witness contains the text; every
//! fault must be asked for.

use std::fs;
use std::path::{Path, PathBuf};

use amk_schedule_ir::text::{parse_with_map, print};
use amk_validator::{Fault, check, validate};

mod common;

fn files(folder: &str) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/schedules").join(folder);
    let mut files: Vec<PathBuf> = fs::read_dir(&dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .filter(|p| p.extension().is_some_and(|x| x == "sched"))
        .collect();
    files.sort();
    assert!(!files.is_empty(), "no schedules in {}", dir.display());
    files
}

/// (line, invariant, text) of every `#~` comment.
fn wanted(text: &str) -> Vec<(u32, String, String)> {
    let mut out = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for ask in line.split("#~").skip(1) {
            let (invariant, text) = ask.split_once(':').expect("`#~ X: text`");
            out.push((number as u32 + 1, invariant.trim().to_owned(), text.trim().to_owned()));
        }
    }
    out
}

fn says(fault: &Fault, text: &str) -> bool {
    fault.to_string().contains(text)
}

#[test]
fn accept() {
    let mut bad = Vec::new();
    for file in files("accept") {
        let text = fs::read_to_string(&file).unwrap();
        let (program, map) =
            parse_with_map(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        assert!(wanted(&text).is_empty(), "{} asks for faults", file.display());
        assert_eq!(parse_with_map(&print(&program)).unwrap().0, program, "{}", file.display());
        if let Err(rejected) = validate(program, &common::target()) {
            for f in rejected.faults {
                bad.push(format!("{}:{}: {f}", file.display(), f.place.line(&map).unwrap_or(0)));
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}

#[test]
fn reject() {
    let mut bad = Vec::new();
    for file in files("reject") {
        let text = fs::read_to_string(&file).unwrap();
        let (program, map) =
            parse_with_map(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let report = check(&program, &common::target());
        let wanted = wanted(&text);
        assert!(!wanted.is_empty(), "{} asks for no fault", file.display());
        assert!(!report.ok);
        let matches = |f: &Fault, (line, invariant, part): &(u32, String, String)| {
            f.place.line(&map) == Some(*line)
                && f.invariant.to_string() == *invariant
                && says(f, part)
        };
        for w in &wanted {
            if !report.faults.iter().any(|f| matches(f, w)) {
                bad.push(format!("{}:{}: missing {}: {}", file.display(), w.0, w.1, w.2));
            }
        }
        for f in &report.faults {
            if !wanted.iter().any(|w| matches(f, w)) {
                let line = f.place.line(&map).unwrap_or(0);
                bad.push(format!("{}:{line}: unexpected {f}", file.display()));
            }
        }
    }
    assert!(bad.is_empty(), "\n{}", bad.join("\n"));
}
/// Every invariant has a file of its name on either side: `<letter>-<what>.sched`.
#[test]
fn every_invariant_has_fixtures() {
    for letter in ["s", "b", "c", "d", "r", "e", "m", "o", "k"] {
        let names = |folder: &str| -> Vec<String> {
            files(folder)
                .iter()
                .filter_map(|p| p.file_stem()?.to_str().map(str::to_owned))
                .filter(|n| n.starts_with(&format!("{letter}-")))
                .collect()
        };
        let (accept, reject) = (names("accept"), names("reject"));
        assert!(!accept.is_empty() && !reject.is_empty(), "{letter}: {accept:?} {reject:?}");
        assert!(
            accept.iter().any(|a| reject.contains(a)),
            "{letter}: no accept and reject file of one name"
        );
    }
}
