//! Lets pages of the origins in `http.allowed_origins` use the endpoint from a browser (CORS).
//!
//! Only the listed origins are announced to browsers. Loopback origins, which the guard admits too, could belong to any
//! program. A preflight carries no credentials and is answered before any are required. There is no credentials mode,
//! because a page sends the token in a header. If the list is empty, none of this runs.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};

use super::admission::Activity;
use super::auth::Peer;
use super::reply::{self, Reply};
use super::{Front, endpoint};
use crate::Backend;

/// How long a browser may keep the answer to a preflight, in seconds.
const MAX_AGE: &str = "7200";
/// The methods that a page may use.
const METHODS: &str = "GET, POST, DELETE";
/// The headers that a page may send. `*` would leave out `Authorization`.
const SENT: [&str; 11] = [
    "authorization",
    "content-type",
    "accept",
    "mcp-protocol-version",
    "mcp-session-id",
    "mcp-method",
    "mcp-name",
    "last-event-id",
    "traceparent",
    "tracestate",
    "baggage",
];
/// The prefix of the headers that mirror arguments.
const PARAMETER: &str = "mcp-param-";
/// The headers that a page may read.
const READ: &str =
    "WWW-Authenticate, Mcp-Session-Id, Mcp-Protocol-Version, Retry-After, RateLimit, RateLimit-Policy";

/// Answers a request at the endpoint, where origins are listed.
pub(super) async fn answer<B: Backend, D>(
    front: &Front<B>,
    peer: (Peer, Option<&Activity>),
    request: Request<D>,
) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<super::body::BoxError>,
{
    let origin = front.guard.listed_origin(request.headers());
    let preflight = request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut reply = match (&origin, preflight) {
        (Some(_), true) => {
            let (parts, _) = request.into_parts();
            match front.guard.serves_host(&parts) {
                true => allowed(&parts.headers, METHODS),
                false => reply::empty(StatusCode::FORBIDDEN),
            }
        }
        _ => endpoint(front, peer, request).await,
    };
    let headers = reply.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    if let Some(origin) = origin {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(READ));
    }
    reply
}

/// The answer to a preflight.
pub(super) fn allowed(asked: &HeaderMap, methods: &'static str) -> Reply {
    let mut reply = reply::empty(StatusCode::NO_CONTENT);
    let headers = reply.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(methods));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    let granted = granted(asked.get_all(header::ACCESS_CONTROL_REQUEST_HEADERS).iter());
    if let Ok(granted) = HeaderValue::from_str(&granted) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, granted);
    }
    headers.append(header::VARY, HeaderValue::from_static("Access-Control-Request-Headers"));
    reply
}

/// Of the headers that a page wants to send, those that it may send.
fn granted<'a>(wanted: impl Iterator<Item = &'a HeaderValue>) -> String {
    let known = |name: &&str| {
        SENT.iter().any(|sent| name.eq_ignore_ascii_case(sent))
            || name.get(..PARAMETER.len()).is_some_and(|start| start.eq_ignore_ascii_case(PARAMETER))
    };
    let names = wanted.filter_map(|value| value.to_str().ok()).flat_map(|names| names.split(','));
    names.map(str::trim).filter(known).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// HOUR-10: a page may send what MCP needs, and nothing else.
    #[test]
    fn headers_are_granted_by_name() {
        let check = |wanted: &'static str, expected: &str| {
            assert_eq!(granted([HeaderValue::from_static(wanted)].iter()), expected);
        };
        check("authorization,content-type, mcp-session-id", "authorization, content-type, mcp-session-id");
        check("Mcp-Param-City, X-Evil, cookie", "Mcp-Param-City");
        check("", "");
        check("mcp-para", "");
    }
}
