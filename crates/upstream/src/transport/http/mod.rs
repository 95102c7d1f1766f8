//! Servers reached over HTTP: streamable HTTP of both eras, and the older HTTP+SSE.
//!
//! There is no reader task for answers: a request is a POST that its sender drives in its own task, on a
//! connection of its own thread ([`wire`], [`pool`]). What a legacy server says of its own accord comes by an event stream
//! ([`events`]). What it is owed (answers to its own requests, cancellations) waits in one bounded outbox, which one task
//! per server delivers ([`replies`]). A redirect is followed only where that is configured and only to another path of the same server, so
//! credentials go nowhere but to the configured address.

mod body;
mod connect;
mod events;
mod exchange;
mod pool;
mod refusal;
mod replies;
mod wire;

use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_config::{Proxy, Remote as Settings, Url};
use bridgehead_wire::{Method, Revision, Spliced, notification};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::body::Mirrored;
use self::pool::Pool;
use self::replies::Replies;
use self::wire::{Head, Request, Wire};
use crate::link::LinkError;
use crate::link::switchboard::Switchboard;
use crate::transport::dial::{DialError, dial};
use crate::transport::proxy;

pub(crate) use self::connect::{HttpConnection, connect};
pub(crate) use self::exchange::HttpExchange;
pub(crate) use self::refusal::{explain, redirect, refused};

const VERSION: HeaderName = HeaderName::from_static("mcp-protocol-version");
const SESSION: HeaderName = HeaderName::from_static("mcp-session-id");
const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
const BOTH: HeaderValue = HeaderValue::from_static("application/json, text/event-stream");
/// How many redirects in a row are followed.
pub(crate) const MOST_REDIRECTS: u32 = 3;
/// How long a message that has no answer may take to be accepted.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(10);

/// One server, shared by all requests to it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) board: Switchboard,
    url: Url,
    proxy: Option<Proxy>,
    follows: bool,
    limit: usize,
    pool: Pool,
    dialect: ArcSwap<Dialect>,
    open_exchanges: AtomicUsize,
    /// Until when the server wants to be left alone, in milliseconds since `born`; 0 for never.
    hold_until: AtomicU64,
    born: Instant,
    /// Cancelled when the link has ended.
    over: CancellationToken,
    /// What the server is owed.
    replies: Replies,
}

