//! Serves clients over streamable HTTP at one endpoint, both eras side by side.
//!
//! The order of checks is fixed and part of the protocol: who may speak ([`guard`]), media types, body,
//! JSON, era, then the era's own rules ([`modern`], [`legacy`]). Nothing here is remembered between
//! modern requests; legacy ones live in [`session`]s.

mod admission;
mod api;
mod body;
mod connection;
mod cors;
mod guard;
mod headers;
mod legacy;
mod modern;
mod peer;
mod replay;
mod reply;
mod running;
mod session;
mod sse;
mod workers;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_gateway::{Principal, Session};
use bridgehead_wire::held::{Budget, NoRoom};
use bridgehead_wire::{self as wire, Incoming, Message, RpcError, code};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use tokio_util::sync::CancellationToken;
use tracing::debug;

pub use api::{API, Api, serve_socket};
pub use connection::serve;
pub use reply::Body;
pub use workers::Workers;

use self::body::BodyError;
use self::guard::Guard;
use self::headers::Version;
use self::peer::Peer;
use self::reply::{Answer, Reply};
use self::session::Sessions;
use crate::era::{self, Reading, Served};
use crate::panics::guarded;
use crate::stdio::malformed_response;
use crate::{Backend, Token};

/// The path of the MCP endpoint.
pub const ENDPOINT: &str = "/mcp";
/// The path that answers `ok` to anybody.
pub const HEALTH: &str = "/healthz";

/// What all requests share.
struct Front<B> {
    backend: B,
    guard: Guard,
    sessions: Arc<Sessions>,
    /// What the gateway knows modern clients as: one for each principal, and an endpoint has one.
    stateless: Session,
    max_body_bytes: usize,
    head_within: Duration,
    body_within: Duration,
    keep_alive: Duration,
    poll_after: Option<Duration>,
    shutdown: CancellationToken,
    api: OnceLock<Api>,
}

/// The routes of the HTTP front. Must be called within a runtime: it starts the task that expires idle
/// sessions, which ends with the router or at `shutdown`. Open session streams end at `shutdown` too.
pub fn router<B: Backend>(
    backend: B,
    settings: &HttpSettings,
    token: Option<Token>,
    shutdown: CancellationToken,
) -> Routes<B> {
    let sessions = Arc::new(Sessions::new(settings.max_sessions, settings.session_idle, Budget::process()));
    let lenient: Weak<Sessions> = Arc::downgrade(&sessions);
    Budget::process().on_shortage(lenient);
    tokio::spawn({
        let every = sessions.sweep_interval();
        let (sessions, shutdown) = (Arc::downgrade(&sessions), shutdown.clone());
        let sweeping = async move {
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(every) => {}
                }
                let Some(sessions) = sessions.upgrade() else { return };
                sessions.sweep();
            }
        };
        let backend = backend.clone();
        async move { drop(guarded(&backend, pin!(sweeping)).await) }
    });
    let front = Front {
        backend,
        guard: Guard::new(settings, token),
        sessions,
        stateless: Session::new(),
        max_body_bytes: settings.max_body_bytes,
        head_within: settings.head_within,
        body_within: settings.body_within,
        keep_alive: settings.keep_alive,
        poll_after: settings.poll_after,
        shutdown,
        api: OnceLock::new(),
    };
    Routes(Arc::new(front))
}

/// What is served under which path. Clones share it.
pub struct Routes<B>(Arc<Front<B>>);

impl<B> Clone for Routes<B> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<B> std::fmt::Debug for Routes<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Routes").finish_non_exhaustive()
    }
}

impl<B: Backend> Routes<B> {
    /// Serves the operators' API too, to those who hold its token or the front's.
    #[must_use]
    pub fn with_api(self, api: Api) -> Self {
        drop(self.0.api.set(api));
        self
    }

    /// How long a client may take to send the head of a request.
    pub(crate) fn head_within(&self) -> Duration {
        self.0.head_within
    }

