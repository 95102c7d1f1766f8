//! One process of a server, shared by everything that is attached to it.
//!
//! Only the supervisor changes its state. A hold marks it as in use: while there is one, the server does not sleep.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_config::ServerConfig;
use bridgehead_events::{ServerSignal, Signals};
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::link::notice::{Notice, NoticeSink, Origin};
use crate::server::record::ServerRecord;
use crate::server::supervisor::Supervisor;
use crate::server::{Surroundings, UpstreamState};
use crate::sharing::key::{Key, Scope};

/// What others ask of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Restart the server.
    pub(crate) restart: Notify,
    /// Probe its health.
    pub(crate) suspect: Notify,
    /// Its use has changed.
    pub(crate) usage: Notify,
    /// The set of watched things has changed.
    pub(crate) watched: Notify,
}

/// One attachment, which is told what happens.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) number: u64,
    pub(crate) name: Arc<str>,
    pub(crate) signals: Signals,
    pub(crate) changed: Arc<Notify>,
    /// Receives what the server says outside of any request.
    pub(crate) notices: Option<NoticeSink>,
    /// The session, if the process belongs to a single one.
    pub(crate) session: Option<u64>,
    /// Cancelled when it is no longer attached.
    pub(crate) left: CancellationToken,
}

/// How the server is used.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) holds: usize,
    /// When the last hold ended.
    pub(crate) since: Instant,
    /// Whether there ever was a hold.
    pub(crate) ever: bool,
}

#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) key: Key,
    pub(crate) scope: Scope,
    pub(crate) state: watch::Receiver<UpstreamState>,
    pub(crate) orders: Orders,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: TaskTracker,
    pub(crate) listeners: RwLock<Vec<Listener>>,
    pub(crate) usage: Mutex<Usage>,
    /// The watched resources and tasks, and how many watches each has.
    watched: Mutex<BTreeMap<Watched, usize>>,
    /// Those that the server was asked for and has answered.
    pub(crate) followed: watch::Sender<BTreeSet<Watched>>,
    /// How many probes it has answered while it served.
    pub(crate) probed: watch::Sender<u64>,
    /// Whether it sleeps when unused; only then is its use counted.
    pub(crate) sleeps: bool,
    /// Whether it starts at its first use.
    pub(crate) lazy: bool,
    /// Whether it serves one call and is useless afterwards.
    pub(crate) one_shot: bool,
    /// The folder of saved lists, if its own list is saved.
    pub(crate) shelf: Option<PathBuf>,
    /// Its record, from the gateway that attached first.
    pub(crate) record: ServerRecord,
}

impl Core {
    /// Starts the supervisor of a server that has no attachment yet.
    pub(crate) fn start(
        key: Key,
        scope: Scope,
        server: Arc<ServerConfig>,
        surroundings: Surroundings,
        runtime: &Handle,
    ) -> Arc<Self> {
        // A session's own process is started for a call that is about to come.
        let lazy = server.lazy && scope == Scope::Shared;
        let (sender, state) = watch::channel(UpstreamState::starting(None));
        // Only the shared process counts for lists. Under a source of credentials, the list may belong to one account of
        // several, and nobody knows which one the next start will have.
        let saved = scope == Scope::Shared && !key.has_credential_source();
        let core = Arc::new(Self {
            key,
            scope,
            state,
            orders: Orders::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
            listeners: RwLock::default(),
            watched: Mutex::default(),
            followed: watch::Sender::default(),
            probed: watch::Sender::default(),
            usage: Mutex::new(Usage { holds: 0, since: Instant::now(), ever: false }),
            sleeps: lazy || server.idle_timeout.is_some(),
            lazy,
            one_shot: matches!(scope, Scope::Call(_)),
            shelf: surroundings.shelf.clone().filter(|_| saved),
            record: surroundings.records.of(server.name.as_ref()),
        });
        let supervisor = Supervisor::new(Arc::clone(&core), server, sender, surroundings);
        core.tasks.spawn_on(supervisor.run(), runtime);
        core.tasks.close();
        core
    }

