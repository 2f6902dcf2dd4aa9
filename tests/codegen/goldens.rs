//! The text, byte for byte.

use std::path::Path;

use amk::codegen::{RenderOptions, render};
use amk::target::default_targets;

use crate::support::kernels;

/// Writes a golden file: beside it first, then renamed.
fn bless(path: &Path, text: &str) {
    let folder = path.parent().unwrap();
    std::fs::create_dir_all(folder).unwrap();
    let mut file = tempfile::NamedTempFile::new_in(folder).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file.persist(path).unwrap();
}

/// The first line that differs, with its number.
fn difference(want: &str, have: &str) -> String {
    let mut lines = want.lines().zip(have.lines()).enumerate();
    match lines.find(|(_, (w, h))| w != h) {
        Some((n, (w, h))) => format!("line {}:\n  golden   {w}\n  rendered {h}", n + 1),
        None => format!("{} bytes against {}", want.len(), have.len()),
    }
}

#[test]
fn rendered_text_equals_the_golden_files() {
    let blessing = std::env::var_os("AMK_BLESS").is_some_and(|v| v == "1");
    let mut wrong = Vec::new();
    for kernel in kernels() {
        if blessing {
            bless(&kernel.path(), &kernel.source.text);
        }
        let golden = kernel.golden_text();
        if golden != kernel.source.text {
            let at = difference(&golden, &kernel.source.text);
            wrong.push(format!("{}: {at}", kernel.golden));
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\nIf the change is meant: AMK_BLESS=1 cargo test --release --test codegen golden, then look at the diff.",
        wrong.join("\n")
    );
}

#[test]
fn no_golden_file_is_left_over() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let wanted: Vec<_> = kernels().iter().map(|k| k.path()).collect();
    for entry in std::fs::read_dir(root.join("tests/goldens")).unwrap() {
        let folder = entry.unwrap().path();
        if !folder.is_dir() {
            continue;
        }
        for file in std::fs::read_dir(&folder).unwrap().map(|f| f.unwrap().path()) {
            let source = file.extension().is_some_and(|e| e == "cu");
            assert!(!source || wanted.contains(&file), "no test makes {}", file.display());
        }
    }
}

#[test]
fn text_is_self_contained_and_the_same_every_time() {
    let targets = default_targets();
    for kernel in kernels() {
        let text = &kernel.source.text;
        assert!(!text.contains("#include"), "{}", kernel.golden);
        assert!(
            text.is_ascii() && !text.contains("{{") && !text.contains("{%"),
            "{}",
            kernel.golden
        );
        let target = targets.iter().find(|t| t.sm == kernel.source.sm).unwrap();
        let again = render(&kernel.program, target, RenderOptions::default()).unwrap();
        assert_eq!(again.text, *text, "{}", kernel.golden);
        let traced = render(
            &kernel.program,
            target,
            RenderOptions { trace: true, ..RenderOptions::default() },
        )
        .unwrap();
        assert_ne!(traced.text, *text, "{}", kernel.golden);
    }
}
