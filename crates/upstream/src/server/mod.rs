//! One configured server as a gateway sees it: its state, the link while it serves, and a place to wait
//! while it does not. The process behind it may be shared with others.

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
use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_config::{Isolation, Launch, Limits, Server, ServerName};
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
use crate::server::policy::RestartPolicy;
use crate::server::record::{ServerRecord, ServerRecords};
use crate::sharing::key::Scope;
use crate::sharing::leases::Leases;
use crate::sharing::pool::{self, OneShot, PoolNumber, Pools};
use crate::sharing::registry::Registry;
use crate::transport::credentials::CredentialSource;

/// How long callers wait for a server that is starting or down, counted from the beginning of the start or the outage.
/// The attempts to start it have a bound of their own, `start_timeout_ms`.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a server is in its life.
#[derive(Debug, Clone)]
pub enum UpstreamState {
    /// Being started; nothing has failed yet.
    Starting {
        /// Since then.
        since: Instant,
        /// What it offered the last time, where that is known.
        known: Option<Arc<Listing>>,
    },
    /// Not running until somebody uses it.
    Asleep(Arc<Listing>),
    /// Serving.
    Ready(Arc<Ready>),
    /// Down, and being brought back for as long as it takes.
    Restarting(Arc<Outage>),
    /// Down for good, for this reason.
    Failed(Arc<Failure>),
    /// Ended by us.
    Stopped,
}

/// A server that serves.
#[derive(Debug)]
pub struct Ready {
    /// The connection.
    pub link: Link,
    /// What it speaks and offers.
    pub peer: Peer,
    /// Its tools, in its order.
    pub tools: Arc<Listing>,
    /// How it is reached: `stdio`, `http`, `sse` or `websocket`.
    pub transport: &'static str,
    /// Its process, if it is one of ours.
    pub pid: Option<u32>,
    /// How often it has been started again.
    pub restarts: u32,
    /// Since then.
    pub since: Instant,
}

/// A server that is down for now.
#[derive(Debug, Clone)]
pub struct Outage {
    /// When it went down, or was first started if it never served.
    pub since: Instant,
    /// How many attempts have failed since.
    pub attempts: u32,
    /// Why the last one failed, or why it went down.
    pub reason: String,
    /// What it offered when it last served.
    pub last: Option<Arc<Listing>>,
    /// Whether its tools still stand in the lists.
    pub listed: bool,
    /// Whether the last attempt failed for what no further one mends: there is no such program, or no revision that both
    /// sides speak.
    pub lasting: bool,
}

impl Outage {
    /// Whether the next attempt may bring what is in no list now.
    pub fn may_bring(&self) -> bool {
        !self.lasting && (self.last.is_none() || !self.listed)
    }
}

/// Why a server does not serve and will not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whether it never came up, or was lost later.
    pub stage: FailureStage,
    /// The reason, without secrets.
    pub reason: String,
}

/// When a server failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureStage {
    /// It never served.
    Init,
    /// It served, and then ended by itself.
    Crashed,
    /// It was not started, because it cannot be limited as required.
    Sandbox,
}

/// Why there is no link to call on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The caller's own time ended while the server was being brought back.
    #[error("it is being restarted, and the call's time ended first: {0}")]
    StillRestarting(String),
    /// It has been down for too long to wait; nobody waits until it is back.
    #[error("it has been down for {} s: {reason}", .age.as_secs())]
    Down {
        /// For how long.
        age: Duration,
        /// Why.
        reason: String,
    },
    /// It has been starting for too long to wait. The start goes on.
    #[error("it is still starting after {} s; calls wait for it no longer than a minute", .0.as_secs())]
    StillStarting(Duration),
    /// It is down for good.
    #[error("it does not serve: {}", .0.reason)]
    Failed(Arc<Failure>),
    /// It was stopped, or is being stopped.
    #[error("it was stopped")]
    Stopped,
    /// All that there may be for calls that can be asked something are in use.
    #[error("its {0} processes for calls that it may ask something in are all in use; raise `max_leases`")]
    AllLeased(usize),
    /// It is no longer configured.
    #[error("it was removed from the configuration")]
    Removed,
}

/// What all upstreams of a gateway share.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The gateway's own variables, of which a server gets only the few that every program needs.
    pub environment: Arc<BTreeMap<String, String>>,
    /// The largest message that is taken.
    pub limit: usize,
    /// Chooses the credentials of remote servers; by default they have their configured headers.
    pub credentials: Option<CredentialSource>,
    /// Told of every change of state.
    pub changed: Arc<Notify>,
    /// Is told what servers say outside of any request.
    pub notices: Option<NoticeSink>,
    /// How many server processes are launched at the same time. One that was launched and has not answered yet does not
    /// count.
    pub warm_up: Arc<Semaphore>,
    /// Where what happens to servers is counted and told.
    pub signals: Signals,
    /// What is remembered of them.
    pub records: ServerRecords,
    /// The folder in which the tools of lazy servers are kept; nowhere, if absent.
    pub shelf: Option<PathBuf>,
    /// When a server that went down is started again; its configuration decides on jitter and on when it counts
    /// as stable.
    pub policy: RestartPolicy,
}

