//! The gateway of a soak: its configuration, calls to it, its reports on its servers, and its end.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::{BACK_WITHIN, POLL, Victim, send};
use crate::client;
use crate::machine::{Process, free_address};
use crate::request::Template;

/// How long a gateway over stdio may take to end after its client has disconnected.
const END_WITHIN: Duration = Duration::from_secs(60);

/// Writes one configuration for all gateways of a run, with the lines `more` for each server.
pub(super) fn write_config(folder: &Path, victims: &[Victim], mark: &str, more: &str) -> Result<PathBuf> {
    // `stable_after_ms = 1` makes every loss count as the first one: restart delays are not tested here.
    let quoted = |text: &str| Value::from(text).to_string();
    let record = quoted(&folder.join("audit").to_string_lossy());
    let mut text = format!("audit.folder = {record}\n[gateway]\nprefix = true\n");
    let (name, value) = mark.split_once('=').context("the mark is not a variable")?;
    for victim in victims {
        // Writing to a string cannot fail.
        let _ = write!(text, "\n[servers.{}]\ncommand = {}\n", victim.name, quoted(&victim.command));
        let _ = write!(text, "args = {}\nstable_after_ms = 1\n{more}", json!(victim.args));
        if let Some(cwd) = &victim.cwd {
            let _ = writeln!(text, "cwd = {}", quoted(&cwd.to_string_lossy()));
        }
        let _ = writeln!(text, "[servers.{}.env]\n{name} = {}", victim.name, quoted(value));
        for (name, value) in &victim.env {
            let _ = writeln!(text, "{name} = {}", quoted(value));
        }
    }
    let file = folder.join("soak.toml");
    fs::write(&file, text)?;
    Ok(file)
}

/// A gateway over HTTP.
pub(super) struct Gateway {
    program: PathBuf,
    process: Process,
    address: SocketAddr,
}

