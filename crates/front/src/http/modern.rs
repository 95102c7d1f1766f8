//! Requests of the modern era: each is self-contained and mirrored in its headers.

use std::pin::pin;
use std::sync::Arc;

use bridgehead_gateway::{Caller, ClientRequest, ClientTransport, Principal, ProgressSink};
use bridgehead_wire::{
    Era, Id, Method, Notification, Request, RequestMeta, Revision, RpcError, Spliced, code,
};
use http::{HeaderMap, StatusCode};
use tracing::debug;

use super::Front;
use super::auth::guard::Guard;
use super::headers::{self, Version};
use super::reply::{self, Answer, Reply, StandsOpen};
use super::running::{OnDisconnect, Running};
use super::sse::{self, Ends};
use super::{quota, step_up};
use crate::Backend;
use crate::era::{self, Reading};
use crate::panics::guarded;
use crate::stdio::PROGRESS_CAPACITY;

/// A request that has passed every check. Dropping the future of its answer, or the reply, cancels it.
pub(crate) struct Passed {
    id: Id,
    /// Whether the gateway has the method. If so, "no such method" can only come from an upstream.
    served: bool,
    pub(crate) request: ClientRequest,
    pub(crate) caller: Caller,
}

impl Passed {
    /// Whether notifications may come before the answer.
    pub(crate) fn wants_notes(&self) -> bool {
        self.caller.wants_notes(&self.request)
    }
}

/// Checks one request, whose headers name `version`; returns the refusal if a check fails.
pub(crate) fn check<B: Backend>(
    front: &Front<B>,
    principal: Principal,
    (headers, version): (&HeaderMap, Version<'_>),
    request: Request,
    reading: Reading,
) -> Result<Passed, Box<Reply>> {
    let Request { id, method, .. } = request;
    if let Err((status, error)) = rules(front, &principal, headers, version, &method, &reading) {
        debug!(code = error.code(), reason = error.message(), "refused a modern request");
        return Err(Box::new(reply::error(status, Some(&id), &error)));
    }
    let served = front.backend.serves(&principal, Era::Modern, &method);
    let client = reading.envelope().ok().and_then(RequestMeta::client_info);
    let caller = Caller {
        session: front.stateless.of(&principal, client.as_ref()),
        principal,
        revision: Revision::V2026_07_28,
        transport: ClientTransport::Http,
        questioner: None,
    };
    match reading.into_request(method, &id) {
        Ok(request) => Ok(Passed { id, served, request, caller }),
        Err(error) => Err(Box::new(reply::error(StatusCode::BAD_REQUEST, Some(&id), &error))),
    }
}

/// The reply to a request that had no notifications before its outcome.
pub(crate) fn answer(guard: &Guard, passed: &Passed, outcome: &Result<Spliced, RpcError>) -> Reply {
    encode(guard, &passed.id, &passed.request, outcome, passed.served).into_reply()
}

/// Answers a request that may get notifications before its answer. A listen ends with its result when the front shuts
/// down, and when the credential of its client ends. Any other stream ends when the credential is revoked, but its call goes on.
pub(crate) async fn answer_with_notes<B: Backend>(front: &Front<B>, passed: Passed) -> Reply {
    let (sink, notes) = ProgressSink::channel(PROGRESS_CAPACITY);
    let validity = passed.caller.principal.validity();
    let mut ends = Ends::default();
    let listens = passed.request.method == Method::Listen;
    if listens {
        let (shutdown, validity) = (front.shutdown.clone(), validity.clone());
        ends.notes = Some(Box::pin(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = validity.ended() => {}
            }
        }));
    } else if validity.until_revoked().can_end() {
        let validity = validity.until_revoked();
        ends.stream = Some(Box::pin(async move { validity.ended().await }));
    }
    let (backend, guard) = (front.backend.clone(), Arc::clone(&front.guard));
    let call = Running::new(OnDisconnect::Cancel, async move {
        let Passed { id, served, request, caller } = passed;
        let answering = pin!(backend.answer(&caller, &request, Some(sink)));
        let outcome = guarded(&backend, answering).await.and_then(|outcome| outcome);
        Some(encode(&guard, &id, &request, &outcome, served))
    });
    let reply = sse::answer(call, Some(notes), front.keep_alive, ends).await;
    if listens { StandsOpen::mark(reply) } else { reply }
}

