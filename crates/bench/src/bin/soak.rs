//! Harms the servers of a gateway in many cycles and prints the findings.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to the person who started it"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bridgehead_bench::arguments::{Arguments, write_figures};
use bridgehead_bench::ending;
use bridgehead_bench::soak::{Soak, Victim};
use serde_json::json;

const HELP: &str = "\
Harms the servers of a gateway again and again, and checks that nothing leaks or is left behind.

Usage: soak --gateway FILE --mock FILE [OPTIONS]

Options:
  --gateway FILE    the program `bridgehead`
  --mock FILE       the program `mock-upstream`
  --everything DIR  also starts `server-everything` with `npx`, from this folder where it is installed
  --node DIR        the folder of the Node for it, if it is not in the PATH
  --cycles N        how often a server is harmed; the default is 50
  --kills N         how often the gateway itself is killed under load, and its record checked; the default is 5
  --calls N         how many calls run in a process tree each; the default is 500
  --full            1000 cycles, 50 kills and 10000 calls
  --json FILE       also writes the figures to this file
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

/// Returns whether there are no complaints.
fn run() -> Result<bool> {
    let (mut gateway, mut mock, mut everything, mut node) = (None, None, None, None);
    let (mut cycles, mut kills, mut calls, mut file) = (50, 5, 500, None);
    let mut arguments = Arguments::new(HELP);
    while let Some(option) = arguments.option() {
        match option.as_str() {
            "--gateway" => gateway = Some(arguments.path()?),
            "--mock" => mock = Some(arguments.text()?),
            "--everything" => everything = Some(arguments.path()?),
            "--node" => node = Some(arguments.text()?),
            "--cycles" => cycles = arguments.number()?,
            "--kills" => kills = arguments.number()?,
            "--calls" => calls = arguments.number()?,
            "--full" => (cycles, kills, calls) = (1000, 50, 10_000),
            "--json" => file = Some(arguments.path()?),
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            _ => return arguments.unknown(),
        }
    }
    let mock = mock.context("`--mock FILE` is needed")?;
    let mut victims = vec![Victim::mock(&mock, "modern"), Victim::mock(&mock, "legacy")];
    victims.extend(everything.map(|folder| server_everything(folder, node)));
    let soak =
        Soak { gateway: gateway.context("`--gateway FILE` is needed")?, victims, cycles, kills, calls };
    ending::on_signals()?;
    let findings = soak.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", findings.table());
    write_figures(file.as_deref(), &findings.to_json())?;
    let complaints = findings.complaints();
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    Ok(complaints.is_empty())
}

/// `server-everything` as `npx` starts it: npm, a shell and a Node server, three loosely coupled processes.
fn server_everything(folder: PathBuf, node: Option<String>) -> Victim {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = node.map_or_else(|| path.clone(), |node| format!("{node}:{path}"));
    Victim {
        name: "everything".to_owned(),
        command: "npx".to_owned(),
        args: ["--no-install", "mcp-server-everything"].map(str::to_owned).to_vec(),
        env: vec![("PATH".to_owned(), path)],
        cwd: Some(folder),
        prompt: ("echo".to_owned(), json!({"message": "across"}), "Echo: across".to_owned()),
        slow: ("trigger-long-running-operation".to_owned(), json!({"duration": 1, "steps": 2})),
        offspring: None,
    }
}