/// How the server is spoken to.
#[derive(Clone)]
struct Dialect {
    speech: Speech,
    /// Where messages go, as it stands in a request.
    target: String,
    /// Whether that is a whole address, because a proxy carries the requests.
    whole: bool,
    /// What every request carries.
    headers: HeaderMap,
    /// How the head of every POST begins, once it is spoken.
    post: Bytes,
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
        // What frames a message is ours to say.
        headers.remove(header::CONTENT_LENGTH);
        headers.remove(header::TRANSFER_ENCODING);
        let whole = is_carried(&settings.url, settings.proxy.as_ref());
        if let Some(value) = settings.proxy.as_ref().filter(|_| whole).and_then(proxy::authorization) {
            headers.insert(header::PROXY_AUTHORIZATION, value);
        }
        let target = target(&settings.url, whole);
        Self { speech: Speech::Modern, target, whole, headers, post: Bytes::new() }.modern()
    }

    fn modern(mut self) -> Self {
        self.speech = Speech::Modern;
        self.headers.insert(VERSION, HeaderValue::from_static(Revision::MODERN.as_str()));
        self.headers.remove(SESSION);
        // These repeat what each request is about.
        self.headers.remove(&body::METHOD);
        self.headers.remove(&body::NAME);
        self.prepared()
    }

    /// For a handshake: no version is agreed yet.
    fn shaking(mut self) -> Self {
        self.speech = Speech::Streamable;
        self.headers.remove(VERSION);
        self.headers.remove(SESSION);
        self.prepared()
    }

    fn agreed(mut self, revision: Revision, session: Option<HeaderValue>) -> Self {
        self.headers.insert(VERSION, HeaderValue::from_static(revision.as_str()));
        if let Some(session) = session {
            self.headers.insert(SESSION, session);
        }
        self.prepared()
    }

    fn at(mut self, url: &Url) -> Self {
        self.speech = Speech::Sse;
        self.target = target(url, self.whole);
        self.prepared()
    }

    fn session(&self) -> Option<&HeaderValue> {
        self.headers.get(SESSION)
    }

    fn prepared(mut self) -> Self {
        let mut head = BytesMut::new();
        self.begin(&mut head, "POST", &self.headers);
        self.post = head.freeze();
        self
    }

    /// Writes the head of a request, but for the empty line that ends it.
    fn begin(&self, out: &mut BytesMut, method: &str, headers: &HeaderMap) {
        let target = if self.target.is_empty() { "/" } else { &self.target };
        for part in [method, " ", target, " HTTP/1.1\r\n"] {
            out.extend_from_slice(part.as_bytes());
        }
        headers.iter().for_each(|(name, value)| put_header(out, name, value));
    }

    /// A request without a body.
    fn request(&self, method: &str, headers: &HeaderMap) -> Request {
        let mut head = BytesMut::new();
        self.begin(&mut head, method, headers);
        head.extend_from_slice(b"\r\n");
        Request::new(head, Bytes::new())
    }

    /// A message, with what of it stands in headers too.
    fn post(&self, mirrored: Option<&Mirrored>, body: Bytes) -> Request {
        let mut head = BytesMut::with_capacity(self.post.len() + 256 + body.len().min(wire::COPIED));
        head.extend_from_slice(&self.post);
        for (name, value) in mirrored.into_iter().flat_map(Mirrored::headers) {
            // The request decides, whatever was configured.
            if self.headers.contains_key(name) {
                let mut headers = self.headers.clone();
                headers.extend(
                    mirrored.into_iter().flat_map(Mirrored::headers).map(|(n, v)| (n.clone(), v.clone())),
                );
                head.clear();
                self.begin(&mut head, "POST", &headers);
                break;
            }
            put_header(&mut head, name, value);
        }
        put_header(&mut head, &header::CONTENT_LENGTH, &HeaderValue::from(body.len()));
        head.extend_from_slice(b"\r\n");
        Request::new(head, body)
    }
}

/// Whether requests are given to the proxy itself.
fn is_carried(url: &Url, proxy: Option<&Proxy>) -> bool {
    proxy.is_some() && proxy::carries(url)
}

/// An address as a request names it.
fn target(url: &Url, whole: bool) -> String {
    if whole { url.expose() } else { url.target().to_owned() }
}

