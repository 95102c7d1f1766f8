//! Starts the gateway and the echo server, puts load on both and prints what it cost.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to the person who started it"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bridgehead_bench::plan::{Form, Plan};

const HELP: &str = "\
Measures the gateway against the server behind it.

Usage: bench --gateway FILE --upstream FILE [OPTIONS]

Options:
  --gateway FILE    the program `bridgehead`
  --upstream FILE   the program `echo-upstream`
  --full            measures for many minutes; without, for two
  --brief           measures for seconds: enough to see that everything runs, not to judge anything
  --threads N       worker threads of the gateway, in place of its default
  --only TEXT       only loads and parts whose name holds it, such as `call, modern, 64`, `restart`,
                    `many upstreams`, `twenty upstreams`, `upstream memory`, `shim`, `isolated call`,
                    `start of a large gateway`, `kill of a large tree` or `audit verify`
  --json FILE       also writes the figures to this file
  --enforce         fails if a bar is missed
";

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all went as it should.
fn run() -> Result<bool> {
    let (mut gateway, mut upstream, mut form, mut threads) = (None, None, Form::Short, None);
    let (mut only, mut file, mut enforce) = (None, None, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--gateway" => gateway = Some(PathBuf::from(value()?)),
            "--upstream" => upstream = Some(PathBuf::from(value()?)),
            "--full" => form = Form::Full,
            "--brief" => form = Form::Brief,
            "--threads" => threads = Some(value()?.parse().context("`--threads` needs a number")?),
            "--only" => only = Some(value()?),
            "--json" => file = Some(PathBuf::from(value()?)),
            "--enforce" => enforce = true,
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            unknown => bail!("there is no option `{unknown}`\n\n{HELP}"),
        }
    }
    let plan = Plan {
        gateway: gateway.context("`--gateway FILE` is needed")?,
        upstream: upstream.context("`--upstream FILE` is needed")?,
        form,
        threads,
        only,
    };
    let findings = plan.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", findings.table());
    if let Some(file) = file {
        let text = serde_json::to_string_pretty(&findings.to_json())?;
        std::fs::write(&file, text + "\n").with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    Ok(!enforce || findings.bars().iter().all(|bar| bar.holds()))
}
