//! Connections that wait for their next request, apart for each thread.
//!
//! A call takes a connection of the thread it runs on, drives it in its own task and gives it back: no other
//! task has a part in it, and nothing is handed over between threads. A connection that waits is driven by
//! nobody; whether its server has closed it is seen when it is taken.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{Builder, Connection, SendRequest};
use hyper_util::rt::TokioIo;
use thread_local::ThreadLocal;
use tokio::time::Instant;

use crate::transport::dial::Socket;

/// How many connections may wait on one thread.
const MOST_WAITING: usize = 128;
/// How long one may have waited to be used again, where the server names no time.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// How much of a head is read before it is too large.
const LARGEST_HEAD: usize = 256 * 1024;

/// The connections of one server.
#[derive(Default)]
pub(crate) struct Pool(ThreadLocal<RefCell<Vec<Wire>>>);

/// What moves the bytes of one connection.
type Driver = Connection<TokioIo<Socket>, Full<Bytes>>;

/// One connection.
pub(crate) struct Wire {
    sender: SendRequest<Full<Bytes>>,
    /// Gone once it has ended.
    connection: Option<Pin<Box<Driver>>>,
    /// What is left of the last answer: no more than its end, one hopes.
    rest: Option<Incoming>,
    waits_since: Instant,
    longest_wait: Duration,
}

/// Why a request on a connection has no response.
#[derive(Debug)]
pub(crate) struct SendError {
    pub(crate) error: hyper::Error,
    /// The request, if provably nothing of it left.
    pub(crate) unsent: Option<Request<Full<Bytes>>>,
}

impl Pool {
    /// A connection that can take a request, if one waits on this thread.
    pub(crate) fn take(&self) -> Option<Wire> {
        let mut waiting = self.0.get()?.borrow_mut();
        while let Some(mut wire) = waiting.pop() {
            if wire.is_usable() {
                return Some(wire);
            }
        }
        None
    }

    /// Keeps a connection for the next request on this thread. `rest` is what was not read of its last answer.
    pub(crate) fn put(&self, mut wire: Wire, rest: Option<Incoming>) {
        if wire.connection.is_none() {
            return;
        }
        wire.rest = rest;
        wire.waits_since = Instant::now();
        let mut waiting = self.0.get_or_default().borrow_mut();
        if waiting.len() < MOST_WAITING {
            waiting.push(wire);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pool")
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Wire")
    }
}

impl Wire {
    pub(crate) async fn over(socket: Socket) -> Result<Self, hyper::Error> {
        let (sender, connection) =
            Builder::new().max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(socket)).await?;
        Ok(Self {
            sender,
            connection: Some(Box::pin(connection)),
            rest: None,
            waits_since: Instant::now(),
            longest_wait: LONGEST_WAIT,
        })
    }

    /// Lets the connection read and write.
    pub(crate) fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && connection.as_mut().poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// The next piece of `body`, read by whoever asks for it.
    pub(crate) fn poll_body(
        &mut self,
        body: &mut Incoming,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, hyper::Error>>> {
        loop {
            let mut frame = Pin::new(&mut *body).poll_frame(context);
            if frame.is_pending() {
                self.drive(context);
                frame = Pin::new(&mut *body).poll_frame(context);
            }
            return match frame {
                Poll::Pending => Poll::Pending,
                Poll::Ready(None) => Poll::Ready(None),
                Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(error))),
                Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                    Ok(data) => Poll::Ready(Some(Ok(data))),
                    Err(_trailers) => continue,
                },
            };
        }
    }

    fn is_usable(&mut self) -> bool {
        if self.waits_since.elapsed() > self.longest_wait {
            return false;
        }
        let context = &mut Context::from_waker(Waker::noop());
        if let Some(mut rest) = self.rest.take() {
            // An answer that goes on after its last message is not worth waiting for.
            while let Poll::Ready(piece) = self.poll_body(&mut rest, context) {
                match piece {
                    None => {
                        self.drive(context);
                        return self.connection.is_some();
                    }
                    Some(Ok(_)) => {}
                    Some(Err(_)) => return false,
                }
            }
            return false;
        }
        self.drive(context);
        self.connection.is_some()
    }

    /// Sends a request and waits for the head of its response.
    pub(crate) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, SendError> {
        let ready = poll_fn(|context| {
            if let Poll::Ready(ready) = self.sender.poll_ready(context) {
                return Poll::Ready(ready);
            }
            self.drive(context);
            self.sender.poll_ready(context)
        });
        if let Err(error) = ready.await {
            return Err(SendError { error, unsent: Some(request) });
        }
        let mut response = pin!(self.sender.try_send_request(request));
        let response = poll_fn(|context| {
            if let Some(connection) = &mut self.connection
                && connection.as_mut().poll(context).is_ready()
            {
                self.connection = None;
            }
            response.as_mut().poll(context)
        });
        let response = response.await.map_err(|mut error| {
            let unsent = error.take_message();
            SendError { error: error.into_error(), unsent }
        })?;
        if let Some(wait) = keep_alive(&response) {
            self.longest_wait = wait;
        }
        Ok(response)
    }
}

/// For how long the server says that it keeps the connection, less a second for what is under way.
fn keep_alive(response: &Response<Incoming>) -> Option<Duration> {
    let value = response.headers().get("keep-alive")?.to_str().ok()?;
    let seconds = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?.parse().ok()?;
    Some(Duration::from_secs(seconds).saturating_sub(Duration::from_secs(1)).min(LONGEST_WAIT))
}