fn put_header(out: &mut BytesMut, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        out.extend_from_slice(part);
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
            proxy: settings.proxy.clone(),
            follows: settings.follow_redirects,
            limit,
            pool: Pool::default(),
            dialect: ArcSwap::from_pointee(Dialect::new(settings)),
            open_exchanges: AtomicUsize::new(0),
            hold_until: AtomicU64::new(0),
            born: Instant::now(),
            over: CancellationToken::new(),
            replies: Replies::default(),
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
        let mirrored = (dialect.speech == Speech::Modern).then(|| Mirrored::told(what));
        let request = dialect.post(mirrored.as_ref(), body);
        match tokio::time::timeout(ACCEPT_TIMEOUT, self.exchange(&request)).await {
            Ok(Ok((head, wire))) => {
                if !head.status.is_success() {
                    debug!(server = %self.board.server, what, status = %head.status, "the server refused a message");
                }
                self.pool.put(wire);
            }
            Ok(Err(Failure::Unsent(reason) | Failure::Lost(reason))) => {
                debug!(server = %self.board.server, what, reason, "a message did not reach the server");
            }
            Err(_) => debug!(server = %self.board.server, what, "the server did not take a message in time"),
        }
    }

    /// One request and the head of its answer, wherever the server has moved it to.
    async fn exchange(&self, request: &Request) -> Result<(Head, Wire), Failure> {
        self.exchange_telling(request, || {}).await
    }

    /// The same, and `sent` is called when the request has left, perhaps more than once.
    async fn exchange_telling(
        &self,
        request: &Request,
        mut sent: impl FnMut(),
    ) -> Result<(Head, Wire), Failure> {
        let (mut head, mut wire) = self.exchange_once(request, &mut sent).await?;
        if self.follows && head.status.is_redirection() {
            let mut url = self.url.clone();
            for _ in 0..MOST_REDIRECTS {
                let Some(to) = redirect(&url, head.status, &head.headers) else { break };
                debug!(server = %self.board.server, status = %head.status, "the server redirects to another path");
                self.pool.put(wire);
                let target = target(&to, is_carried(&to, self.proxy.as_ref()));
                (head, wire) = self.exchange_once(&request.to(&target), &mut sent).await?;
                url = to;
            }
        }
        Ok((head, wire))
    }

    /// One request and the head of its answer, on a connection that waits or on a new one.
    async fn exchange_once(
        &self,
        request: &Request,
        sent: &mut impl FnMut(),
    ) -> Result<(Head, Wire), Failure> {
        self.held().await;
        // Each may have been closed by the server since it was looked at.
        while let Some(mut wire) = self.pool.take() {
            match wire.send(request, &mut *sent).await {
                Ok(head) => return Ok((head, wire)),
                Err(failed) if failed.unsent => {}
                Err(failed) => return Err(self.broken(&failed.error)),
            }
        }
        let socket = dial(&self.url, self.proxy.as_ref()).await;
        let socket = socket.map_err(|error: DialError| Failure::Unsent(error.to_string()))?;
        let mut wire = Wire::over(socket);
        match wire.send(request, &mut *sent).await {
            Ok(head) => Ok((head, wire)),
            Err(failed) if failed.unsent => Err(Failure::Unsent(format!(
                "{} closed the connection at once ({})",
                self.place(),
                failed.error
            ))),
            Err(failed) => Err(self.broken(&failed.error)),
        }
    }

    fn broken(&self, error: &io::Error) -> Failure {
        // Its words hold nothing that was sent.
        Failure::Lost(format!("the connection to {} broke before an answer came ({error})", self.place()))
    }

    /// Whom a connection leads to, for messages.
    fn place(&self) -> String {
        match &self.proxy {
            None => self.url.to_string(),
            Some(proxy) => format!("{} through the proxy {proxy}", self.url),
        }
    }

    /// Says why the server gave no answer.
    fn explain(&self, status: StatusCode, headers: &HeaderMap) -> String {
        match &self.proxy {
            Some(proxy) if proxy::carries(&self.url) && matches!(status.as_u16(), 407 | 502 | 504) => {
                proxy::refusal(proxy, &self.url, status)
            }
            _ => explain(&self.url, status, headers, self.follows),
        }
    }

    /// Waits while the server wants to be left alone.
    async fn held(&self) {
        let until = self.hold_until.load(Ordering::Relaxed);
        if until != 0 {
            tokio::time::sleep_until(self.born + Duration::from_millis(until)).await;
            let _ = self.hold_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Until when that is, if it is not over.
    fn rests_until(&self) -> Option<Instant> {
        let until = self.hold_until.load(Ordering::Relaxed);
        (until != 0).then(|| self.born + Duration::from_millis(until)).filter(|until| *until > Instant::now())
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

    /// The request for an event stream, from where the last one broke off.
    fn stream_request(&self, last_id: Option<&str>) -> Request {
        let dialect = self.dialect.load();
        let mut headers = dialect.headers.clone();
        headers.insert(header::ACCEPT, EVENTS);
        headers.remove(header::CONTENT_TYPE);
        if let Some(id) = last_id.and_then(|id| HeaderValue::from_str(id).ok()) {
            headers.insert(LAST_EVENT_ID, id);
        }
        dialect.request("GET", &headers)
    }
}
