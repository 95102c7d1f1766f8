//! Accepts connections and serves the routes on them, within limits.
//!
//! A client may be slow with its headers, silent between requests, or not read its answer: each has a timeout after which
//! the connection is closed. At the maximum number of connections an unused one makes way
//! ([`admission`](super::admission)). If none is unused, the new client is told to come back. The front uses at most half
//! of the descriptors that the process may have, so that servers, the record and the control socket have the others. One
//! descriptor is kept in reserve, so that a new client can be refused even if all others are in use.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bridgehead_wire::held::{Budget, SMALL};
use bridgehead_wire::{RpcError, code};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{Either, join_all};
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{HttpService, service_fn};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Routes;
use super::admission::{Activity, Admission, Member};
use super::auth::Peer;
use super::body::Counted;
use super::listener::{Handshake, Socket, Tls};
use super::reply::{self, Body, Reply, StandsOpen};
use super::workers::{Place, Workers};
use crate::Backend;
use crate::panics;

/// How long a client may take to send its next request's headers, idle time included. It is longer than
/// common clients keep idle connections, so that the clients close them.
const HEADERS_WITHIN: Duration = Duration::from_secs(120);
/// How long a client may read nothing of an answer.
const STALLED_WRITE: Duration = Duration::from_secs(60);
/// How many connections are served at once.
const MAX_CONNECTIONS: usize = 4096;
/// How many bytes are buffered, of a request's headers and of an answer: enough for a long list of tools to
/// leave in one write.
const BUFFER_BYTES: usize = 512 * 1024;
/// How long to wait after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How many more may come when all places are busy, to say who they are.
const AT_THE_DOOR: usize = 64;
/// `EMFILE` and `ENFILE`: the process, or the system, has no descriptor left.
const NO_DESCRIPTORS: [i32; 2] = [24, 23];
/// The answer to a client that connects while there is no room.
const NO_ROOM: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 5\r\ncontent-type: text/plain; charset=utf-8\r\n\
content-length: 70\r\nconnection: close\r\n\r\nall connections are in use: close some, or come back in a few seconds\n";
/// How many clients get that answer at once, and how long each may take to read it; others are closed without an answer.
const MOST_REFUSALS: usize = 64;
const REFUSING: Duration = Duration::from_secs(2);

/// How many connections can be served at once.
fn most_connections() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let half = limit.and_then(|limit| usize::try_from(limit / 2).ok()).unwrap_or(usize::MAX);
    MAX_CONNECTIONS.min(half)
}

/// Serves until `shutdown`: then no more connections are accepted, idle ones are closed, and this returns
/// when every request in progress is answered. The caller limits that wait by dropping the future, which
/// closes the rest. Pass the same token to [`router`](super::router), or its streams stay open.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    routes: Routes<B>,
    workers: &Workers,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let admission = Admission::with_door(most_connections(), AT_THE_DOOR, Budget::process());
    serve_tcp(listener, None, &routes, workers, &admission, &shutdown).await;
    Ok(())
}

/// Serves all listeners of a gateway like [`serve`]. They share the places for connections.
pub(crate) async fn serve_all<B: Backend>(
    listeners: Vec<(Socket, Option<Tls>, Routes<B>)>,
    workers: &Workers,
    shutdown: &CancellationToken,
) {
    let admission = Admission::with_door(most_connections(), AT_THE_DOOR, Budget::process());
    let serving = listeners.into_iter().map(|(socket, tls, routes)| {
        let admission = &admission;
        async move {
            match socket {
                Socket::Tcp(listener, _) => {
                    serve_tcp(listener, tls.as_ref(), &routes, workers, admission, shutdown).await;
                }
                Socket::Unix(listener, file) => {
                    serve_unix(listener, &routes, workers, admission, shutdown).await;
                    drop(file);
                }
            }
        }
    });
    join_all(serving).await;
}

async fn serve_tcp<B: Backend>(
    listener: TcpListener,
    tls: Option<&Tls>,
    routes: &Routes<B>,
    workers: &Workers,
    admission: &Arc<Admission>,
    shutdown: &CancellationToken,
) {
    let accept = async move || Ok(listener.accept().await?.0);
    let ended = |panic| panics::ended(routes.backend(), panic);
    accept_all(
        "the HTTP front",
        admission,
        accept,
        shutdown,
        ended,
        |connections, stream: TcpStream, member| {
            // Answers are written whole; delaying them to send more at once (Nagle) only costs time.
            drop(stream.set_nodelay(true));
            let routes = routes.clone();
            match tls.map(Tls::acceptor) {
                None => hand_over(connections, workers.place(), stream, |stream| {
                    serve_one(stream, routes, member)
                }),
                Some(handshake) => hand_over(connections, workers.place(), stream, |stream| {
                    serve_encrypted(stream, handshake, routes, member)
                }),
            }
        },
    )
    .await;
}

