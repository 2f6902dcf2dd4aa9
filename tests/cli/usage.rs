//! Wrong use, help and versions.

use crate::support::{amk, finish, run};

const COMMANDS: &[&str] = &[
    "compile",
    "generate",
    "verify",
    "validate",
    "check",
    "inspect",
    "doctor",
    "toolchain",
    "completions",
];

#[test]
fn every_command_has_help_with_examples() {
    for command in COMMANDS {
        for args in [vec![*command, "--help"], vec!["help", command]] {
            let help = run(&args).exits(0);
            assert!(help.out.contains("Examples:"), "{command}: {}", help.out);
            assert!(help.out.contains(&format!("amk {command}")), "{command}: {}", help.out);
            assert!(help.out.lines().all(|l| l.chars().count() <= 100), "{command}: {}", help.out);
        }
    }
}

#[test]
fn top_level_help_names_every_command_and_the_exit_codes() {
    let help = run(&["--help"]).exits(0);
    for command in COMMANDS {
        assert!(help.out.contains(&format!("\n  {command} ")), "{command} in {}", help.out);
    }
    assert!(help.out.contains("3 environment"));
}

#[test]
fn version_is_the_packages() {
    let version = run(&["--version"]).exits(0);
    assert_eq!(version.out, format!("amk {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn wrong_use_is_two() {
    run::<&str>(&[]).exits(2);
    run(&["frobnicate"]).exits(2).says(&["unrecognized subcommand 'frobnicate'"]);
    run(&["completions", "klingon"]).exits(2).says(&["klingon", "bash"]);
}

#[test]
fn wrong_use_is_a_document_too() {
    let run = run(&["--json", "frobnicate"]).exits(2).says(&["frobnicate"]);
    let document = run.json();
    assert_eq!(document["ok"], false);
    assert_eq!(document["error"]["kind"], "input");
    assert_eq!(document["error"]["exit_code"], 2);
    assert!(document["error"]["message"].as_str().unwrap().contains("frobnicate"));
}

#[test]
fn no_colours_when_not_a_terminal() {
    let piped = run(&["frobnicate"]);
    assert!(!piped.err.contains('\u{1b}'), "{:?}", piped.err);
    let forced = finish(amk().args(["--help"]).env("NO_COLOR", "1"));
    assert!(!forced.out.contains('\u{1b}'));
}