    /// Whether it can still be attached to: not if its supervisor is gone, by a panic or with its runtime. One that
    /// is being stopped is no longer in the registry.
    pub(crate) fn is_alive(&self) -> bool {
        self.state.has_changed().is_ok()
    }

    /// Reports a signal: logged and recorded once, under its configured name; counted and passed on by every
    /// attachment, each under its own name for the server.
    pub(crate) fn emit(&self, name: &str, cause: CorrelationId, signal: &ServerSignal<'_>) {
        signal.log(name);
        self.record.hear(signal);
        for listener in &*self.listeners.read() {
            listener.signals.hear(signal, &listener.name, cause);
        }
    }

    /// Passes on to every attachment what the server said.
    pub(crate) fn told(&self, notice: &Notice) {
        for listener in &*self.listeners.read() {
            if let Some(notices) = &listener.notices {
                notices.give(Origin { server: &listener.name, session: listener.session }, notice);
            }
        }
    }

    /// The watched resources and tasks.
    pub(crate) fn watched(&self) -> BTreeSet<Watched> {
        self.watched.lock().keys().cloned().collect()
    }

    /// Watches a resource or task until the watch is dropped.
    pub(crate) fn watch(self: &Arc<Self>, what: Watched, left: CancellationToken) -> Watch {
        let hold = self.hold();
        let mut watched = self.watched.lock();
        let count = watched.entry(what.clone()).or_default();
        *count += 1;
        let first = *count == 1;
        drop(watched);
        if first {
            self.orders.watched.notify_one();
        }
        Watch { core: Arc::clone(self), what, left, _hold: hold }
    }

    pub(crate) fn changed(&self) {
        for listener in &*self.listeners.read() {
            listener.changed.notify_one();
        }
    }

    /// Marks it as in use until the hold is dropped, and wakes it. `None` if it never sleeps.
    pub(crate) fn hold(self: &Arc<Self>) -> Option<Hold> {
        if !self.sleeps {
            return None;
        }
        let mut usage = self.usage.lock();
        usage.holds += 1;
        usage.ever = true;
        drop(usage);
        self.orders.usage.notify_one();
        Some(Hold(Arc::clone(self)))
    }
}

/// Something whose changes a server can report.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    /// A resource, by its URI.
    Resource(String),
    /// A task, by the id that the server gave it.
    Task(String),
}

/// A watch on a resource or task: its server stays awake and is asked to report changes.
#[derive(Debug)]
pub struct Watch {
    core: Arc<Core>,
    what: Watched,
    left: CancellationToken,
    _hold: Option<Hold>,
}

impl Watch {
    /// Resolves once the server was asked and has answered: later changes are reported.
    pub fn settled(&self) -> impl Future<Output = ()> + use<> {
        let (mut followed, what) = (self.core.followed.subscribe(), self.what.clone());
        let left = self.left.clone();
        async move {
            tokio::select! {
                _ = followed.wait_for(|followed| followed.contains(&what)) => {}
                () = left.cancelled() => {}
            }
        }
    }

    /// Whether the attachment that took it has ended.
    pub fn is_over(&self) -> bool {
        self.left.is_cancelled()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut watched = self.core.watched.lock();
        let left = watched.get_mut(&self.what).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            watched.remove(&self.what);
            drop(watched);
            self.core.orders.watched.notify_one();
        }
    }
}

/// Marks a server as in use: it does not go to sleep.
#[derive(Debug)]
pub struct Hold(Arc<Core>);

impl Drop for Hold {
    fn drop(&mut self) {
        let mut usage = self.0.usage.lock();
        usage.holds -= 1;
        usage.since = Instant::now();
        let last = usage.holds == 0;
        drop(usage);
        if last {
            self.0.orders.usage.notify_one();
        }
    }
}
