//! The transports to a server, one module each, and what they share: a [`Connection`].

pub mod credentials;
pub mod relay;

#[cfg(feature = "http")]
pub(crate) mod dial;
#[cfg(feature = "http")]
pub(crate) mod http;
#[cfg(not(feature = "http"))]
mod no_http;
#[cfg(feature = "http")]
mod proxy;
mod stdio;
#[cfg(feature = "http")]
mod websocket;

use std::collections::BTreeMap;

use bridgehead_config::{EraChoice, Launch, RemoteTransport, ServerConfig};
use bridgehead_process::{Exit, SpawnError};
use tokio::sync::Semaphore;

use self::credentials::CredentialSource;
use self::http::HttpConnection;
#[cfg(not(feature = "http"))]
pub(crate) use self::no_http::{http, websocket};
use self::stdio::Process;
use self::websocket::WebSocket;
use crate::link::negotiate::{NegotiateError, Offer, Opening, Peer};
use crate::link::{Link, LinkError};
use crate::server::record::ServerRecord;

/// A connected server, and the link to it. Dropping it disconnects at once.
#[derive(Debug)]
pub(crate) struct Connection {
    /// Where requests go.
    pub(crate) link: Link,
    carrier: Carrier,
}

#[derive(Debug)]
enum Carrier {
    Process(Box<Process>),
    Http(HttpConnection),
    WebSocket(WebSocket),
}

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConnectionKind {
    Stdio,
    Http,
    Sse,
    WebSocket,
}

/// Why connecting failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    #[error(transparent)]
    Negotiate(#[from] NegotiateError),
    /// Its configuration does not allow it.
    #[error("{0}")]
    Unusable(String),
}

/// Connects to the server as configured and negotiates a protocol. `environment` is the gateway's own, `limit` the
/// largest accepted message; `source` chooses the credentials of a remote server. A process is launched while
/// holding one of the `turns`. Waiting for answers holds none, so a server that never answers does not block other
/// launches.
pub(crate) async fn connect(
    server: &ServerConfig,
    environment: &BTreeMap<String, String>,
    limit: usize,
    source: Option<&CredentialSource>,
    record: &ServerRecord,
    offer: Offer,
    turns: &Semaphore,
) -> Result<(Connection, Peer), ConnectError> {
    let limit = server.limits.output.map_or(limit, |output| output.min(limit));
    let offer = if server.roots.is_some() { offer.with_roots() } else { offer };
    match &server.launch {
        Launch::Unusable { reason } => Err(ConnectError::Unusable(reason.clone())),
        Launch::Stdio(stdio) => {
            let launch = stdio::Launch { server, stdio, environment, limit, record, turns };
            let (process, peer) = stdio::connect(&launch, offer).await?;
            let link = process.link.clone();
            Ok((Connection { link, carrier: Carrier::Process(Box::new(process)) }, peer))
        }
        Launch::Remote(remote) if remote.transport == RemoteTransport::WebSocket => {
            let credentials = credentials::of(remote, source);
            let (socket, peer) = websocket::connect(server, remote, &*credentials, limit, offer).await?;
            Ok((Connection { link: socket.link.clone(), carrier: Carrier::WebSocket(socket) }, peer))
        }
        Launch::Remote(remote) => {
            let credentials = credentials::of(remote, source);
            let (link, connection, peer) = http::connect(server, remote, credentials, limit, offer).await?;
            Ok((Connection { link, carrier: Carrier::Http(connection) }, peer))
        }
    }
}

/// Which request to send first to a peer on a stream.
fn opening(era: EraChoice) -> Opening {
    match era {
        EraChoice::Auto => Opening::Probe,
        EraChoice::Modern => Opening::Discover,
        EraChoice::Legacy => Opening::Initialize,
    }
}

impl ConnectError {
    /// Whether the next attempt will fail the same way, unless something is changed.
    pub(crate) const fn is_lasting(&self) -> bool {
        match self {
            Self::Spawn(error) => !matches!(error, SpawnError::Other { .. }),
            Self::Negotiate(error) => {
                matches!(error, NegotiateError::Incompatible { .. } | NegotiateError::NotModern { .. })
                    || self.is_denied()
            }
            Self::Unusable(_) => true,
        }
    }

    /// Whether the server wants other credentials.
    pub(crate) const fn is_denied(&self) -> bool {
        matches!(self, Self::Negotiate(NegotiateError::Link(LinkError::Refused { denied: true, .. })))
    }

    /// Whether the server could not be limited and confined as configured.
    pub(crate) fn is_of_sandbox(&self) -> bool {
        matches!(self, Self::Spawn(error) if error.is_of_sandbox())
    }
}

impl Connection {
    /// How it is reached.
    pub(crate) const fn kind(&self) -> ConnectionKind {
        match &self.carrier {
            Carrier::Process(_) => ConnectionKind::Stdio,
            Carrier::Http(connection) if connection.is_sse() => ConnectionKind::Sse,
            Carrier::Http(_) => ConnectionKind::Http,
            Carrier::WebSocket(_) => ConnectionKind::WebSocket,
        }
    }

    /// The id of its process, if the gateway runs it.
    pub(crate) fn pid(&self) -> Option<u32> {
        match &self.carrier {
            Carrier::Process(process) => Some(process.pid()),
            Carrier::Http(_) | Carrier::WebSocket(_) => None,
        }
    }

    /// Resolves when the server is lost; the link then has the reason.
    pub(crate) async fn ended(&mut self) {
        match &mut self.carrier {
            Carrier::Process(process) => process.ended().await,
            Carrier::Http(connection) => connection.ended().await,
            Carrier::WebSocket(socket) => socket.ended().await,
        }
    }

    /// Fails all open requests, because the server is ended for not answering another one.
    pub(crate) fn hangs(&self) {
        if let Carrier::Process(process) = &self.carrier {
            process.hangs();
        }
    }

    /// Ends the server at once. Nothing of it is left here afterwards; a process reports how it ended.
    pub(crate) async fn kill(self) -> Option<Exit> {
        match self.carrier {
            Carrier::Process(process) => Some(process.kill().await),
            Carrier::Http(_) | Carrier::WebSocket(_) => self.stop().await,
        }
    }

    /// Disconnects from the server. Nothing of it is left here afterwards; a process reports how it ended.
    pub(crate) async fn stop(self) -> Option<Exit> {
        match self.carrier {
            Carrier::Process(process) => Some(process.stop().await),
            Carrier::Http(connection) => {
                connection.stop().await;
                None
            }
            Carrier::WebSocket(socket) => {
                socket.stop().await;
                None
            }
        }
    }
}

impl ConnectionKind {
    /// Its name in messages.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Stdio => "stdio",
            Self::Http => "http",
            Self::Sse => "sse",
            Self::WebSocket => "websocket",
        }
    }
}
