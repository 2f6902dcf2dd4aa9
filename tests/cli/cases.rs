//! The faults of docs/cases.md that no other test is about, and that every test named there exists.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::support::{Run, run};

#[test]
fn every_test_named_in_the_docs_exists() {
    let text = std::fs::read_to_string("docs/cases.md").unwrap();
    let rows: Vec<&str> =
        text.lines().filter(|l| l.starts_with("| ") && l.as_bytes()[2].is_ascii_digit()).collect();
    let numbers: Vec<usize> =
        rows.iter().map(|r| r.split('|').nth(1).unwrap().trim().parse().unwrap()).collect();
    assert_eq!(numbers, (1..=40).collect::<Vec<_>>());
    for row in rows {
        let tests = row.trim_end_matches([' ', '|']).rsplit('|').next().unwrap();
        let named: Vec<&str> = tests.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{row}");
        for name in named {
            let (file, test) = name.split_once("::").unwrap_or((name, ""));
            assert!(Path::new(file).is_file(), "{file} is not there");
            if test.is_empty() {
                assert!(file.ends_with(".sched"), "{name} names no test");
                continue;
            }
            let source = std::fs::read_to_string(file).unwrap();
            let at = source.find(&format!("fn {test}("));
            let at = at.unwrap_or_else(|| panic!("{file} has no test {test}"));
            // The attribute stands on one of the lines just before.
            let before: Vec<&str> = source[..at].lines().rev().take(4).collect();
            assert!(before.iter().any(|l| l.contains("#[test]")), "{name} is no test");
        }
    }
}

/// Case 15.
#[test]
fn the_first_difference_comes_with_logits_and_margin() {
    const GOLDEN: &str = "models/default/golden.json";
    let mut golden: Value = serde_json::from_slice(&std::fs::read(GOLDEN).unwrap()).unwrap();
    let prompt = &mut golden["runs"]["f32"]["prompts"][0];
    prompt["generated_ids"][3] = 77.into();
    let margin = prompt["margin"][3].as_f64().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wrong.json");
    std::fs::write(&path, golden.to_string()).unwrap();
    let args = ["verify", "--golden", path.to_str().unwrap(), "--prompts", "1", "--json"];
    let document = run(&args).exits(1).json();
    let first = &document["files"][0]["first_mismatch"];
    assert_eq!(first["expected_token"], 77);
    assert!((first["margin"].as_f64().unwrap() - margin).abs() < 1e-6, "{first}");
    for logit in ["expected_logit", "actual_logit"] {
        assert!(first[logit].is_number(), "{logit}: {first}");
    }
}

/// Case 16.
#[test]
fn every_golden_pins_its_oracle() {
    let mut paths: Vec<_> = std::fs::read_dir("tests/goldens/hf")
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "json"))
        .collect();
    paths.push("models/default/golden.json".into());
    let pinned = std::fs::read_to_string("tools/requirements-golden.txt").unwrap();
    let mut seen = 0;
    for path in paths {
        let golden: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        let Some(runs) = golden["runs"].as_object() else { continue };
        seen += 1;
        let versions = &golden["versions"];
        for key in ["transformers", "torch", "numpy", "python"] {
            assert!(versions[key].is_string(), "{}: {key}", path.display());
        }
        let facts = (&versions["attention"], &versions["device"]);
        assert_eq!(facts, (&"eager".into(), &"cpu".into()), "{}", path.display());
        // Those of the fixtures are of one version, the one that is written down.
        let version = versions["transformers"].as_str().unwrap();
        let fixture = path.starts_with("tests");
        assert!(!fixture || pinned.contains(&format!("transformers=={version}\n")), "{version}");
        // The type is the run's name.
        assert!(
            runs.keys().all(|k| ["f32", "bf16", "f16"].contains(&k.as_str()))
                && runs.contains_key("f32")
        );
    }
    assert!(seen > 20, "{seen}");
}

/// Runs the validator over a program's text.
fn validated(text: &str) -> Run {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("made.sched");
    std::fs::write(&path, text).unwrap();
    run(&["validate", path.to_str().unwrap()])
}

