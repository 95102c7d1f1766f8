//! One configured server as a gateway sees it: its state, its link while it serves, and a way to wait while it does
//! not. Other gateways may share the process behind it.

pub(crate) mod core;
pub(crate) mod crash;
pub(crate) mod denied;
pub(crate) mod given;
pub(crate) mod health;
pub(crate) mod policy;
pub(crate) mod record;
pub(crate) mod supervisor;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bridgehead_config::{Isolation, Launch, Limits, ServerConfig, ServerName};
use bridgehead_events::Signals;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use crate::catalog::Listing;
use crate::link::Link;
use crate::link::negotiate::Peer;
use crate::link::notice::NoticeSink;
use crate::server::core::{Core, Hold, Listener, Watch, Watched};
use crate::server::health::PROBE_TIMEOUT;
use crate::server::policy::RestartPolicy;
use crate::server::record::{ServerRecord, ServerRecords};
use crate::sharing::key::Scope;
use crate::sharing::leases::Leases;
use crate::sharing::pool::{self, OneShot, PoolNumber, Pools};
use crate::sharing::registry::Registry;
use crate::transport::credentials::CredentialSource;
use crate::transport::relay;

/// How long callers wait for a server that is starting or down, counted from the beginning of the start or outage.
/// Each attempt to start it has its own bound, `start_timeout_ms`.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// The state of a server.
#[derive(Debug, Clone)]
pub enum UpstreamState {
    /// Being started; nothing has failed yet.
    Starting {
        /// The beginning of the start.
        since: Instant,
        /// What it last offered, if known: in this run, or in an earlier one whose list was saved.
        known: Option<Arc<Listing>>,
        /// When it first answered, if it has.
        answered: Option<Instant>,
    },
    /// Not running until it is used.
    Asleep(Arc<Listing>),
    /// Serving.
    Ready(Arc<Ready>),
    /// Down; it is restarted until it serves again.
    Restarting(Arc<Outage>),
    /// Down for good.
    Failed(Arc<Failure>),
    /// Ended by the gateway.
    Stopped,
}

impl UpstreamState {
    /// The state of a server whose start begins now.
    pub(crate) fn starting(known: Option<Arc<Listing>>) -> Self {
        Self::Starting { since: Instant::now(), known, answered: None }
    }
}

/// A serving server.
#[derive(Debug)]
pub struct Ready {
    /// The connection.
    pub link: Link,
    /// Its protocol and capabilities.
    pub peer: Peer,
    /// Its tools, in its order.
    pub tools: Arc<Listing>,
    /// How it is reached: `stdio`, `http`, `sse` or `websocket`.
    pub transport: &'static str,
    /// Its process, if the gateway runs it.
    pub pid: Option<u32>,
    /// How often it was restarted.
    pub restarts: u32,
    /// When it became ready.
    pub since: Instant,
}

/// An outage of a server that is being restarted.
#[derive(Debug, Clone)]
pub struct Outage {
    /// When it went down, or was first started if it never served.
    pub since: Instant,
    /// How many attempts have failed since.
    pub attempts: u32,
    /// Why the last attempt failed, or why it went down.
    pub reason: String,
    /// What it offered when it last served.
    pub last: Option<Arc<Listing>>,
    /// Whether its tools are still in the lists.
    pub listed: bool,
    /// Whether the last attempt failed for a reason that a retry does not cure: the program does not exist,
    /// there is no common revision, or the server wants credentials.
    pub lasting: bool,
}

impl Outage {
    /// Whether the next attempt may add tools that are in no list now.
    pub fn may_bring(&self) -> bool {
        !self.lasting && (self.last.is_none() || !self.listed)
    }
}

/// Why a server does not serve and will not be restarted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whether it never served, or was lost later.
    pub stage: FailureStage,
    /// The reason, without secrets.
    pub reason: String,
}

/// The stage at which a server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureStage {
    /// It never served.
    Init,
    /// It served, and then was lost.
    Crashed,
    /// It was not started, because it cannot be limited as required.
    Sandbox,
}

