//! Completion scripts.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::support::run;

#[test]
fn there_is_a_script_for_every_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(&["completions", shell]).exits(0).out;
        assert!(script.contains("completions"), "{shell}: {script}");
    }
}

#[test]
fn bash_accepts_its_script() {
    let script = run(&["completions", "bash"]).exits(0).out;
    let mut bash =
        Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().expect("bash is there");
    bash.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(bash.wait().unwrap().success());
}
