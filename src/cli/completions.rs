//! `amk completions`: a completion script on standard output.

use std::io::Write;

use clap::Args;
use clap_complete::Shell;

use super::{Failure, Outcome, Verdict};

/// Print a shell completion script.
#[derive(Args)]
#[command(after_help = "\
Examples:
  amk completions bash > ~/.local/share/bash-completion/completions/amk
  amk completions fish > ~/.config/fish/completions/amk.fish")]
pub struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub fn run(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::command(), "amk", &mut script);
    match std::io::stdout().write_all(&script) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::environment(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(Verdict::Yes),
    }
}
