//! Servers reached over HTTP: streamable HTTP of both eras, and the older HTTP+SSE.
//!
//! There is no reader task for answers: a request is a POST that its sender drives in its own task, on a
//! connection of its own thread ([`pool`]). What a legacy server says of its own accord comes by an event stream
//! ([`events`]). Redirects are not followed, so credentials go nowhere but to the configured address.

mod body;
mod connect;
mod events;
mod exchange;
mod pool;
mod refusal;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_config::{Remote as Settings, Url};
use bridgehead_wire::{Method, Revision, Spliced, notification};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::pool::{Pool, Wire};
use crate::link::LinkError;
use crate::switchboard::Switchboard;
use crate::transport::dial::{DialError, dial};

pub(crate) use self::connect::{HttpConnection, connect};
pub(crate) use self::exchange::HttpExchange;
pub(crate) use self::refusal::explain;

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How long a message that has no answer may take to be accepted.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// One server, shared by all requests to it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) board: Switchboard,
    url: Url,
    limit: usize,
    pool: Pool,
    dialect: ArcSwap<Dialect>,
    open_exchanges: AtomicUsize,
    /// Until when the server wants to be left alone, in milliseconds since `born`; 0 for never.
    hold_until: AtomicU64,
    born: Instant,
    /// Cancelled when the link has ended.
    over: CancellationToken,
}

/// How the server is spoken to.
#[derive(Clone)]
struct Dialect {
    speech: Speech,
    /// Where messages go.
    target: http::Uri,
    /// What every request carries.
    headers: HeaderMap,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speech {
    /// Stateless: the answer is the response, and its end is all a cancellation takes.
    Modern,
    /// A handshake, perhaps a session; the answer is the response.
    Streamable,
    /// A handshake; answers come by the one event stream.
    Sse,
}

/// Why a request has no response.
#[derive(Debug)]
enum Failure {
    /// Nothing of it left.
    Unsent(String),
    /// It left, or part of it did.
    Lost(String),
}

impl std::fmt::Debug for Dialect {
    /// Shows no header: they may be credentials.
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Dialect").field("speech", &self.speech).finish_non_exhaustive()
    }
}

impl Dialect {
    fn new(settings: &Settings) -> Self {
        let mut headers = HeaderMap::with_capacity(16);
        let host = settings.url.authority();
        headers.insert(header::HOST, HeaderValue::from_str(&host).unwrap_or(HeaderValue::from_static("")));
        headers.insert(header::CONTENT_TYPE, JSON);
        headers.insert(header::ACCEPT, BOTH);
        headers.extend(user_headers(settings));
        let dialect = Self { speech: Speech::Modern, target: http::Uri::default(), headers };
        let target = settings.url.target();
        Self { target: target.parse().unwrap_or_default(), ..dialect }.modern()
    }

    fn modern(mut self) -> Self {
        self.speech = Speech::Modern;
        self.headers.insert(VERSION, HeaderValue::from_static(Revision::MODERN.as_str()));
        self.headers.remove(SESSION);
        self
    }

    /// For a handshake: no version is agreed yet.
    fn shaking(mut self) -> Self {
        self.speech = Speech::Streamable;
        self.headers.remove(VERSION);
        self.headers.remove(SESSION);
        self
    }

    fn agreed(mut self, revision: Revision, session: Option<HeaderValue>) -> Self {
        self.headers.insert(VERSION, HeaderValue::from_static(revision.as_str()));
        if let Some(session) = session {
            self.headers.insert(SESSION, session);
        }
        self
    }

    fn at(mut self, url: &Url) -> Self {
        self.speech = Speech::Sse;
        self.target = url.target().parse().unwrap_or_default();
        self
    }

    fn session(&self) -> Option<&HeaderValue> {
        self.headers.get(SESSION)
    }

    fn request(&self, method: http::Method, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        request.uri_mut().clone_from(&self.target);
        request.headers_mut().clone_from(&self.headers);
        request
    }
}

/// The configured headers, marked so that nothing shows them.
pub(crate) fn user_headers(settings: &Settings) -> impl Iterator<Item = (HeaderName, HeaderValue)> + '_ {
    settings.headers.iter().filter_map(|(name, value)| {
        let mut value = HeaderValue::from_str(value.expose()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name.as_str()).ok()?, value))
    })
}

impl Remote {
    fn new(server: &str, settings: &Settings, limit: usize) -> Self {
        Self {
            board: Switchboard::new(server),
            url: settings.url.clone(),
            limit,
            pool: Pool::default(),
            dialect: ArcSwap::from_pointee(Dialect::new(settings)),
            open_exchanges: AtomicUsize::new(0),
            hold_until: AtomicU64::new(0),
            born: Instant::now(),
            over: CancellationToken::new(),
        }
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.open_exchanges.load(Ordering::Relaxed)
    }

