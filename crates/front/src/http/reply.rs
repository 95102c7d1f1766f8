//! The shapes of an HTTP answer.

use axum::body::Body;
use bridgehead_wire::{Id, RpcError, error_response};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, Response, StatusCode, header};

/// An answer on its way out.
pub(crate) type Reply = Response<Body>;

/// One finished JSON-RPC answer and the status it travels with.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
}

/// A JSON body.
pub(crate) fn json(status: StatusCode, body: Bytes) -> Reply {
    let mut reply = Response::new(Body::from(body));
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
