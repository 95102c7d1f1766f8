//! The Rust SDK as a client of the gateway, in either era.
//!
//! Takes its job as JSON in the first argument and prints one line of JSON per check, like the drivers of the other
//! SDKs in `foreign/clients`. All drivers run the same checks. `cargo xtask foreign` starts the gateway for HTTP and
//! prints the table of outcomes.

#![expect(clippy::print_stdout, reason = "the process that started the driver reads the outcomes")]

mod checks;

use std::collections::BTreeMap;
use std::future::Future;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rmcp::model::ProtocolVersion;
use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
use rmcp::{ClientLifecycleMode, ClientServiceExt};
use serde::Deserialize;
use serde_json::json;

use checks::{Checks, Connection, Listener};

const PATIENCE: Duration = Duration::from_secs(60);
/// The SDK kills a stdio server that still runs three seconds after its input was closed.
const POLITE_CLOSE: Duration = Duration::from_millis(2900);
const UPSTREAMS: [&str; 2] = ["old", "new"];

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Transport {
    Stdio,
    Http,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Era {
    Legacy,
    Modern,
}

/// The job that the first argument describes.
#[derive(Deserialize)]
struct Job {
    transport: Transport,
    era: Era,
    url: String,
    command: String,
    args: Vec<String>,
    env: BTreeMap<String, String>,
    cold: Option<Cold>,
}

/// Instead of everything else: one list right after the connection, as of a client that never asks again, and a call.
#[derive(Deserialize)]
struct Cold {
    /// Which start it is.
    start: String,
    /// How many tools each server has.
    servers: BTreeMap<String, usize>,
    /// How long the connection and the list may take together.
    within_ms: u64,
}

/// Whether any check failed so far.
struct Outcomes {
    failed: bool,
}

impl Outcomes {
    async fn check<T>(
        &mut self,
        upstream: &str,
        name: &str,
        body: impl Future<Output = Result<(T, String)>>,
    ) -> Option<T> {
        let outcome = match tokio::time::timeout(PATIENCE, body).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow::anyhow!("no outcome within {PATIENCE:?}")),
        };
        let (value, ok, detail) = match outcome {
            Ok((value, detail)) => (Some(value), true, detail),
            Err(error) => (None, false, format!("{error:#}")),
        };
        self.failed |= !ok;
        println!("{}", json!({"upstream": upstream, "check": name, "ok": ok, "detail": detail}));
        value
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let job = std::env::args().nth(1).context("the job is missing: pass it as JSON in the first argument")?;
    let job: Job = serde_json::from_str(&job).context("the job in the first argument cannot be parsed")?;
    let mut outcomes = Outcomes { failed: false };
    if let Some(cold) = &job.cold {
        run_cold(&mut outcomes, &job, cold).await;
    } else if let Some(connection) = outcomes.check("", "connect", connect(&job)).await {
        run(&mut outcomes, &connection).await;
        outcomes.check("", "close", close(connection, &job.transport)).await;
    }
    Ok(if outcomes.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn run(outcomes: &mut Outcomes, connection: &Connection) {
    outcomes.check("", "list", checks::list(connection, &UPSTREAMS)).await;
    for upstream in UPSTREAMS {
        let checks = Checks { connection, upstream };
        outcomes.check(upstream, "call", silent(checks.echo())).await;
        outcomes.check(upstream, "parallel", silent(checks.parallel())).await;
        outcomes.check(upstream, "progress", silent(checks.progress())).await;
        outcomes.check(upstream, "cancel", silent(checks.cancel())).await;
        outcomes.check(upstream, "tool error", silent(checks.tool_error())).await;
        outcomes.check(upstream, "server error", silent(checks.server_error())).await;
        outcomes.check(upstream, "arguments", silent(checks.wrong_arguments())).await;
        outcomes.check(upstream, "unknown tool", silent(checks.unknown_tool())).await;
        outcomes.check(upstream, "change", silent(checks.change())).await;
    }
}

async fn run_cold(outcomes: &mut Outcomes, job: &Job, cold: &Cold) {
    let started = Instant::now();
    let listing = async {
        let (connection, _) = connect(job).await?;
        let listed = checks::count(&connection, &cold.servers).await?;
        let took = started.elapsed().as_millis();
        ensure!(took < cold.within_ms.into(), "it took {took} ms");
        Ok((connection, format!("{listed} tools after {took} ms")))
    };
    if let Some(connection) = outcomes.check("", &cold.start, listing).await {
        outcomes.check("", &format!("{}: call", cold.start), silent(checks::call_slow(&connection))).await;
        outcomes.check("", &format!("{}: close", cold.start), close(connection, &job.transport)).await;
    }
}

async fn silent(check: impl Future<Output = Result<()>>) -> Result<((), String)> {
    check.await.map(|()| ((), String::new()))
}

async fn connect(job: &Job) -> Result<(Connection, String)> {
    let (lifecycle, expected) = match job.era {
        Era::Legacy => (ClientLifecycleMode::Initialize, ProtocolVersion::V_2025_11_25),
        Era::Modern => {
            let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
            let auto = ClientLifecycleMode::Auto { preferred_versions, legacy_version: None };
            (auto, ProtocolVersion::V_2026_07_28)
        }
    };
    let listener = Listener::default();
    let connection = match job.transport {
        Transport::Stdio => {
            let child = TokioChildProcess::new(command(job)).context("the gateway cannot be started")?;
            listener.serve_with_lifecycle(child, lifecycle).await?
        }
        Transport::Http => {
            let transport = StreamableHttpClientTransport::from_uri(job.url.as_str());
            listener.serve_with_lifecycle(transport, lifecycle).await?
        }
    };
    let info = connection.peer_info().context("the gateway did not introduce itself")?;
    let revision = &info.protocol_version;
    ensure!(*revision == expected, "{revision} was negotiated");
    let detail = revision.to_string();
    Ok((connection, detail))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the gateway is the program under test, started as a client would"
)]
fn command(job: &Job) -> tokio::process::Command {
    let mut command = tokio::process::Command::new(&job.command);
    command.args(&job.args).envs(&job.env);
    command
}

async fn close(connection: Connection, transport: &Transport) -> Result<((), String)> {
    let started = Instant::now();
    connection.cancel().await?;
    let took = started.elapsed();
    if matches!(transport, Transport::Stdio) && took > POLITE_CLOSE {
        bail!("the gateway had to be killed ({took:?})");
    }
    Ok(((), format!("{} ms", took.as_millis())))
}