/// Why there is no link to call on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The caller's deadline passed while the server was being restarted.
    #[error("it is being restarted, and the call's time ended first: {0}")]
    StillRestarting(String),
    /// It has been down for too long, so callers no longer wait for it.
    #[error("it has been down for {} s: {reason}", .age.as_secs())]
    Down {
        /// For how long.
        age: Duration,
        /// Why.
        reason: String,
    },
    /// It has been starting for too long, so callers no longer wait for it. The start continues.
    #[error("it is still starting after {} s; calls wait at most a minute for it", .0.as_secs())]
    StillStarting(Duration),
    /// It is down for good.
    #[error("it does not serve: {}", .0.reason)]
    Failed(Arc<Failure>),
    /// It was stopped, or is being stopped.
    #[error("it was stopped")]
    Stopped,
    /// All leases for clients that can be asked are in use.
    #[error("all {0} processes for calls during which it may ask questions are in use; raise `max_leases`")]
    AllLeased(usize),
    /// All processes for single sessions are in use.
    #[error(
        "all {0} processes for single sessions are in use; end sessions, or raise `max_session_processes`"
    )]
    AllOwned(usize),
    /// It is no longer configured.
    #[error("it was removed from the configuration")]
    Removed,
}

/// Shared by all upstreams of a gateway.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The gateway's own variables; a server gets only the few that every program needs.
    pub environment: Arc<BTreeMap<String, String>>,
    /// The largest accepted message, in bytes.
    pub limit: usize,
    /// Chooses the credentials of remote servers; by default they use their configured headers.
    pub credentials: Option<CredentialSource>,
    /// Notified of every change of state.
    pub changed: Arc<Notify>,
    /// Receives what servers say outside of any request.
    pub notices: Option<NoticeSink>,
    /// Limits how many server processes are launched at the same time. A process that was launched but has not
    /// answered yet does not count.
    pub warm_up: Arc<Semaphore>,
    /// Counts and reports what happens to servers.
    pub signals: Signals,
    /// The records of the servers.
    pub records: ServerRecords,
    /// The folder of saved lists; none are saved, if absent.
    pub shelf: Option<PathBuf>,
    /// When a lost server is restarted; the server's configuration decides on jitter and on when it counts as
    /// stable.
    pub policy: RestartPolicy,
}

/// A configured server, attached to the process that serves it. Clones share the attachment; dropping the last one
/// ends it.
#[derive(Debug, Clone)]
pub struct Upstream(Arc<Attachment>);

#[derive(Debug)]
struct Attachment {
    registry: Registry,
    core: Arc<Core>,
    server: Arc<ServerConfig>,
    surroundings: Surroundings,
    listener: Listener,
    runtime: Handle,
    removed: AtomicBool,
    /// Processes of single sessions and calls, which end with this attachment.
    owned: Mutex<Vec<Owned>>,
    /// Processes and sessions for clients that can be asked.
    leases: Leases,
    /// Processes that wait for their call.
    pools: Pools,
    /// The principal of the session that this process belongs to.
    whose: OnceLock<Arc<str>>,
    /// Whether it was ended because another principal waited for its place.
    evicted: AtomicBool,
    /// For a relay of one call: the attachment of the server behind it.
    behind: OnceLock<Weak<Attachment>>,
}

/// A process of a single session or call: its attachment, if that still exists, and its tasks.
#[derive(Debug)]
struct Owned {
    attachment: Weak<Attachment>,
    tasks: TaskTracker,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.registry.leave(&self.core, &self.listener);
    }
}

/// A serving server that does not go to sleep while this lives.
#[derive(Debug)]
pub struct Acquired {
    ready: Arc<Ready>,
    _hold: Option<Hold>,
}

impl Deref for Acquired {
    type Target = Ready;

    fn deref(&self) -> &Ready {
        &self.ready
    }
}

