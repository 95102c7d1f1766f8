//! Shared by the unit tests of this crate: servers that run nothing, and a peer at the other end of an in-memory
//! pipe.
//!
//! Everything stays inside the test's own runtime, so the tests can run on a paused clock.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, ServerConfig, Stdio};
use bridgehead_events::Signals;
use bridgehead_wire::{Raw, Revision};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore};
use tokio_util::task::AbortOnDropHandle;

use crate::link::Link;
use crate::link::negotiate::Peer;
use crate::server::Surroundings;
use crate::server::core::Core;
use crate::server::policy::RestartPolicy;
use crate::server::record::ServerRecords;
use crate::sharing::key::{Key, Scope};

pub(crate) fn surroundings() -> Surroundings {
    Surroundings {
        environment: Arc::default(),
        limit: 1 << 20,
        credentials: None,
        changed: Arc::new(Notify::new()),
        notices: None,
        warm_up: Arc::new(Semaphore::new(8)),
        signals: Signals::default(),
        records: ServerRecords::default(),
        shelf: None,
        policy: RestartPolicy::REGISTRY,
    }
}

/// A server that is never started.
pub(crate) fn unusable() -> ServerConfig {
    let launch = Launch::Unusable { reason: "it is not to be run".to_owned() };
    ServerConfig::new("s".parse().unwrap(), launch, &GatewaySettings::default())
}

/// A server whose program does not exist.
pub(crate) fn missing() -> ServerConfig {
    ServerConfig { launch: Launch::Stdio(Stdio::new("no-such-program-here", [""; 0])), ..unusable() }
}

/// The shared core of a server that has no attachment.
pub(crate) fn core(server: ServerConfig) -> Arc<Core> {
    let (surroundings, runtime) = (surroundings(), Handle::current());
    let key = Key::of(&server, &surroundings, Scope::Shared, &runtime);
    Core::start(key, Scope::Shared, Arc::new(server), surroundings, &runtime)
}

pub(crate) fn peer(revision: Revision, capabilities: &'static str) -> Peer {
    Peer { revision, capabilities: Raw::literal(capabilities), instructions: None, server_info: None }
}

/// The other end of a link.
pub(crate) struct Far {
    pub(crate) lines: Lines<BufReader<ReadHalf<DuplexStream>>>,
    out: WriteHalf<DuplexStream>,
    _driven: [AbortOnDropHandle<()>; 2],
}

/// A link over lines, and its other end.
pub(crate) fn link() -> (Link, Far) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (reader, writer) = tokio::io::split(ours);
    let (link, reads, writes) = Link::over("s", reader, writer, 1 << 20);
    let (reader, out) = tokio::io::split(theirs);
    let driven = [tokio::spawn(reads), tokio::spawn(writes)].map(AbortOnDropHandle::new);
    (link, Far { lines: BufReader::new(reader).lines(), out, _driven: driven })
}

impl Far {
    /// The next message, which must arrive within ten minutes of the test's clock.
    pub(crate) async fn next(&mut self) -> Value {
        let line = tokio::time::timeout(Duration::from_secs(600), self.lines.next_line()).await;
        serde_json::from_str(&line.expect("nothing was sent").unwrap().expect("the link has ended")).unwrap()
    }

    pub(crate) async fn say(&mut self, message: Value) {
        self.out.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }

    /// Answers the next request, which must be for `method`.
    pub(crate) async fn answer(&mut self, method: &str, result: Value) {
        let asked = self.next().await;
        assert_eq!(asked["method"], method, "{asked}");
        self.say(json!({"jsonrpc": "2.0", "id": asked["id"], "result": result})).await;
    }
}
