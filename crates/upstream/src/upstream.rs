//! One configured server as everybody sees it: its state, the link while it serves, and a place to wait
//! while it does not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Server, ServerName};
use bridgehead_events::Bus;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::Tool;
use crate::link::Link;
use crate::negotiate::Peer;
use crate::supervisor::Supervisor;

/// How long a server may take from its start to its tool list, and how long callers wait for one that is
/// down, counted from the beginning of the outage.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a server is in its life.
#[derive(Debug, Clone)]
pub enum State {
    /// Being started for the first time; nothing has failed yet.
    Starting {
        /// Since then.
        since: Instant,
    },
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
    pub tools: Vec<Arc<Tool>>,
    /// Its process.
    pub pid: u32,
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
    pub last: Option<Arc<Ready>>,
    /// Whether its tools still stand in the lists.
    pub listed: bool,
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
    /// It is down for good.
    #[error("it does not serve: {}", .0.reason)]
    Failed(Arc<Failure>),
    /// It was stopped, or is being stopped.
    #[error("it was stopped")]
    Stopped,
}

/// A configured server. Clones share it.
#[derive(Debug, Clone)]
pub struct Upstream {
    server: Arc<Server>,
    state: watch::Receiver<State>,
    orders: Arc<Orders>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// What others ask of the supervisor.
#[derive(Debug, Default)]
pub(crate) struct Orders {
    /// Start it anew.
    pub(crate) restart: Notify,
    /// Look whether it is well.
    pub(crate) suspect: Notify,
}

/// What all upstreams of a gateway share.
#[derive(Debug, Clone)]
pub struct Surroundings {
    /// The gateway's own variables, of which a server gets only the few that every program needs.
    pub environment: Arc<BTreeMap<String, String>>,
    /// The largest message that is taken.
    pub limit: usize,
    /// Told of every change of state.
    pub changed: Arc<Notify>,
    /// How many servers are started at the same time.
    pub warm_up: Arc<Semaphore>,
    /// Told of what happens to servers.
    pub bus: Bus,
}

impl Upstream {
    /// Starts the server in the background and keeps it running.
    pub fn start(server: Server, surroundings: Surroundings) -> Self {
        let server = Arc::new(server);
        let (sender, state) = watch::channel(State::Starting { since: Instant::now() });
        let stop = CancellationToken::new();
        let orders = Arc::new(Orders::default());
        let tasks = TaskTracker::new();
        let supervisor =
            Supervisor::new(Arc::clone(&server), sender, Arc::clone(&orders), stop.clone(), surroundings);
        tasks.spawn(supervisor.run());
        tasks.close();
        Self { server, state, orders, stop, tasks }
    }

    /// Its name.
    pub fn name(&self) -> &ServerName {
        &self.server.name
    }

    /// Its configuration.
    pub fn config(&self) -> &Server {
        &self.server
    }

    /// Its state now.
    pub fn state(&self) -> State {
        self.state.borrow().clone()
    }

    /// Its state as it changes.
    pub fn watch(&self) -> watch::Receiver<State> {
        self.state.clone()
    }

    /// Waits until its first start has succeeded or failed.
    pub async fn settled(&self) {
        let mut state = self.state.clone();
        // An error means the task is gone, and with it any start.
        let _ = state.wait_for(|state| !matches!(state, State::Starting { .. })).await;
    }

    /// The server, ready to be called. Waits for one that is coming up, at most until `deadline` and at most
    /// until it has been down for [`INIT_TIMEOUT`]; all who wait fail together then, and whoever comes later
    /// fails at once, until it serves again.
    pub async fn acquire(&self, deadline: Instant) -> Result<Arc<Ready>, Unavailable> {
        let mut states = self.state.clone();
        loop {
            let (since, reason) = match &*states.borrow_and_update() {
                _ if self.stop.is_cancelled() => return Err(Unavailable::Stopped),
                State::Ready(ready) => return Ok(Arc::clone(ready)),
                State::Failed(failure) => return Err(Unavailable::Failed(Arc::clone(failure))),
                State::Stopped => return Err(Unavailable::Stopped),
                State::Starting { since } => (*since, "it is still starting".to_owned()),
                State::Restarting(outage) => (outage.since, outage.reason.clone()),
            };
            let patience = since + INIT_TIMEOUT;
            let now = Instant::now();
            if now >= patience {
                return Err(Unavailable::Down { age: now - since, reason });
            }
            if now >= deadline {
                return Err(Unavailable::StillRestarting(reason));
            }
            tokio::select! {
                changed = states.changed() => if changed.is_err() { return Err(Unavailable::Stopped) },
                () = self.stop.cancelled() => return Err(Unavailable::Stopped),
                () = tokio::time::sleep_until(deadline.min(patience)) => {}
            }
        }
    }

    /// Asks for a look at its health, after a call that it did not answer.
    pub fn suspect(&self) {
        self.orders.suspect.notify_one();
    }

    /// Ends the server and starts it anew, also one that is waiting for its next attempt.
    pub fn restart(&self) {
        self.orders.restart.notify_one();
    }

    /// Ends the server and returns when nothing of it is left.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}