async fn serve_unix<B: Backend>(
    listener: UnixListener,
    routes: &Routes<B>,
    workers: &Workers,
    admission: &Arc<Admission>,
    shutdown: &CancellationToken,
) {
    let accept = async move || Ok(listener.accept().await?.0);
    let ended = |panic| panics::ended(routes.backend(), panic);
    accept_all(
        "a Unix socket",
        admission,
        accept,
        shutdown,
        ended,
        |connections, stream: UnixStream, member| {
            let routes = routes.clone();
            hand_over(connections, workers.place(), stream, |stream| serve_user(stream, routes, member));
        },
    )
    .await;
}

/// A connection that can move from one thread's reactor to another's.
trait Movable: Sized + Send + 'static {
    type Std: Send + 'static;
    fn leave(self) -> io::Result<Self::Std>;
    fn enter(stream: Self::Std) -> io::Result<Self>;
}

impl Movable for TcpStream {
    type Std = std::net::TcpStream;

    fn leave(self) -> io::Result<Self::Std> {
        self.into_std()
    }

    fn enter(stream: Self::Std) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

impl Movable for UnixStream {
    type Std = std::os::unix::net::UnixStream;

    fn leave(self) -> io::Result<Self::Std> {
        self.into_std()
    }

    fn enter(stream: Self::Std) -> io::Result<Self> {
        Self::from_std(stream)
    }
}

/// Serves a connection on the thread of its place.
fn hand_over<S: Movable, F: Future<Output = ()> + Send + 'static>(
    connections: &mut JoinSet<()>,
    place: Place,
    stream: S,
    serve: impl FnOnce(S) -> F + Send + 'static,
) {
    match place.runtime.clone() {
        None => {
            let serving = serve(stream);
            connections.spawn(async move {
                let _held = place;
                serving.await;
            });
        }
        // The stream leaves this thread's reactor and is registered with the other's.
        Some(runtime) => match stream.leave() {
            Ok(stream) => {
                let serving = async move {
                    let _held = place;
                    match S::enter(stream) {
                        Ok(stream) => serve(stream).await,
                        Err(error) => warn!(%error, "cannot hand a connection over"),
                    }
                };
                connections.spawn_on(serving, &runtime);
            }
            Err(error) => warn!(%error, "cannot hand a connection over"),
        },
    }
}

