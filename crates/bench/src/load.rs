//! Generates load in a closed loop: every connection sends its next request when it has the answer to the last.
//!
//! It runs on the thread that polls it. Connections warm up first; only requests that begin and end within the measured
//! time count. The first wrong answer ends the round with an error.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::task::{JoinSet, LocalSet};
use tokio::time::{sleep, timeout};

use crate::client::{Connection, check, end_session, open_session};
use crate::machine::CpuTime;
use crate::request::{Ask, Era, Template};
use crate::statistics::{Latencies, Percentiles};

/// How long the first answer, and after the measured time the last answers, may take. Even on a busy machine only a
/// request that is never answered takes this long.
const PATIENCE: Duration = Duration::from_secs(120);

/// One load: the server, the requests, the connections and the duration.
#[derive(Debug, Clone)]
pub struct Load {
    /// The server.
    pub address: SocketAddr,
    /// The process whose CPU time is counted.
    pub pid: u32,
    /// The era of the requests.
    pub era: Era,
    /// The kind of request.
    pub ask: Ask,
    /// The offered name of `echo`.
    pub tool: String,
    /// The number of connections.
    pub connections: usize,
    /// The time before counting begins.
    pub warm_up: Duration,
    /// The measured time.
    pub measured: Duration,
}

/// The results of one round.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// The latency, from the first byte sent to the last byte received.
    pub latency: Percentiles,
    /// Answers per second.
    pub per_second: f64,
    /// CPU time of the server's process per answer, in microseconds.
    pub cpu_micros: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    WarmUp,
    Measured,
    Over,
}

/// The progress of a round, shared by its connections.
#[derive(Debug)]
struct Progress {
    phase: Cell<Phase>,
    /// Answers that count.
    answers: Cell<u64>,
    /// Whether a connection has ended with an error.
    failed: Cell<bool>,
}

impl Load {
    /// One round.
    pub async fn run(&self) -> Result<Round> {
        let sessions = match self.era {
            Era::Modern => Vec::new(),
            Era::Legacy => {
                (0..self.connections).map(|_| open_session(self.address)).collect::<Result<Vec<String>>>()?
            }
        };
        let round = LocalSet::new().run_until(self.drive(&sessions)).await;
        sessions.iter().for_each(|session| end_session(self.address, session));
        round
    }

    async fn drive(&self, sessions: &[String]) -> Result<Round> {
        let progress = Rc::new(Progress {
            phase: Cell::new(Phase::WarmUp),
            answers: Cell::new(0),
            failed: Cell::new(false),
        });
        let mut connections = JoinSet::new();
        for number in 0..self.connections {
            let session = sessions.get(number).map(String::as_str);
            let template = Template::named(self.address, self.era, self.ask, session, &self.tool);
            let connection = Connection::open(self.address).await?;
            // Each connection has its own range of ids, so that a misdirected answer is noticed.
            let first = u32::try_from(number)? * 1_000_000;
            let (ask, progress) = (self.ask, progress.clone());
            connections.spawn_local(async move {
                let outcome = repeat(connection, template, ask, first, &progress).await;
                progress.failed.set(progress.failed.get() || outcome.is_err());
                outcome
            });
        }
        sleep(self.warm_up).await;
        let (cpu, started) = (CpuTime::of(self.pid)?, Instant::now());
        progress.phase.set(Phase::Measured);
        sleep(self.measured).await;
        // On a busy machine the measured time may end before the first answer.
        while progress.answers.get() == 0 && !progress.failed.get() && started.elapsed() < PATIENCE {
            sleep(self.measured).await;
        }
        progress.phase.set(Phase::Over);
        let (cpu, elapsed) = (CpuTime::of(self.pid)?.since(cpu), started.elapsed());
        let all = timeout(PATIENCE, async {
            let mut all = Latencies::default();
            while let Some(ended) = connections.join_next().await {
                all.merge(ended.context("a connection's task failed")??);
            }
            anyhow::Ok(all)
        });
        let all = all.await.context("a request was never answered")??;
        let count = all.count() as f64;
        ensure!(count > 0.0, "no request was answered within {PATIENCE:?}");
        let latency = all.percentiles().context("nothing was measured")?;
        let cpu_micros = cpu.as_secs_f64() * 1e6 / count;
        Ok(Round { latency, per_second: count / elapsed.as_secs_f64(), cpu_micros })
    }
}

async fn repeat(
    mut connection: Connection,
    mut template: Template,
    ask: Ask,
    first: u32,
    progress: &Progress,
) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    let mut id = first;
    loop {
        let begun_in = progress.phase.get();
        if begun_in == Phase::Over {
            return Ok(latencies);
        }
        template.stamp(id);
        let begun = Instant::now();
        let body = connection.exchange(template.bytes()).await?;
        let latency = begun.elapsed();
        check(ask, id, body)?;
        if begun_in == Phase::Measured && progress.phase.get() == Phase::Measured {
            latencies.add(latency);
            progress.answers.set(progress.answers.get() + 1);
        }
        id += 1;
    }
}
