//! Finds out which protocol an address speaks: modern, streamable with a handshake, or HTTP+SSE, in this order.
//!
//! A refusal of one kind of request leads to the next kind. An outage (no connection, silence, an error of the
//! server's own) and refused credentials end the search: they say nothing about the protocol.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{EraChoice, Remote as Settings, RemoteTransport, ServerConfig};
use bridgehead_wire::{Abilities, Method, Object, Raw, RpcError, Spliced, code};
use bytes::Bytes;
use http::StatusCode;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;
use tracing::debug;

use super::dialect::{Dialect, Draft};
use super::events::Feed;
use super::{HttpExchange, Remote};
use crate::link::negotiate::{
    NegotiateError, Offer, Opening, Peer, Verdict, initialize_params, is_modern, judge, negotiate, peer_of,
    supported_revisions,
};
use crate::link::{Event, Link, LinkError, Mirror, Purpose, modern_params};
use crate::transport::credentials::Credentials;

/// How long a server may take to answer one request of the handshake.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an HTTP+SSE server may take to name the address for messages.
const ENDPOINT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long sending the request for a server's own stream may take. Only a server that does not accept it, or that
/// asked us to wait, takes this long.
const STREAM_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the server may take to end a session.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// A connected server, and the task that listens to it.
#[derive(Debug)]
pub(crate) struct HttpConnection {
    remote: Arc<Remote>,
    listener: Option<AbortOnDropHandle<()>>,
    is_sse: bool,
}

/// The result of a handshake request.
enum Shaken {
    Answered(Result<Raw, RpcError>),
    /// The server does not accept such requests here.
    NotHere(LinkError),
}

/// Connects as configured, and negotiates whatever the configuration leaves open.
pub(crate) async fn connect(
    server: &ServerConfig,
    settings: &Settings,
    credentials: Arc<dyn Credentials>,
    limit: usize,
    offer: Offer,
) -> Result<(Link, HttpConnection, Peer), NegotiateError> {
    let remote = Arc::new(Remote::new(server.name.as_ref(), settings, credentials, limit));
    remote.board.answer_roots(server.roots.as_ref());
    remote.deliver_replies();
    if settings.transport == RemoteTransport::Sse {
        return sse(&remote, offer).await;
    }
    let mut modern_refusal = None;
    if server.era != EraChoice::Legacy {
        match discover(&remote).await? {
            Shaken::Answered(outcome) => {
                modern_refusal = outcome.as_ref().err().map(|error| (error.code(), error.message()));
                if let Verdict::Modern(peer) = judge(outcome)? {
                    return Ok(found(&remote, None, false, peer));
                }
            }
            Shaken::NotHere(reason) if server.era == EraChoice::Modern => return Err(reason.into()),
            Shaken::NotHere(reason) => debug!(server = %remote.board.server, %reason, "not a modern server"),
        }
        if server.era == EraChoice::Modern {
            let (code, message) =
                modern_refusal.unwrap_or((0, "its answer is not one of a modern server".into()));
            return Err(NegotiateError::NotModern { code, message });
        }
    }
    let reason = match handshake(&remote, offer).await? {
        Ok(peer) => {
            let (asked, answered) = oneshot::channel();
            let listener = AbortOnDropHandle::new(tokio::spawn(Arc::clone(&remote).listen(asked)));
            // If a server sees the request for its stream after a call, it may take it for a request to resume the
            // stream of that call's answer; and messages from before it sees the request are lost. So this request
            // leaves first. Its answer is not awaited: Node servers send even the head only with the first event.
            // And before any call, the server has answered for its tools and its health anyway.
            let _ = tokio::time::timeout(STREAM_TIMEOUT, answered).await;
            return Ok(found(&remote, Some(listener), false, peer));
        }
        Err(reason) => reason,
    };
    // Only a modern server knows these codes: it is one, so its objection is the error to report.
    if let Some((code @ (code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY), message)) = modern_refusal
    {
        return Err(NegotiateError::NotModern { code, message });
    }
    if settings.transport == RemoteTransport::Http {
        return Err(reason.into());
    }
    match sse(&remote, offer).await {
        Ok(connected) => Ok(connected),
        // None of the three is spoken there: the first refusal says the most.
        Err(other) => {
            debug!(server = %remote.board.server, reason = %other, "no HTTP+SSE either");
            Err(reason.into())
        }
    }
}

