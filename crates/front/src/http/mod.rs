//! Serves clients over streamable HTTP at one endpoint, both eras side by side.
//!
//! The order of checks is fixed and part of the protocol: `Host`, `Origin`, a preflight ([`cors`]), what anybody may read
//! ([`well_known`]), credentials ([`auth`]), media types, body, JSON, era, then the era's own rules ([`modern`], [`legacy`]).
//! Nothing here is remembered between modern requests; legacy requests belong to [`session`]s.

mod admission;
mod api;
mod auth;
mod body;
mod connection;
mod cors;
mod headers;
mod join;
mod legacy;
mod listener;
mod modern;
mod post;
mod quota;
mod replay;
mod reply;
mod running;
mod session;
mod sse;
mod stateless;
mod step_up;
mod well_known;
mod workers;

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_wire::held::Budget;
use bridgehead_wire::{RpcError, code};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use tokio_util::sync::CancellationToken;

pub use api::{API, Api, Operators, serve_socket};
pub use auth::{
    Authenticating, Authenticator, LocalRule, LocalUser, Peer, PeerUser, Refusal, authenticator, bearer_token,
};
pub use connection::serve;
pub(crate) use connection::serve_all;
pub use join::{JOIN, LINES, STOPPED};
pub use listener::{
    BindError, Listeners, MakeAuthenticator, Reached, TlsError, bind, bind_on, listener_authenticator,
};
pub use reply::Body;
pub use workers::Workers;

use self::admission::Activity;
use self::auth::guard::Guard;
use self::reply::Reply;
use self::session::Sessions;
use self::stateless::Stateless;
use crate::Backend;
use crate::panics::guarded;

/// The path of the MCP endpoint.
pub const ENDPOINT: &str = "/mcp";
/// The path that answers `ok` to anybody.
pub const HEALTH: &str = "/healthz";
/// The path that says to anybody whether the gateway takes requests.
pub const READINESS: &str = "/readyz";

/// What all requests share.
struct Front<B> {
    backend: B,
    guard: Arc<Guard>,
    sessions: Arc<Sessions>,
    stateless: Arc<Stateless>,
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
    authenticator: Box<dyn Authenticator>,
    shutdown: CancellationToken,
) -> Routes<B> {
    routes(backend, settings, Guard::new(settings, Some(settings.listen), authenticator), shutdown)
}

/// The routes of the control socket, where everybody is the gateway's own user.
pub(crate) fn control_router<B: Backend>(backend: B, shutdown: CancellationToken) -> Routes<B> {
    routes(backend, &HttpSettings::default(), Guard::of_control_socket(), shutdown)
}

fn routes<B: Backend>(
    backend: B,
    settings: &HttpSettings,
    guard: Guard,
    shutdown: CancellationToken,
) -> Routes<B> {
    let sessions = Arc::new(Sessions::new(settings.max_sessions, settings.session_idle, Budget::process()));
    let lenient: Weak<Sessions> = Arc::downgrade(&sessions);
    Budget::process().on_shortage(lenient);
    let every = sessions.sweep_interval();
    let stateless = Arc::new(Stateless::new(settings.session_idle, every));
    tokio::spawn({
        let (sessions, shutdown) = (Arc::downgrade(&sessions), shutdown.clone());
        let stateless = Arc::downgrade(&stateless);
        let sweeping = async move {
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(every) => {}
                }
                let (Some(sessions), Some(stateless)) = (sessions.upgrade(), stateless.upgrade()) else {
                    return;
                };
                sessions.sweep();
                stateless.sweep();
            }
        };
        let backend = backend.clone();
        async move { drop(guarded(&backend, pin!(sweeping)).await) }
    });
    let front = Front {
        backend,
        guard: Arc::new(guard),
        sessions,
        stateless,
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

/// The paths that are served, and how. Clones share the state.
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
    /// The same routes for another listener, at `listen` or at a Unix socket, with its own authenticator. Everything else is
    /// shared: sessions, limits, the operators' API.
    #[must_use]
    pub(crate) fn beside(
        &self,
        settings: &HttpSettings,
        listen: Option<SocketAddr>,
        authenticator: Box<dyn Authenticator>,
    ) -> Self {
        let own = &self.0;
        Self(Arc::new(Front {
            backend: own.backend.clone(),
            guard: Arc::new(Guard::new(settings, listen, authenticator)),
            sessions: Arc::clone(&own.sessions),
            stateless: Arc::clone(&own.stateless),
            shutdown: own.shutdown.clone(),
            api: own.api.clone(),
            ..**own
        }))
    }

    /// Serves the operators' API too.
    #[must_use]
    pub fn with_api(self, api: Api) -> Self {
        drop(self.0.api.set(api));
        self
    }

    /// How long a client may take to send the head of a request.
    pub(crate) fn head_within(&self) -> Duration {
        self.0.head_within
    }

    /// Answers one HTTP request. Its peer counts as the gateway's own user: the owner of these routes decides who may send one.
    pub async fn answer<D>(&self, request: Request<D>) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        let own = rustix::process::geteuid().as_raw();
        self.answer_to(Peer { address: None, user: PeerUser::Admitted(Some(own)) }, None, request).await
    }

    /// Finds out who connects.
    pub(crate) fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> Peer {
        self.0.guard.meet(peer, ours)
    }

    /// Judges who connects over a Unix socket.
    pub(crate) fn meet_user(&self, user: Option<u32>) -> Peer {
        self.0.guard.meet_user(user)
    }

    /// The backend behind these routes.
    pub(crate) fn backend(&self) -> &B {
        &self.0.backend
    }

    /// Answers one HTTP request of a connection, even if serving it panics.
    pub(crate) async fn answer_to<D>(
        &self,
        peer: Peer,
        activity: Option<&Activity>,
        request: Request<D>,
    ) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        guarded(self.backend(), pin!(self.route((peer, activity), request)))
            .await
            .unwrap_or_else(|error| crashed(&error))
    }

    async fn route<D>(
        &self,
        (peer, activity): (Peer, Option<&Activity>),
        request: Request<D>,
    ) -> Response<Body>
    where
        D: http_body::Body<Data = Bytes> + Unpin,
        D::Error: Into<body::BoxError>,
    {
        // There are too few paths to need a router.
        match request.uri().path() {
            // Boxed, like every rare branch: a request's future is as large as its largest branch.
            ENDPOINT if self.0.guard.lists_origins() => {
                Box::pin(cors::answer(&self.0, (peer, activity), request)).await
            }
            ENDPOINT => endpoint(&self.0, (peer, activity), request).await,
            HEALTH => reply::text("ok"),
            READINESS => well_known::readiness(self.0.backend.is_ready() && !self.0.shutdown.is_cancelled()),
            path if well_known::is_one(path) => well_known::metadata(&self.0.guard, request),
            path if path.starts_with(API) && self.0.api.get().is_some() => {
                Box::pin(operate(&self.0, peer, request)).await
            }
            _ => nothing_here(),
        }
    }
}

