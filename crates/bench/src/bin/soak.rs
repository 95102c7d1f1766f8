//! Puts the gateway through cycles of harm to its servers and prints what was seen.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program talks to the person who started it"
)]

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bridgehead_bench::soak::{Soak, Victim};
use serde_json::json;

const HELP: &str = "\
Harms the servers of a gateway again and again, and looks at what is left.

Usage: soak --gateway FILE --mock FILE [OPTIONS]

Options:
  --gateway FILE    the program `bridgehead`
  --mock FILE       the program `mock-upstream`
  --everything DIR  also `server-everything`, which is installed in this folder, by `npx`
  --node DIR        where the Node for it is, if not in the path
  --cycles N        how often a server is harmed; 50 without
  --kills N         how often the gateway itself is killed under load, and its record checked; 5 without
  --calls N         how many calls have a process tree each; 500 without
  --full            1000 cycles, 50 kills and 10000 calls
  --json FILE       also writes the figures to this file
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
    let (mut gateway, mut mock, mut everything, mut node) = (None, None, None, None);
    let (mut cycles, mut kills, mut calls, mut file) = (50, 5, 500, None);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().with_context(|| format!("`{argument}` needs a value"));
        match argument.as_str() {
            "--gateway" => gateway = Some(PathBuf::from(value()?)),
            "--mock" => mock = Some(value()?),
            "--everything" => everything = Some(PathBuf::from(value()?)),
            "--node" => node = Some(value()?),
            "--cycles" => cycles = value()?.parse().context("`--cycles` needs a number")?,
            "--kills" => kills = value()?.parse().context("`--kills` needs a number")?,
            "--calls" => calls = value()?.parse().context("`--calls` needs a number")?,
            "--full" => (cycles, kills, calls) = (1000, 50, 10_000),
            "--json" => file = Some(PathBuf::from(value()?)),
            "--help" | "-h" => {
                print!("{HELP}");
                return Ok(true);
            }
            unknown => bail!("there is no option `{unknown}`\n\n{HELP}"),
        }
    }
    let mock = mock.context("`--mock FILE` is needed")?;
    let mut victims = vec![Victim::mock(&mock, "modern"), Victim::mock(&mock, "legacy")];
    victims.extend(everything.map(|folder| server_everything(folder, node)));
    let soak =
        Soak { gateway: gateway.context("`--gateway FILE` is needed")?, victims, cycles, kills, calls };
    let findings = soak.run(&mut |line| eprintln!("{line}"))?;
    println!("{}", findings.table());
    if let Some(file) = file {
        let text = serde_json::to_string_pretty(&findings.to_json())?;
        std::fs::write(&file, text + "\n").with_context(|| format!("cannot write `{}`", file.display()))?;
    }
    let complaints = findings.complaints();
    complaints.iter().for_each(|complaint| println!("{complaint}"));
    Ok(complaints.is_empty())
}

/// npm, a shell and a server in Node: three processes that know little of each other.
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