fn found(
    remote: &Arc<Remote>,
    listener: Option<AbortOnDropHandle<()>>,
    is_sse: bool,
    peer: Peer,
) -> (Link, HttpConnection, Peer) {
    let connection = HttpConnection { remote: Arc::clone(remote), listener, is_sse };
    (Link::over_http(Arc::clone(remote)), connection, peer)
}

/// Asks a modern server to describe itself. A server that refuses the very revision it then names is asked once
/// more: it has changed in between, or a balancer has servers that differ.
async fn discover(remote: &Arc<Remote>) -> Result<Shaken, NegotiateError> {
    let params = modern_params(&Object::empty());
    let (shaken, _) = shake(remote, &Method::Discover, &params).await?;
    if let Shaken::Answered(Err(refusal)) = &shaken
        && supported_revisions(refusal).is_some_and(|versions| versions.iter().any(is_modern))
    {
        debug!(server = %remote.board.server, "the server refused a revision that it supports; asking again");
        return Ok(shake(remote, &Method::Discover, &params).await?.0);
    }
    Ok(shaken)
}

/// Sends one request of the handshake. An outage is an error.
async fn shake(
    remote: &Arc<Remote>,
    method: &Method,
    params: &Spliced,
) -> Result<(Shaken, Option<http::HeaderValue>), NegotiateError> {
    let mut exchange = HttpExchange::open(remote, Purpose::Handshake, Abilities::NONE);
    exchange.send(method, params, Mirror::default());
    let answer = poll_fn(|context| {
        loop {
            match std::task::ready!(exchange.poll_next(context)) {
                Event::Progress(_)
                | Event::Log(_)
                | Event::Acknowledged
                | Event::Asked(_)
                | Event::Withdrawn(_) => {}
                Event::Answer(outcome) => return std::task::Poll::Ready(Ok(outcome)),
                Event::Lost(error) => return std::task::Poll::Ready(Err(error)),
            }
        }
    });
    let outcome = tokio::time::timeout(ANSWER_TIMEOUT, answer).await.unwrap_or_else(|_| {
        let seconds = ANSWER_TIMEOUT.as_secs();
        Err(LinkError::Closed(format!("{} did not answer `{method}` within {seconds} s", remote.url).into()))
    });
    let (status, session) = (exchange.status, exchange.session.take());
    match outcome {
        Ok(outcome) => Ok((Shaken::Answered(outcome), session)),
        Err(error) if status.is_some_and(says_not_here) => Ok((Shaken::NotHere(error), session)),
        Err(error) => Err(error.into()),
    }
}

/// Whether a status without a JSON-RPC answer means that such a request is not supported here.
fn says_not_here(status: StatusCode) -> bool {
    let elsewhere = [
        StatusCode::UNAUTHORIZED,
        StatusCode::FORBIDDEN,
        StatusCode::PROXY_AUTHENTICATION_REQUIRED,
        StatusCode::TOO_MANY_REQUESTS,
        StatusCode::REQUEST_TIMEOUT,
    ];
    status.is_success() || status.is_client_error() && !elsewhere.contains(&status)
}

