//! Requests of the legacy era: everything but `initialize` belongs to a session.
//!
//! Errors of JSON-RPC travel with status 200; only what concerns the session or the transport shows in
//! the status. A client that disconnects has not cancelled: its calls go on until they are done, are
//! cancelled by `notifications/cancelled`, or the session ends. A POST whose call was cancelled ends as
//! an event stream without events.

use std::pin::pin;
use std::sync::Arc;

use bridgehead_gateway::{
    Caller, ClientTransport, Feed, Outlet, Principal, ProgressSink, Questioner, Validity,
};
use bridgehead_wire::{
    ClientNote, Era, Id, Malformed, Message, Method, Note, Notification, Raw, Request, Revision, RpcError,
    Spliced, code,
};
use bytes::{Bytes, BytesMut};
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::Front;
use super::headers::{self, Version};
use super::replay::{self, Manner, Reader};
use super::reply::{self, Answer, Body, Reply, StandsOpen};
use super::running::{OnDisconnect, Running};
use super::session::{Lease, Session, StreamLease};
use super::{sse, step_up};
use crate::Backend;
use crate::era::{self, Reading};
use crate::inflight::until_cancelled;
use crate::panics::guarded;
use crate::stdio::{MAX_BATCH, PROGRESS_CAPACITY, batch_answer, malformed_response, not_in_a_batch};

/// Opens a session.
pub(crate) async fn initialize<B: Backend>(
    front: &Front<B>,
    principal: Principal,
    request: &Request,
) -> Reply {
    let id = &request.id;
    let admitted = front.backend.admit(&principal, &request.method);
    let revision = match admitted.and_then(|()| era::negotiate(request.params.as_ref())) {
        Ok(revision) => revision,
        Err(error) => return Answer::new(id, Err(&error)).into_reply(),
    };
    let abilities = era::abilities(request.params.as_ref(), revision);
    let Some(session) = front.sessions.open(principal, revision, abilities) else {
        debug!("refused a session: there are too many");
        let reason =
            "too many sessions are open, and all of them are in use; end some, or raise `http.max_sessions`";
        let error = RpcError::new(code::INTERNAL_ERROR, reason);
        let mut refused = reply::error(StatusCode::SERVICE_UNAVAILABLE, Some(id), &error);
        refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("30"));
        return refused;
    };
    front.sessions.watch(&session);
    debug!(session = session.label(), principal = %session.principal, %revision, "session opened");
    session.identity.declare(abilities);
    if let Some(info) = era::client_info(request.params.as_ref()) {
        session.identity.introduce(&info);
    }
    // Starts the feed: changes from now on are announced, even those that come before the client opens its stream.
    drop(front.backend.feed(&session.principal, &session.identity));
    front.backend.wait_for_instructions().await;
    let mut reply =
        Answer::new(id, Ok(&front.backend.initialize(&session.principal, revision).into())).into_reply();
    if let Ok(value) = HeaderValue::try_from(session.id.to_string()) {
        reply.headers_mut().insert(headers::SESSION, value);
    }
    reply
}

/// Why there is no session to serve a request in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    status: StatusCode,
    reason: &'static str,
}

impl Missing {
    /// The answer to the request `id`, or to one without.
    pub(crate) fn reply(self, id: Option<&Id>) -> Reply {
        debug!(status = %self.status, reason = self.reason, "refused a legacy request");
        let mut reply = reply::error(self.status, id, &RpcError::new(code::INVALID_REQUEST, self.reason));
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        reply
    }
}