/// The answer to a principal for which no connection makes way.
fn no_place() -> Reply {
    let reason = "all connections are in use, and none of them makes way for yours: close some, or come back in a few seconds";
    let mut reply =
        reply::error(StatusCode::SERVICE_UNAVAILABLE, None, &RpcError::new(code::INTERNAL_ERROR, reason));
    reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    reply.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    reply
}

/// The answer at a path that is not served.
fn nothing_here() -> Reply {
    let error = RpcError::new(code::INVALID_REQUEST, "nothing here; the MCP endpoint is `/mcp`");
    reply::error(StatusCode::NOT_FOUND, None, &error)
}

/// The answer to a request without an id, if serving it panicked.
pub(crate) fn crashed(error: &RpcError) -> Reply {
    reply::error(StatusCode::INTERNAL_SERVER_ERROR, None, error)
}

async fn endpoint<B: Backend, D>(
    front: &Front<B>,
    (peer, activity): (Peer, Option<&Activity>),
    request: Request<D>,
) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    let (parts, body) = request.into_parts();
    let principal = match front.guard.admit(&parts, peer).await {
        Ok(principal) => principal,
        Err(refusal) => {
            front.backend.turned_away(refusal.status.as_u16(), &refusal.reason, false);
            let error = RpcError::new(code::INVALID_REQUEST, &refusal.reason);
            let mut reply = reply::error(refusal.status, None, &error);
            refusal.mark(reply.headers_mut());
            return reply;
        }
    };
    if activity.is_some_and(|activity| !activity.claim(principal.id())) {
        return no_place();
    }
    match parts.method {
        Method::POST => post::answer(front, principal, &parts.headers, body).await,
        Method::GET => legacy::open_stream(front, &principal, &parts.headers),
        Method::DELETE => legacy::end(front, &principal, &parts.headers),
        _ => {
            let mut reply = reply::empty(StatusCode::METHOD_NOT_ALLOWED);
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, POST, DELETE"));
            reply
        }
    }
}

async fn operate<B: Backend, D>(front: &Front<B>, peer: Peer, request: Request<D>) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    let Some(api) = front.api.get() else { return reply::empty(StatusCode::NOT_FOUND) };
    let (parts, content) = request.into_parts();
    match front.guard.admit_operator(&parts, peer, api).await {
        Ok(operator) => api.answer(&operator, Request::from_parts(parts, content)).await,
        Err(refusal) => {
            front.backend.turned_away(refusal.status.as_u16(), &refusal.reason, true);
            let mut reply = api::failed(refusal.status, &refusal.reason);
            refusal.mark(reply.headers_mut());
            reply
        }
    }
}
