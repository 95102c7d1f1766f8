//! Starts the gateway and the drivers, ends them, and finds the processes that they left behind.
//!
//! Everything that is started here, and its descendants, carries a mark in its environment, so a process that lost its
//! parent is still found. No other process is ever inspected or ended.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result};
use serde_json::Value;

use super::outcome::Outcome;
use crate::shown;

/// The variable that carries the mark.
pub(crate) const MARK: &str = "FOREIGN_TEST_MARK";
/// The text before the address on the gateway's stderr.
const ADDRESS_FOLLOWS: &str = "serves MCP at ";
const START_LIMIT: Duration = Duration::from_secs(120);
const STOP_LIMIT: Duration = Duration::from_secs(60);
const DRIVER_LIMIT: Duration = Duration::from_secs(600);
/// How long processes may take to end after the gateway or client that they served.
const GONE_LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(20);

/// A program to run.
#[expect(
    clippy::disallowed_methods,
    reason = "a chore runs programs as a person would; this is not part of the gateway"
)]
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// A unique mark.
pub(crate) fn mark(name: &str) -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{name}-{}-{}", std::process::id(), since.as_nanos())
}

/// A gateway that serves HTTP. Dropping it kills it, if it still runs.
pub(crate) struct Gateway {
    child: Child,
    /// Where clients reach it.
    pub(crate) url: String,
}

impl Gateway {
    /// Starts it on a free port of its choice and waits until it prints its address.
    pub(crate) fn start(program: &Path, config: &Path, mark: &str, log: &Path) -> Result<Self> {
        Self::start_at("127.0.0.1:0", program, config, mark, log)
    }

    /// The same at this address.
    pub(crate) fn start_at(
        listen: &str,
        program: &Path,
        config: &Path,
        mark: &str,
        log: &Path,
    ) -> Result<Self> {
        let mut child = command(program)
            .args(["serve", "--listen", listen, "--config"])
            .arg(config)
            .env(MARK, mark)
            .env("XDG_STATE_HOME", log.with_extension("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} could not be started", program.display()))?;
        let (sender, address) = channel();
        let stderr = child.stderr.take().context("the gateway has no stderr")?;
        let mut log = append(log)?;
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                // Continue even if the log cannot be written: otherwise the gateway would block.
                let _ = writeln!(log, "{line}");
                if let Some((_, url)) = line.split_once(ADDRESS_FOLLOWS) {
                    let _ = sender.send(url.trim().to_owned());
                }
            }
        });
        // Created before the wait, so that a gateway that never becomes ready is ended too.
        let mut gateway = Self { child, url: String::new() };
        gateway.url =
            address.recv_timeout(START_LIMIT).context("the gateway did not say where it listens")?;
        Ok(gateway)
    }

    /// Sends SIGTERM, waits, and reports whether it ended with success.
    pub(crate) fn terminate(mut self) -> Result<Outcome> {
        let id = self.child.id().to_string();
        shown::status(command("kill").args(["-TERM", &id])).context("kill could not be started")?;
        let complaint = match wait(&mut self.child, STOP_LIMIT)? {
            Some(status) if status.success() => Vec::new(),
            Some(status) => vec![format!("it ended with {status}")],
            None => vec![format!("it did not end within {STOP_LIMIT:?}")],
        };
        Ok(Outcome::of("every gateway", "ends well when asked to", &complaint))
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Both fail if it has already ended; then there is nothing to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a driver with its order. Returns the lines of JSON that it printed, and whether the driver itself failed.
pub(crate) fn drive(
    name: &str,
    driver: &mut Command,
    order: &Value,
    log: &Path,
) -> Result<(Vec<Value>, Option<String>)> {
    let mut child = driver
        .arg(order.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(append(log)?)
        .spawn()
        .with_context(|| format!("{driver:?} could not be started"))?;
    let (sender, lines) = channel();
    let stdout = child.stdout.take().context("the driver has no stdout")?;
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let started = Instant::now();
    let status = wait(&mut child, DRIVER_LIMIT)?;
    println!("{name}: {:.1} s", started.elapsed().as_secs_f32());
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok((collect(&lines), trouble(status)))
}

/// Collects what the driver printed. The channel closes when the driver ends, unless a leftover process holds its stdout.
fn collect(lines: &Receiver<String>) -> Vec<Value> {
    let mut outcomes = Vec::new();
    while let Ok(line) = lines.recv_timeout(Duration::from_secs(1)) {
        outcomes.push(serde_json::from_str(&line).unwrap_or_else(
            |_| serde_json::json!({"check": "output", "ok": false, "detail": format!("not JSON: {line}")}),
        ));
    }
    outcomes
}

/// An exit status of 1 means a failed check, which the driver has already reported.
fn trouble(status: Option<ExitStatus>) -> Option<String> {
    match status {
        None => Some(format!("the driver did not end within {DRIVER_LIMIT:?}")),
        Some(status) if status.success() || status.code() == Some(1) => None,
        Some(status) => Some(format!("the driver ended with {status}")),
    }
}

/// Waits for the marked processes to end. Returns the command lines of any that still run.
pub(crate) fn leftovers(mark: &str) -> Vec<String> {
    let deadline = Instant::now() + GONE_LIMIT;
    loop {
        let left = marked(mark);
        if left.is_empty() || Instant::now() > deadline {
            return left;
        }
        std::thread::sleep(POLL);
    }
}

/// The processes that have the mark.
pub(crate) fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let Ok(processes) = Path::new("/proc").read_dir() else {
        return Vec::new();
    };
    processes
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|entry| {
            let variables = read(&entry.path().join("environ"));
            variables.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
        })
        .map(|entry| {
            let line = read(&entry.path().join("cmdline"));
            let words = String::from_utf8_lossy(&line).replace('\0', " ");
            format!("{} {}", entry.file_name().to_string_lossy(), words.trim_end())
        })
        .collect()
}

