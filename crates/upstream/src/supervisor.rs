//! The one task that owns a server's process: brings it up, watches it, and brings it back.
//!
//! Everybody else only reads the state. A server is `Ready` again only after its tool list was read anew and
//! a probe succeeded, so "ready" never means "ready, but without tools".

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_audit::CorrelationId;
use bridgehead_config::{Launch, Server};
use bridgehead_events::{Detail, Excerpt, InitOutcome};
use bridgehead_wire::Redactor;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::catalog::list_tools;
use crate::health::{self, probe};
use crate::link::{Link, LinkError};
use crate::negotiate::Peer;
use crate::policy::RestartPolicy;
use crate::transport::stdio::{Process, connect};
use crate::upstream::{Failure, FailureStage, INIT_TIMEOUT, Orders, Outage, Ready, State, Surroundings};

/// Changes of the tool list within this time are read as one.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(50);
/// How long the tools of a server that went down stay in the lists.
pub(crate) const LISTED_FOR: Duration = Duration::from_secs(30);

pub(crate) struct Supervisor {
    server: Arc<Server>,
    state: watch::Sender<State>,
    orders: Arc<Orders>,
    stop: CancellationToken,
    surroundings: Surroundings,
    policy: RestartPolicy,
    name: Arc<str>,
    redactor: Redactor,
}

/// Why a server that served does not any more.
enum End {
    /// It ended by itself, or was ended because it was not well.
    Lost(String),
    /// Somebody asked for a restart.
    Asked,
}

impl Supervisor {
    pub(crate) fn new(
        server: Arc<Server>,
        state: watch::Sender<State>,
        orders: Arc<Orders>,
        stop: CancellationToken,
        surroundings: Surroundings,
    ) -> Self {
        let policy = RestartPolicy {
            jitter: server.jitter,
            stable_after: server.stable_after,
            ..RestartPolicy::REGISTRY
        };
        let name = Arc::from(server.name.as_ref());
        Self { server, state, orders, stop, surroundings, policy, name, redactor: Redactor::default() }
    }