impl Upstream {
    pub(crate) fn new(
        registry: Registry,
        core: Arc<Core>,
        server: Arc<ServerConfig>,
        surroundings: Surroundings,
        listener: Listener,
        runtime: Handle,
    ) -> Self {
        let (removed, owned) = (AtomicBool::new(false), Mutex::default());
        let (leases, pools) = (Leases::new(&server), Pools::new(&server));
        Self(Arc::new(Attachment {
            registry,
            core,
            server,
            surroundings,
            listener,
            runtime,
            removed,
            owned,
            leases,
            pools,
            whose: OnceLock::new(),
            evicted: AtomicBool::new(false),
            behind: OnceLock::new(),
        }))
    }

    /// Starts the server in the background and keeps it running, in its own registry.
    pub fn start(server: ServerConfig, surroundings: Surroundings) -> Self {
        Registry::new().attach(server, surroundings)
    }

    /// Another process or session of this server, for the clients that `scope` names.
    pub(crate) fn beside(&self, scope: Scope, server: Arc<ServerConfig>) -> Result<Self, Unavailable> {
        let this = &*self.0;
        let mut owned = this.owned.lock();
        // Checked under the lock, so that a concurrent stop finds the new process in the list.
        if this.listener.left.is_cancelled() {
            drop(owned);
            return Err(self.gone());
        }
        // Only the shared process counts for tool lists.
        let surroundings = Surroundings { changed: Arc::default(), ..this.surroundings.clone() };
        let own = this.registry.join(server, surroundings, scope, this.runtime.clone());
        owned.retain(|other| !other.tasks.is_empty());
        owned.push(Owned { attachment: Arc::downgrade(&own.0), tasks: own.0.core.tasks.clone() });
        Ok(own)
    }

    /// How many processes or sessions exist beside this one.
    pub fn beside_count(&self) -> usize {
        self.0.owned.lock().iter().filter(|other| !other.tasks.is_empty()).count()
    }

    /// How many of them belong to sessions.
    pub(crate) fn session_count(&self) -> usize {
        // Without holding the lock: dropping the last reference takes it again.
        self.owned().iter().filter(|own| own.is_session()).count()
    }

    pub(crate) fn shared_config(&self) -> &Arc<ServerConfig> {
        &self.0.server
    }

    /// Notes the principal of the session that this process belongs to.
    pub(crate) fn belongs_to(&self, principal: &Arc<str>) {
        let _ = self.0.whose.set(Arc::clone(principal));
    }

    pub(crate) fn whose(&self) -> Option<&Arc<str>> {
        self.0.whose.get()
    }