/// Accepts until `shutdown`, and returns when every connection has ended. A connection is a member of `admission` for as
/// long as it lives. `failed` is called for a connection whose task panicked.
pub(crate) async fn accept_all<S>(
    front: &str,
    admission: &Arc<Admission>,
    accept: impl AsyncFn() -> io::Result<S>,
    shutdown: &CancellationToken,
    failed: impl Fn(JoinError),
    begin: impl Fn(&mut JoinSet<()>, S, Member),
) where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let mut connections = JoinSet::new();
    let mut refusals = JoinSet::new();
    let mut reserve = spare_descriptor();
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(ended) = connections.join_next() => {
                ended.unwrap_or_else(&failed);
                continue;
            }
            Some(_) = refusals.join_next() => continue,
            accepted = accept() => accepted,
        };
        match accepted {
            Ok(stream) => match admission.enter(shutdown) {
                Some(member) => begin(&mut connections, stream, member),
                None => {
                    debug!("{front} has no room for a connection");
                    if refusals.len() < MOST_REFUSALS {
                        refusals.spawn(refuse(stream));
                    }
                }
            },
            Err(error) => {
                warn!(%error, "{front} cannot accept a connection");
                let exhausted = error.raw_os_error().is_some_and(|code| NO_DESCRIPTORS.contains(&code));
                // Closes an unused connection for its descriptor. If there is none, the reserve is freed, to accept and
                // refuse the new client. If other code takes that descriptor first, accepting fails again, and the next
                // round may have a reserve again.
                if exhausted && !admission.evict() {
                    drop(reserve.take());
                    if let Some(Ok(stream)) = accept().now_or_never() {
                        refuse(stream).now_or_never();
                    }
                    reserve = spare_descriptor();
                }
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    // Closes the listener, so that a new client is refused instead of waiting until the last connection has ended.
    drop(accept);
    while let Some(ended) = connections.join_next().await {
        ended.unwrap_or_else(&failed);
    }
}

/// A descriptor that is reserved for one more connection.
fn spare_descriptor() -> Option<std::fs::File> {
    std::fs::File::open("/dev/null").ok()
}

/// Tells a client that there is no room, then keeps reading for a moment: a client that is still writing when its
/// connection is closed may never see the answer.
async fn refuse(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let telling = async {
        stream.write_all(NO_ROOM).await?;
        stream.shutdown().await?;
        let mut heard = [0; 1024];
        while stream.read(&mut heard).await? > 0 {}
        io::Result::Ok(())
    };
    drop(tokio::time::timeout(REFUSING, telling).await);
}

async fn serve_one<B: Backend>(stream: TcpStream, routes: Routes<B>, member: Member) {
    // Without addresses the client is gone already.
    if let Some(peer) = met(&stream, &routes) {
        converse(stream, peer, routes, member).await;
    }
}

/// The same after a handshake. A connection counts as unused until its first request, so it may have to make way before.
async fn serve_encrypted<B: Backend>(
    stream: TcpStream,
    handshake: Handshake,
    routes: Routes<B>,
    member: Member,
) {
    let Some(peer) = met(&stream, &routes) else { return };
    let shaken = tokio::select! {
        biased;
        _ = member.activity.ended() => return,
        shaken = handshake.with(stream) => shaken,
    };
    match shaken {
        Ok(stream) => converse(stream, peer, routes, member).await,
        Err(error) => debug!(%error, "a TLS handshake failed"),
    }
}

/// Serves a connection over a Unix socket, whose user the kernel names.
async fn serve_user<B: Backend>(stream: UnixStream, routes: Routes<B>, member: Member) {
    let user = stream.peer_cred().ok().map(|user| user.uid());
    let peer = routes.meet_user(user);
    converse(stream, peer, routes, member).await;
}

fn met<B: Backend>(stream: &TcpStream, routes: &Routes<B>) -> Option<Peer> {
    Some(routes.meet(stream.peer_addr().ok()?, stream.local_addr().ok()?))
}

async fn converse<B: Backend, S>(stream: S, peer: Peer, routes: Routes<B>, member: Member)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let head_within = routes.head_within();
    let answer = move |request: Request<Counted>| {
        let (routes, activity) = (routes.clone(), Arc::clone(&request.body().activity));
        async move { routes.answer_to(peer, Some(&activity), request).await }
    };
    if let Err(error) = connection(stream, answer, &member.activity, head_within).await {
        debug!(%error, "a connection ended early");
    }
}

/// Polls a connection to its end: by itself, when it has to make way, or after the request in progress at shutdown.
macro_rules! until_ended {
    ($serving:expr, $activity:expr) => {{
        let mut serving = pin!($serving);
        tokio::select! {
            biased;
            served = serving.as_mut() => return served,
            made_way = $activity.ended() => match made_way {
                true => return Ok(()),
                false => serving.as_mut().graceful_shutdown(),
            },
        }
        serving.await
    }};
}

