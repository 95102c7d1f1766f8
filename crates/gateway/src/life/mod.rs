//! Starts, stops and reconfigures a gateway's servers.
//!
//! A gateway that was stopped can be started again. A change of the set of servers takes effect in one step,
//! so a client is notified of one change. A server whose configuration is the same is not touched.

pub(crate) mod joined;
mod label;
pub(crate) mod session;
pub(crate) mod status;
pub(crate) mod waiting;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Mode, ServerConfig, ServerName};
use bridgehead_upstream::{RestartPolicy, Surroundings, Upstream, own_environment};
use bridgehead_wire::held::Budget;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

use crate::access::Thing;
use crate::catalog::Target;
use crate::gateway::{Gateway, Inner};
use crate::life::session::Session;
use crate::relay::request::restart_own;

/// How long running calls to a replaced or removed server may take to end.
const DRAIN: Duration = Duration::from_secs(10);
/// How often the gateway checks whether they have ended.
const DRAIN_LOOK: Duration = Duration::from_millis(50);

/// A gateway between its start and its stop.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    surroundings: Surroundings,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A tool of a server that was removed from the configuration.
#[derive(Debug)]
pub(crate) struct GoneTool {
    pub(crate) server: Arc<str>,
    pub(crate) own: Box<str>,
    pub(crate) read_only: bool,
}

impl GoneTool {
    /// The tool as an authorizer knew it.
    pub(crate) fn thing(&self) -> Thing<'_> {
        Thing { server: Some(&self.server), name: &self.own, read_only: self.read_only }
    }
}

/// What a new configuration changed, each list in the order of its configuration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReloadReport {
    /// Servers that were not there before.
    pub added: Vec<ServerName>,
    /// Servers that are no longer there.
    pub removed: Vec<ServerName>,
    /// Servers that were restarted, because their process or connection settings have changed.
    pub restarted: Vec<ServerName>,
    /// Servers that keep running under changed settings.
    pub changed: Vec<ServerName>,
    /// Servers that were not touched.
    pub unchanged: Vec<ServerName>,
}

impl ReloadReport {
    /// Whether nothing has changed.
    pub fn is_empty(&self) -> bool {
        let Self { added, removed, restarted, changed, unchanged: _ } = self;
        [added, removed, restarted, changed].into_iter().all(Vec::is_empty)
    }
}

/// Why a call was cancelled from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelReason {
    /// The client no longer wants it.
    Client,
    /// It took too long.
    Timeout,
}

impl Gateway {
    /// Starts the servers in the background, unless the mode is `minimal`. Does nothing if the gateway runs
    /// already.
    pub fn start(&self) {
        let inner = self.inner();
        // The memory budget belongs to the process; the gateway that starts last sets it.
        Budget::process().limit(inner.settings.held_bytes, inner.settings.held_per_peer_bytes);
        let mut running = inner.run.lock();
        if running.is_some() || inner.settings.mode == Mode::Minimal {
            return;
        }
        let servers = inner.servers.lock().clone();
        let environment = inner.environment_for(&servers);
        let run = Run {
            surroundings: Surroundings {
                shelf: shelf(inner, &environment),
                environment,
                limit: inner.settings.max_message_bytes,
                credentials: inner.credentials.clone(),
                changed: Arc::clone(&inner.upstream_changed),
                notices: Some(inner.notices()),
                warm_up: Arc::new(Semaphore::new(inner.settings.init_concurrency)),
                signals: self.signals().clone(),
                records: inner.records.clone(),
                policy: RestartPolicy::REGISTRY,
            },
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        *inner.lists_wait_since.lock() = None;
        inner.parks.reopen();
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

    /// Whether it is between start and stop. In mode `minimal` it has nothing to start.
    pub fn is_started(&self) -> bool {
        let inner = self.inner();
        inner.settings.mode == Mode::Minimal || inner.run.lock().is_some()
    }

    /// Leaves every server, and returns when those that no other gateway uses have ended. The gateway can be
    /// started again.
    pub async fn stop(&self) {
        let inner = self.inner();
        let run = inner.run.lock().take();
        if let Some(run) = &run {
            run.stop.cancel();
        }
        // A reload under way sees the cancellation and ends soon.
        let _alone = inner.changing.lock().await;
        inner.parks.close().await;
        let upstreams = std::mem::take(&mut *inner.upstreams.write());
        futures_util::future::join_all(upstreams.iter().map(Upstream::stop)).await;
        inner.feeds.end_records();
        if let Some(run) = run {
            run.tasks.wait().await;
        }
    }

    /// Leaves every server like [`Gateway::stop`], but does not wait for those that end: for places where nothing can be
    /// awaited.
    pub fn leave(&self) {
        let inner = self.inner();
        if let Some(run) = inner.run.lock().take() {
            run.stop.cancel();
        }
        let upstreams = std::mem::take(&mut *inner.upstreams.write());
        upstreams.iter().for_each(Upstream::release);
        inner.feeds.end_records();
    }

    /// Takes another set of servers, in the order their tools are listed. New servers are started and get
    /// some time to become ready; then all changes take effect in one step. Running calls on replaced and
    /// removed servers have a few seconds to end.
    ///
    /// A server with the same name and the same configuration is not touched. A server that is restarted runs
    /// beside the old one until it is ready.
    pub async fn reload(&self, servers: Vec<ServerConfig>) -> ReloadReport {
        let inner = self.inner();
        let _alone = inner.changing.lock().await;
        let servers = behind(servers, &inner.settings);
        *inner.servers.lock() = servers.clone();
        let run = inner.run.lock().clone();
        let mut report = ReloadReport::default();
        let Some(run) = run else { return report };
        let environment = inner.environment_for(&servers);
        let surroundings = Surroundings { environment, ..run.surroundings.clone() };
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
            let upstream = inner.registry.attach(server, surroundings.clone());
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
        let arriving = Arriving::announce(inner, &new);
        let settling = futures_util::future::join_all(new.iter().map(Upstream::settled));
        tokio::select! {
            _ = tokio::time::timeout(inner.settings.list_wait, settling) => {}
            () = run.stop.cancelled() => {}
        }
        inner.remember_removed(&removed, &kept);
        inner.replace(after.clone());
        drop(arriving);
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
            "servers reconfigured"
        );
        report
    }

    /// Cancels a session's calls of this tool, wherever they run: a shared server is notified, a process of
    /// the call's own is killed, a Rust handler is dropped, and the clients get an answer. If the reason is a
    /// timeout, a process of the session's own is restarted, and any other server is probed. Returns whether
    /// there was anything to cancel or restart.
    pub fn cancel_tool(&self, session: &Session, tool: &str, reason: CancelReason) -> bool {
        let catalog = self.inner().catalog.load();
        let reached = self.inner().gate.cancels.cancel(session.number(), tool, reason);
        let Some(Target::Upstream { upstream, .. }) = catalog.route(tool).map(|route| &route.target) else {
            return reached;
        };
        let late = reason == CancelReason::Timeout;
        let restarted = late && session.own(upstream).is_some_and(|own| restart_own(&own));
        if late && reached && !restarted {
            upstream.suspect();
        }
        reached || restarted
    }
}

impl Inner {
    /// The environment from which these servers get their variables.
    fn environment_for(&self, servers: &[ServerConfig]) -> Arc<BTreeMap<String, String>> {
        self.environment.clone().unwrap_or_else(|| Arc::new(own_environment(servers)))
    }