/// Finds the session that the headers name.
pub(crate) fn session<B: Backend>(
    front: &Front<B>,
    principal: &Principal,
    headers: &HeaderMap,
    version: Version<'_>,
) -> Result<Lease, Missing> {
    // A known revision other than the negotiated one is accepted, as common servers do.
    let known = match version {
        Version::Absent => true,
        Version::One(version) => version.parse::<Revision>().is_ok(),
        Version::Unreadable => false,
    };
    if !known {
        let reason = "`MCP-Protocol-Version` is not a revision that is served here";
        return Err(Missing { status: StatusCode::BAD_REQUEST, reason });
    }
    let Some(value) = headers.get(headers::SESSION) else {
        let reason = "`Mcp-Session-Id` is required; send `initialize` to open a session";
        return Err(Missing { status: StatusCode::BAD_REQUEST, reason });
    };
    let lease = value.to_str().ok().and_then(|value| front.sessions.lease(value.trim(), principal));
    let lease = lease.ok_or(Missing {
        status: StatusCode::NOT_FOUND,
        reason: "no such session; send `initialize` to open a new one",
    })?;
    // What the session is told follows the rights of its client, too.
    lease.0.shows(principal, || drop(front.backend.feed(principal, &lease.0.identity)));
    Ok(lease)
}

/// Answers one request of a session.
pub(crate) async fn request<B: Backend>(
    front: &Front<B>,
    (principal, lease): (&Principal, Lease),
    request: Request,
    reading: Reading,
    prefers_events: bool,
) -> Reply {
    let mut way = CallOutlets::default();
    let mut notes = None;
    let can_be_asked = !lease.0.abilities.is_none() && request.method.may_ask();
    let wants_logs = lease.0.identity.log_level().is_some();
    if can_be_asked || wants_logs || reading.wants_progress() {
        let (sink, unread) = ProgressSink::channel(PROGRESS_CAPACITY);
        notes = Some(unread);
        if can_be_asked {
            let stream = CallStream(sink.clone());
            way.questioner = Some(Questioner::new(lease.0.abilities, lease.0.desk.clone(), stream));
        }
        way.progress = Some(sink).filter(|_| wants_logs || reading.wants_progress());
    }
    let session = lease.0.clone();
    lease.requested();
    match call(front, (principal, &Arc::new(lease)), request, reading, way) {
        Ok(call) => {
            // The answer to a call that was admitted still goes to its client after the token has expired.
            let manner = manner(front, &session, principal.validity().until_revoked());
            replay::answer(call, notes, &session.streams, manner, prefers_events).await
        }
        Err(done) => done.into_reply(),
    }
}

fn manner<B: Backend>(front: &Front<B>, session: &Session, validity: Validity) -> Manner {
    let (keep_alive, poll_after) = (front.keep_alive, front.poll_after);
    Manner { revision: session.revision, keep_alive, poll_after, validity }
}

/// How a call reaches its client before the answer; empty where there is no stream.
#[derive(Default)]
struct CallOutlets {
    progress: Option<ProgressSink>,
    questioner: Option<Questioner>,
}

/// The event stream of one POST, as long as the client reads it.
struct CallStream(ProgressSink);

impl Outlet for CallStream {
    fn put(&self, message: Bytes) -> bool {
        self.0.send(message)
    }

    fn gone(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.closed())
    }
}

/// Begins a request, or answers it at once. It may do what the principal may that it shows, whoever opened the session.
fn call<B: Backend>(
    front: &Front<B>,
    (principal, lease): (&Principal, &Arc<Lease>),
    request: Request,
    reading: Reading,
    way: CallOutlets,
) -> Result<Running<Option<Answer>>, Answer> {
    let Request { id, method, .. } = request;
    if method == Method::Ping {
        return Err(Answer::new(&id, Ok(&Raw::literal("{}").into())));
    }
    if !method.eras().has(Era::Legacy) {
        return Err(Answer::new(&id, Err(&era::no_such_method(&method, Era::Legacy))));
    }
    let refused = |error: RpcError| {
        debug!(code = error.code(), "refused a legacy request");
        Answer::new(&id, Err(&error))
    };
    let request = reading.into_request(method, &id).map_err(refused)?;
    let session = &lease.0;
    let (entry, registration) = session.in_flight.enter(&id).map_err(refused)?;
    if session.ended.is_cancelled() {
        return Err(refused(RpcError::new(code::INVALID_REQUEST, "the session has just ended")));
    }
    let caller = Caller {
        principal: principal.clone(),
        revision: session.revision,
        transport: ClientTransport::Http,
        session: session.identity.clone(),
        questioner: way.questioner,
    };
    let (backend, lease, guard) = (front.backend.clone(), lease.clone(), Arc::clone(&front.guard));
    Ok(Running::new(OnDisconnect::Finish, async move {
        let _in_use = lease;
        let answer = pin!(backend.answer(&caller, &request, way.progress));
        let answer = pin!(guarded(&backend, answer));
        let outcome = until_cancelled(answer, registration).await?.and_then(|outcome| outcome);
        let id = entry.id().clone();
        entry.finish().then(|| {
            let answer = Answer::new(&id, outcome.as_ref());
            match &outcome {
                Ok(_) => answer,
                Err(error) => step_up::challenged(&guard, error, answer),
            }
        })
    }))
}