    /// Until stopped. Dropping what is under way ends its process with it.
    pub(crate) async fn run(self) {
        let stop = self.stop.clone();
        let mut current = None;
        let given_up = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            failure = self.keep(&mut current) => Some(failure),
        };
        if let Some(process) = current.take() {
            Process::stop(process).await;
        }
        match given_up {
            None => self.become_state(State::Stopped),
            Some(failure) => {
                error!(server = %self.label(), reason = failure.reason, "does not serve, and will not be started again");
                self.become_state(State::Failed(Arc::new(failure)));
                stop.cancelled().await;
                self.become_state(State::Stopped);
            }
        }
    }

    /// Brings the server up and keeps it up; returns when it will not be tried again.
    async fn keep(&self, current: &mut Option<Process>) -> Failure {
        if let Launch::Unusable { reason } = &self.server.launch {
            return Failure { stage: FailureStage::Init, reason: reason.clone() };
        }
        let mut since = Instant::now();
        let mut attempts = 0;
        let mut restarts = 0;
        let mut last: Option<Arc<Ready>> = None;
        loop {
            // One id for an attempt and all that follows from it.
            let cause = CorrelationId::mint();
            let listed_until = since + LISTED_FOR;
            let reason = match self.unlisting(listed_until, self.come_up(restarts, cause)).await {
                Ok((process, ready)) => {
                    self.tell_tools(cause, last.as_deref(), &ready);
                    if last.is_some() {
                        self.tell(cause, || Detail::Reconnected);
                    }
                    let process = current.insert(process);
                    let ready = Arc::new(ready);
                    last = Some(Arc::clone(&ready));
                    self.become_state(State::Ready(Arc::clone(&ready)));
                    let end = self.serve(process, &mut last, cause).await;
                    self.tell(cause, || Detail::Disconnected);
                    since = Instant::now();
                    if since - ready.since >= self.policy.stable_after {
                        attempts = 0;
                    }
                    let reason = match end {
                        End::Lost(reason) => {
                            warn!(server = %self.label(), reason, "lost");
                            reason
                        }
                        End::Asked => {
                            info!(server = %self.label(), "restarts as asked");
                            attempts = 0;
                            "it was asked to restart".to_owned()
                        }
                    };
                    // Down before its process is ended, so that nobody calls on a link that is about to go.
                    self.down(since, attempts, &reason, last.as_ref());
                    if let Some(process) = current.take() {
                        self.end(process, cause).await;
                    }
                    reason
                }
                Err(reason) => {
                    warn!(server = %self.label(), attempt = attempts, reason, "did not come up");
                    reason
                }
            };
            let stage = if last.is_some() { FailureStage::Crashed } else { FailureStage::Init };
            let delay = self.policy.delay(attempts, random());
            let Some(delay) = delay.filter(|_| self.server.restart) else {
                self.tell(cause, || Detail::ReconnectExhausted);
                return Failure { stage, reason };
            };
            attempts += 1;
            restarts += 1;
            self.tell(cause, || Detail::Restart {
                attempt: attempts,
                delay_ms: milliseconds(delay),
                reason: Excerpt::new(&self.redactor, &reason),
            });
            self.down(since, attempts, &reason, last.as_ref());
            debug!(server = %self.label(), attempt = attempts, ?delay, "restart scheduled");
            let waiting = async {
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = self.orders.restart.notified() => {}
                }
            };
            self.unlisting(listed_until.max(since + LISTED_FOR), waiting).await;
        }
    }

    /// Runs `work`, and takes the tools of a server that is down out of the lists when their time is over.
    async fn unlisting<T>(&self, listed_until: Instant, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        tokio::select! {
            biased;
            outcome = &mut work => return outcome,
            () = tokio::time::sleep_until(listed_until) => {}
        }
        let outage = match &*self.state.borrow() {
            State::Restarting(outage) if outage.listed => {
                Some(Outage { listed: false, ..Outage::clone(outage) })
            }
            _ => None,
        };
        if let Some(outage) = outage {
            warn!(server = %self.label(), "still down; its tools leave the lists");
            self.become_state(State::Restarting(Arc::new(outage)));
        }
        work.await
    }

    fn down(&self, since: Instant, attempts: u32, reason: &str, last: Option<&Arc<Ready>>) {
        let listed = since.elapsed() < LISTED_FOR;
        let outage = Outage { since, attempts, reason: reason.to_owned(), last: last.cloned(), listed };
        self.become_state(State::Restarting(Arc::new(outage)));
    }

    /// One attempt, told of at its beginning and end.
    async fn come_up(&self, restarts: u32, cause: CorrelationId) -> Result<(Process, Ready), String> {
        let began = Instant::now();
        self.tell(cause, || Detail::InitStarted);
        let outcome = self.attempt(restarts, cause).await;
        self.tell(cause, || {
            let (end, tools, error) = match &outcome {
                Ok((_, ready)) => (InitOutcome::Ready, ready.tools.len(), None),
                Err(reason) => (InitOutcome::Failed, 0, Some(Excerpt::new(&self.redactor, reason))),
            };
            Detail::InitFinished { outcome: end, tools, duration_ms: milliseconds(began.elapsed()), error }
        });
        outcome
    }

    /// One attempt: process, protocol, tools, probe.
    async fn attempt(&self, restarts: u32, cause: CorrelationId) -> Result<(Process, Ready), String> {
        let Launch::Stdio(stdio) = &self.server.launch else {
            return Err("it cannot be started as it is configured".to_owned());
        };
        let Ok(_turn) = self.surroundings.warm_up.acquire().await else {
            return Err("the gateway is stopping".to_owned());
        };
        let Surroundings { environment, limit, .. } = &self.surroundings;
        let starting = async {
            let (mut process, peer) =
                connect(&self.server, stdio, environment, *limit).await.map_err(|error| error.to_string())?;
            let link = process.link.clone();
            let checked = {
                let checking = async {
                    let tools = list_tools(self.server.name.as_ref(), &link, &peer).await;
                    let tools = tools.map_err(|error| error.to_string())?;
                    self.look(&link, &peer, cause).await?;
                    Ok::<_, String>(tools)
                };
                tokio::pin!(checking);
                tokio::select! {
                    checked = &mut checking => checked,
                    () = process.ended() => checking.await,
                }
            };
            match checked {
                Ok(tools) => Ok((process, peer, tools)),
                Err(reason) => {
                    process.stop().await;
                    Err(reason)
                }
            }
        };
        let (process, peer, tools) = tokio::time::timeout(INIT_TIMEOUT, starting)
            .await
            .unwrap_or_else(|_| Err(format!("the server gave no usable answer within {INIT_TIMEOUT:?}")))?;
        let pid = process.pid();
        info!(server = %self.label(), pid, revision = %peer.revision, tools = tools.len(), restarts, "serves");
        let ready = Ready { link: process.link.clone(), peer, tools, pid, restarts, since: Instant::now() };
        Ok((process, ready))
    }

    /// Until the server is lost or asked to restart: probes it now and then, and reads its tool list again
    /// whenever it says that it changed.
    async fn serve(&self, process: &mut Process, last: &mut Option<Arc<Ready>>, cause: CorrelationId) -> End {
        let link = process.link.clone();
        let mut next_probe = Instant::now() + self.server.probe_interval;
        loop {
            tokio::select! {
                biased;
                () = process.ended() => {
                    return End::Lost(match link.ended() {
                        Some(LinkError::Closed(reason)) => reason.to_string(),
                        _ => "the connection ended".to_owned(),
                    });
                }
                () = self.orders.restart.notified() => return End::Asked,
                () = link.tools_changed() => {
                    tokio::time::sleep(CHANGE_DEBOUNCE).await;
                    self.refresh(&link, last, cause).await;
                }
                () = async {
                    tokio::select! {
                        () = tokio::time::sleep_until(next_probe) => {}
                        () = self.orders.suspect.notified() => {}
                    }
                } => {
                    next_probe = Instant::now() + self.server.probe_interval;
                    let Some(ready) = last.clone() else { continue };
                    let looked = tokio::select! {
                        looked = self.look(&link, &ready.peer, cause) => looked,
                        // The end is seen at the top of the loop.
                        () = process.ended() => continue,
                    };
                    if let Err(reason) = looked {
                        error!(server = %self.label(), reason, "health probe failed");
                        return End::Lost(reason);
                    }
                }
            }
        }
    }

    /// A health probe, told of. Fails with words.
    async fn look(&self, link: &Link, peer: &Peer, cause: CorrelationId) -> Result<(), String> {
        let began = Instant::now();
        let looked = probe(link, peer).await.map_err(|reason| format!("its health probe failed: {reason}"));
        self.tell(cause, || Detail::Probe {
            kind: health::kind(peer),
            duration_ms: milliseconds(began.elapsed()),
            error: looked.as_ref().err().map(|reason| Excerpt::new(&self.redactor, reason)),
        });
        looked
    }

    /// Ends a process, and tells how it ended.
    async fn end(&self, process: Process, cause: CorrelationId) {
        let (pid, link) = (process.pid(), process.link.clone());
        let exit = process.stop().await;
        self.tell(cause, || Detail::ProcessExited {
            pid,
            status: exit.to_string(),
            reason: Excerpt::new(
                &self.redactor,
                &link.ended().map(|end| end.to_string()).unwrap_or_default(),
            ),
        });
    }

    /// What is offered now, compared with before.
    fn tell_tools(&self, cause: CorrelationId, before: Option<&Ready>, now: &Ready) {
        self.tell(cause, || {
            let names = |ready: &Ready| {
                ready.tools.iter().map(|tool| Arc::<str>::from(tool.name.as_str())).collect::<Vec<_>>()
            };
            let Some(before) = before else { return Detail::ToolsDiscovered { names: names(now) } };
            let (old, new) = (names(before), names(now));
            let (old_set, new_set): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
            Detail::ToolsRefreshed {
                added: new.iter().filter(|name| !old_set.contains(name)).cloned().collect(),
                removed: old.iter().filter(|name| !new_set.contains(name)).cloned().collect(),
                unchanged: new.iter().filter(|name| old_set.contains(name)).count(),
            }
        });
    }

    fn tell(&self, cause: CorrelationId, detail: impl FnOnce() -> Detail) {
        self.surroundings.bus.tell(cause, Some(&self.name), detail);
    }

    async fn refresh(&self, link: &Link, last: &mut Option<Arc<Ready>>, cause: CorrelationId) {
        let Some(now) = last.clone() else { return };
        match list_tools(self.server.name.as_ref(), link, &now.peer).await {
            Ok(tools) => {
                let ready = Arc::new(Ready {
                    link: link.clone(),
                    peer: now.peer.clone(),
                    tools,
                    pid: now.pid,
                    restarts: now.restarts,
                    since: now.since,
                });
                self.tell_tools(cause, Some(&now), &ready);
                *last = Some(Arc::clone(&ready));
                self.become_state(State::Ready(ready));
            }
            Err(error) => {
                warn!(server = %self.label(), %error, "the changed tool list could not be read; the old one stays");
            }
        }
    }

    fn become_state(&self, state: State) {
        self.state.send_replace(state);
        self.surroundings.changed.notify_one();
    }

    fn label(&self) -> String {
        format!("mcp:{}", self.server.name)
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A number in 0..1, to spread restarts.
fn random() -> f64 {
    f64::from(u32::from_ne_bytes(*uuid::Uuid::new_v4().as_bytes().first_chunk().unwrap_or(&[0; 4])))
        / f64::from(u32::MAX)
}
