//! The servers that the suite runs against: the fixtures, and gateways with a fixture as their upstream.
//!
//! Each takes a free port and prints it. They end when [`Peers`] is dropped; a gateway's own fixture ends with it.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::suite::program;
use crate::built::Built;
use crate::shown;

/// How long the gateway may take to start serving.
const PATIENCE: Duration = Duration::from_secs(120);

/// The era to which an upstream is restricted; its number is its index in [`Era::ALL`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Era {
    Both,
    Legacy,
    Modern,
}

impl Era {
    const ALL: [Self; 3] = [Self::Both, Self::Legacy, Self::Modern];

    /// The fixture's name for it.
    const fn name(self) -> &'static str {
        match self {
            Self::Both => "both",
            Self::Legacy => "legacy",
            Self::Modern => "modern",
        }
    }
}

/// The SDK that a fixture is built on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    Rust,
    TypeScript,
}

impl Maker {
    pub(crate) const ALL: [Self; 2] = [Self::Rust, Self::TypeScript];

    /// The prefix of the names of its legs.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Rust => "",
            Self::TypeScript => "TypeScript: ",
        }
    }
}

/// The programs to run.
pub(crate) struct Programs {
    /// The gateway.
    pub(crate) gateway: PathBuf,
    rust: Vec<String>,
    typescript: Vec<String>,
}

impl Programs {
    /// Builds our own programs.
    pub(crate) fn build(root: &Path, (node, script): (PathBuf, PathBuf)) -> Result<Self> {
        let built = Built::to_check(root)?;
        let text = |path: &Path| path.to_string_lossy().into_owned();
        Ok(Self {
            gateway: built.program("bridgehead")?.to_owned(),
            rust: vec![text(built.program("conformance-fixture")?)],
            typescript: vec![text(&node), text(&script)],
        })
    }

    fn fixture(&self, maker: Maker) -> &[String] {
        match maker {
            Maker::Rust => &self.rust,
            Maker::TypeScript => &self.typescript,
        }
    }
}

/// The running servers around the fixture on one SDK.
pub(crate) struct Peers {
    /// The fixtures over HTTP, one for each era, in the order of [`Era::ALL`].
    fixtures: [Running; 3],
    /// The gateways in front of a fixture on stdio, in the same order.
    through: [Running; 3],
    /// The gateways in front of the fixtures over HTTP, in the same order.
    remote: [Running; 3],
}

impl Peers {
    /// Starts all.
    pub(crate) fn start(programs: &Programs, maker: Maker, folder: &Path) -> Result<Self> {
        let fixture = programs.fixture(maker);
        let (command, arguments) = fixture.split_first().context("there is no fixture to start")?;
        let kind = if maker == Maker::Rust { "rust" } else { "typescript" };
        let [both, legacy, modern] = Era::ALL.map(|era| {
            let era = format!("--era={}", era.name());
            let arguments: Vec<&str> =
                arguments.iter().map(String::as_str).chain(["--stdio", &era]).collect();
            let server = format!("command = {command:?}\nargs = {arguments:?}");
            start_gateway(&programs.gateway, &format!("{kind}{era}"), &server, folder)
        });
        let through = [both?, legacy?, modern?];
        let [both, legacy, modern] = Era::ALL.map(|era| start_fixture(fixture, era));
        let fixtures = [both?, legacy?, modern?];
        let remote = |era: Era| {
            let server = format!("url = {:?}", fixtures[era as usize].url);
            start_gateway(&programs.gateway, &format!("{kind}-http-{}", era.name()), &server, folder)
        };
        let [both, legacy, modern] = Era::ALL.map(remote);
        Ok(Self { through, remote: [both?, legacy?, modern?], fixtures })
    }

    /// The address of the fixture, which knows both eras.
    pub(crate) fn direct(&self) -> &str {
        &self.fixtures[Era::Both as usize].url
    }

    /// The address of the gateway in front of an upstream of an era over HTTP.
    pub(crate) fn through_http(&self, era: Era) -> &str {
        &self.remote[era as usize].url
    }

    /// The address of the gateway in front of an upstream of an era on stdio.
    pub(crate) fn through(&self, era: Era) -> &str {
        &self.through[era as usize].url
    }
}

struct Running {
    process: Child,
    url: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only if the process has ended by itself, which the suite's results already show.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn start_fixture(fixture: &[String], era: Era) -> Result<Running> {
    let (command, arguments) = fixture.split_first().context("there is no fixture to start")?;
    let process = program(Path::new(command))
        .args(arguments)
        .args(["--http", "127.0.0.1:0", &format!("--era={}", era.name())])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut process = process.context("the fixture could not be started")?;
    shown::errors(&mut process);
    let mut url = String::new();
    if let Some(out) = process.stdout.take() {
        BufReader::new(out).read_line(&mut url)?;
    }
    url.truncate(url.trim_end().len());
    let running = Running { process, url };
    if running.url.is_empty() {
        bail!("the fixture ended before it was ready");
    }
    Ok(running)
}

/// Starts a gateway with one server. Clients of long calls are told to poll soon, because the suite checks for that.
fn start_gateway(gateway: &Path, name: &str, server: &str, folder: &Path) -> Result<Running> {
    let config = folder.join(format!("{name}.toml"));
    std::fs::write(&config, format!("[http]\npoll_after_ms = 30\n[servers.fixture]\n{server}\n"))?;
    let log = folder.join(format!("{name}.log"));
    let process = program(gateway)
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&config)
        .env("XDG_STATE_HOME", folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log)?)
        .spawn();
    let process = process.context("the gateway could not be started")?;
    let mut running = Running { process, url: String::new() };
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(url) = served_at(&std::fs::read_to_string(&log)?) {
            running.url = url;
            return Ok(running);
        }
        if let Some(status) = running.process.try_wait()? {
            bail!("the gateway ended with {status} before it was ready; see {}", log.display());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the gateway was not ready within {} s; see {}", PATIENCE.as_secs(), log.display())
}

/// The address in the log line that says that the gateway serves.
fn served_at(log: &str) -> Option<String> {
    let (_, rest) = log.split_once("serves MCP at ")?;
    rest.split_once('\n').map(|(url, _)| url.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_taken_from_a_whole_line_only() {
        assert_eq!(served_at("INFO ready\nBridgehead serves MCP at http://127.0.0.1:4"), None);
        let log = "INFO ready\nBridgehead 0.1.0 serves MCP at http://127.0.0.1:4848/mcp\n  for a client\n";
        assert_eq!(served_at(log).as_deref(), Some("http://127.0.0.1:4848/mcp"));
    }
}
