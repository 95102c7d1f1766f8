//! A minimal MCP server to measure against: `echo-upstream (--stdio | --http ADDR) [--tools N]`.

#![expect(clippy::print_stderr, reason = "a program talks to the person who started it")]

use std::io;
use std::net::SocketAddr;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bridgehead_bench::echo::Echo;
use bridgehead_bench::serve;
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

const HELP: &str = "\
A minimal MCP server to measure against: the tool `echo`, and as many others as are asked for.

Usage: echo-upstream (--stdio | --http ADDR) [--tools N]
";

enum Mode {
    Stdio,
    Http(SocketAddr),
}

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
    let (mut mode, mut tools) = (None, 0_usize);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--stdio" => mode = Some(Mode::Stdio),
            "--http" => {
                mode = Some(Mode::Http(value()?.parse().context("`--http` needs an address and a port")?));
            }
            "--tools" => tools = value()?.parse().context("`--tools` needs a number")?,
            unknown => bail!("there is no option `{unknown}`"),
        }
    }
    let echo = Echo::new(tools);
    match mode.context("one of `--stdio` and `--http ADDR` is needed")? {
        Mode::Stdio => Ok(serve::lines(&echo, io::stdin().lock(), io::stdout().lock())?),
        Mode::Http(address) => {
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
    }
}