/// One residual that `n` instructions on `sms` SMs update in place, one after another.
fn chain(n: usize, sms: usize) -> String {
    let mut text = format!(
        "amk-schedule 1\nname \"chain\"\ntarget sm_90a\nbucket 0..=63\ntokens 1\nsteps 8\n\
         epochs per_step 1 tags 4294967295\n\
         resources warps 4 slots 2 slot_bytes 4096 registers 64 barriers 1\n\
         buffer 0 \"x\" activation plain f32 [1, 8]\ncounter 0 \"turn\" init 0 per_step {n}\nboundary plain\n"
    );
    for sm in 0..sms {
        let _ = write!(text, "sm {sm}\n  queue");
        (sm..n).step_by(sms).for_each(|i| write!(text, " {i}").unwrap());
        let _ = writeln!(text, " {}", n + sm);
    }
    for i in 0..n {
        let _ = writeln!(text, "instr {i} opaque{{tag={}}}", i + 1);
        if i > 0 {
            text += "  reads 0[0..1, 0..8]\n";
        }
        text += "  writes 0[0..1, 0..8]\n";
        if i > 0 {
            let _ = writeln!(text, "  wait 0>={i}");
        }
        text += "  signal 0+1\n";
    }
    (0..sms).for_each(|sm| writeln!(text, "instr {} boundary{{}}", n + sm).unwrap());
    text
}

/// Case 38.
#[test]
fn residual_chains_of_any_length_are_accepted() {
    for (n, sms) in [(2, 1), (2, 2), (3, 3), (32, 4), (129, 5), (2000, 132)] {
        validated(&chain(n, sms)).exits(0);
        // One link that waits for a turn too few is a race.
        let early =
            chain(n, sms).replace(&format!("wait 0>={}\n", n - 1), &format!("wait 0>={}\n", n - 2));
        if sms > 1 && n > 2 {
            validated(&early).exits(1);
        }
    }
}

/// Case 40: the first writer has the greatest id.
#[test]
fn the_order_of_a_list_means_nothing() {
    let text = "amk-schedule 1\nname \"backwards\"\ntarget sm_90a\nbucket 0..=63\ntokens 1\nsteps 8\n\
                epochs per_step 1 tags 4294967295\n\
                resources warps 4 slots 2 slot_bytes 4096 registers 64 barriers 1\n\
                buffer 0 \"x\" activation plain f32 [1, 16]\nbuffer 1 \"y\" activation plain f32 [1, 16]\n\
                counter 0 \"x\" init 0 per_step 1\ncounter 1 \"y\" init 0 per_step 1\nboundary plain\n\
                sm 0\n  queue 2 0 3\nsm 1\n  queue 1 4\n\
                instr 0 opaque{tag=1}\n  reads 1[0..1, 0..16]\n  wait 1>=1\n\
                instr 1 opaque{tag=2}\n  reads 0[0..1, 0..16]\n  writes 1[0..1, 0..16]\n  wait 0>=1\n  signal 1+1\n\
                instr 2 opaque{tag=3}\n  writes 0[0..1, 0..16]\n  signal 0+1\n\
                instr 3 boundary{}\ninstr 4 boundary{}\n";
    validated(text).exits(0);
    validated(&text.replace("  wait 0>=1\n", "")).exits(1);
}

/// Case 36, beside `s-parameter.sched`: numbers no program can mean, put in one after another.
#[test]
fn parameters_out_of_range_are_refused() {
    let layer = std::fs::read_to_string("tests/schedules/accept/llama-layer.sched").unwrap();
    validated(&layer).exits(0);
    for (from, to) in [
        ("head_dim=16", "head_dim=15"),
        ("scale=0.25", "scale=inf"),
        ("eps=1e-5", "eps=-1"),
        ("kv_heads=1", "kv_heads=0"),
        ("splits=1", "splits=0"),
        ("inner=32", "inner=4294967296"),
        ("rows=16..32", "rows=32..16"),
        ("13[0..1, 0..32]", "13[0..1, -1..32]"),
        ("13[0..1, 0..32]", "13[0..1, 0..33]"),
        ("max_positions=64", "max_positions=9999999"),
    ] {
        assert!(layer.contains(from), "{from}");
        let run = validated(&layer.replace(from, to));
        assert!(run.code == 1 || run.code == 2, "{to}: {} {}", run.code, run.out);
        assert!(!run.err.contains("panicked"), "{to}: {}", run.err);
    }
}
