//! The `amk` command line. `cli` holds one file per command, `output` what they print with; all the
//! work is done by the library.

mod cli;
mod output;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
