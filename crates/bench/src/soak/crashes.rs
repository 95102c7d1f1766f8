//! Kills the gateway itself under load, again and again, and compares its record with the answers that clients got.
//!
//! Every answered call must be in the record, and the record must verify: right after the kill, and again when the next
//! gateway has closed the calls that the killed one left open.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use super::gateway::Gateway;
use super::{BACK_WITHIN, POLL, Victim};
use crate::client::Connection;
use crate::request::Template;

/// The connections of the load: enough that calls always wait for the gateway, and the gateway never for calls.
const CONNECTIONS: usize = 32;
/// The smallest number of answers before a kill.
const ANSWERS: usize = 300;
/// The range of additional answers before a kill, so that kills hit different moments of a commit.
const MORE_ANSWERS: usize = 700;

/// The findings.
#[derive(Debug, Clone, Copy, Default)]
pub struct Crashes {
    /// How often the gateway was killed.
    pub kills: usize,
    /// How many calls were answered before the kills.
    pub answered: usize,
    /// How many rows the record has.
    pub rows: usize,
}

/// Kills `program` this many times under full load.
pub(super) fn run(
    program: &Path,
    config: &Path,
    folder: &Path,
    victim: &Victim,
    kills: usize,
    tell: &mut dyn FnMut(&str),
) -> Result<Crashes> {
    let record = folder.join("audit");
    let mut crashes = Crashes::default();
    let mut answered: HashSet<String> = HashSet::new();
    for kill in 1..=kills {
        let gateway = Gateway::start(program, config, folder)?;
        gateway.all_ready(std::slice::from_ref(victim))?;
        answered.extend(killed_under_load(gateway, victim, ANSWERS + kill * 137 % MORE_ANSWERS)?);
        crashes.kills = kill;
        crashes.rows = check(program, &record, &answered).with_context(|| format!("after kill {kill}"))?;
        if kill % 5 == 0 {
            tell(&format!("kill {kill} of {kills}: {} answers, {} rows", answered.len(), crashes.rows));
        }
    }
    // The next gateway closes the calls that were left open.
    let gateway = Gateway::start(program, config, folder)?;
    let deadline = Instant::now() + BACK_WITHIN;
    while audit(program, &record, &["list", "--json", "--outcome", "open"])?.stdout.len() > 1 {
        ensure!(Instant::now() < deadline, "calls of killed gateways stay open in the record");
        std::thread::sleep(POLL);
    }
    gateway.end(Signal::TERM)?;
    crashes.rows = check(program, &record, &answered).context("after the last start")?;
    crashes.answered = answered.len();
    Ok(crashes)
}

/// Kills the gateway after `enough` answers. Returns the correlation ids of the answered calls.
fn killed_under_load(gateway: Gateway, victim: &Victim, enough: usize) -> Result<Vec<String>> {
    let (address, tool) = (gateway.address(), format!("{}__{}", victim.name, victim.prompt.0));
    let request = Template::call(address, &tool, &victim.prompt.1.to_string());
    let count = AtomicUsize::new(0);
    let answered = std::thread::scope(|scope| {
        let load = scope.spawn(|| load(address, request.bytes(), &count));
        let deadline = Instant::now() + BACK_WITHIN;
        while count.load(Ordering::Relaxed) < enough && Instant::now() < deadline && !load.is_finished() {
            std::thread::sleep(POLL);
        }
        let killed = gateway.end(Signal::KILL);
        let answered = load.join().map_err(|_| anyhow::anyhow!("the load panicked"))?;
        killed.and(answered)
    })?;
    ensure!(answered.len() >= enough, "only {} calls were answered under load", answered.len());
    Ok(answered)
}

/// Makes calls until the gateway is gone.
fn load(address: SocketAddr, request: &[u8], count: &AtomicUsize) -> Result<Vec<String>> {
    let one = async || {
        let mut ids = Vec::new();
        let Ok(mut connection) = Connection::open(address).await else { return ids };
        while let Ok(body) = connection.exchange(request).await {
            let Ok(answer) = serde_json::from_slice::<Value>(body) else { break };
            if let Some(id) = answer["result"]["_meta"]["bridgehead/correlationId"].as_str() {
                ids.push(id.to_owned());
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
        ids
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(async {
        let all: Vec<_> = (0..CONNECTIONS).map(|_| one()).collect();
        futures_util::future::join_all(all).await.concat()
    }))
}

/// Checks that the record verifies and has the enter row of every answered call; returns its number of rows.
fn check(program: &Path, record: &Path, answered: &HashSet<String>) -> Result<usize> {
    let verified = audit(program, record, &["verify"])?;
    ensure!(verified.status.success(), "the record does not verify: {}", said(&verified));
    let exported = audit(program, record, &["export"])?;
    ensure!(exported.status.success(), "the record cannot be exported: {}", said(&exported));
    let mut entered = HashSet::new();
    let mut rows = 0;
    for line in exported.stdout.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let line: Value = serde_json::from_slice(line).context("an export that is not JSON")?;
        rows += usize::from(line["row"].is_object());
        if line["row"]["kind"] == "enter" {
            entered.extend(line["row"]["correlationId"].as_str().map(str::to_owned));
        }
    }
    let lost = answered.iter().filter(|id| !entered.contains(*id)).count();
    ensure!(lost == 0, "{lost} of {} answered calls are not in the record", answered.len());
    Ok(rows)
}

#[expect(clippy::disallowed_methods, reason = "the command line is started from outside, as by a person")]
fn audit(program: &Path, record: &Path, arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(program);
    command.arg("audit").args(arguments).arg("--folder").arg(record).stdin(Stdio::null());
    command.output().context("`bridgehead audit` cannot be started")
}

fn said(output: &Output) -> String {
    let text = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8_lossy(&text).chars().take(2_000).collect()
}