    pub(crate) fn is_modern(&self) -> bool {
        self.dialect.load().speech == Speech::Modern
    }

    /// Whether what the server asks comes on the stream of the request that it is for.
    pub(crate) fn has_own_streams(&self) -> bool {
        self.dialect.load().speech == Speech::Streamable
    }

    /// Sends a notification. Where it cannot be delivered nobody waits for it.
    pub(crate) async fn notify(&self, method: &Method, params: Option<&Spliced>) {
        let mut body = BytesMut::new();
        notification(&mut body, method.as_str(), params);
        self.tell(method.as_str(), body.freeze()).await;
    }

    /// Sends a message that has no answer.
    async fn tell(&self, what: &str, body: Bytes) {
        let dialect = self.dialect.load_full();
        let mut request = dialect.request(http::Method::POST, body);
        if dialect.speech == Speech::Modern
            && let Ok(value) = HeaderValue::from_str(what)
        {
            request.headers_mut().insert(body::METHOD, value);
        }
        match tokio::time::timeout(ACCEPT_TIMEOUT, self.exchange(request)).await {
            Ok(Ok((response, wire))) => {
                let status = response.status();
                if !status.is_success() {
                    debug!(server = %self.board.server, what, %status, "the server refused a message");
                }
                self.pool.put(wire, Some(response.into_body()));
            }
            Ok(Err(Failure::Unsent(reason) | Failure::Lost(reason))) => {
                debug!(server = %self.board.server, what, reason, "a message did not reach the server");
            }
            Err(_) => debug!(server = %self.board.server, what, "the server did not take a message in time"),
        }
    }

    /// One request and the head of its response, on a connection that waits or on a new one.
    async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(Response<Incoming>, Wire), Failure> {
        self.held().await;
        // Each may have been closed by the server since it was looked at.
        while let Some(mut wire) = self.pool.take() {
            match wire.send(request).await {
                Ok(response) => return Ok((response, wire)),
                Err(failed) => match failed.unsent {
                    Some(unsent) => request = unsent,
                    None => return Err(self.broken(&failed.error)),
                },
            }
        }
        let socket = dial(&self.url).await.map_err(|error: DialError| Failure::Unsent(error.to_string()))?;
        let mut wire = Wire::over(socket).await.map_err(|error| Failure::Unsent(error.to_string()))?;
        match wire.send(request).await {
            Ok(response) => Ok((response, wire)),
            Err(failed) if failed.unsent.is_some() => {
                Err(Failure::Unsent(format!("{} closed the connection at once ({})", self.url, failed.error)))
            }
            Err(failed) => Err(self.broken(&failed.error)),
        }
    }

    fn broken(&self, error: &hyper::Error) -> Failure {
        // The words of the library hold nothing that was sent.
        Failure::Lost(format!("the connection to {} broke before an answer came ({error})", self.url))
    }

    /// Waits while the server wants to be left alone.
    async fn held(&self) {
        let until = self.hold_until.load(Ordering::Relaxed);
        if until != 0 {
            tokio::time::sleep_until(self.born + Duration::from_millis(until)).await;
            let _ = self.hold_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Leaves the server alone for a while.
    fn hold(&self, pause: Duration) {
        let until = (self.born.elapsed() + pause).as_millis();
        self.hold_until.fetch_max(u64::try_from(until).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// The server does not know us any more, or is not there: no further request goes out, and the supervisor
    /// begins anew. Requests that wait for their answers are left to do so.
    fn retire(&self, reason: &str) {
        self.board.retire(LinkError::Closed(reason.into()));
        self.over.cancel();
    }

    /// Answers a request of the server's own, in the background: whoever reads must go on reading.
    fn reply(self: &Arc<Self>, reply: BytesMut) {
        let remote = Arc::clone(self);
        // Without a runtime the process ends, and the server with it hears so.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move { remote.tell("an answer", reply.freeze()).await });
        }
    }

    /// The request for an event stream, from where the last one broke off.
    fn stream_request(&self, last_id: Option<&str>) -> Request<Full<Bytes>> {
        let dialect = self.dialect.load();
        let mut request = dialect.request(http::Method::GET, Bytes::new());
        request.headers_mut().insert(header::ACCEPT, EVENTS);
        request.headers_mut().remove(header::CONTENT_TYPE);
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            request.headers_mut().insert(LAST_EVENT_ID, id);
        }
        request
    }
}
