//! A minimal MCP server over HTTP to measure against: `echo-upstream --http ADDR [--tools N]`.

#![expect(clippy::print_stderr, reason = "a program talks to the person who started it")]

use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bridgehead_bench::echo::Echo;
use bridgehead_bench::serve;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

const HELP: &str = "\
A minimal MCP server over HTTP to measure against: the tool `echo`, and N generated tools.

Usage: echo-upstream --http ADDR [--tools N]
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
    let (mut address, mut tools) = (None::<SocketAddr>, 0_usize);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--http" => address = Some(value()?.parse().context("`--http` needs an address and a port")?),
            "--tools" => tools = value()?.parse().context("`--tools` needs a number")?,
            unknown => bail!("there is no option `{unknown}`"),
        }
    }
    let echo = Echo::new(tools);
    let address = address.context("`--http ADDR` is needed")?;
    // One thread: the other core belongs to the load generator.
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let served = LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind(address).await?;
        serve::http(echo, listener).await
    });
    match served {
        Ok(never) => match never {},
        Err(error) => Err(error).with_context(|| format!("cannot serve on {address}")),
    }
}