/// Answers a batch, if the session's revision has batches. The single JSON answer has no place for progress and
/// questions, so the calls get no outlets for them.
pub(crate) async fn batch<B: Backend>(
    front: &Front<B>,
    (principal, lease): (&Principal, Lease),
    items: Vec<Result<Message, Malformed>>,
) -> Reply {
    if items.len() > MAX_BATCH {
        let reason = format!("a batch may hold at most {MAX_BATCH} messages");
        let error = RpcError::new(code::INVALID_REQUEST, &reason);
        return reply::error(StatusCode::BAD_REQUEST, None, &error);
    }
    let lease = Arc::new(lease);
    let mut answers = Vec::with_capacity(items.len());
    for item in items {
        match item {
            Ok(Message::Request(request)) => {
                let reading = Reading::of(request.params.as_ref());
                answers.push(if request.method == Method::Initialize || reading.claims_version() {
                    Err(Answer::new(&request.id, Err(&not_in_a_batch())))
                } else {
                    call(front, (principal, &lease), request, reading, CallOutlets::default())
                });
            }
            Ok(Message::Notification(told)) => notified(&lease.0, &told),
            Ok(Message::Response(answer)) => drop(lease.0.desk.answered(answer)),
            Err(malformed) => {
                let mut out = BytesMut::new();
                malformed_response(&mut out, &malformed);
                let body = Raw::parse(out.freeze()).map(Spliced::from).unwrap_or_default();
                answers.push(Err(Answer::whole(body)));
            }
        }
    }
    if answers.is_empty() {
        return reply::empty(StatusCode::ACCEPTED);
    }
    let answers = join_all(answers.into_iter().map(|answer| async {
        match answer {
            Ok(call) => call.await.map(|answer| BytesMut::from(&answer.body.to_raw().bytes()[..])),
            Err(done) => Some(BytesMut::from(&done.body.to_raw().bytes()[..])),
        }
    }))
    .await;
    match batch_answer(&answers) {
        Some(array) => reply::json(StatusCode::OK, array.freeze()),
        None => reply::events(Body::empty()),
    }
}

/// Takes a notification of a session.
pub(crate) fn notified(session: &Session, told: &Notification) {
    match told.method.note().and_then(Note::of_client) {
        Some(ClientNote::Cancelled) => {
            let id = era::cancelled_id(told.params.as_ref());
            let found = id.is_some_and(|id| session.in_flight.cancel(&id));
            debug!(session = session.label(), found, "cancelled by the client");
        }
        Some(ClientNote::RootsListChanged) => session.identity.roots_changed(),
        Some(ClientNote::Initialized) | None => {
            debug!(session = session.label(), method = era::shown(&told.method), "took a notification");
        }
    }
}

