//! Counts the instructions of one relayed call and prints them as JSON.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to the person who started it"
)]

use std::process::ExitCode;

use anyhow::{Context, Result};
use bridgehead_bench::arguments::Arguments;
use bridgehead_bench::count::{Count, to_json};
use bridgehead_bench::ending;

const HELP: &str = "\
Counts the instructions that one relayed call takes in the gateway. Needs valgrind.

Usage: count --gateway FILE --upstream FILE [--only TEXT]

Options:
  --gateway FILE    the program `bridgehead`
  --upstream FILE   the program `echo-upstream`
  --only TEXT       only calls whose name contains it, such as `modern, stdio` or `audit`
";

fn main() -> ExitCode {
    let outcome = run();
    ending::wait_if_ended();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let (mut gateway, mut upstream, mut only) = (None, None, None);
    let mut arguments = Arguments::new(HELP);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "--gateway" => gateway = Some(arguments.path()?),
            "--upstream" => upstream = Some(arguments.path()?),
            "--only" => only = Some(arguments.text()?),
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(());
            }
            _ => return arguments.unknown(),
        }
    }
    let count = Count {
        gateway: gateway.context("`--gateway FILE` is needed")?,
        upstream: upstream.context("`--upstream FILE` is needed")?,
        only,
    };
    ending::on_signals()?;
    let figures = count.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", to_json(&figures));
    Ok(())
}
