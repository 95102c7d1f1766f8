//! Runs every foreign client, in every era it speaks, over both transports, against scripted servers of both eras.
//!
//! The servers behind the gateway are mocks, because only mocks can report whether a cancellation arrived. Every run has
//! its own gateway, because a client changes the list of tools. Over stdio the client starts the gateway itself.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::Installed;
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, command, drive, leftovers, mark};

/// A driver in `foreign/clients` or `crates/foreign`, and the eras that its SDK speaks.
pub(super) struct Driver {
    pub(super) name: &'static str,
    pub(super) eras: &'static [&'static str],
    pub(super) program: fn(&Installed) -> Command,
}

const BOTH: &[&str] = &["legacy", "modern"];

pub(super) const DRIVERS: [Driver; 5] = [
    Driver { name: "TypeScript SDK v1", eras: &["legacy"], program: |at| script(at, "ts-v1.mjs") },
    Driver { name: "TypeScript SDK v2", eras: BOTH, program: |at| script(at, "ts-v2.mjs") },
    Driver { name: "Inspector CLI", eras: BOTH, program: |at| script(at, "inspector.mjs") },
    Driver { name: "Python SDK", eras: BOTH, program: python },
    Driver { name: "rmcp", eras: BOTH, program: |at| command(at.rmcp_client()) },
];

/// Runs all drivers once.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    let mark = mark("clients");
    for driver in &DRIVERS {
        for era in driver.eras {
            for transport in ["http", "stdio"] {
                let name = format!("{} · {era} · {transport}", driver.name);
                // A file of its own: clients of the same file share a gateway, and one of the tools changes its server.
                let config = write_config(installed, &mark, &name)?;
                let log = installed.logs().join(format!("{name}.log"));
                let gateway = match transport {
                    "http" => Some(Gateway::start(&installed.gateway(), &config, &mark, &log)?),
                    _ => None,
                };
                let order = json!({
                    "transport": transport,
                    "era": era,
                    "url": gateway.as_ref().map_or("", |gateway| &gateway.url),
                    "command": installed.gateway(),
                    "args": ["serve", "--stdio", "--config", config],
                    // A home of its own: a list that was saved under another client would have its new tools.
                    "env": {MARK: mark, "XDG_STATE_HOME": installed.logs().join(format!("{name}.state"))},
                });
                let told = drive(&name, (driver.program)(installed).env(MARK, &mark), &order, &log)?;
                outcomes.clients.told(driver.name, era, transport, told);
                if let Some(gateway) = gateway {
                    outcomes.processes.push(gateway.terminate()?);
                }
            }
        }
    }
    outcomes.processes.push(Outcome::of("all clients", "leave no process", &leftovers(&mark)));
    Ok(())
}

fn script(installed: &Installed, name: &str) -> Command {
    let mut driver = command(installed.node());
    driver.arg(installed.npm().join("clients").join(name));
    driver
}

fn python(installed: &Installed) -> Command {
    let mut driver = command(installed.python("python"));
    driver.arg(installed.npm().join("clients/python_client.py"));
    driver
}

/// Writes a configuration with one server of each era. Its gateway ends with its last client.
fn write_config(installed: &Installed, mark: &str, name: &str) -> Result<PathBuf> {
    let server = |name: &str, era: &str| {
        let script = json!({"era": era, "tools": tools()}).to_string();
        // In TOML, a text between single quotes is taken as it is.
        let command = Value::from(installed.mock().display().to_string());
        format!(
            "[servers.{name}]\ncommand = {command}\nenv = {{ MOCK_SCRIPT = '{script}', {MARK} = '{mark}' }}\n"
        )
    };
    let servers = [server("old", "legacy"), server("new", "modern")].concat();
    let file = installed.scratch().join(format!("{name}.toml"));
    fs::write(&file, format!("[gateway]\nlinger_ms = 0\n{servers}"))
        .with_context(|| format!("{} could not be written", file.display()))?;
    Ok(file)
}

/// The tools that the drivers expect of every mock.
fn tools() -> Value {
    // The TypeScript SDKs drop a progress notification that they read together with the answer, with or without a gateway.
    // The pause is long enough for a client on a busy machine to read the two separately.
    let pause = json!({"delay": {"ms": 250, "then": {"text": "done"}}});
    json!([
        {
            "name": "echo",
            "description": "Gives its arguments back.",
            "input_schema": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
            "behaviour": "echo",
        },
        {"name": "slow", "behaviour": {"progress": {"steps": 3, "every_ms": 50, "then": pause}}},
        {"name": "hang", "behaviour": {"progress": {"steps": 1, "every_ms": 20, "then": "hang"}}},
        {"name": "fail", "behaviour": {"is_error": "the tool failed"}},
        {
            "name": "refuse",
            "behaviour": {
                "error": {"code": 1234, "message": "not today", "data": {"reason": "a rule of the server"}},
            },
        },
        {"name": "cancelled", "behaviour": "report_cancelled"},
        {"name": "grow", "behaviour": {"add_tool": {"name": "grown"}}},
    ])
}