    /// Replaces all servers in one step.
    fn replace(&self, upstreams: Vec<Upstream>) {
        let merging = self.merging.lock();
        *self.upstreams.write() = upstreams;
        self.merge_now(&merging);
    }

    /// Remembers the tools of removed servers, so that a call of one gets a precise error.
    fn remember_removed(&self, removed: &[&Upstream], kept: &HashSet<&ServerName>) {
        let mut gone = self.gone.lock();
        gone.retain(|_, tool| !kept.iter().any(|kept| kept.as_str() == &*tool.server));
        let catalog = self.catalog.load();
        for route in catalog.routes() {
            if let Target::Upstream { upstream, .. } = &route.target
                && removed.iter().any(|old| old.is(upstream))
            {
                let Thing { name, read_only, .. } = route.thing();
                let server = upstream.name().as_ref().into();
                gone.insert(Arc::clone(&route.name), GoneTool { server, own: name.into(), read_only });
            }
        }
    }
}

/// Servers of a gateway with these settings.
pub(crate) fn behind(servers: Vec<ServerConfig>, settings: &GatewaySettings) -> Vec<ServerConfig> {
    servers.into_iter().map(|server| server.behind(settings)).collect()
}

/// Servers that the status shows although they are not in effect yet, until this is dropped.
struct Arriving<'a>(&'a Inner);

impl<'a> Arriving<'a> {
    fn announce(inner: &'a Inner, new: &[Upstream]) -> Self {
        *inner.arriving.lock() = new.to_vec();
        Self(inner)
    }
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        // Dropped without holding the lock: the last reference to a server ends it.
        let gone = std::mem::take(&mut *self.0.arriving.lock());
        drop(gone);
    }
}

/// Resolves when none of them has a running call, or after [`DRAIN`].
async fn drained<'a>(upstreams: impl Iterator<Item = &'a &'a Upstream> + Clone) {
    let until = Instant::now() + DRAIN;
    while upstreams.clone().any(|upstream| upstream.in_flight() > 0) && Instant::now() < until {
        tokio::time::sleep(DRAIN_LOOK).await;
    }
}

/// Where the lists of servers are saved; `None` in mode `test`, or if the environment names no directory.
fn shelf(inner: &Inner, environment: &BTreeMap<String, String>) -> Option<PathBuf> {
    if inner.settings.mode == Mode::Test {
        return None;
    }
    let folder = |name: &str| environment.get(name).map(Path::new).filter(|path| path.is_absolute());
    let state = folder("XDG_STATE_HOME").map(Path::to_owned);
    let state = state.or_else(|| Some(folder("HOME")?.join(".local/state")))?;
    Some(state.join("bridgehead/catalog"))
}
