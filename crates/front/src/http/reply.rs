//! The shapes of an HTTP answer.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bridgehead_wire::{Id, RpcError, Spliced, error_response, response_parts};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};

/// An answer on its way out.
pub(crate) type Reply = Response<Body>;

/// One finished JSON-RPC answer and the status it travels with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Spliced,
}

impl Answer {
    /// The answer to a request, with status 200.
    pub(crate) fn new(id: &Id, outcome: Result<&Spliced, &RpcError>) -> Self {
        Self { status: StatusCode::OK, body: response_parts(id, outcome) }
    }

    /// As a plain JSON reply. What is long leaves as the slices it consists of, not copied once more.
    pub(crate) fn into_reply(self) -> Reply {
        match self.body.parts() {
            [only] => json(self.status, only.clone()),
            parts => {
                let body = Parts { parts: parts.iter().cloned().collect(), left: self.body.len() };
                with_json(self.status, Body::new(body))
            }
        }
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

/// A few words for people.
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

/// An event stream, kept from being buffered on its way.
pub(crate) fn events(body: Body) -> Reply {
    let mut reply = Response::new(body);
    let headers = reply.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    reply
}

/// A body of known length in slices.
struct Parts {
    parts: VecDeque<Bytes>,
    left: usize,
}

impl http_body::Body for Parts {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let part = self.parts.pop_front();
        self.left -= part.as_ref().map_or(0, Bytes::len);
        Poll::Ready(part.map(|part| Ok(http_body::Frame::data(part))))
    }

    fn is_end_stream(&self) -> bool {
        self.parts.is_empty()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        http_body::SizeHint::with_exact(self.left as u64)
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