/// Reads a file of `/proc`; empty if the process ends meanwhile.
fn read(path: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    if let Ok(mut file) = File::open(path) {
        let _ = file.read_to_end(&mut text);
    }
    text
}

pub(crate) fn wait(child: &mut Child, limit: Duration) -> Result<Option<ExitStatus>> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() > deadline {
            return Ok(None);
        }
        std::thread::sleep(POLL);
    }
}

/// Opens a log file for appending.
pub(crate) fn append(log: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(log);
    file.with_context(|| format!("{} could not be opened", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_by_its_mark_until_it_ends() {
        let mark = mark("test");
        let sleep = &mut command("sleep");
        sleep.arg("60").env(MARK, &mark).stdin(Stdio::null());
        let mut child = sleep.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // The environment of a process becomes visible a moment after its start.
        let deadline = Instant::now() + GONE_LIMIT;
        let mut found = marked(&mark);
        while found.is_empty() && Instant::now() < deadline {
            std::thread::sleep(POLL);
            found = marked(&mark);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, [format!("{} sleep 60", child.id())]);
        assert_eq!(leftovers(&mark), Vec::<String>::new());
    }

    #[test]
    fn the_lines_of_a_driver_are_read_and_its_end_judged() {
        let folder = std::env::temp_dir().join(mark("drive"));
        let told = |script: &str| {
            let mut driver = command("sh");
            driver.args(["-c", script, "driver"]);
            drive("test", &mut driver, &Value::Null, &folder).unwrap()
        };
        let (lines, trouble) = told(r#"echo '{"ok":true}'; echo noise; exit 1"#);
        assert_eq!(lines[0]["ok"], true);
        assert_eq!(lines[1]["detail"], "not JSON: noise");
        assert_eq!(trouble, None);
        let (lines, trouble) = told("exit 3");
        assert_eq!(lines, Vec::<Value>::new());
        assert_eq!(trouble.as_deref(), Some("the driver ended with exit status: 3"));
        std::fs::remove_file(folder).unwrap();
    }
}
