//! How a gateway's servers come and go: start, stop, a new configuration.
//!
//! A gateway that was stopped can be started again. What changes the set of servers does so in one step, so
//! that a client hears of one change; a server whose configuration is the same is not touched by it.

mod label;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod waiting;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Mode, Server, ServerName};
use bridgehead_upstream::{RestartPolicy, Surroundings, Upstream};
use bridgehead_wire::held::Budget;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::catalog::Target;
use crate::gateway::{Gateway, Inner};
use crate::life::session::Session;
use crate::relay::request::restart_own;

/// How long calls to a server that a new configuration replaces or removes may still take.
const DRAIN: Duration = Duration::from_secs(10);
/// How often it is looked whether they are done.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// A gateway between its start and its stop.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    surroundings: Surroundings,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What a new configuration changed, each list in the order of its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadReport {
    /// Servers that were not there before.
    pub added: Vec<ServerName>,
    /// Servers that are no longer there.
    pub removed: Vec<ServerName>,
    /// Servers that run anew, because what is run has changed.
    pub restarted: Vec<ServerName>,
    /// Servers that go on running under other settings.
    pub changed: Vec<ServerName>,
    /// Servers that were not touched.
    pub unchanged: Vec<ServerName>,
}

impl ReloadReport {
    /// Whether anything is different now.
    pub fn is_empty(&self) -> bool {
        let Self { added, removed, restarted, changed, unchanged: _ } = self;
        [added, removed, restarted, changed].into_iter().all(Vec::is_empty)
    }
}

/// Why somebody gave up on a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The client no longer wants it.
    Client,
    /// It took too long.
    Timeout,
}

impl Gateway {
    /// Starts the servers in the background, unless the mode is `minimal`. Does nothing while it runs already.
    pub fn start(&self) {
        let inner = self.inner();
        // Memory is shared by all that runs in the process; whoever starts last says how much of it.
        Budget::process().limit(inner.settings.held_bytes, inner.settings.held_per_peer_bytes);
        let mut running = inner.run.lock();
        if running.is_some() || inner.settings.mode == Mode::Minimal {
            return;
        }
        let run = Run {
            surroundings: Surroundings {
                environment: Arc::clone(&inner.environment),
                limit: inner.settings.max_message_bytes,
                credentials: inner.credentials.clone(),
                changed: Arc::clone(&inner.upstream_changed),
                notices: Some(inner.notices()),
                warm_up: Arc::new(Semaphore::new(inner.settings.init_concurrency)),
                signals: self.signals().clone(),
                records: inner.records.clone(),
                shelf: shelf(inner),
                policy: RestartPolicy::REGISTRY,
            },
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        *inner.list_deadline.lock() = None;
        inner.parks.reopen();
        let servers = inner.servers.lock().clone();
        let attach = |server| inner.registry.attach(server, run.surroundings.clone());
        inner.replace(servers.into_iter().map(attach).collect());
        let (this, stop) = (Arc::clone(inner), run.stop.clone());
        run.tasks.spawn(async move {
            loop {
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = this.upstream_changed.notified() => this.merge(),
                }
            }
        });
        run.tasks.close();
        *running = Some(run);
    }

    /// Leaves every server and returns when nothing is left of those that nobody else uses. May be followed by
    /// another start.
    pub async fn stop(&self) {
        let inner = self.inner();
        let run = inner.run.lock().take();
        if let Some(run) = &run {
            run.stop.cancel();
        }
        // A reload under way sees the mark, and is over soon.
        let _alone = inner.changing.lock().await;
        inner.parks.close().await;
        let upstreams = std::mem::take(&mut *inner.upstreams.write());
        futures_util::future::join_all(upstreams.iter().map(Upstream::stop)).await;
        inner.feeds.end_records();
        if let Some(run) = run {
            run.tasks.wait().await;
        }
    }

