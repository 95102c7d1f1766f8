//! A provider and a server that can be removed, held during its start, and restored.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{CorrelationId, SystemClock};
use bridgehead_config::{Isolation, Launch, Limits, Remote, RemoteTransport, Secret, Stdio};
use bridgehead_events::{Bus, Delivery, Event, Subscription};
use bridgehead_testkit::{Behaviour, Carrier, Crash, LeakCheck, Mock, Served, Tool};
use bridgehead_upstream::provider::{
    Health, Invocation, McpProvider, ProviderAdapter, ProviderConfig, ProviderError,
};
use serde_json::{Value, json};
use tempfile::TempDir;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Stdio,
    Http,
    Sse,
    WebSocket,
}

/// A server that can be removed and restored.
pub(crate) enum Peer {
    /// A program behind a symlink that can be removed.
    Program {
        mock: Box<Mock>,
        folder: TempDir,
    },
    Served(Box<Served>),
}

/// A provider and its server.
pub(crate) struct World {
    pub(crate) provider: McpProvider,
    pub(crate) peer: Peer,
    way: Way,
    told: Subscription,
    leaks: LeakCheck,
}

pub(crate) fn mock() -> Mock {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    Mock::new()
        .full_tool(Tool::new("echo", Behaviour::Echo).input_schema(schema))
        .tool("hang", Behaviour::Hang)
        .tool("die", Behaviour::Crash(Crash::Exit { status: 3 }))
}

/// Two milliseconds of real time, during which a paused clock stands still.
pub(crate) async fn wall_clock_tick() {
    let _ = tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(2))).await;
}

impl World {
    pub(crate) fn new(way: Way, mock: Mock) -> Self {
        let leaks = LeakCheck::start().required();
        let (name, value) = leaks.marker();
        let mock = mock.variable(name, value);
        let peer = match way {
            Way::Stdio => {
                let folder = tempfile::tempdir().unwrap();
                let peer = Peer::Program { mock: Box::new(mock), folder };
                peer.back();
                peer
            }
            Way::Http => Peer::Served(Box::new(mock.serve(Carrier::Http))),
            Way::Sse => Peer::Served(Box::new(mock.serve(Carrier::Sse))),
            Way::WebSocket => Peer::Served(Box::new(mock.serve(Carrier::WebSocket))),
        };
        let bus = Bus::new(Arc::new(SystemClock::default()));
        let told = bus.subscribe(256);
        Self { provider: McpProvider::new(bus), peer, way, told, leaks }
    }

    pub(crate) fn config(&self) -> ProviderConfig {
        let endpoint = match &self.peer {
            Peer::Program { mock, .. } => {
                let mut stdio = Stdio::new(self.peer.program().to_str().unwrap(), [""; 0]);
                stdio.env = mock.env().into_iter().map(|(name, value)| (name, Secret::new(value))).collect();
                Launch::Stdio(stdio)
            }
            Peer::Served(served) => {
                let remote = Remote::new(served.url().parse().unwrap());
                let transport = match self.way {
                    Way::Sse => RemoteTransport::Sse,
                    Way::WebSocket => RemoteTransport::WebSocket,
                    Way::Stdio | Way::Http => RemoteTransport::Http,
                };
                Launch::Remote(Remote { transport, ..remote })
            }
        };
        // The tests lose the one shared connection.
        ProviderConfig::new("far".parse().unwrap(), endpoint)
            .isolation(Isolation::Shared)
            .limits(Limits::default())
            .reconnect_backoff(Duration::from_millis(5))
    }

    pub(crate) async fn init(way: Way) -> Self {
        let world = Self::new(way, mock());
        world.provider.init(world.config()).await.unwrap();
        world
    }

    pub(crate) async fn run(&self, tool: &str, arguments: Value) -> Result<Value, ProviderError> {
        let invocation = Invocation::new(format!("far__{tool}"), arguments);
        let executed = self.provider.execute(&invocation, CorrelationId::mint()).await?;
        Ok(executed.result.decode().unwrap())
    }

    /// Removes the server while a call is open; returns once its loss is noticed.
    pub(crate) async fn lose(&mut self) {
        match &mut self.peer {
            Peer::Program { .. } => {
                self.peer.away();
                self.run("die", json!({})).await.unwrap_err();
            }
            Peer::Served(served) => {
                served.kill();
                // Over HTTP nothing is open between calls; the first failing call reveals the loss.
                self.run("echo", json!({})).await.unwrap_err();
            }
        }
    }

    pub(crate) async fn until(&self, health: Health) {
        let reached = async {
            while self.provider.health() != health {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), reached)
            .await
            .unwrap_or_else(|_| panic!("never {health:?}"));
    }

    pub(crate) fn told(&mut self) -> Vec<Arc<Event>> {
        std::iter::from_fn(|| self.told.try_next())
            .map(|delivery| match delivery {
                Delivery::Event(event) => event,
                Delivery::Missed(count) => panic!("{count} events were missed"),
            })
            .collect()
    }

    pub(crate) async fn end(self) {
        let Self { provider, peer, leaks, .. } = self;
        provider.terminate().await;
        drop((provider, peer));
        leaks.assert_clean().await;
    }
}

impl Peer {
    pub(crate) fn program(&self) -> PathBuf {
        match self {
            Self::Program { folder, .. } => folder.path().join("server"),
            Self::Served(_) => unreachable!("a served mock has no program here"),
        }
    }

    /// Makes the server impossible to start.
    pub(crate) fn away(&mut self) {
        match self {
            Self::Program { .. } => std::fs::remove_file(self.program()).unwrap(),
            Self::Served(served) => served.kill(),
        }
    }

    pub(crate) fn back(&self) {
        if let Self::Program { mock, .. } = self {
            std::os::unix::fs::symlink(mock.command().0, self.program()).unwrap();
        }
    }

    /// Replaces the program with a script that starts it only while it is not held.
    pub(crate) fn can_be_held(&self) {
        use std::os::unix::fs::PermissionsExt;

        let Self::Program { mock, .. } = self else { unreachable!("a served mock has no program here") };
        let (program, held) = (self.program(), self.held());
        let (mock, held) = (mock.command().0, held.display());
        let script =
            format!("#!/bin/sh\nwhile [ -e '{held}' ]; do sleep 0.01; done\nexec '{}'\n", mock.display());
        std::fs::remove_file(&program).unwrap();
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Blocks every start until [`Self::let_go`].
    pub(crate) fn hold(&self) {
        std::fs::write(self.held(), "").unwrap();
    }

    pub(crate) fn let_go(&self) {
        std::fs::remove_file(self.held()).unwrap();
    }

    fn held(&self) -> PathBuf {
        self.program().with_file_name("held")
    }

    pub(crate) fn restart(&mut self) {
        match self {
            Self::Program { .. } => self.back(),
            Self::Served(served) => served.restart(),
        }
    }
}
