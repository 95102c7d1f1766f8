//! What anybody may read without credentials: whether the gateway lives, and where clients sign in.
//!
//! Health is answered before the `Host` is looked at, because a probe knows only an address. The metadata is for pages of every
//! origin: a page must learn where to sign in before it can show anything. Its bytes come from the authenticator, which makes
//! them from the configuration alone; nothing here looks at `Host` or at a forwarded header.

use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, header};

use super::auth::guard::Guard;
use super::reply::{self, Reply};
use super::{ENDPOINT, cors, nothing_here};

/// The prefix of the protected-resource metadata (RFC 9728). The path of the endpoint may follow it.
const RESOURCE: &str = "/.well-known/oauth-protected-resource";
/// Where clients of 2025-03-26 look for the metadata of the authorization server (RFC 8414).
const ISSUER: &str = "/.well-known/oauth-authorization-server";
/// How long the metadata may be kept.
const FRESH: &str = "max-age=300";

/// Whether the path is one of those that are answered here.
pub(super) fn is_one(path: &str) -> bool {
    path.starts_with("/.well-known/")
}

/// Answers whether the gateway takes requests.
pub(super) fn readiness(ready: bool) -> Reply {
    if ready {
        return reply::text("ready");
    }
    let mut reply = reply::text("not ready");
    *reply.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
    reply.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    reply
}

/// Answers a request for metadata.
pub(super) fn metadata<D>(guard: &Guard, request: Request<D>) -> Reply {
    let (parts, _) = request.into_parts();
    if !guard.serves_host(&parts) {
        return reply::empty(StatusCode::FORBIDDEN);
    }
    let Some(document) = document(guard, parts.uri.path()) else { return nothing_here() };
    let mut reply = match parts.method {
        Method::GET | Method::HEAD => {
            let mut reply = reply::json(StatusCode::OK, document);
            reply.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(FRESH));
            reply
        }
        // A page that sends `MCP-Protocol-Version` along must ask first.
        Method::OPTIONS => cors::allowed(&parts.headers, "GET"),
        _ => {
            let mut reply = reply::empty(StatusCode::METHOD_NOT_ALLOWED);
            reply.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
            reply
        }
    };
    reply.headers_mut().insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    reply
}

/// The document at a path.
fn document(guard: &Guard, path: &str) -> Option<Bytes> {
    let of_endpoint = |rest: &str| rest.is_empty() || rest == ENDPOINT;
    if path.strip_prefix(RESOURCE).is_some_and(of_endpoint) {
        guard.authenticator().metadata()
    } else if path.strip_prefix(ISSUER).is_some_and(of_endpoint) {
        guard.authenticator().issuer_metadata()
    } else {
        None
    }
}