impl Gateway {
    pub(super) fn start(program: &Path, config: &Path, folder: &Path) -> Result<Self> {
        let address = free_address()?;
        let config = config.to_str().context("a path is not text")?;
        let arguments =
            ["--log-level", "warn", "serve", "--config", config, "--listen", &address.to_string()];
        let mut process = Process::start(program, &arguments, folder.join("gateway.txt"))?;
        process.answers(address, Template::call(address, "server_ping", "{}").bytes(), |_| true)?;
        Ok(Self { program: program.to_owned(), process, address })
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Calls a tool and returns its answer, a result or an error.
    pub(super) fn call(&self, server: &str, (tool, arguments): &(String, Value)) -> Result<Value> {
        answer(self.address, &format!("{server}__{tool}"), arguments)
    }

    /// Calls a tool in the background.
    pub(super) fn begin(
        &self,
        server: &str,
        (tool, arguments): &(String, Value),
    ) -> JoinHandle<Result<Value>> {
        let (address, tool, arguments) = (self.address, format!("{server}__{tool}"), arguments.clone());
        std::thread::spawn(move || answer(address, &tool, &arguments))
    }

    /// Asks the gateway to restart a server, as an operator would.
    #[expect(clippy::disallowed_methods, reason = "the command line is started from outside, as by a person")]
    pub(super) fn restart(&self, victim: &Victim) -> Result<()> {
        let asked = Command::new(&self.program)
            .args(["restart", &victim.name, "--instance", &self.pid().to_string()])
            .stdin(Stdio::null())
            .output()
            .context("`bridgehead restart` cannot be started")?;
        let said = String::from_utf8_lossy(&asked.stderr);
        ensure!(asked.status.success(), "`bridgehead restart` ended with {}: {said}", asked.status);
        Ok(())
    }

    /// What the gateway reports about a server.
    fn health(&self, victim: &Victim) -> Result<Value> {
        let told = answer(self.address, "server_health", &json!({}))?;
        let upstreams = told["result"]["structuredContent"]["data"]["upstreams"].as_array();
        let found = upstreams.and_then(|all| all.iter().find(|one| one["name"] == *victim.name));
        found.cloned().with_context(|| format!("the gateway does not report {}: {told}", victim.name))
    }

    /// Waits until this many calls are in flight at the server; returns its process id and its number of restarts.
    pub(super) fn in_flight(&self, victim: &Victim, count: usize) -> Result<(u32, u64)> {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            let told = self.health(victim)?;
            let pid = told["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            if let (Some(pid), true) = (pid, told["inFlight"].as_u64() >= Some(count as u64)) {
                return Ok((pid, told["restarts"].as_u64().unwrap_or_default()));
            }
            ensure!(Instant::now() < deadline, "the calls never reached the server: {told}");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until the server answers; if `restarts` is given, only after more restarts than that. Returns the time since
    /// `at`, and how many calls failed before.
    pub(super) fn serves_again(
        &self,
        victim: &Victim,
        restarts: Option<u64>,
        at: Instant,
    ) -> Result<(Duration, usize)> {
        let (tool, arguments, expected) = &victim.prompt;
        let mut failed = 0;
        loop {
            let told = self.call(&victim.name, &(tool.clone(), arguments.clone()))?;
            let served =
                told["result"]["isError"] != true && told["result"].to_string().contains(expected.as_str());
            let back = at.elapsed();
            if served {
                let Some(before) = restarts else { return Ok((back, failed)) };
                if self.health(victim)?["restarts"].as_u64() > Some(before) {
                    return Ok((back, failed));
                }
                // The old process still answers.
            } else {
                failed += 1;
            }
            ensure!(back < BACK_WITHIN, "the server does not serve again: {told}");
            std::thread::sleep(POLL);
        }
    }

    /// Waits until every server is ready.
    pub(super) fn all_ready(&self, victims: &[Victim]) -> Result<()> {
        let deadline = Instant::now() + BACK_WITHIN;
        for victim in victims {
            loop {
                let told = self.health(victim)?;
                if told["state"] == "ready" {
                    break;
                }
                ensure!(Instant::now() < deadline, "the server does not become ready: {told}");
                std::thread::sleep(POLL);
            }
        }
        Ok(())
    }

    /// Sends the gateway a signal and waits until it has ended.
    pub(super) fn end(mut self, signal: Signal) -> Result<()> {
        send(self.pid(), signal)?;
        self.process.wait()
    }
}

/// Makes a call and returns its whole answer, which must have a result or an error.
fn answer(address: SocketAddr, tool: &str, arguments: &Value) -> Result<Value> {
    let request = Template::call(address, tool, &arguments.to_string());
    let (body, _) = client::once(address, request.bytes())?;
    let answer: Value = serde_json::from_slice(&body).context("the answer is not JSON")?;
    ensure!(answer.get("result").is_some() || answer.get("error").is_some(), "malformed answer: {answer}");
    Ok(answer)
}

/// Starts a gateway over stdio, calls the server once, and closes its input in the middle of the second call.
#[expect(clippy::disallowed_methods, reason = "the gateway is started from outside, as a client does")]
pub(super) fn call_over_lines(program: &Path, config: &Path, victim: &Victim) -> Result<()> {
    let mut child = Command::new(program)
        .args(["--log-level", "error", "serve", "--stdio", "--standalone", "--config"])
        .arg(config)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("the gateway cannot be started")?;
    let (input, output) = (child.stdin.take(), child.stdout.take());
    let mut input = input.context("no input")?;
    let mut lines = BufReader::new(output.context("no output")?).lines();
    let (tool, arguments, expected) = &victim.prompt;
    let line = |tool: &str, arguments: &Value| {
        let request = Template::call(
            ([127, 0, 0, 1], 0).into(),
            &format!("{}__{tool}", victim.name),
            &arguments.to_string(),
        );
        [request.body(), b"\n"].concat()
    };
    let outcome = (|| {
        input.write_all(&line(tool, arguments))?;
        let first = lines.next().context("the gateway ended without an answer")??;
        ensure!(first.contains(expected.as_str()), "a wrong answer: {first}");
        input.write_all(&line(&victim.slow.0, &victim.slow.1))?;
        Ok(())
    })();
    drop(input);
    let deadline = Instant::now() + END_WITHIN;
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            bail!("the gateway did not end within {END_WITHIN:?} after its client disconnected");
        }
        std::thread::sleep(POLL);
    }
    outcome
}
