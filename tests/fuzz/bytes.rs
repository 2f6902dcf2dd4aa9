//! Arbitrary bytes as schedules: a sentence or a program, never a panic, and whatever is read is judged.
//!
//! Longer by hand: `AMK_FUZZ_CASES=2000000 cargo test --release --workspace --test fuzz bytes`.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use amk_schedule_ir::{Program, text};
use amk_validator::check;
use proptest::prelude::*;

fn cases() -> u32 {
    std::env::var("AMK_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

/// Every fixture, in text and in JSON form.
fn seeds() -> &'static [(Vec<u8>, Vec<u8>)] {
    static SEEDS: OnceLock<Vec<(Vec<u8>, Vec<u8>)>> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let mut files: Vec<_> = ["accept", "reject"]
            .iter()
            .flat_map(|f| fs::read_dir(Path::new("tests/schedules").join(f)).unwrap())
            .map(|e| e.unwrap().path())
            .filter(|p| p.extension().is_some_and(|x| x == "sched"))
            .collect();
        files.sort();
        assert!(files.len() > 80);
        let both = |path| {
            let source = fs::read(path).unwrap();
            let program = text::parse(std::str::from_utf8(&source).unwrap()).unwrap();
            (source, serde_json::to_vec(&program).unwrap())
        };
        files.iter().map(both).collect()
    })
}

/// Pieces that mean something to either parser.
const PIECES: [&str; 26] = [
    "0",
    "1",
    "64",
    "4294967296",
    "9223372036854775808",
    "99999999999999999999",
    "-1",
    "pos",
    "split(1/0)",
    "split(3/2)",
    "min(5,pos)",
    "..",
    "@3",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ",",
    ":",
    "\n",
    "#",
    "instr 0",
    "NaN",
    "\u{0}",
    "\u{1F600}",
];

fn mutated(mut bytes: Vec<u8>, edits: &[(usize, u8, usize)]) -> Vec<u8> {
    for &(at, how, other) in edits {
        let n = bytes.len().max(1);
        let (at, other) = (at % n, other % n);
        match how % 8 {
            0 if !bytes.is_empty() => bytes[at] = other as u8,
            1 if !bytes.is_empty() => drop(bytes.remove(at)),
            2 => {
                let piece = PIECES[other % PIECES.len()].as_bytes();
                bytes.splice(at.min(bytes.len())..at.min(bytes.len()), piece.iter().copied());
            }
            3 => bytes.truncate(at),
            4 => {
                let (lo, hi) = (at.min(other), at.max(other).min(bytes.len()));
                let part = bytes[lo..hi].to_vec();
                bytes.splice(lo..lo, part);
            }
            5 => {
                let (lo, hi) =
                    (at.min(other), at.max(other).min(bytes.len()).min(at.min(other) + 40));
                bytes.drain(lo..hi.max(lo));
            }
            6 => {
                // A number becomes another.
                let digit = |b: &u8| b.is_ascii_digit();
                if let Some(lo) = bytes.iter().skip(at).position(digit).map(|i| i + at) {
                    let end =
                        bytes[lo..].iter().position(|b| !digit(b)).map_or(bytes.len(), |i| lo + i);
                    let piece = PIECES[other % 7].as_bytes();
                    bytes.splice(lo..end, piece.iter().copied());
                }
            }
            _ if !bytes.is_empty() => bytes[at] ^= 1 << (other % 8),
            _ => {}
        }
    }
    bytes
}

/// Reads and judges; an error must be a sentence of bounded length.
fn judge(bytes: &[u8], json: bool) -> Result<(), TestCaseError> {
    let program: Program = if json {
        match serde_json::from_slice(bytes) {
            Ok(p) => p,
            Err(e) => {
                prop_assert!(!e.to_string().is_empty());
                return Ok(());
            }
        }
    } else {
        let Ok(source) = std::str::from_utf8(bytes) else { return Ok(()) };
        match text::parse(source) {
            Ok(p) => p,
            Err(e) => {
                prop_assert!(!e.message.is_empty() && e.line >= 1 && e.column >= 1);
                return Ok(());
            }
        }
    };
    let target = amk::target::resolve("h200").unwrap().target;
    let report = check(&program, &target);
    prop_assert_eq!(report.ok, report.faults.is_empty() && report.skipped.is_empty());
    if report.ok {
        // What is accepted can be written and read back.
        prop_assert_eq!(&text::parse(&text::print(&program)).unwrap(), &program);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn broken_files_get_a_sentence_or_a_verdict(
        seed in any::<prop::sample::Index>(),
        json in any::<bool>(),
        edits in prop::collection::vec((any::<usize>(), any::<u8>(), any::<usize>()), 1..6),
    ) {
        let (source, as_json) = seed.get(seeds());
        let bytes = mutated(if json { as_json.clone() } else { source.clone() }, &edits);
        judge(&bytes, json)?;
    }

    #[test]
    fn noise_gets_a_sentence(bytes in prop::collection::vec(any::<u8>(), 0..300), json in any::<bool>()) {
        judge(&bytes, json)?;
        let header = [b"amk-schedule 1\n".to_vec(), bytes].concat();
        judge(&header, false)?;
    }
}
