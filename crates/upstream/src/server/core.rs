//! One process of a server, as all who are attached to it share it.
//!
//! The supervisor is the only one who changes its state. Holds say that somebody uses it: while there is
//! one, a server that may sleep does not.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use bridgehead_call::CorrelationId;
use bridgehead_config::Server;
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
    /// Start it anew.
    pub(crate) restart: Notify,
    /// Look whether it is well.
    pub(crate) suspect: Notify,
    /// Whether it is used has changed.
    pub(crate) usage: Notify,
    /// What is watched has changed.
    pub(crate) watched: Notify,
}

/// One who is attached, and hears of what happens.
#[derive(Debug, Clone)]
pub(crate) struct Listener {
    pub(crate) number: u64,
    pub(crate) name: Arc<str>,
    pub(crate) signals: Signals,
    pub(crate) changed: Arc<Notify>,
    /// Is told what the server says outside of any request.
    pub(crate) notices: Option<NoticeSink>,
    /// The session whose own process it is.
    pub(crate) session: Option<u64>,
    /// Cancelled when it is no longer attached.
    pub(crate) left: CancellationToken,
}

/// Who uses it.
#[derive(Debug)]
pub(crate) struct Usage {
    pub(crate) holds: usize,
    /// When the last hold ended.
    pub(crate) since: Instant,
    /// Whether it was ever held.
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
    /// The resources that somebody wants to hear of, and how many do.
    watched: Mutex<BTreeMap<Watched, usize>>,
    /// Those of them that the server was asked for, and has answered.
    pub(crate) followed: watch::Sender<BTreeSet<Watched>>,
    /// Whether it sleeps when nobody uses it, so that its use is counted at all.
    pub(crate) sleeps: bool,
    /// Whether it waits for its first use.
    pub(crate) lazy: bool,
    /// Whether it serves one call and is then of no use to anybody.
    pub(crate) one_shot: bool,
    /// The folder of kept lists, where its own is kept.
    pub(crate) shelf: Option<PathBuf>,
    /// What is remembered of it, where it was attached to first.
    pub(crate) record: ServerRecord,
}

impl Core {
    /// Starts the supervisor of a server that nobody is attached to yet.
    pub(crate) fn start(
        key: Key,
        scope: Scope,
        server: Arc<Server>,
        surroundings: Surroundings,
        runtime: &Handle,
    ) -> Arc<Self> {
        // Whoever has a session's own process started is about to call it.
        let lazy = server.lazy && scope == Scope::Shared;
        let (sender, state) = watch::channel(UpstreamState::Starting { since: Instant::now(), known: None });
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
            usage: Mutex::new(Usage { holds: 0, since: Instant::now(), ever: false }),
            sleeps: lazy || server.idle_timeout.is_some(),
            lazy,
            one_shot: matches!(scope, Scope::Call(_)),
            shelf: surroundings.shelf.clone().filter(|_| lazy),
            record: surroundings.records.of(server.name.as_ref()),
        });
        let supervisor = Supervisor::new(Arc::clone(&core), server, sender, surroundings);
        core.tasks.spawn_on(supervisor.run(), runtime);
        core.tasks.close();
        core
    }

    /// Whether it can still be attached to: not one whose supervisor is gone, by a panic or with its runtime. One that is
    /// being stopped is not found any more.
    pub(crate) fn is_alive(&self) -> bool {
        self.state.has_changed().is_ok()
    }

    /// What happened to it: logged and remembered once, under the name of its configuration; counted and told by everybody
    /// who is attached, each under the name it has there.
    pub(crate) fn emit(&self, name: &str, cause: CorrelationId, signal: &ServerSignal<'_>) {
        signal.log(name);
        self.record.hear(signal);
        for listener in &*self.listeners.read() {
            listener.signals.hear(signal, &listener.name, cause);
        }
    }

    /// Tells everybody who is attached what the server said.
    pub(crate) fn told(&self, notice: &Notice) {
        for listener in &*self.listeners.read() {
            if let Some(notices) = &listener.notices {
                notices.give(Origin { server: &listener.name, session: listener.session }, notice);
            }
        }
    }

    /// The resources that somebody wants to hear of.
    pub(crate) fn watched(&self) -> BTreeSet<Watched> {
        self.watched.lock().keys().cloned().collect()
    }

    /// Changes of it are wanted, until the watch is dropped.
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

    /// Says that it is used, until the hold is dropped; wakes it. None if it never sleeps.
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

/// What a server can be asked to tell the changes of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watched {
    /// A resource, by its URI.
    Resource(String),
    /// A task, by the id that the server gave it.
    Task(String),
}

/// Somebody wants to hear of changes of a resource: its server stays awake and is asked to tell.
#[derive(Debug)]
pub struct Watch {
    core: Arc<Core>,
    what: Watched,
    left: CancellationToken,
    _hold: Option<Hold>,
}

impl Watch {
    /// Resolves once the server was asked to tell, and has answered: what changes from then on is told.
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

    /// Whether the attachment that it was taken by has ended.
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

/// Somebody uses a server: it does not go to sleep.
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
