//! The sources that decide verdicts do not change unnoticed: `validator/FROZEN` holds their hash.

use std::fs;
use std::path::{Path, PathBuf};

use amk_schedule_ir::hash::{hex, sha256};

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|x| x == "rs") {
            out.push(path);
        }
    }
}

#[test]
fn the_sources_that_decide_verdicts_are_pinned() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut files = Vec::new();
    // Semantics, footprints and region algebra with the form that is hashed; the checks.
    for dir in ["schedule_ir/src", "validator/src"] {
        sources(&root.join(dir), &mut files);
    }
    files.sort();
    let mut bytes = Vec::new();
    for file in &files {
        let name = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        let text = fs::read(file).unwrap();
        bytes.extend_from_slice(format!("{name} {}\n", text.len()).as_bytes());
        bytes.extend_from_slice(&text);
    }
    let found = hex(&sha256(&bytes));
    let pinned = fs::read_to_string(root.join("validator/FROZEN")).unwrap();
    assert_eq!(
        pinned.trim(),
        found,
        "the sources that decide verdicts have changed: repeat the fuzz and small-scope figures, say what \
         changed in the changelog, and move the pin by writing {found} into validator/FROZEN"
    );
}

#[test]
fn the_figures_are_about_the_pin() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pinned = fs::read_to_string(folder.join("FROZEN")).unwrap();
    assert_eq!(amk_validator::PIN, pinned.trim());
    for name in ["fuzz-1m.json", "small-scope.json"] {
        let text = fs::read_to_string(folder.join("results").join(name)).unwrap();
        let results: serde_json::Value = serde_json::from_str(&text).unwrap();
        let about = results["pin"].as_str().unwrap_or("no pin at all");
        assert_eq!(
            about,
            pinned.trim(),
            "validator/results/{name} is about {about}: repeat the run on this pin"
        );
    }
}
