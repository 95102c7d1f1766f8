//! Servers reached over HTTP: streamable HTTP of both eras, and the older HTTP+SSE.
//!
//! There is no reader task for answers: a request is a POST that its sender drives in its own task, on a connection
//! of its own thread ([`wire`], [`pool`]). What a legacy server sends unprompted arrives on an event stream
//! ([`events`]). What it is owed (answers to its own requests, cancellations) waits in one bounded outbox, which
//! one task per server delivers ([`replies`]). Every request passes [`Remote::exchange`], which asks the server's
//! credentials for headers ([`dialect`]) and reports refusals to them. A redirect is followed only if configured,
//! and only to another path of the same server, so credentials go only to the configured address.

mod body;
mod connect;
mod dialect;
mod events;
mod exchange;
mod pool;
mod refusal;
mod replies;
mod wire;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_config::{Proxy, Remote as Settings, Url};
use bridgehead_wire::{Method, Spliced, notification};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use self::body::Mirrored;
use self::dialect::{Dialect, Draft, Speech, is_carried, target};
use self::pool::Pool;
use self::replies::Replies;
use self::wire::{Head, Request, Wire};
use crate::link::LinkError;
use crate::link::switchboard::Switchboard;
use crate::transport::credentials::{CredentialHeaders, Credentials, NoCredentials, is_worth_another};
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
/// How long the server may take to accept a message that has no answer.
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
    credentials: Arc<dyn Credentials>,
    dialect: ArcSwap<Dialect>,
    open_exchanges: AtomicUsize,
    /// Until when the server asked us to wait, in milliseconds since `born`; 0 if it did not.
    hold_until: AtomicU64,
    born: Instant,
    /// Cancelled when the link has ended.
    over: CancellationToken,
    /// Messages owed to the server.
    replies: Replies,
}

/// Why a request has no response.
#[derive(Debug)]
enum Failure {
    /// Nothing of it left.
    Unsent(String),
    /// All or part of it left.
    Lost(String),
    /// There are no credentials for it.
    Withheld(NoCredentials),
}

impl Failure {
    fn reason(self) -> String {
        match self {
            Self::Unsent(reason) | Self::Lost(reason) => reason,
            Self::Withheld(none) => none.to_string(),
        }
    }
}