    /// Answers one HTTP request of whoever may hold these routes, wherever it came from. So few paths need no router.
    pub async fn answer<D>(&self, request: Request<D>) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        self.answer_to(Peer::Admitted, request).await
    }

    /// Finds out who connects.
    pub(crate) fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> Peer {
        self.0.guard.meet(peer, ours)
    }

    /// The backend behind these routes.
    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Answers one HTTP request of a connection, also where serving it panics.
    pub(crate) async fn answer_to<D>(&self, peer: Peer, request: Request<D>) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        guarded(self.backend(), pin!(self.route(peer, request))).await.unwrap_or_else(|error| crashed(&error))
    }

    async fn route<D>(&self, peer: Peer, request: Request<D>) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        match request.uri().path() {
            // Boxed, like all that is rare: a request's future is as large as its largest branch.
            ENDPOINT if self.0.guard.lists_origins() => Box::pin(cors::answer(&self.0, peer, request)).await,
            ENDPOINT => endpoint(&self.0, peer, request).await,
            HEALTH => reply::text("ok"),
            path if path.starts_with(API) && self.0.api.get().is_some() => {
                Box::pin(operate(&self.0, request)).await
            }
            _ => {
                let error = RpcError::new(code::INVALID_REQUEST, "nothing here; the MCP endpoint is `/mcp`");
                reply::error(StatusCode::NOT_FOUND, None, &error)
            }
        }
    }
}

/// The answer to a request without an id whose service panicked.
pub(crate) fn crashed(error: &RpcError) -> Reply {
    reply::error(StatusCode::INTERNAL_SERVER_ERROR, None, error)
}

async fn endpoint<B: Backend, D>(front: &Front<B>, peer: Peer, request: Request<D>) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    let (parts, body) = request.into_parts();
    let principal = match front.guard.admit(&parts, peer) {
        Ok(principal) => principal,
        Err(refusal) => {
            debug!(status = %refusal.status, reason = %refusal.reason, "turned a request away");
            let error = RpcError::new(code::INVALID_REQUEST, &refusal.reason);
            let mut reply = reply::error(refusal.status, None, &error);
            if refusal.status == StatusCode::UNAUTHORIZED {
                reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            return reply;
        }
    };
    match parts.method {
        Method::POST => post(front, principal, &parts.headers, body).await,
        Method::GET => legacy::open_stream(front, &principal, &parts.headers),
        Method::DELETE => legacy::end(front, &principal, &parts.headers),
        _ => {
            let mut reply = reply::empty(StatusCode::METHOD_NOT_ALLOWED);
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
            reply
        }
    }
}

async fn operate<B: Backend, D>(front: &Front<B>, request: Request<D>) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    let Some(api) = front.api.get() else { return reply::empty(StatusCode::NOT_FOUND) };
    let (parts, content) = request.into_parts();
    if let Err(refusal) = front.guard.admit_operator(&parts, api.token()) {
        debug!(status = %refusal.status, reason = %refusal.reason, "turned an operator away");
        let mut reply = api::failed(refusal.status, &refusal.reason);
        if refusal.status == StatusCode::UNAUTHORIZED {
            reply.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        return reply;
    }
    api.answer(Request::from_parts(parts, content)).await
}

