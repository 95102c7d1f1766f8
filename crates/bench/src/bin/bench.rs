//! Starts the gateway and the echo server, puts load on both and prints what the gateway costs.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to the person who started it"
)]

use std::process::ExitCode;

use anyhow::{Context, Result};
use bridgehead_bench::arguments::{Arguments, write_figures};
use bridgehead_bench::ending;
use bridgehead_bench::plan::{Form, Plan};

const HELP: &str = "\
Measures the gateway against direct calls to the server behind it.

Usage: bench --gateway FILE --upstream FILE [OPTIONS]

Options:
  --gateway FILE    the program `bridgehead`
  --upstream FILE   the program `echo-upstream`
  --full            measures for many minutes; the default is two
  --brief           measures for seconds: enough to see that everything runs, too short to judge anything
  --threads N       worker threads of the gateway, instead of its default
  --only TEXT       only loads and parts whose name contains it, such as `call, modern, 64`, `restart`,
                    `many upstreams`, `twenty upstreams`, `upstream memory`, `shim`, `isolated call`,
                    `start of a large gateway`, `kill of a large tree` or `audit verify`
  --json FILE       also writes the figures to this file
  --enforce         fails if a bar is missed
";

fn main() -> ExitCode {
    let outcome = run();
    ending::wait_if_ended();
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Returns false if a bar is missed and `--enforce` is given.
fn run() -> Result<bool> {
    let (mut gateway, mut upstream, mut form, mut threads) = (None, None, Form::Short, None);
    let (mut only, mut file, mut enforce) = (None, None, false);
    let mut arguments = Arguments::new(HELP);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "--gateway" => gateway = Some(arguments.path()?),
            "--upstream" => upstream = Some(arguments.path()?),
            "--full" => form = Form::Full,
            "--brief" => form = Form::Brief,
            "--threads" => threads = Some(arguments.number()?),
            "--only" => only = Some(arguments.text()?),
            "--json" => file = Some(arguments.path()?),
            "--enforce" => enforce = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            _ => return arguments.unknown(),
        }
    }
    let plan = Plan {
        gateway: gateway.context("`--gateway FILE` is needed")?,
        upstream: upstream.context("`--upstream FILE` is needed")?,
        form,
        threads,
        only,
    };
    ending::on_signals()?;
    let findings = plan.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", findings.table());
    write_figures(file.as_deref(), &findings.to_json())?;
    Ok(!enforce || findings.bars().iter().all(|bar| bar.holds()))
}
