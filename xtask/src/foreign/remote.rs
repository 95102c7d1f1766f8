//! Runs foreign servers that the gateway reaches by their URL, called in both eras.
//!
//! This module starts them, because the gateway does not: over HTTP+SSE and over streamable HTTP. Each is configured
//! twice: with its `type`, and without, so that the gateway has to detect it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value, json};

use super::install::Installed;
use super::outcome::{Outcome, Outcomes};
use super::program::{Gateway, MARK, append, command, drive, leftovers, mark};

const START_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// A running server; dropping it ends the server.
pub(crate) struct Remote {
    process: Child,
    /// Its name in `foreign/remote.mjs`.
    pub(crate) kind: &'static str,
    pub(crate) url: String,
    /// The `type` in its configuration entry.
    pub(crate) transport: &'static str,
}

impl Remote {
    /// Starts a server on a free port, which `program` gets, and waits until it accepts connections.
    pub(crate) fn start(
        kind: &'static str,
        (path, transport): (&str, &'static str),
        program: impl FnOnce(u16) -> Command,
        log: &Path,
    ) -> Result<Self> {
        // The port is free now, but may be taken before the start. These servers cannot choose a port themselves.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let process = program(port).stdin(Stdio::null()).stdout(append(log)?).stderr(append(log)?).spawn();
        let process = process.with_context(|| format!("the server `{kind}` could not be started"))?;
        let mut remote = Self { process, kind, url: format!("http://127.0.0.1:{port}{path}"), transport };
        let deadline = Instant::now() + START_LIMIT;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if let Some(status) = remote.process.try_wait()? {
                bail!("the server `{kind}` ended with {status}; see {}", log.display());
            }
            if Instant::now() > deadline {
                bail!("the server `{kind}` did not listen within {START_LIMIT:?}; see {}", log.display());
            }
            std::thread::sleep(POLL);
        }
        Ok(remote)
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // Both fail if it has already ended; then there is nothing to do.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts the servers, calls them through one gateway, and ends everything.
pub(crate) fn run(installed: &Installed, outcomes: &mut Outcomes) -> Result<()> {
    let mark = mark("remote");
    let log = installed.logs().join("remote.log");
    let remotes = start(installed, &mark, &log)?;
    let config = write_config(installed, &remotes)?;
    let gateway = Gateway::start(&installed.gateway(), &config, &mark, &log)?;
    let named = |remote: &Remote| names(remote).map(|(name, _)| json!({"name": name, "kind": remote.kind}));
    for era in ["legacy", "modern"] {
        let order = json!({
            "transport": "http",
            "era": era,
            "url": gateway.url,
            "servers": remotes.iter().flat_map(named).collect::<Vec<_>>(),
            "direct": remotes.iter().map(|remote| json!({"kind": remote.kind, "url": remote.url})).collect::<Vec<_>>(),
        });
        let mut driver = command(installed.node());
        driver.arg(installed.npm().join("remote.mjs"));
        let told = drive(&format!("remote servers · {era} · http"), &mut driver, &order, &log)?;
        outcomes.remote.told("servers", era, "http", told);
    }
    outcomes.processes.push(gateway.terminate()?);
    drop(remotes);
    outcomes.processes.push(Outcome::of("remote servers", "leave no process", &leftovers(&mark)));
    Ok(())
}

/// `server-everything` over one of its transports.
pub(crate) fn everything(
    installed: &Installed,
    transport: &'static str,
    mark: &str,
) -> impl FnOnce(u16) -> Command {
    move |port| {
        let mut server = command(installed.node());
        server.arg(installed.npm_program("mcp-server-everything")).arg(transport);
        server.env("PORT", port.to_string()).env(MARK, mark);
        server
    }
}

/// The server on the Python SDK.
pub(crate) fn python(installed: &Installed, mark: &str) -> impl FnOnce(u16) -> Command {
    move |port| {
        let mut server = command(installed.python("python"));
        server.arg(installed.npm().join("python_server.py")).arg(port.to_string()).env(MARK, mark);
        server
    }
}

fn start(installed: &Installed, mark: &str, log: &Path) -> Result<Vec<Remote>> {
    let rmcp = |port: u16| {
        let mut server = command(installed.fixture());
        server.args(["--http", &format!("127.0.0.1:{port}")]).env(MARK, mark);
        server
    };
    Ok(vec![
        Remote::start("sse", ("/sse", "sse"), everything(installed, "sse", mark), log)?,
        Remote::start("streamable", ("/mcp", "http"), everything(installed, "streamableHttp", mark), log)?,
        Remote::start("python", ("/mcp", "http"), python(installed, mark), log)?,
        Remote::start("rmcp", ("/mcp", "http"), rmcp, log)?,
    ])
}

/// The two entries of a server: with its transport, and without, to be detected.
fn names(remote: &Remote) -> [(String, Option<&'static str>); 2] {
    [(format!("{}-told", remote.kind), Some(remote.transport)), (format!("{}-probed", remote.kind), None)]
}

fn write_config(installed: &Installed, remotes: &[Remote]) -> Result<PathBuf> {
    let mut servers = Map::new();
    for remote in remotes {
        for (name, transport) in names(remote) {
            let mut entry = json!({"url": remote.url});
            if let Some(transport) = transport {
                entry["type"] = transport.into();
            }
            servers.insert(name, entry);
        }
    }
    let file = installed.scratch().join("remote.json");
    fs::write(&file, json!({"mcpServers": Value::Object(servers)}).to_string())
        .with_context(|| format!("{} could not be written", file.display()))?;
    Ok(file)
}