/// Serves one connection to its end. The head of a request may take as long as `head_within`.
pub(crate) async fn connection<S, A, R>(
    stream: S,
    answer: A,
    activity: &Arc<Activity>,
    head_within: Duration,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Fn(Request<Counted>) -> R,
    R: Future<Output = Reply> + Send + 'static,
{
    until_ended!(http(stream, answer, activity, head_within), activity)
}

/// Serves one connection whose client may change to another protocol, and so to its end or until then.
pub(crate) async fn upgradable<S, A, R>(
    stream: S,
    answer: A,
    activity: &Arc<Activity>,
    head_within: Duration,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Fn(Request<Counted>) -> R,
    R: Future<Output = Reply> + Send + 'static,
{
    until_ended!(http(stream, answer, activity, head_within).with_upgrades(), activity)
}

/// The stream of a connection that has changed to another protocol, and what was read of it already.
pub(crate) async fn upgraded<S>(upgrade: OnUpgrade) -> io::Result<(S, Bytes)>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let stream = upgrade.await.map_err(io::Error::other)?;
    let parts = stream.downcast::<TokioIo<Watched<S>>>();
    let parts = parts.map_err(|_| io::Error::other("the connection is not one of this front"))?;
    Ok((parts.io.into_inner().stream, parts.read_buf))
}

fn http<S, A, R>(
    stream: S,
    answer: A,
    activity: &Arc<Activity>,
    head_within: Duration,
) -> http1::Connection<
    TokioIo<Watched<S>>,
    impl HttpService<Incoming, ResBody = Tracked, Error = Infallible, Future: Send>,
>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Fn(Request<Counted>) -> R,
    R: Future<Output = Reply> + Send + 'static,
{
    // No `async` block around this: it would hold the answer's future twice and move it each time.
    let service = service_fn(move |request: Request<Incoming>| {
        if !activity.begin() {
            // The connection had to make way and is about to be closed; the request was not started.
            return Either::Right(std::future::pending());
        }
        let served = Served(Arc::clone(activity));
        let request = request.map(|body| Counted { body, activity: Arc::clone(activity), seen: 0 });
        Either::Left(answer(request).map(|reply| Ok::<_, Infallible>(held(reply, served))))
    });
    let io = TokioIo::new(Watched {
        stream,
        activity: Arc::clone(activity),
        stalled: None,
        head_within,
        head_began: false,
        head: None,
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS_WITHIN)
        .max_buf_size(BUFFER_BYTES)
        .serve_connection(io, service)
}

/// Marks a request as finished when dropped.
struct Served(Arc<Activity>);

impl Drop for Served {
    fn drop(&mut self) {
        self.0.finish();
    }
}

/// The body of an answer, whose end is the end of the request.
struct Tracked {
    body: Body,
    _served: Served,
}

/// Reserves memory for an answer until its client has read it, because clients may be slow to read.
fn held(reply: Reply, served: Served) -> Response<Tracked> {
    if reply.extensions().get::<StandsOpen>().is_some() {
        served.0.stands();
    }
    let size = http_body::Body::size_hint(reply.body()).exact();
    let size = size.and_then(|size| usize::try_from(size).ok()).unwrap_or_default();
    let reply = match (size > SMALL).then(|| served.0.account.reserve(size)) {
        None => reply,
        Some(Ok(held)) => reply.map(|body| body.holding(held)),
        Some(Err(no_room)) => {
            debug!(size, %no_room, "refused an answer");
            let reason = format!(
                "the request was served, but its answer has {size} bytes and cannot be kept: {no_room}"
            );
            let error = RpcError::new(code::INTERNAL_ERROR, &reason);
            let mut refused = reply::error(StatusCode::SERVICE_UNAVAILABLE, None, &error);
            refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            refused
        }
    };
    reply.map(|body| Tracked { body, _served: served })
}

impl http_body::Body for Tracked {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream whose writes fail when the peer reads nothing for [`STALLED_WRITE`], and whose reads fail when the head of a
/// request takes too long.
struct Watched<S> {
    stream: S,
    activity: Arc<Activity>,
    /// Runs while the peer reads nothing.
    stalled: Option<Pin<Box<Sleep>>>,
    head_within: Duration,
    /// Whether part of a head has arrived.
    head_began: bool,
    /// Runs while the rest of a head is missing. Most heads arrive whole and cost no timer.
    head: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    fn watched<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            if self.stalled.take().is_some() {
                self.activity.writes(false);
            }
            return poll;
        }
        let activity = &self.activity;
        let stalled = self.stalled.get_or_insert_with(|| {
            activity.writes(true);
            Box::pin(sleep(STALLED_WRITE))
        });
        ready!(stalled.as_mut().poll(context));
        stalled.as_mut().reset(Instant::now() + STALLED_WRITE);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Whether the rest of a head is overdue. The time of the first head runs from the start of the connection, that of
    /// every other from its first byte: between requests a client may be silent for longer.
    fn head_is_late(&mut self, context: &mut Context<'_>) -> bool {
        if !self.head_began && !self.activity.is_fresh() {
            return false;
        }
        let within = self.head_within;
        self.head.get_or_insert_with(|| Box::pin(sleep(within))).as_mut().poll(context).is_ready()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let poll = Pin::new(&mut self.stream).poll_read(context, buffer);
        if self.activity.is_busy() {
            self.head_began = false;
            self.head = None;
        } else if poll.is_ready() {
            self.head_began |= buffer.filled().len() > before;
        } else if self.head_is_late(context) {
            debug!("the head of a request took too long");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        poll
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, poll)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let poll = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watched(context, poll)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests;