impl Remote {
    fn new(server: &str, settings: &Settings, credentials: Arc<dyn Credentials>, limit: usize) -> Self {
        Self {
            board: Switchboard::new(server),
            url: settings.url.clone(),
            proxy: settings.proxy.clone(),
            follows: settings.follow_redirects,
            limit,
            pool: Pool::default(),
            credentials,
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

    /// Whether the server's questions arrive on the stream of the request that they belong to.
    pub(crate) fn has_own_streams(&self) -> bool {
        self.dialect.load().speech == Speech::Streamable
    }

    /// Sends a notification. A failed delivery is only logged.
    pub(crate) async fn notify(&self, method: &Method, params: Option<&Spliced>) {
        let mut body = BytesMut::new();
        notification(&mut body, method.as_str(), params);
        self.tell(method.as_str(), body.freeze()).await;
    }

    /// Sends a message that has no answer.
    async fn tell(&self, what: &str, body: Bytes) {
        let mirrored = self.is_modern().then(|| Mirrored::told(what));
        let draft = Draft::message(mirrored, body);
        match tokio::time::timeout(ACCEPT_TIMEOUT, self.exchange(&draft)).await {
            Ok(Ok((head, wire))) => {
                if !head.status.is_success() {
                    debug!(server = %self.board.server, what, status = %head.status, "the server refused a message");
                }
                self.pool.put(wire);
            }
            Ok(Err(failure)) => {
                let reason = failure.reason();
                debug!(server = %self.board.server, what, reason, "a message did not reach the server");
            }
            Err(_) => {
                debug!(server = %self.board.server, what, "the server did not accept a message in time");
            }
        }
    }

    /// Sends a request and reads the head of its answer; follows redirects and retries with new credentials.
    async fn exchange(&self, draft: &Draft) -> Result<(Head, Wire), Failure> {
        self.exchange_telling(draft, || {}).await
    }

    /// The same; `sent` is called when the request has left, perhaps more than once.
    async fn exchange_telling(&self, draft: &Draft, mut sent: impl FnMut()) -> Result<(Head, Wire), Failure> {
        let mut moved: Option<Url> = None;
        let (mut redirects, mut sent_again) = (0, false);
        loop {
            self.held().await;
            let presented = self.credentials.present().wait().await.map_err(Failure::Withheld)?;
            let mut request = self.write(draft, &presented);
            if let Some(to) = &moved {
                request = request.to(&target(to, is_carried(to, self.proxy.as_ref())));
            }
            let answered = self.exchange_once(&request, &mut sent).await;
            if !matches!(answered, Err(Failure::Unsent(_))) {
                draft.reached();
            }
            let (head, wire) = answered?;
            if head.status.is_success() {
                return Ok((head, wire));
            }
            let from = moved.as_ref().unwrap_or(&self.url);
            let to = redirect(from, head.status, &head.headers);
            let answer = (head.status, &head.headers);
            if let Some(to) = to.filter(|_| self.follows && redirects < MOST_REDIRECTS) {
                debug!(server = %self.board.server, status = %head.status, "the server redirects to another path");
                (moved, redirects) = (Some(to), redirects + 1);
            } else if is_worth_another(&*self.credentials, answer, &presented, sent_again).await {
                debug!(server = %self.board.server, status = %head.status, "the request is sent again with other credentials");
                sent_again = true;
            } else {
                return Ok((head, wire));
            }
            self.pool.put(wire);
        }
    }

    /// A request with these credentials, from the prepared head if that has them.
    fn write(&self, draft: &Draft, presented: &CredentialHeaders) -> Request {
        let dialect = self.dialect.load();
        if dialect.presents(presented) {
            return dialect.write(draft);
        }
        let prepared = Arc::new(dialect.presenting(presented));
        let request = prepared.write(draft);
        // Must not undo a concurrent handshake; in that case the next request prepares it again.
        self.dialect.compare_and_swap(&dialect, prepared);
        request
    }

    /// One request and the head of its answer, on an idle connection or a new one.
    async fn exchange_once(
        &self,
        request: &Request,
        sent: &mut impl FnMut(),
    ) -> Result<(Head, Wire), Failure> {
        // The server may have closed each of them since it was checked.
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
        // The error text contains nothing that was sent.
        Failure::Lost(format!("the connection to {} broke before an answer came ({error})", self.place()))
    }

    /// The other end of a connection, for messages.
    fn place(&self) -> String {
        match &self.proxy {
            None => self.url.to_string(),
            Some(proxy) => format!("{} through the proxy {proxy}", self.url),
        }
    }

    /// Explains a status that is not an answer.
    fn explain(&self, status: StatusCode, headers: &HeaderMap) -> String {
        match &self.proxy {
            Some(proxy) if proxy::carries(&self.url) && matches!(status.as_u16(), 407 | 502 | 504) => {
                proxy::refusal(proxy, &self.url, status)
            }
            _ => explain(&self.url, status, headers, self.follows),
        }
    }

    /// Waits for as long as the server asked us to.
    async fn held(&self) {
        let until = self.hold_until.load(Ordering::Relaxed);
        if until != 0 {
            tokio::time::sleep_until(self.born + Duration::from_millis(until)).await;
            let _ = self.hold_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// The end of that wait, if it has not passed.
    fn rests_until(&self) -> Option<Instant> {
        let until = self.hold_until.load(Ordering::Relaxed);
        (until != 0).then(|| self.born + Duration::from_millis(until)).filter(|until| *until > Instant::now())
    }

    /// Sends the server nothing for a while.
    fn hold(&self, pause: Duration) {
        let until = (self.born.elapsed() + pause).as_millis();
        self.hold_until.fetch_max(u64::try_from(until).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
    }

    /// For a server that has forgotten us or is unreachable: no further request goes out, and the supervisor
    /// reconnects. Open requests keep waiting for their answers.
    fn retire(&self, reason: &str) {
        self.board.retire(LinkError::Closed(reason.into()));
        self.over.cancel();
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_config::Secret;

    use super::*;
    use crate::transport::credentials::ConfiguredHeaders;

    fn presented(token: &str) -> CredentialHeaders {
        CredentialHeaders::new([("Authorization", &Secret::new(token))])
    }

    /// GATE-7: the head of requests is prepared once for the same credentials, and again when they change.
    #[test]
    fn heads_are_prepared_once_for_the_same_credentials() {
        let mut settings = Settings::new("http://h/mcp".parse().unwrap());
        settings.headers.insert("Authorization".to_owned(), Secret::new("hunter2"));
        let remote = Remote::new("s", &settings, Arc::new(ConfiguredHeaders::of(&settings)), 1 << 20);
        let draft = Draft::message(None, Bytes::from_static(b"{}"));
        let sizes = [3, 9].map(|length| remote.write(&draft, &presented(&"x".repeat(length))).len());
        assert_eq!(sizes[1] - sizes[0], 6, "the value is on the request");

        let (one, other) = (presented("one"), presented("other"));
        let mut dialects = Vec::new();
        for credentials in [&one, &one, &one.clone(), &other, &other, &presented("other")] {
            remote.write(&draft, credentials);
            dialects.push(remote.dialect.load_full());
        }
        let kept: Vec<bool> = dialects.windows(2).map(|two| Arc::ptr_eq(&two[0], &two[1])).collect();
        assert_eq!(kept, [true, true, false, true, false]);
        assert!(!format!("{remote:?}").contains("hunter2"));
    }
}
