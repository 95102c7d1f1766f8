//! Answers a POST to the endpoint: one message, or an array of them from a client whose revision has batches.
//!
//! The checks run in the order that clients rely on: media types, body, JSON, era; then the era's own rules
//! ([`modern`], [`legacy`]).

use std::pin::pin;

use bridgehead_gateway::Principal;
use bridgehead_wire::held::NoRoom;
use bridgehead_wire::{Incoming, Malformed, Message, Notification, Request, Response, RpcError, code};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tracing::debug;

use super::body::{self, BodyError};
use super::headers::{self, Version};
use super::reply::{self, Answer, Reply};
use super::session::Lease;
use super::{Front, legacy, modern};
use crate::Backend;
use crate::era::{self, Reading, Served};
use crate::panics::guarded;
use crate::stdio::malformed_response;

/// What is known of a POST besides its body.
struct Posted<'a> {
    principal: Principal,
    headers: &'a HeaderMap,
    said: Version<'a>,
}

impl Posted<'_> {
    /// Whether its headers claim the modern era.
    fn claims_modern(&self) -> bool {
        self.said.text().is_some_and(era::is_modern_version)
    }

    /// The legacy session that its headers name.
    fn session<B: Backend>(&self, front: &Front<B>) -> Result<Lease, legacy::Missing> {
        legacy::session(front, &self.principal, self.headers, self.said)
    }
}

/// Answers a POST of an admitted client.
pub(super) async fn answer<B: Backend, D>(
    front: &Front<B>,
    principal: Principal,
    headers: &HeaderMap,
    body: D,
) -> Reply
where
    D: http_body::Body<Data = Bytes> + Unpin,
    D::Error: Into<body::BoxError>,
{
    if let Err(refused) = check_media(headers) {
        return *refused;
    }
    let text = match body::read(body, front.max_body_bytes, front.body_within).await {
        Ok(text) => text,
        Err(error) => return unread(&error, front.max_body_bytes),
    };
    let incoming = match Incoming::parse(&text) {
        Ok(incoming) => incoming,
        Err(malformed) => return unparsed(&malformed),
    };
    let posted = Posted { principal, headers, said: Version::of(headers) };
    match incoming {
        Incoming::Single(Message::Request(request)) => {
            let id = request.id.clone();
            let answering = pin!(requested(front, posted, request));
            guarded(&front.backend, answering)
                .await
                .unwrap_or_else(|error| Answer::new(&id, Err(&error)).into_reply())
        }
        Incoming::Single(Message::Notification(told)) => notified(front, &posted, &told),
        Incoming::Single(Message::Response(answer)) => answered(front, &posted, answer),
        // Boxed, like every rare branch: a request's future is as large as its largest branch.
        Incoming::Batch(items) => Box::pin(batch(front, posted, items)).await,
    }
}

fn check_media(headers: &HeaderMap) -> Result<(), Box<Reply>> {
    let refused = |status, reason| Err(Box::new(refuse(status, reason)));
    if !headers::accepts_both(headers) {
        let reason = "`Accept` must list both application/json and text/event-stream";
        return refused(StatusCode::NOT_ACCEPTABLE, reason);
    }
    if !headers::is_json(headers) {
        return refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, "`Content-Type` must be application/json");
    }
    Ok(())
}

/// The answer to a body that could not be read.
fn unread(error: &BodyError, max_body_bytes: usize) -> Reply {
    match error {
        BodyError::TooLarge => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body has more than the {max_body_bytes} bytes that are accepted"),
        ),
        BodyError::Slow => refuse(
            StatusCode::REQUEST_TIMEOUT,
            "the body took too long to arrive; send it faster, or raise `limits.body_ms`",
        ),
        BodyError::NoRoom(no_room) => {
            let status = match no_room {
                NoRoom::Peer(_) => StatusCode::PAYLOAD_TOO_LARGE,
                NoRoom::Total(_) => StatusCode::SERVICE_UNAVAILABLE,
            };
            let mut refused = refuse(status, &format!("the body cannot be kept: {no_room}"));
            refused.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
            refused
        }
        BodyError::Broken => refuse(StatusCode::BAD_REQUEST, "the body could not be read"),
    }
}

fn unparsed(malformed: &Malformed) -> Reply {
    debug!(code = malformed.code, reason = %malformed.reason, "refused a body");
    let mut out = BytesMut::new();
    malformed_response(&mut out, malformed);
    reply::json(StatusCode::BAD_REQUEST, out.freeze())
}

fn refuse(status: StatusCode, reason: &str) -> Reply {
    debug!(%status, reason, "refused a POST");
    reply::error(status, None, &RpcError::new(code::INVALID_REQUEST, reason))
}

/// Answers one JSON-RPC request of either era.
async fn requested<B: Backend>(front: &Front<B>, posted: Posted<'_>, request: Request) -> Reply {
    let Posted { principal, headers, said } = posted;
    let reading = Reading::of(request.params.as_ref());
    match era::decide(reading.claims_version(), said.text(), &request.method) {
        Served::Modern => match modern::check(front, principal, (headers, said), request, reading) {
            Ok(passed) if passed.wants_notes() => Box::pin(modern::answer_with_notes(front, passed)).await,
            Ok(passed) => {
                let outcome = front.backend.answer(&passed.caller, &passed.request, None).await;
                modern::answer(&front.guard, &passed, &outcome)
            }
            Err(refused) => *refused,
        },
        Served::Initialize => Box::pin(legacy::initialize(front, principal, &request)).await,
        Served::Legacy => match legacy::session(front, &principal, headers, said) {
            Ok(lease) => {
                let prefers = headers::prefers_events(headers);
                legacy::request(front, (&principal, lease), request, reading, prefers).await
            }
            Err(missing) => missing.reply(Some(&request.id)),
        },
    }
}

fn notified<B: Backend>(front: &Front<B>, posted: &Posted<'_>, told: &Notification) -> Reply {
    let reading = Reading::of(told.params.as_ref());
    if reading.claims_version() || posted.claims_modern() {
        return modern::notification(posted.headers, told, &reading);
    }
    match posted.session(front) {
        Ok(lease) => {
            legacy::notified(&lease.0, told);
            reply::empty(StatusCode::ACCEPTED)
        }
        Err(missing) => missing.reply(None),
    }
}

/// Takes the answer to a question. Only legacy clients are asked in a separate message.
fn answered<B: Backend>(front: &Front<B>, posted: &Posted<'_>, answer: Response) -> Reply {
    if posted.claims_modern() {
        let reason = "a response is not allowed here: nothing was asked of this client";
        return refuse(StatusCode::BAD_REQUEST, reason);
    }
    match posted.session(front) {
        Ok(lease) => {
            lease.0.desk.answered(answer);
            reply::empty(StatusCode::ACCEPTED)
        }
        Err(missing) => missing.reply(None),
    }
}

async fn batch<B: Backend>(
    front: &Front<B>,
    posted: Posted<'_>,
    items: Vec<Result<Message, Malformed>>,
) -> Reply {
    let no_batch = "a batch is not allowed here; send one message per POST";
    if posted.claims_modern() || !posted.headers.contains_key(headers::SESSION) {
        return refuse(StatusCode::BAD_REQUEST, no_batch);
    }
    match posted.session(front) {
        Ok(lease) if lease.0.revision.has_batches() => {
            legacy::batch(front, (&posted.principal, lease), items).await
        }
        Ok(_) => refuse(StatusCode::BAD_REQUEST, no_batch),
        Err(missing) => missing.reply(None),
    }
}