/// The handshake of streamable HTTP. The inner error means that it is not supported here.
async fn handshake(remote: &Arc<Remote>, offer: Offer) -> Result<Result<Peer, LinkError>, NegotiateError> {
    let shaking = Dialect::clone(&remote.dialect.load()).shaking();
    remote.dialect.store(Arc::new(shaking.clone()));
    let (shaken, session) = shake(remote, &Method::Initialize, &initialize_params(offer)).await?;
    match shaken {
        Shaken::NotHere(reason) => Ok(Err(reason)),
        Shaken::Answered(Err(error)) => {
            Err(NegotiateError::Refused { code: error.code(), message: error.message() })
        }
        Shaken::Answered(Ok(result)) => {
            let peer = peer_of(&result)?;
            remote.dialect.store(Arc::new(shaking.agreed(peer.revision, session)));
            remote.notify(&Method::Initialized, None).await;
            Ok(Ok(peer))
        }
    }
}

/// HTTP+SSE: first the stream, which names the address for messages, then the handshake over both.
async fn sse(remote: &Arc<Remote>, offer: Offer) -> Result<(Link, HttpConnection, Peer), NegotiateError> {
    let closed = |reason: String| NegotiateError::Link(LinkError::Closed(reason.into()));
    let shaking = Dialect::clone(&remote.dialect.load()).shaking();
    remote.dialect.store(Arc::new(shaking.clone()));
    let opening = async {
        let mut feed = Feed::open(remote, None, || {}).await.map_err(LinkError::from)?;
        loop {
            match feed.next(remote.limit).await {
                None => {
                    return Err(closed(format!(
                        "{} closed its stream without saying where messages go",
                        remote.url
                    )));
                }
                Some(event) if event.kind.as_ref() == b"endpoint" => return Ok((feed, event.data)),
                Some(_) => {}
            }
        }
    };
    let (feed, endpoint): (Feed, Bytes) = tokio::time::timeout(ENDPOINT_TIMEOUT, opening).await.unwrap_or_else(|_| {
        Err(closed(format!(
            "{} opened a stream but did not say where messages go (no `endpoint` event within {} s): check the `type`",
            remote.url,
            ENDPOINT_TIMEOUT.as_secs()
        )))
    })?;
    let endpoint = std::str::from_utf8(&endpoint).ok().and_then(|text| remote.url.join(text.trim()).ok());
    let endpoint =
        endpoint.ok_or_else(|| closed(format!("{} names an invalid address for messages", remote.url)))?;
    if !endpoint.same_origin(&remote.url) {
        return Err(closed(format!(
            "{} directs messages to {endpoint}, another server, which is not followed: it would get our credentials",
            remote.url
        )));
    }
    remote.dialect.store(Arc::new(shaking.at(&endpoint)));
    let listener = AbortOnDropHandle::new(tokio::spawn(Arc::clone(remote).read(feed)));
    let link = Link::over_http(Arc::clone(remote));
    let peer = tokio::time::timeout(ANSWER_TIMEOUT, negotiate(&link, Opening::Initialize, offer))
        .await
        .unwrap_or_else(|_| {
            let seconds = ANSWER_TIMEOUT.as_secs();
            Err(closed(format!("{} did not answer `initialize` within {seconds} s", remote.url)))
        })?;
    Ok(found(remote, Some(listener), true, peer))
}

impl HttpConnection {
    /// Whether it is HTTP+SSE.
    pub(crate) const fn is_sse(&self) -> bool {
        self.is_sse
    }

    /// Resolves when the link has ended.
    pub(crate) async fn ended(&self) {
        self.remote.over.cancelled().await;
    }

    /// Disconnects, and ends the session if the server keeps one.
    pub(crate) async fn stop(self) {
        let Self { remote, listener, is_sse } = self;
        drop(listener);
        let reason = LinkError::Closed("the server was stopped".into());
        if is_sse {
            remote.board.end(reason);
        } else {
            remote.board.retire(reason);
        }
        if remote.dialect.load().has_session() && !remote.over.is_cancelled() {
            let _ = tokio::time::timeout(END_TIMEOUT, remote.exchange(&Draft::End)).await;
        }
        remote.over.cancel();
    }
}