    pub(crate) fn evicted(&self) -> &AtomicBool {
        &self.0.evicted
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    /// A process of this server for one call of a tool: a waiting one, or a new one.
    pub fn one_shot(&self, tool: &str) -> Result<OneShot, Unavailable> {
        let number = self.0.pools.of(&self.0.server, tool);
        let pool = self.0.pools.get(number);
        let instance = match pool.take() {
            Some(instance) => instance,
            None => {
                pool.missed();
                self.instance(pool.limits)?
            }
        };
        Ok(OneShot { instance, of: self.clone(), pool: number })
    }

    /// How many processes wait for a call, and how many calls found none waiting.
    pub fn pool(&self) -> (usize, u64) {
        self.0.pools.count()
    }

    /// Starts waiting processes, if each call has its own process. Relays wait only while their server serves: one that
    /// connected before an outage would be useless after it, and none may try a server that is down beside the
    /// supervisor.
    pub(crate) fn fill(&self) {
        if !self.is_relayed() {
            return self.refill_own();
        }
        let (this, mut states) = (Arc::downgrade(&self.0), self.watch());
        let left = self.0.listener.left.clone();
        self.0.runtime.spawn(async move {
            let mut before = None;
            loop {
                // The number of restarts, in case an outage was too short to be seen.
                let now = match &*states.borrow_and_update() {
                    UpstreamState::Ready(ready) => Some(ready.restarts),
                    _ => None,
                };
                let Some(this) = this.upgrade().map(Self) else { return };
                if now != before {
                    this.0.pools.empty();
                }
                this.refill_own();
                drop(this);
                before = now;
                tokio::select! {
                    changed = states.changed() => if changed.is_err() { return },
                    () = left.cancelled() => return,
                }
            }
        });
    }

    /// Starts waiting processes for calls of tools without limits of their own, if each call has its own process.
    pub(crate) fn refill_own(&self) {
        if let Some(own) = self.0.pools.numbers().next() {
            self.refill(own);
        }
    }

    /// Starts waiting processes for calls, if each call has its own process.
    pub(crate) fn refill(&self, number: PoolNumber) {
        let pool = self.0.pools.get(number);
        let unused = || pool.count().1 == 0;
        if self.0.server.isolation != Isolation::Call || self.0.server.lazy && unused() {
            return;
        }
        if self.is_relayed() && !matches!(self.state(), UpstreamState::Ready(_)) {
            return;
        }
        while pool.wants() {
            let Ok(instance) = self.instance(pool.limits) else { return };
            let (key, mut states) = (pool::number(), instance.watch());
            let this = Arc::downgrade(&self.0);
            let watch = self.0.runtime.spawn(async move {
                let waits = |state: &UpstreamState| {
                    matches!(state, UpstreamState::Starting { .. } | UpstreamState::Ready(_))
                };
                let _ = states.wait_for(|state| !waits(state)).await;
                if let Some(this) = this.upgrade().map(Self) {
                    this.replace(number, key);
                }
            });
            pool.put(key, instance, AbortOnDropHandle::new(watch));
        }
    }

    /// Drops a process that ended while it waited and replaces it; later, if this happens often.
    fn replace(&self, number: PoolNumber, key: u64) {
        let Some(before) = self.0.pools.get(number).lost(key) else { return };
        // No jitter: there are few of them, and no two servers depend on each other.
        let policy = &self.0.surroundings.policy;
        if policy.gives_up(before) {
            return;
        }
        let delay = policy.delay(before, 0.0);
        if delay.is_zero() {
            return self.refill(number);
        }
        let (this, left) = (Arc::downgrade(&self.0), self.0.listener.left.clone());
        self.0.runtime.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = left.cancelled() => return,
            }
            if let Some(this) = this.upgrade().map(Self) {
                this.refill(number);
            }
        });
    }

    /// A new process for one call. It is not restarted if it ends.
    fn instance(&self, limits: Limits) -> Result<Self, Unavailable> {
        let this = &*self.0;
        let mut owned = this.owned.lock();
        // Checked under the lock, so that a concurrent stop finds the new process in the list.
        if this.listener.left.is_cancelled() {
            drop(owned);
            return Err(self.gone());
        }
        let mut server = ServerConfig::clone(&this.server);
        (server.restart, server.lazy, server.idle_timeout, server.limits) = (false, false, None, limits);
        // What happens to it between calls goes only to the log.
        let surroundings = Surroundings {
            changed: Arc::default(),
            signals: Signals::default(),
            ..this.surroundings.clone()
        };
        let scope = Scope::Call(pool::number());
        let instance = this.registry.join(Arc::new(server), surroundings, scope, this.runtime.clone());
        if self.is_relayed() {
            let _ = instance.0.behind.set(Arc::downgrade(&self.0));
        }
        owned.retain(|other| !other.tasks.is_empty());
        owned.push(Owned { attachment: Arc::downgrade(&instance.0), tasks: instance.0.core.tasks.clone() });
        Ok(instance)
    }

    /// How many requests it is answering, in its own process and in those of single sessions, clients or calls.
    pub fn in_flight(&self) -> usize {
        let of = |upstream: &Self| match upstream.state() {
            UpstreamState::Ready(ready) => ready.link.in_flight(),
            _ => 0,
        };
        // Without holding the lock: dropping the last reference takes it again.
        let owned: Vec<Self> =
            self.0.owned.lock().iter().filter_map(|owned| owned.attachment.upgrade().map(Self)).collect();
        of(self) + owned.iter().map(of).sum::<usize>()
    }

    /// Its name.
    pub fn name(&self) -> &ServerName {
        &self.0.server.name
    }

    /// Its configuration.
    pub fn config(&self) -> &ServerConfig {
        &self.0.server
    }

    /// Whether the gateway runs its process.
    pub fn is_process(&self) -> bool {
        matches!(self.0.server.launch, Launch::Stdio(_))
    }

    /// Whether its process only relays, and the server is elsewhere.
    pub fn is_relayed(&self) -> bool {
        matches!(&self.0.server.launch, Launch::Stdio(stdio) if relay::is_relay(stdio))
    }

    /// Whether it serves one call only.
    pub fn is_one_shot(&self) -> bool {
        self.0.core.one_shot
    }

    /// Whether it serves one client session only.
    pub fn is_session(&self) -> bool {
        matches!(self.0.core.scope, Scope::Session(_))
    }

    /// Whether both are the same attachment.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the attachment has ended.
    pub fn is_released(&self) -> bool {
        self.0.listener.left.is_cancelled()
    }

    /// Whether both are served by the same process.
    pub fn is_same_process(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.core, &other.0.core)
    }

    /// Its record.
    pub fn record(&self) -> &ServerRecord {
        &self.0.core.record
    }

    /// Its current state.
    pub fn state(&self) -> UpstreamState {
        if self.0.listener.left.is_cancelled() {
            return UpstreamState::Stopped;
        }
        self.0.core.state.borrow().clone()
    }

    /// Its state as it changes.
    pub fn watch(&self) -> watch::Receiver<UpstreamState> {
        self.0.core.state.clone()
    }

    /// Waits until its first start has succeeded or failed, or until it waits for its first use.
    pub async fn settled(&self) {
        let mut state = self.0.core.state.clone();
        // An error means that the supervisor is gone, and with it any start.
        let _ = state.wait_for(|state| !matches!(state, UpstreamState::Starting { .. })).await;
    }

    /// Keeps it awake, and wakes it. `None` if it never sleeps.
    #[inline]
    pub fn hold(&self) -> Option<Hold> {
        self.0.core.hold()
    }

    /// Watches a resource: the server reports its changes while the watch lives. Wakes the server.
    pub fn watch_resource(&self, uri: &str) -> Watch {
        self.0.core.watch(Watched::Resource(uri.to_owned()), self.0.listener.left.clone())
    }

    /// Watches a task by the server's id for it, until the watch is dropped.
    pub fn watch_task(&self, id: &str) -> Watch {
        self.0.core.watch(Watched::Task(id.to_owned()), self.0.listener.left.clone())
    }

    /// The server, ready for a call. Waits for a starting server, at most until `deadline` and at most until it has
    /// been down for [`INIT_TIMEOUT`]. Then all waiting callers fail together, and later ones fail at once until it
    /// serves again.
    pub async fn acquire(&self, deadline: Instant) -> Result<Acquired, Unavailable> {
        // Taken before the state is read: from here on the server does not fall asleep.
        let hold = self.hold();
        let left = &self.0.listener.left;
        // The common case, without cloning the receiver.
        if let UpstreamState::Ready(ready) = &*self.0.core.state.borrow()
            && ready.link.is_open()
            && !left.is_cancelled()
        {
            return Ok(Acquired { ready: Arc::clone(ready), _hold: hold });
        }
        let mut states = self.0.core.state.clone();
        loop {
            let (since, reason) = match &*states.borrow_and_update() {
                _ if left.is_cancelled() => return Err(self.gone()),
                UpstreamState::Ready(ready) if ready.link.is_open() => {
                    return Ok(Acquired { ready: Arc::clone(ready), _hold: hold });
                }
                // Lost a moment ago; the supervisor is about to report it.
                UpstreamState::Ready(_) => (Instant::now(), "its connection was just lost".to_owned()),
                UpstreamState::Failed(failure) => return Err(Unavailable::Failed(Arc::clone(failure))),
                UpstreamState::Stopped => return Err(self.gone()),
                UpstreamState::Starting { since, .. } => (*since, "it is still starting".to_owned()),
                UpstreamState::Asleep(_) => (Instant::now(), "it is being started".to_owned()),
                UpstreamState::Restarting(outage) => (outage.since, outage.reason.clone()),
            };
            let patience = since + INIT_TIMEOUT;
            let now = Instant::now();
            if now >= patience {
                if matches!(&*states.borrow(), UpstreamState::Starting { .. }) {
                    return Err(Unavailable::StillStarting(now - since));
                }
                return Err(Unavailable::Down { age: now - since, reason });
            }
            if now >= deadline {
                return Err(Unavailable::StillRestarting(reason));
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return Err(self.gone()) },
                () = left.cancelled() => return Err(self.gone()),
                () = tokio::time::sleep_until(deadline.min(patience)) => {}
            }
        }
    }

    fn gone(&self) -> Unavailable {
        match self.0.removed.load(Ordering::Acquire) {
            true => Unavailable::Removed,
            false => Unavailable::Stopped,
        }
    }

    /// Requests a health probe, after a call that was not answered.
    pub fn suspect(&self) {
        self.0.core.orders.suspect.notify_one();
        self.suspect_behind();
    }

    /// Requests a probe of the server behind a relay of one call: if the relay does not come up, or loses its call, the
    /// server may be the reason.
    pub fn suspect_behind(&self) {
        if let Some(behind) = self.0.behind.get().and_then(Weak::upgrade) {
            behind.core.orders.suspect.notify_one();
        }
    }

    /// Probes a serving server, and returns when it has answered or is known to be down.
    pub async fn confirm(&self) {
        let (mut probed, mut states) = (self.0.core.probed.subscribe(), self.watch());
        self.0.core.orders.suspect.notify_one();
        let known = async {
            tokio::select! {
                _ = probed.changed() => {}
                _ = states.wait_for(|state| !matches!(state, UpstreamState::Ready(_))) => {}
                () = self.0.listener.left.cancelled() => {}
            }
        };
        // The supervisor may be busy with a list that the server has changed.
        let _ = tokio::time::timeout(PROBE_TIMEOUT * 2, known).await;
    }

    /// Restarts the server, even if it waits for its next attempt, sleeps or was given up; processes of single
    /// sessions too. Returns `false` if it is already stopped.
    pub fn restart(&self) -> bool {
        if self.0.listener.left.is_cancelled() {
            return false;
        }
        self.0.core.orders.restart.notify_one();
        // Waiting processes are from before the restart; running calls continue.
        if self.0.server.isolation == Isolation::Call {
            self.0.pools.empty();
            if !self.is_relayed() {
                self.refill_own();
            }
            return true;
        }
        for own in self.owned() {
            own.restart();
        }
        true
    }

    /// Ends the attachment at once; the process ends soon after, if it has no other attachment.
    pub fn release(&self) {
        let this = &*self.0;
        // Leave first, so that no process of a session is added after the loop below.
        this.registry.leave(&this.core, &this.listener);
        this.pools.empty();
        for own in self.owned() {
            own.release();
        }
    }

    /// The same for a server that is no longer configured; calls then say so.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::Release);
        for own in self.owned() {
            own.0.removed.store(true, Ordering::Release);
        }
        self.release();
    }

    /// Ends the attachment and returns when nothing is left of the processes that only it used.
    pub async fn stop(&self) {
        self.release();
        let owned: Vec<TaskTracker> = self.0.owned.lock().drain(..).map(|own| own.tasks).collect();
        for tasks in owned {
            tasks.wait().await;
        }
        if self.0.core.stop.is_cancelled() {
            self.0.core.tasks.wait().await;
        }
    }

    pub(crate) fn owned(&self) -> Vec<Self> {
        let owned = self.0.owned.lock();
        owned.iter().filter_map(|own| own.attachment.upgrade()).map(Self).collect()
    }
}

#[cfg(test)]
mod tests;
