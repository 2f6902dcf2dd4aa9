//! The command line: one file per command, each with its arguments and its `run`.
//!
//! `failure` says how a command ends without an answer. Exit codes: 0 success, 1 the answer is no (rejected,
//! mismatch), 2 wrong use, bad input or an unsupported model, 3 environment (no driver, no compiler).
//! Nothing is loaded before a command needs it, so that `amk --help` and completions answer at once.

mod autoresearch;
mod bench;
mod chat;
mod check;
mod compile;
mod completions;
mod device;
mod diagnose;
mod doctor;
mod evaluate;
mod failure;
mod files;
mod fuzz;
mod generate;
mod import;
mod inspect;
mod journal;
mod live;
mod mcp;
mod model;
mod place;
mod program;
mod sampling;
mod toolchain;
mod trace;
mod validate;
mod verify;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::output::{Color, Output};
use failure::Failure;

/// Compiles a Llama-family checkpoint into one persistent CUDA kernel whose schedule is proved free
/// of deadlock and races before launch.
#[derive(Parser)]
#[command(name = "amk", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 success; 1 the answer is no (rejected, mismatch); 2 wrong use, bad input or an
unsupported model; 3 environment (no driver, no compiler).")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Args)]
struct Global {
    /// Print JSON documents, one a line, instead of text.
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,
    /// Leave out details, notes and progress.
    #[arg(long, short, global = true, help_heading = "Global options")]
    quiet: bool,
    /// Whether to colour; auto is on a terminal, unless NO_COLOR is set.
    #[arg(
        long,
        global = true,
        value_enum,
        value_name = "WHEN",
        default_value_t,
        help_heading = "Global options"
    )]
    color: Color,
}

#[derive(Subcommand)]
enum Command {
    Compile(compile::CompileArgs),
    Generate(generate::GenerateArgs),
    Chat(chat::ChatArgs),
    Verify(verify::VerifyArgs),
    Bench(bench::BenchArgs),
    Trace(trace::TraceArgs),
    Autoresearch(autoresearch::AutoresearchArgs),
    Journal(journal::JournalArgs),
    Evaluate(evaluate::EvaluateArgs),
    Mcp(mcp::McpArgs),
    Diagnose(diagnose::DiagnoseArgs),
    Validate(validate::ValidateArgs),
    Check(check::CheckArgs),
    Fuzz(fuzz::FuzzArgs),
    Import(import::ImportArgs),
    Inspect(inspect::InspectArgs),
    Doctor(doctor::DoctorArgs),
    Toolchain(toolchain::ToolchainArgs),
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Will a CUDA device be used, as far as that is known beforehand? Then a parent process watches.
    fn uses_device(&self) -> bool {
        let device = match self {
            Command::Generate(args) => args.device,
            Command::Verify(args) => args.device,
            // A campaign's children are watched by the campaign.
            Command::Evaluate(_) if std::env::var_os(amk::search::child::VARIABLE).is_some() => {
                return false;
            }
            Command::Evaluate(_) => generate::Device::Auto,
            Command::Bench(_) | Command::Trace(_) | Command::Diagnose(_) => generate::Device::Cuda,
            _ => return false,
        };
        matches!(device, generate::Device::Cuda | generate::Device::Auto)
            && device::driver_is_there()
    }
}

/// What a command that ran to its end found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Yes = 0,
    No = 1,
    /// The question was what a model is, and it is refused.
    Refused = 2,
    /// The question was about this machine, and it lacks something.
    Environment = 3,
}

impl Verdict {
    fn of(ok: bool) -> Self {
        if ok { Verdict::Yes } else { Verdict::No }
    }
}

type Outcome = Result<Verdict, Failure>;

/// Parses the process's arguments, runs the command and says how it went.
pub fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        Err(error) => return usage(&error, &args),
    };
    log_to_stderr();
    let out = Output::new(cli.global.json, cli.global.quiet, cli.global.color);
    if cli.command.uses_device()
        && let Some(ended) = device::watched(&out)
    {
        return ended.map_or_else(
            |failure| {
                failure.report(&out);
                ExitCode::from(failure.code())
            },
            ExitCode::from,
        );
    }
    match dispatch(cli.command, &out) {
        Ok(verdict) => ExitCode::from(verdict as u8),
        Err(failure) => {
            failure.report(&out);
            ExitCode::from(failure.code())
        }
    }
}

fn dispatch(command: Command, out: &Output) -> Outcome {
    match command {
        Command::Compile(args) => compile::run(&args, out),
        Command::Generate(args) => generate::run(&args, out),
        Command::Chat(args) => chat::run(&args, out),
        Command::Verify(args) => verify::run(&args, out),
        Command::Bench(args) => bench::run(&args, out),
        Command::Trace(args) => trace::run(&args, out),
        Command::Autoresearch(args) => autoresearch::run(&args, out),
        Command::Journal(args) => journal::run(&args, out),
        Command::Evaluate(args) => evaluate::run(&args, out),
        Command::Mcp(args) => mcp::run(&args, out),
        Command::Diagnose(args) => diagnose::run(&args, out),
        Command::Validate(args) => validate::run(&args, out),
        Command::Check(args) => check::run(&args, out),
        Command::Fuzz(args) => fuzz::run(&args, out),
        Command::Import(args) => import::run(&args, out),
        Command::Inspect(args) => inspect::run(&args, out),
        Command::Doctor(args) => doctor::run(args, out),
        Command::Toolchain(args) => toolchain::run(args, out),
        Command::Completions(args) => completions::run(&args),
    }
}

/// Help and version are answers; everything else is wrong use, in JSON too where that was asked for.
fn usage(error: &clap::Error, args: &[OsString]) -> ExitCode {
    if !error.use_stderr() {
        // A closed pipe is the reader's choice.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let json = args.iter().skip(1).take_while(|a| *a != "--").any(|a| a == "--json");
    if json {
        let text = error.render().to_string();
        let message = text.trim().trim_start_matches("error: ");
        Failure::input(message).report(&Output::new(true, true, Color::Never));
    } else {
        let _ = error.print();
    }
    ExitCode::from(2)
}

/// `AMK_LOG=debug` shows what the library logs; without it warnings alone are shown.
fn log_to_stderr() {
    let filter = EnvFilter::try_from_env("AMK_LOG").unwrap_or_else(|_| EnvFilter::new("off"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .init();
}

/// The command definition, for completions and help tests.
fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_consistent() {
        command().debug_assert();
    }

    /// The `amk ...` lines of a command's examples.
    fn examples(command: &clap::Command) -> Vec<String> {
        let text = command.get_after_help().map(|t| t.to_string()).unwrap_or_default();
        text.lines().map(str::trim).filter(|l| l.starts_with("amk ")).map(str::to_owned).collect()
    }

    /// Splits as a shell does, for words and double quotes.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        let mut quoted = false;
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words.retain(|w| !w.is_empty());
        words
    }

    fn check_examples(command: &clap::Command) {
        let leaf = command.get_subcommands().next().is_none();
        let found = examples(command);
        assert!(!leaf || !found.is_empty(), "`{}` has no examples", command.get_name());
        for line in found {
            let line = line.split(" > ").next().unwrap().split(" | ").next().unwrap();
            if let Err(error) = Cli::try_parse_from(words(line)) {
                panic!("`{line}` does not parse: {error}");
            }
        }
        command.get_subcommands().filter(|c| c.get_name() != "help").for_each(check_examples);
    }

    #[test]
    fn every_example_parses_and_every_command_has_one() {
        check_examples(&command());
    }
}