/// GET: the session's stream of announcements.
pub(crate) fn open_stream<B: Backend>(front: &Front<B>, principal: &Principal, headers: &HeaderMap) -> Reply {
    let session = match without_body(front, principal, headers) {
        Ok(lease) => lease.0.clone(),
        Err(missing) => return missing.reply(None),
    };
    if !headers::accepts_events(headers) {
        let error = RpcError::new(code::INVALID_REQUEST, "`Accept` must list text/event-stream");
        return reply::error(StatusCode::NOT_ACCEPTABLE, None, &error);
    }
    let last = headers.get(headers::LAST_EVENT_ID).map(|id| id.to_str().unwrap_or_default().trim());
    let resumed = match last.map(|id| session.streams.find(id)) {
        Some(None) => {
            let reason = "`Last-Event-ID` names no stream that is kept; open the stream without it";
            return reply::error(
                StatusCode::BAD_REQUEST,
                None,
                &RpcError::new(code::INVALID_REQUEST, reason),
            );
        }
        Some(Some((log, next))) if !log.is_own() => {
            debug!(session = session.label(), "a stream is resumed");
            // A client that has come back once is not sent away again.
            let manner = Manner { poll_after: None, ..manner(front, &session, principal.validity().clone()) };
            return replay::body(log, next, manner);
        }
        Some(Some((_, next))) => Some(next),
        None => None,
    };
    let Some(lease) = session.open_stream() else {
        let error = RpcError::new(code::INVALID_REQUEST, "this session's stream is open already");
        return reply::error(StatusCode::CONFLICT, None, &error);
    };
    let log = session.streams.own();
    let next = resumed.unwrap_or_else(|| log.end());
    if resumed.is_none() && replay::primes(session.revision) {
        log.prime();
    }
    let announcements = Announcements {
        reader: Reader::new(Arc::clone(log), next),
        feed: front.backend.feed(principal, &session.identity),
        lease,
        principal: principal.clone(),
        shutdown: front.shutdown.clone(),
        keep_alive: front.keep_alive,
    };
    StandsOpen::mark(reply::events(Body::from_stream(stream::unfold(announcements, Announcements::next))))
}

/// DELETE: the end of the session.
pub(crate) fn end<B: Backend>(front: &Front<B>, principal: &Principal, headers: &HeaderMap) -> Reply {
    match without_body(front, principal, headers) {
        Ok(lease) => {
            debug!(session = lease.0.label(), "session ended by its client");
            front.sessions.end(&lease.0);
            reply::empty(StatusCode::NO_CONTENT)
        }
        Err(missing) => missing.reply(None),
    }
}

/// The session of a GET or DELETE; both methods are only for sessions.
fn without_body<B: Backend>(
    front: &Front<B>,
    principal: &Principal,
    headers: &HeaderMap,
) -> Result<Lease, Missing> {
    let version = Version::of(headers);
    let modern = version.text().is_some_and(era::is_modern_version);
    if modern || !headers.contains_key(headers::SESSION) {
        let reason = "only POST is served here, except to sessions of earlier revisions";
        return Err(Missing { status: StatusCode::METHOD_NOT_ALLOWED, reason });
    }
    session(front, principal, headers, version)
}

/// What goes out on a session's stream: the feed of its client, with comments in between.
struct Announcements {
    reader: Reader,
    feed: Feed,
    lease: StreamLease,
    /// Who opened the stream: it ends with the credential that was shown.
    principal: Principal,
    shutdown: CancellationToken,
    keep_alive: std::time::Duration,
}

impl Announcements {
    async fn next(mut self) -> Option<(Bytes, Self)> {
        let session = self.lease.0.clone();
        loop {
            if let Some(event) = self.reader.ready() {
                return Some((event, self));
            }
            let event = tokio::select! {
                biased;
                () = session.ended.cancelled() => return None,
                () = self.shutdown.cancelled() => return None,
                () = self.principal.validity().ended() => return None,
                // Logged first, so that a client that comes back can read it again.
                message = self.feed.next() => {
                    session.streams.own().push_note(&message);
                    continue;
                }
                () = sleep(self.keep_alive) => sse::COMMENT,
            };
            return Some((event, self));
        }
    }
}