async fn post<B: Backend, D>(front: &Front<B>, principal: Principal, headers: &HeaderMap, body: D) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    let refuse = |status: StatusCode, reason: &str| {
        debug!(%status, reason, "refused a POST");
        reply::error(status, None, &RpcError::new(code::INVALID_REQUEST, reason))
    };
    if !headers::accepts_both(headers) {
        return refuse(
            StatusCode::NOT_ACCEPTABLE,
            "`Accept` must list both application/json and text/event-stream",
        );
    }
    if !headers::is_json(headers) {
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, "`Content-Type` must be application/json");
    }
    let text = match body::read(body, front.max_body_bytes, front.body_within).await {
        Ok(text) => text,
        Err(BodyError::TooLarge) => {
            let reason =
                format!("the body has more than the {} bytes that are accepted", front.max_body_bytes);
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &reason);
        }
        Err(BodyError::Slow) => {
            return refuse(
                StatusCode::REQUEST_TIMEOUT,
                "the body took too long to arrive; send it faster, or raise `limits.body_ms`",
            );
        }
        Err(BodyError::NoRoom(no_room)) => {
            let status = match no_room {
                NoRoom::Peer(_) => StatusCode::PAYLOAD_TOO_LARGE,
                NoRoom::Total(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            let mut refused = refuse(status, &format!("the body cannot be kept: {no_room}"));
            refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            return refused;
        }
        Err(BodyError::Broken) => return refuse(StatusCode::BAD_REQUEST, "the body could not be read"),
    };
    let incoming = match Incoming::parse(&text) {
        Ok(incoming) => incoming,
        Err(malformed) => {
            debug!(code = malformed.code, reason = %malformed.reason, "refused a body");
            let mut out = BytesMut::new();
            malformed_response(&mut out, &malformed);
            return reply::json(StatusCode::BAD_REQUEST, out.freeze());
        }
    };
    let said = Version::of(headers);
    let version = said.text();
    let modern_header = version.is_some_and(era::is_modern_version);
    let message = match incoming {
        Incoming::Single(message) => message,
        Incoming::Batch(items) => {
            let no_batch = "a batch is not allowed here; send one message per POST";
            if modern_header || !headers.contains_key(headers::SESSION) {
                return refuse(StatusCode::BAD_REQUEST, no_batch);
            }
            return match legacy::session(front, &principal, headers, said) {
                // Boxed, like all that is rare: a request's future is as large as its largest branch.
                Ok(lease) if lease.0.revision.has_batches() => {
                    Box::pin(legacy::batch(front, lease, items)).await
                }
                Ok(_) => refuse(StatusCode::BAD_REQUEST, no_batch),
                Err(missing) => missing.reply(None),
            };
        }
    };
    match message {
        Message::Request(request) => {
            let id = request.id.clone();
            let answering = pin!(requested(front, principal, headers, said, request));
            guarded(&front.backend, answering)
                .await
                .unwrap_or_else(|error| Answer::new(&id, Err(&error)).into_reply())
        }
        Message::Notification(told) => {
            let reading = Reading::of(told.params.as_ref());
            if reading.claims_version() || modern_header {
                return modern::notification(headers, &told, &reading);
            }
            match legacy::session(front, &principal, headers, said) {
                Ok(lease) => {
                    legacy::notified(&lease.0, &told);
                    reply::empty(StatusCode::ACCEPTED)
                }
                Err(missing) => missing.reply(None),
            }
        }
        Message::Response(_) if modern_header => refuse(
            StatusCode::BAD_REQUEST,
            "a response is not allowed here: nothing was asked of this client",
        ),
        Message::Response(answer) => match legacy::session(front, &principal, headers, said) {
            Ok(lease) => {
                lease.0.desk.answered(answer);
                reply::empty(StatusCode::ACCEPTED)
            }
            Err(missing) => missing.reply(None),
        },
    }
}

/// Answers one JSON-RPC request, of whichever era it is.
async fn requested<B: Backend>(
    front: &Front<B>,
    principal: Principal,
    headers: &HeaderMap,
    said: Version<'_>,
    request: wire::Request,
) -> Reply {
    let reading = Reading::of(request.params.as_ref());
    match era::decide(reading.claims_version(), said.text(), &request.method) {
        Served::Modern => match modern::check(front, principal, (headers, said), request, reading) {
            Ok(passed) if passed.wants_notes() => Box::pin(modern::answer_with_notes(front, passed)).await,
            Ok(passed) => {
                let outcome = front.backend.answer(&passed.caller, &passed.request, None).await;
                modern::answer(&passed, &outcome)
            }
            Err(refused) => *refused,
        },
        Served::Initialize => legacy::initialize(front, principal, &request),
        Served::Legacy => match legacy::session(front, &principal, headers, said) {
            Ok(lease) => {
                let prefers = headers::prefers_events(headers);
                legacy::request(front, lease, request, reading, prefers).await
            }
            Err(missing) => missing.reply(Some(&request.id)),
        },
    }
}
