//! The same minimal MCP server as `echo-upstream`, on stdin and stdout: `echo-stdio [--tools N]`.
//!
//! It is a separate program because it also represents the server that starts fastest: without a runtime and an HTTP
//! stack it loads in less time.

#![expect(clippy::print_stderr, reason = "a program talks to the person who started it")]

use std::io;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bridgehead_bench::echo::Echo;
use bridgehead_bench::serve;

const HELP: &str = "\
A minimal MCP server on stdin and stdout to measure against: the tool `echo`, and N generated tools.

Usage: echo-stdio [--tools N]
";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}\n\n{HELP}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let tools = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => 0,
        (Some("--tools"), Some(count)) => count.parse().context("`--tools` needs a number")?,
        (Some(unknown), _) => bail!("there is no option `{unknown}`, or it lacks its value"),
    };
    Ok(serve::lines(&Echo::new(tools), io::stdin().lock(), io::stdout().lock())?)
}