/// Everything that is checked before the gateway is asked, in the order that clients rely on.
fn rules<B: Backend>(
    front: &Front<B>,
    principal: &Principal,
    headers: &HeaderMap,
    version: Version<'_>,
    method: &Method,
    reading: &Reading,
) -> Result<(), (StatusCode, RpcError)> {
    let bad = |error| (StatusCode::BAD_REQUEST, error);
    if version == Version::Absent {
        return Err(bad(headers::mismatch("`MCP-Protocol-Version` is required")));
    }
    let meta = reading.envelope().map_err(bad)?;
    let claimed = meta.protocol_version.as_deref().unwrap_or_default();
    if version.text() != Some(claimed) {
        return Err(bad(headers::mismatch("`MCP-Protocol-Version` differs from the version in `_meta`")));
    }
    era::check_served(claimed).map_err(bad)?;
    headers::check_mirrored(&front.backend, principal, headers, method, reading.params()).map_err(bad)?;
    if !method.eras().has(Era::Modern) {
        return Err((StatusCode::NOT_FOUND, era::no_such_method(method, Era::Modern)));
    }
    Ok(())
}

fn encode(
    guard: &Guard,
    id: &Id,
    request: &ClientRequest,
    outcome: &Result<Spliced, RpcError>,
    served: bool,
) -> Answer {
    let status = match outcome {
        Ok(_) => StatusCode::OK,
        // Refused for its form, not for what it asks. Only a failed request is checked again, and hardly any fails.
        Err(_) if request.params.ambiguous(request.method.params()).is_some() => StatusCode::BAD_REQUEST,
        Err(error) if quota::refused(error).is_some() => StatusCode::TOO_MANY_REQUESTS,
        Err(error) => status(error.code(), served),
    };
    let headers = outcome.as_ref().err().and_then(quota::refused).map(quota::headers).unwrap_or_default();
    let answer = Answer { status, headers, ..Answer::new(id, outcome.as_ref()) };
    match outcome {
        Ok(_) => answer,
        Err(error) => step_up::challenged(guard, error, answer),
    }
}

/// The status of an error that the gateway answered: only errors about the protocol itself show in it. If
/// the gateway has the method (`served`), "no such method" can only come from an upstream.
fn status(error: i64, served: bool) -> StatusCode {
    match error {
        code::HEADER_MISMATCH | code::MISSING_CLIENT_CAPABILITY | code::UNSUPPORTED_PROTOCOL_VERSION => {
            StatusCode::BAD_REQUEST
        }
        code::METHOD_NOT_FOUND if !served => StatusCode::NOT_FOUND,
        _ => StatusCode::OK,
    }
}

/// Accepts a notification. None has an effect here: a request is cancelled by closing its stream.
pub(crate) fn notification(headers: &HeaderMap, told: &Notification, reading: &Reading) -> Reply {
    let version = Version::of(headers);
    let claimed = reading.envelope().ok().and_then(|meta| meta.protocol_version.as_deref());
    let checked = match (version.text(), claimed) {
        (None, _) => Err(headers::mismatch("`MCP-Protocol-Version` is required, once")),
        (Some(header), Some(claimed)) if header != claimed => {
            Err(headers::mismatch("`MCP-Protocol-Version` differs from the version in `_meta`"))
        }
        (Some(header), _) => era::check_served(header),
    };
    match checked {
        Ok(()) => {
            debug!(method = era::shown(&told.method), "ignored a notification");
            reply::empty(StatusCode::ACCEPTED)
        }
        Err(error) => reply::error(StatusCode::BAD_REQUEST, None, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_errors_show_in_the_status() {
        assert_eq!(status(code::HEADER_MISMATCH, true), StatusCode::BAD_REQUEST);
        assert_eq!(status(code::MISSING_CLIENT_CAPABILITY, true), StatusCode::BAD_REQUEST);
        assert_eq!(status(code::UNSUPPORTED_PROTOCOL_VERSION, true), StatusCode::BAD_REQUEST);
        assert_eq!(status(code::METHOD_NOT_FOUND, false), StatusCode::NOT_FOUND);
        assert_eq!(status(code::METHOD_NOT_FOUND, true), StatusCode::OK);
        assert_eq!(status(code::INVALID_PARAMS, true), StatusCode::OK);
        assert_eq!(status(code::INTERNAL_ERROR, true), StatusCode::OK);
    }
}
