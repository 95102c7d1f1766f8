//! The `bridgehead` program: reads the command line and the environment, runs one verb, exits with its code.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