    /// Takes another set of servers, in the order their tools are listed. New ones are started and waited for a
    /// while, then all changes take place in one step; calls in progress on replaced and removed servers have a
    /// few seconds to end.
    ///
    /// A server that was there under the same name with the same configuration is not touched. One that is
    /// started anew runs beside the old one until it is ready.
    pub async fn reload(&self, servers: Vec<Server>) -> ReloadReport {
        let inner = self.inner();
        let _alone = inner.changing.lock().await;
        *inner.servers.lock() = servers.clone();
        let run = inner.run.lock().clone();
        let mut report = ReloadReport::default();
        let Some(run) = run else { return report };
        let before = inner.upstreams.read().clone();
        let mut after = Vec::with_capacity(servers.len());
        let mut new = Vec::new();
        for server in servers {
            let name = server.name.clone();
            let old = before.iter().find(|old| *old.name() == name);
            if let Some(same) = old.filter(|old| *old.config() == server) {
                report.unchanged.push(name);
                after.push(same.clone());
                continue;
            }
            let upstream = inner.registry.attach(server, run.surroundings.clone());
            match old {
                None => report.added.push(name),
                Some(old) if old.is_same_process(&upstream) => report.changed.push(name),
                Some(_) => report.restarted.push(name),
            }
            new.push(upstream.clone());
            after.push(upstream);
        }
        let kept: HashSet<&ServerName> = after.iter().map(Upstream::name).collect();
        let (replaced, removed): (Vec<_>, Vec<_>) = before
            .iter()
            .filter(|old| !after.iter().any(|kept| kept.is(old)))
            .partition(|old| kept.contains(old.name()));
        report.removed = removed.iter().map(|old| old.name().clone()).collect();
        let settling = futures_util::future::join_all(new.iter().map(Upstream::settled));
        tokio::select! {
            _ = tokio::time::timeout(inner.settings.list_wait, settling) => {}
            () = run.stop.cancelled() => {}
        }
        inner.remember_removed(&removed, &kept);
        inner.replace(after.clone());
        tokio::select! {
            () = drained(replaced.iter().chain(&removed)) => {}
            () = run.stop.cancelled() => {}
        }
        for old in &removed {
            old.remove();
            inner.records.forget(old.name().as_ref());
        }
        futures_util::future::join_all(replaced.iter().chain(&removed).map(|old| old.stop())).await;
        info!(
            added = report.added.len(),
            removed = report.removed.len(),
            restarted = report.restarted.len(),
            changed = report.changed.len(),
            "servers configured anew"
        );
        report
    }

    /// Gives up a session's calls of this tool, whoever runs them: a shared server is told, a process of the call's own is
    /// killed, and their clients are answered. Where they took too long, a process that is the session's own is started
    /// anew, and any other server is probed. Says whether there was anything to give up or to start anew.
    pub fn cancel_tool(&self, session: &Session, tool: &str, reason: CancelReason) -> bool {
        let catalog = self.inner().catalog.load();
        let Some(Target::Upstream { upstream, .. }) = catalog.route(tool).map(|route| &route.target) else {
            return false;
        };
        let reached = self.inner().gate.cancels.cancel(session.number(), tool, reason);
        let late = reason == CancelReason::Timeout;
        let restarted = late && session.own(upstream).is_some_and(|own| restart_own(&own));
        if late && reached && !restarted {
            upstream.suspect();
        }
        reached || restarted
    }
}

impl Inner {
    /// Puts others in the place of the servers that were there, in one step.
    fn replace(&self, upstreams: Vec<Upstream>) {
        let merging = self.merging.lock();
        *self.upstreams.write() = upstreams;
        self.merge_now(&merging);
    }

    /// Remembers the names of tools that go with their servers, so that a call can be told.
    fn remember_removed(&self, removed: &[&Upstream], kept: &HashSet<&ServerName>) {
        let mut gone = self.gone.lock();
        gone.retain(|_, server| !kept.iter().any(|kept| kept.as_str() == &**server));
        let catalog = self.catalog.load();
        for route in catalog.routes() {
            if let Target::Upstream { upstream, .. } = &route.target
                && removed.iter().any(|old| old.is(upstream))
            {
                gone.insert(Arc::clone(&route.name), upstream.name().as_ref().into());
            }
        }
    }
}

/// Resolves when none of them has a call in progress, or their time is over.
async fn drained<'a>(upstreams: impl Iterator<Item = &'a &'a Upstream> + Clone) {
    let until = Instant::now() + DRAIN;
    while upstreams.clone().any(|upstream| upstream.in_flight() > 0) && Instant::now() < until {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

/// Where the lists of lazy servers are kept; nowhere in mode `test`, or if nobody says where.
fn shelf(inner: &Inner) -> Option<PathBuf> {
    if inner.settings.mode == Mode::Test {
        return None;
    }
    let folder = |name: &str| inner.environment.get(name).map(Path::new).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").map(Path::to_owned);
    let state = state.or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("bridgehead/catalog"))
}