/// A configured server, attached to the process that serves it. Clones share it; the last one that goes ends
/// the attachment.
#[derive(Debug, Clone)]
pub struct Upstream(Arc<Attachment>);

#[derive(Debug)]
struct Attachment {
    registry: Registry,
    core: Arc<Core>,
    server: Arc<Server>,
    surroundings: Surroundings,
    listener: Listener,
    runtime: Handle,
    removed: AtomicBool,
    /// Processes of single sessions and calls, which end with this.
    owned: Mutex<Vec<Owned>>,
    /// Those for clients that can be asked something.
    leases: Leases,
    /// Those that wait for their call.
    pools: Pools,
}

/// A session's own process: who is attached, if the session still is, and what is left of it.
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

/// A server that serves and does not go to sleep as long as this lives.
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
        server: Arc<Server>,
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
        }))
    }

    /// Starts the server in the background and keeps it running, in a registry of its own.
    pub fn start(server: Server, surroundings: Surroundings) -> Self {
        Registry::new().attach(server, surroundings)
    }

    /// The process of this server that one session has for itself, by the session's number; started if it is
    /// not there.
    pub fn own(&self, session: u64) -> Result<Self, Unavailable> {
        self.beside(Scope::Session(session), Arc::clone(&self.0.server))
    }

    /// Another process or session of this server, for whom `scope` says.
    pub(crate) fn beside(&self, scope: Scope, server: Arc<Server>) -> Result<Self, Unavailable> {
        let this = &*self.0;
        let mut owned = this.owned.lock();
        // Seen under the lock, so that whoever stops this finds the new one in the list.
        if this.listener.left.is_cancelled() {
            drop(owned);
            return Err(self.gone());
        }
        // Who lists tools hears of the shared one only.
        let surroundings = Surroundings { changed: Arc::default(), ..this.surroundings.clone() };
        let own = this.registry.join(server, surroundings, scope, this.runtime.clone());
        owned.retain(|other| !other.tasks.is_empty());
        owned.push(Owned { attachment: Arc::downgrade(&own.0), tasks: own.0.core.tasks.clone() });
        Ok(own)
    }

    /// How many processes or sessions there are next to this one.
    pub fn beside_count(&self) -> usize {
        self.0.owned.lock().iter().filter(|other| !other.tasks.is_empty()).count()
    }

    /// How many of them belong to sessions.
    pub(crate) fn session_count(&self) -> usize {
        // Out of the lock: the last to let go of one takes it again.
        self.owned().iter().filter(|own| own.is_session()).count()
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.0.leases
    }

    /// A process of this server for one call of a tool: one that waits for it, or a new one.
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

    /// Has processes wait for calls of tools without limits of their own, if calls have processes of their own.
    pub(crate) fn refill_own(&self) {
        if let Some(own) = self.0.pools.numbers().next() {
            self.refill(own);
        }
    }

    /// Has processes wait for calls, if calls have processes of their own.
    pub(crate) fn refill(&self, number: PoolNumber) {
        let pool = self.0.pools.get(number);
        let unused = || pool.count().1 == 0;
        if self.0.server.isolation != Isolation::Call || self.0.server.lazy && unused() {
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

    /// Lets go of one that has ended while it waited, and has another take its place, later if this happens often.
    fn replace(&self, number: PoolNumber, key: u64) {
        let Some(before) = self.0.pools.get(number).lost(key) else { return };
        // Chance has no part in it: there are few of them, and no two servers wait for each other.
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

    /// A new process for one call. It is not started again if it ends.
    fn instance(&self, limits: Limits) -> Result<Self, Unavailable> {
        let this = &*self.0;
        let mut owned = this.owned.lock();
        // Seen under the lock, so that whoever stops this finds the new one in the list.
        if this.listener.left.is_cancelled() {
            drop(owned);
            return Err(self.gone());
        }
        let mut server = Server::clone(&this.server);
        (server.restart, server.lazy, server.idle_timeout, server.limits) = (false, false, None, limits);
        // What happens to it between two calls is nobody's business but the log's.
        let surroundings = Surroundings {
            changed: Arc::default(),
            signals: Signals::default(),
            ..this.surroundings.clone()
        };
        let scope = Scope::Call(pool::number());
        let instance = this.registry.join(Arc::new(server), surroundings, scope, this.runtime.clone());
        owned.retain(|other| !other.tasks.is_empty());
        owned.push(Owned { attachment: Arc::downgrade(&instance.0), tasks: instance.0.core.tasks.clone() });
        Ok(instance)
    }

    /// How many requests it is answering, in its own process and in those that sessions, clients or calls have to
    /// themselves.
    pub fn in_flight(&self) -> usize {
        let of = |upstream: &Self| match upstream.state() {
            UpstreamState::Ready(ready) => ready.link.in_flight(),
            _ => 0,
        };
        // Out of the lock: the last to let go of one takes it again.
        let owned: Vec<Self> =
            self.0.owned.lock().iter().filter_map(|owned| owned.attachment.upgrade().map(Self)).collect();
        of(self) + owned.iter().map(of).sum::<usize>()
    }

    /// Its name.
    pub fn name(&self) -> &ServerName {
        &self.0.server.name
    }

    /// Its configuration.
    pub fn config(&self) -> &Server {
        &self.0.server
    }

    /// Whether it is a process of ours.
    pub fn is_process(&self) -> bool {
        matches!(self.0.server.launch, Launch::Stdio(_))
    }

    /// Whether it is there for one client session only.
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

    /// What is remembered of it.
    pub fn record(&self) -> &ServerRecord {
        &self.0.core.record
    }

    /// Its state now.
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

    /// Waits until its first start has succeeded or failed, or it waits for its first use.
    pub async fn settled(&self) {
        let mut state = self.0.core.state.clone();
        // An error means the task is gone, and with it any start.
        let _ = state.wait_for(|state| !matches!(state, UpstreamState::Starting { .. })).await;
    }

    /// Keeps it from going to sleep, and wakes it. None if it never sleeps.
    pub fn hold(&self) -> Option<Hold> {
        self.0.core.hold()
    }

    /// Has it tell of changes of a resource, for as long as the watch lives. Wakes it.
    pub fn watch_resource(&self, uri: &str) -> Watch {
        self.0.core.watch(Watched::Resource(uri.to_owned()), self.0.listener.left.clone())
    }

    /// Has the server tell how a task is doing, by its own id for it, until the watch is dropped.
    pub fn watch_task(&self, id: &str) -> Watch {
        self.0.core.watch(Watched::Task(id.to_owned()), self.0.listener.left.clone())
    }

    /// The server, ready to be called. Waits for one that is coming up, at most until `deadline` and at most
    /// until it has been down for [`INIT_TIMEOUT`]; all who wait fail together then, and whoever comes later
    /// fails at once, until it serves again.
    pub async fn acquire(&self, deadline: Instant) -> Result<Acquired, Unavailable> {
        // Before its state is looked at: from here on it does not fall asleep.
        let hold = self.hold();
        let left = &self.0.listener.left;
        // The ordinary case, without a receiver of its own.
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
                // Lost a moment ago; its supervisor is about to say so.
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

    /// Asks for a look at its health, after a call that it did not answer.
    pub fn suspect(&self) {
        self.0.core.orders.suspect.notify_one();
    }

    /// Ends the server and starts it anew, also one that is waiting for its next attempt, sleeps or was given up;
    /// processes of single sessions too. Says whether it will: not once it is stopped.
    pub fn restart(&self) -> bool {
        if self.0.listener.left.is_cancelled() {
            return false;
        }
        self.0.core.orders.restart.notify_one();
        // Those that wait for a call are of what was; calls that run go on.
        if self.0.server.isolation == Isolation::Call {
            self.0.pools.empty();
            self.refill_own();
            return true;
        }
        for own in self.owned() {
            own.restart();
        }
        true
    }

    /// Ends the attachment at once; the process ends soon, if nobody else is attached.
    pub fn release(&self) {
        let this = &*self.0;
        // Left first, so that no process of a session comes after the look at them.
        this.registry.leave(&this.core, &this.listener);
        this.pools.empty();
        for own in self.owned() {
            own.release();
        }
    }

    /// The same for a server that is no longer configured, which is what calls are told.
    pub fn remove(&self) {
        self.0.removed.store(true, Ordering::Release);
        for own in self.owned() {
            own.0.removed.store(true, Ordering::Release);
        }
        self.release();
    }

    /// Ends the attachment and returns when nothing is left of the processes that nobody else uses.
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

    fn owned(&self) -> Vec<Self> {
        let owned = self.0.owned.lock();
        owned.iter().filter_map(|own| own.attachment.upgrade()).map(Self).collect()
    }
}

#[cfg(test)]
mod tests;
