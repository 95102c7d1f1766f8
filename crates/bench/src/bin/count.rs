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
use bridgehead_bench::{ending, principals};

const HELP: &str = "\
Counts the instructions that one relayed call takes in the gateway. Needs valgrind.

Usage: count --gateway FILE --upstream FILE [--only TEXT | --principals]

Options:
  --gateway FILE    the program `bridgehead`
  --upstream FILE   the program `echo-upstream`
  --only TEXT       only calls whose name contains it, such as `modern, stdio` or `audit`
  --principals      times the first list of a class of principals, and the memory of each principal, instead
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
    let (mut gateway, mut upstream, mut only, mut many) = (None, None, None, false);
    let mut arguments = Arguments::new(HELP);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "--gateway" => gateway = Some(arguments.path()?),
            "--upstream" => upstream = Some(arguments.path()?),
            "--only" => only = Some(arguments.text()?),
            "--principals" => many = true,
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
    if many {
        println!("{}", principals::run(&count.gateway, &count.upstream)?.to_json());
        return Ok(());
    }
    let figures = count.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", to_json(&figures));
    Ok(())
}
