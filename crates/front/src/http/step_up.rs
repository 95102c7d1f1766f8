//! Asks a client for more scopes: the answer to a call that the gateway refused because its credential lacks one.
//!
//! The authenticator writes the challenge, because it knows where clients sign in. It may leave the answer to JSON-RPC.

use bridgehead_wire::{Code, Object, RpcError};
use http::{HeaderValue, StatusCode, header};

use super::auth::guard::Guard;
use super::reply::Answer;

/// The challenge for an error, if there is one.
pub(super) fn challenge(guard: &Guard, error: &RpcError) -> Option<HeaderValue> {
    guard.authenticator().step_up(&missing_scope(error)?)
}

/// Turns the answer to a failed request into a challenge, if the error calls for one.
pub(super) fn challenged(guard: &Guard, error: &RpcError, answer: Answer) -> Answer {
    match challenge(guard, error) {
        Some(challenge) => Answer {
            status: StatusCode::FORBIDDEN,
            headers: vec![(header::WWW_AUTHENTICATE, challenge)],
            ..answer
        },
        None => answer,
    }
}

/// All scopes that a call needs, if the gateway refused it because one is missing. An upstream that says
/// the same does not ask for scopes here.
fn missing_scope(error: &RpcError) -> Option<String> {
    error.failure().filter(|failure| failure.code == Code::InsufficientScope)?;
    Object::parse(&error.data()?).ok()?.get("scope")?.to_text()
}
