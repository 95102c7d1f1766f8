//! The shapes of an HTTP answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bridgehead_wire::held::Reservation;
use bridgehead_wire::{Id, RpcError, Spliced, error_response, response_parts};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use http_body::{Frame, SizeHint};
use http_body_util::StreamBody;

/// An answer on its way out.
pub(crate) type Reply = Response<Body>;

/// Marks a reply whose body is a stream that stands open and carries no call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StandsOpen;

impl StandsOpen {
    /// Marks a reply.
    pub(crate) fn mark(mut reply: Reply) -> Reply {
        reply.extensions_mut().insert(Self);
        reply
    }
}

/// One finished JSON-RPC answer and the status it travels with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Spliced,
    /// Headers that belong to this answer alone.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Answer {
    /// The answer to a request, with status 200.
    pub(crate) fn new(id: &Id, outcome: Result<&Spliced, &RpcError>) -> Self {
        Self::whole(response_parts(id, outcome))
    }

    /// A finished answer, with status 200.
    pub(crate) const fn whole(body: Spliced) -> Self {
        Self { status: StatusCode::OK, body, headers: Vec::new() }
    }

    /// As a plain JSON reply. A long answer leaves as its slices and is not copied again.
    pub(crate) fn into_reply(self) -> Reply {
        let mut reply = match self.body.parts() {
            [only] => json(self.status, only.clone()),
            parts => with_json(self.status, Body(Content::Ready(parts.iter().cloned().collect()))),
        };
        reply.headers_mut().extend(self.headers.into_iter().map(|(name, value)| (Some(name), value)));
        reply
    }
}

/// A JSON body.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Reply {
    with_json(status, Body::from(body))
}

fn with_json(status: StatusCode, body: Body) -> Reply {
    let mut reply = Response::new(body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    reply
}

/// A JSON-RPC error, with the request's id where it is known.
pub(crate) fn error(status: StatusCode, id: Option<&Id>, error: &RpcError) -> Reply {
    let mut out = BytesMut::new();
    error_response(&mut out, id.map(Id::raw), error);
    json(status, out.freeze())
}

/// A plain text.
pub(crate) fn text(words: &'static str) -> Reply {
    let mut reply = Response::new(Body::from(words));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    reply.headers_mut().insert(header::CONTENT_TYPE, plain);
    reply
}

/// A status without a body.
pub(crate) fn empty(status: StatusCode) -> Reply {
    let mut reply = Response::new(Body::empty());
    *reply.status_mut() = status;
    reply
}

/// An event stream, with headers that keep proxies from buffering it.
pub(crate) fn events(body: Body) -> Reply {
    let mut reply = Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}

/// The body of an answer.
///
/// Nearly every answer is complete when it leaves, so that case is kept apart from a body that comes bit by bit.
pub struct Body(Content);

enum Content {
    /// One slice.
    Whole(Bytes),
    /// Several.
    Ready(VecDeque<Bytes>),
    /// A body that comes bit by bit.
    Coming(Pin<Box<dyn http_body::Body<Data = Bytes, Error = Infallible> + Send>>),
}

impl Body {
    pub(crate) const fn empty() -> Self {
        Self(Content::Whole(Bytes::new()))
    }

    /// The same body, which keeps `held` until its last byte has left: a connection takes a whole body at once, but writes
    /// it only as its client reads.
    pub(crate) fn holding(self, held: Reservation) -> Self {
        let hold = |bytes| Bytes::from_owner(Held { bytes, _held: held });
        Self(match self.0 {
            Content::Whole(whole) => Content::Whole(hold(whole)),
            Content::Ready(mut parts) => {
                if let Some(last) = parts.pop_back() {
                    parts.push_back(hold(last));
                }
                Content::Ready(parts)
            }
            Content::Coming(body) => Content::Coming(body),
        })
    }

    /// A body that comes bit by bit.
    pub(crate) fn coming(
        body: impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static,
    ) -> Self {
        Self(Content::Coming(Box::pin(body)))
    }

    /// The same, as a stream of its parts.
    pub(crate) fn from_stream(parts: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::coming(StreamBody::new(parts.map(|part| Ok(Frame::data(part)))))
    }
}

/// Bytes, and a reservation that lives as long as they do.
struct Held {
    bytes: Bytes,
    _held: Reservation,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(whole: T) -> Self {
        Self(Content::Whole(whole.into()))
    }
}

impl std::fmt::Debug for Body {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Body").finish_non_exhaustive()
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = match &mut self.0 {
            Content::Whole(whole) => Some(std::mem::take(whole)).filter(|whole| !whole.is_empty()),
            Content::Ready(parts) => parts.pop_front(),
            Content::Coming(body) => return body.as_mut().poll_frame(context),
        };
        Poll::Ready(next.map(|part| Ok(Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(whole) => whole.is_empty(),
            Content::Ready(parts) => parts.is_empty(),
            Content::Coming(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(whole) => SizeHint::with_exact(whole.len() as u64),
            Content::Ready(parts) => SizeHint::with_exact(parts.iter().map(|part| part.len() as u64).sum()),
            Content::Coming(body) => body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::Raw;
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test]
    async fn short_and_long_results_read_the_same() {
        let id = Id::from(7);
        for size in [10, 100_000] {
            let text = format!("\"{}\"", "x".repeat(size));
            let reply = Answer::new(&id, Ok(&Raw::parse(text.clone()).unwrap().into())).into_reply();
            assert_eq!(reply.headers()["content-type"], "application/json");
            let hint = http_body::Body::size_hint(reply.body()).exact();
            let body = reply.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(body, format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{text}}}"));
            assert_eq!(hint, Some(body.len() as u64), "the client is told the length");
        }
    }
}
