//! Runs foreign servers that ask questions, report progress, log and announce changes, with foreign clients of both eras
//! through one gateway.
//!
//! `server-everything` is reached over stdio, HTTP+SSE and streamable HTTP; a server on the Python SDK over HTTP and,
//! restricted to the legacy era, over stdio. The clients run one after the other: what one client left in a shared server
//! must not be visible to the next.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::install::Installed;
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, command, drive, leftovers, mark};
use super::remote::{Remote, everything, python};

/// A client and the eras that it speaks.
struct Driver {
    name: &'static str,
    sdk: &'static str,
    eras: &'static [&'static str],
}

const DRIVERS: [Driver; 3] = [
    Driver { name: "TypeScript SDK v1", sdk: "v1", eras: &["legacy"] },
    Driver { name: "TypeScript SDK v2", sdk: "v2", eras: &["legacy", "modern"] },
    Driver { name: "Python SDK", sdk: "python", eras: &["legacy", "modern"] },
];

/// The servers: the name that the drivers know, and the kind.
const SERVERS: [(&str, &str); 5] = [
    ("near", "everything"),
    ("sse", "everything"),
    ("streamable", "everything"),
    ("python", "python"),
    ("python-old", "python"),
];

/// Lets every client use every server; with `full` also over stdio.
pub(crate) fn run(installed: &Installed, full: bool, outcomes: &mut Outcomes) -> Result<()> {
    let mark = mark("interactive");
    let log = installed.logs().join("interactive.log");
    let remotes = [
        Remote::start("sse", ("/sse", "sse"), everything(installed, "sse", &mark), &log)?,
        Remote::start("streamable", ("/mcp", "http"), everything(installed, "streamableHttp", &mark), &log)?,
        Remote::start("python", ("/mcp", "http"), python(installed, &mark), &log)?,
    ];
    let config = write_config(installed, &remotes, &mark)?;
    let gateway = Gateway::start(&installed.gateway(), &config, &mark, &log)?;
    let transports: &[&str] = if full { &["http", "stdio"] } else { &["http"] };
    for Driver { name, sdk, eras } in &DRIVERS {
        for era in *eras {
            for transport in transports {
                let order = json!({
                    "transport": transport,
                    "era": era,
                    "sdk": sdk,
                    "client": format!("{sdk}-{era}-{transport}"),
                    "url": gateway.url,
                    "servers": SERVERS.map(|(name, kind)| json!({"name": name, "kind": kind})),
                    "command": installed.gateway(),
                    "args": ["serve", "--stdio", "--standalone", "--config", config],
                    "env": {MARK: mark, "XDG_STATE_HOME": installed.logs()},
                });
                let mut driver = driver(installed, sdk);
                let told =
                    drive(&format!("interactive · {name} · {era} · {transport}"), &mut driver, &order, &log)?;
                outcomes.interactive.told(name, era, transport, told);
            }
        }
    }
    outcomes.processes.push(gateway.terminate()?);
    drop(remotes);
    outcomes.processes.push(Outcome::of("interactive servers", "leave no process", &leftovers(&mark)));
    Ok(())
}

fn driver(installed: &Installed, sdk: &str) -> Command {
    let (program, script) = match sdk {
        "python" => (installed.python("python"), "python_interactive.py"),
        _ => (installed.node().to_owned(), "interactive.mjs"),
    };
    let mut driver = command(program);
    driver.arg(installed.npm().join(script));
    driver
}

fn write_config(installed: &Installed, remotes: &[Remote], mark: &str) -> Result<PathBuf> {
    let process = |program: PathBuf, script: PathBuf, more: &str| {
        let (program, script) =
            (Value::from(program.to_string_lossy()), Value::from(script.to_string_lossy()));
        format!("command = {program}\nargs = [{script}]\nenv = {{ {MARK} = {mark:?} }}\n{more}")
    };
    let everything = installed.npm_program("mcp-server-everything");
    let mut text = "[gateway]\nresource_uris = \"rewrite\"\n".to_owned();
    text += &format!("[servers.near]\n{}\n", process(installed.node().to_owned(), everything, ""));
    for remote in remotes {
        let Remote { kind, url, transport, .. } = remote;
        text += &format!("[servers.{kind}]\nurl = {url:?}\ntype = {transport:?}\n");
    }
    let python =
        process(installed.python("python"), installed.npm().join("python_server.py"), "era = \"legacy\"");
    text += &format!("[servers.python-old]\n{python}\n");
    let file = installed.scratch().join("interactive.toml");
    fs::write(&file, text).with_context(|| format!("{} could not be written", file.display()))?;
    Ok(file)
}
