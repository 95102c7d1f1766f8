//! Accepts connections and serves the router on them, within bounds.
//!
//! A client may be slow with its headers, silent between requests, or not read its answer: each has a
//! time after which the connection is closed. Connections beyond the limit wait in the listen queue.

use std::convert::Infallible;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::FutureExt;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::Routes;
use super::reply::Reply;
use super::workers::Workers;
use crate::Backend;

/// How long a client may take to send its next request's headers, the wait for it included. Longer than
/// common clients keep idle connections, so that it is they who close them.
const HEADERS_WITHIN: Duration = Duration::from_secs(120);
/// How long a client may refuse to take any byte of an answer.
const STALLED_WRITE: Duration = Duration::from_secs(60);
/// How many connections are served at once.
const MAX_CONNECTIONS: usize = 4096;
/// How many bytes are buffered, of a request's headers and of an answer: enough for a long list of tools to
/// leave in one write.
const BUFFER_BYTES: usize = 512 * 1024;
/// How long to wait after a failed accept (no descriptors left, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown`: then no more connections are accepted, idle ones are closed, and this returns
/// when every request in progress is answered. The caller bounds that by dropping the future, which
/// closes the rest. Pass the same token to [`router`](super::router), or its streams stay open.
pub async fn serve<B: Backend>(
    listener: TcpListener,
    routes: Routes<B>,
    workers: &Workers,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let accept = async move || Ok(listener.accept().await?.0);
    accept_all(
        "the HTTP front",
        MAX_CONNECTIONS,
        accept,
        &shutdown,
        |connections, stream: TcpStream, slot| {
            // Answers are written whole; waiting for more to send with them only costs time.
            drop(stream.set_nodelay(true));
            let (routes, shutdown) = (routes.clone(), shutdown.clone());
            let place = workers.place();
            match place.runtime.clone() {
                None => {
                    connections.spawn(async move {
                        let _held = (slot, place);
                        serve_one(stream, routes, shutdown).await;
                    });
                }
                // The stream leaves this thread's reactor and is registered with the other's.
                Some(runtime) => match stream.into_std() {
                    Ok(stream) => {
                        let serving = async move {
                            let _held = (slot, place);
                            match TcpStream::from_std(stream) {
                                Ok(stream) => serve_one(stream, routes, shutdown).await,
                                Err(error) => warn!(%error, "cannot hand a connection over"),
                            }
                        };
                        connections.spawn_on(serving, &runtime);
                    }
                    Err(error) => warn!(%error, "cannot hand a connection over"),
                },
            }
        },
    )
    .await;
    Ok(())
}

/// Accepts until `shutdown`, so many at a time, and comes back when every connection has ended. A
/// connection holds its slot for as long as it lives.
pub(crate) async fn accept_all<S>(
    front: &str,
    at_once: usize,
    accept: impl AsyncFn() -> io::Result<S>,
    shutdown: &CancellationToken,
    begin: impl Fn(&mut JoinSet<()>, S, OwnedSemaphorePermit),
) {
    let slots = Arc::new(Semaphore::new(at_once));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
            Ok::<_, io::Error>((accept().await?, slot))
        };
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = accepted => match accepted {
                Ok((stream, slot)) => begin(&mut connections, stream, slot),
                Err(error) => {
                    warn!(%error, "{front} cannot accept a connection");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    // Whoever comes now is refused, not kept waiting for the last of those who were here before.
    drop(accept);
    while connections.join_next().await.is_some() {}
}

async fn serve_one<B: Backend>(stream: TcpStream, routes: Routes<B>, shutdown: CancellationToken) {
    let peer = match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(ours)) => routes.meet(peer, ours),
        // Gone before it was greeted.
        _ => return,
    };
    let answer = move |request| {
        let routes = routes.clone();
        async move { routes.answer_to(peer, request).await }
    };
    if let Err(error) = connection(stream, answer, shutdown).await {
        debug!(%error, "a connection ended early");
    }
}

pub(crate) async fn connection<S, A, R>(
    stream: S,
    answer: A,
    shutdown: CancellationToken,
) -> hyper::Result<()>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    A: Fn(Request<Incoming>) -> R,
    R: Future<Output = Reply> + Send + 'static,
{
    // Not another `async` block around it: that would hold the answer's future twice and move it each time.
    let service = service_fn(|request| answer(request).map(Ok::<_, Infallible>));
    let io = TokioIo::new(Unstalled { stream, deadline: None });
    let mut serving = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADERS_WITHIN)
            .max_buf_size(BUFFER_BYTES)
            .serve_connection(io, service)
    );
    // One of its own: all connections, on all threads, would look at the same one with every step they take.
    let shutdown = shutdown.child_token();
    tokio::select! {
        biased;
        served = serving.as_mut() => return served,
        () = shutdown.cancelled() => serving.as_mut().graceful_shutdown(),
    }
    serving.await
}

/// A stream whose writes fail when the peer takes nothing for [`STALLED_WRITE`].
struct Unstalled<S> {
    stream: S,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> Unstalled<S> {
    fn watched<T>(&mut self, context: &mut Context<'_>, poll: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if poll.is_ready() {
            self.deadline = None;
            return poll;
        }
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(STALLED_WRITE)));
        ready!(deadline.as_mut().poll(context));
        deadline.as_mut().reset(Instant::now() + STALLED_WRITE);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Unstalled<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Unstalled<S> {
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
mod tests {
    use super::super::reply::Body;
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::JoinHandle;

    fn start(answer: &'static str) -> (DuplexStream, JoinHandle<hyper::Result<()>>) {
        let (client, server) = duplex(1024);
        let answer = move |_| async move { Reply::new(Body::from(answer.repeat(100_000))) };
        (client, tokio::spawn(connection(server, answer, CancellationToken::new())))
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_slow_with_its_headers_is_closed() {
        let (mut client, served) = start("x");
        let began = Instant::now();
        client.write_all(b"GET / HTTP/1.1\r\nhost: local").await.unwrap();
        assert!(served.await.unwrap().unwrap_err().is_timeout());
        assert_eq!(began.elapsed().as_secs(), HEADERS_WITHIN.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_its_answer_is_closed() {
        let (mut client, served) = start("x");
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let mut head = [0; 100];
        client.read_exact(&mut head).await.unwrap();
        let began = Instant::now();
        assert!(served.await.unwrap().is_err());
        assert_eq!(began.elapsed().as_secs(), STALLED_WRITE.as_secs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_served() {
        let (mut client, served) = start("x");
        client.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
        let (mut total, mut piece) = (0, [0; 1024]);
        loop {
            sleep(STALLED_WRITE / 2).await;
            match client.read(&mut piece).await.unwrap() {
                0 => break,
                read => total += read,
            }
        }
        assert!(total > 100_000);
        served.await.unwrap().unwrap();
    }
}
