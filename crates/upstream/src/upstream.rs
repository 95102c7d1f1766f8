//! One configured server from start to stop: what state it is in, and the link while it is ready.
//!
//! A single task per upstream owns its process. Everybody else reads the state, so a server that is slow,
//! broken or gone costs the others nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Launch, Server, ServerName};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::catalog::{Tool, list_tools};
use crate::link::{Link, LinkError};
use crate::negotiate::Peer;
use crate::transport::stdio::{Process, connect};

/// How long a server may take from its start to its tool list.
pub const INIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Changes of the tool list within this time are read as one.
const CHANGE_DEBOUNCE: Duration = Duration::from_millis(50);

/// Where a server is in its life.
#[derive(Debug, Clone)]
pub enum State {
    /// Being started; its tools are not known yet.
    Starting,
    /// Serving.
    Ready(Arc<Ready>),
    /// Not serving, for this reason.
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
}

/// Why a server does not serve.
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

/// A configured server. Clones share it.
#[derive(Debug, Clone)]
pub struct Upstream {
    server: Arc<Server>,
    state: watch::Receiver<State>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl Upstream {
    /// Starts the server in the background. `environment` is the gateway's own, of which the child gets
    /// only the few names that every program needs; `limit` bounds one message. Every change of state is
    /// told to `changed`.
    pub fn start(
        server: Server,
        environment: Arc<BTreeMap<String, String>>,
        limit: usize,
        changed: Arc<Notify>,
    ) -> Self {
        let server = Arc::new(server);
        let (sender, state) = watch::channel(State::Starting);
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let life = Life { server: Arc::clone(&server), state: sender, stop: stop.clone(), limit, changed };
        tasks.spawn(async move { life.run(&environment).await });
        tasks.close();
        Self { server, state, stop, tasks }
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

    /// Waits until it is no longer starting.
    pub async fn settled(&self) {
        let mut state = self.state.clone();
        // An error means the task is gone, and with it any start.
        let _ = state.wait_for(|state| !matches!(state, State::Starting)).await;
    }

    /// Ends the server and returns when nothing of it is left.
    pub async fn stop(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}

/// The task that owns the server's process.
struct Life {
    server: Arc<Server>,
    state: watch::Sender<State>,
    stop: CancellationToken,
    limit: usize,
    changed: Arc<Notify>,
}

impl Life {
    async fn run(self, environment: &BTreeMap<String, String>) {
        let connected = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            outcome = self.come_up(environment) => Some(outcome),
        };
        let mut process = match connected {
            None => return self.become_state(State::Stopped),
            Some(Err(reason)) => {
                warn!(server = %self.label(), reason, "does not serve");
                return self
                    .become_state(State::Failed(Arc::new(Failure { stage: FailureStage::Init, reason })));
            }
            Some(Ok(process)) => process,
        };
        let ended = tokio::select! {
            biased;
            () = self.stop.cancelled() => false,
            () = self.serve(&mut process) => true,
        };
        if ended {
            let reason = match process.link.ended() {
                Some(LinkError::Closed(reason)) => reason.to_string(),
                _ => "the connection ended".to_owned(),
            };
            warn!(server = %self.label(), reason, "lost");
            self.become_state(State::Failed(Arc::new(Failure { stage: FailureStage::Crashed, reason })));
            process.stop().await;
        } else {
            process.stop().await;
            self.become_state(State::Stopped);
        }
    }

    async fn come_up(&self, environment: &BTreeMap<String, String>) -> Result<Process, String> {
        let stdio = match &self.server.launch {
            Launch::Stdio(stdio) => stdio,
            Launch::Unusable { reason } => return Err(reason.clone()),
        };
        let starting = async {
            let (mut process, peer) = connect(&self.server, stdio, environment, self.limit)
                .await
                .map_err(|error| error.to_string())?;
            let link = process.link.clone();
            let listed = {
                let listing = list_tools(self.server.name.as_ref(), &link, &peer);
                tokio::pin!(listing);
                tokio::select! {
                    listed = &mut listing => listed,
                    () = process.ended() => listing.await,
                }
            };
            match listed {
                Ok(tools) => Ok((process, peer, tools)),
                Err(error) => {
                    process.stop().await;
                    Err(error.to_string())
                }
            }
        };
        let (process, peer, tools) = tokio::time::timeout(INIT_TIMEOUT, starting)
            .await
            .unwrap_or_else(|_| Err(format!("the server gave no usable answer within {INIT_TIMEOUT:?}")))?;
        info!(server = %self.label(), pid = process.pid(), revision = %peer.revision, tools = tools.len(), "serves");
        let ready = Ready { link: process.link.clone(), peer, tools, pid: process.pid() };
        self.become_state(State::Ready(Arc::new(ready)));
        Ok(process)
    }

    /// Until the process ends: reads the tool list again whenever the server says that it changed.
    async fn serve(&self, process: &mut Process) {
        let link = process.link.clone();
        let refresh = async {
            loop {
                link.tools_changed().await;
                tokio::time::sleep(CHANGE_DEBOUNCE).await;
                let State::Ready(now) = self.state.borrow().clone() else { continue };
                match list_tools(self.server.name.as_ref(), &link, &now.peer).await {
                    Ok(tools) => {
                        let ready = Ready { link: link.clone(), peer: now.peer.clone(), tools, pid: now.pid };
                        self.become_state(State::Ready(Arc::new(ready)));
                    }
                    Err(error) => {
                        warn!(server = %self.label(), %error, "the changed tool list could not be read; the old one stays");
                    }
                }
            }
        };
        tokio::select! {
            () = process.ended() => {}
            () = refresh => {}
        }
    }

    fn become_state(&self, state: State) {
        self.state.send_replace(state);
        self.changed.notify_one();
    }

    fn label(&self) -> String {
        format!("mcp:{}", self.server.name)
    }
}
