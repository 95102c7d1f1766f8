//! Why a bridge gave no answer: one error type for failed connections and for failed calls.

use std::time::Duration;

use bridgehead_wire::{RpcError, code};

use super::timeout::InvalidTimeout;
use crate::link::LinkError;
use crate::link::negotiate::NegotiateError;
use crate::transport::ConnectError;

/// A failed connect or call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what} failed after {attempts} {}: {cause}", if *.attempts == 1 { "attempt" } else { "attempts" })]
pub struct BridgeError {
    /// The operation that failed: the tool call, or the connection.
    pub what: String,
    /// The number of attempts; 1 for a connection.
    pub attempts: u32,
    /// Why the last attempt failed.
    #[source]
    pub cause: Cause,
}

impl BridgeError {
    /// Whether a retry may succeed later.
    pub fn retryable(&self) -> bool {
        self.cause.retryable()
    }
}

/// Why one attempt failed.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The answer did not arrive in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The connection ended, or the server turned the request away.
    #[error(transparent)]
    Link(LinkError),
    /// The server answered with an error.
    #[error("{} (code {})", .0.message(), .0.code())]
    Rpc(RpcError),
    /// The connection could not be made.
    #[error("cannot connect: {reason}")]
    Connect {
        /// The reason.
        reason: String,
        /// Whether a later attempt may succeed.
        retryable: bool,
    },
    /// The timeout is invalid.
    #[error(transparent)]
    Timing(InvalidTimeout),
    /// The bridge was closed by its owner.
    #[error("the bridge is closed")]
    Closed,
}

impl Cause {
    /// BRG-4 as one table. Every other failure (an unknown method, bad params, an application's own code) would
    /// fail the same way again.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Timeout(_) => true,
            Self::Link(error) => may_pass(error),
            Self::Rpc(error) => is_passing(error.code()),
            Self::Connect { retryable, .. } => *retryable,
            Self::Timing(_) | Self::Closed => false,
        }
    }
}

fn may_pass(error: &LinkError) -> bool {
    match error {
        LinkError::Closed(_) | LinkError::Crashed(_) => true,
        LinkError::Refused { transient, .. } => *transient,
        LinkError::TooLarge { .. } | LinkError::Unusable(_) => false,
    }
}

const fn is_passing(code: i64) -> bool {
    matches!(code, code::INTERNAL_ERROR | code::REQUEST_TIMEOUT | code::CONNECTION_CLOSED)
}

impl From<ConnectError> for Cause {
    fn from(error: ConnectError) -> Self {
        let retryable = match &error {
            ConnectError::Spawn(_) | ConnectError::Unusable(_) => false,
            ConnectError::Negotiate(error) => match error {
                NegotiateError::Link(error) | NegotiateError::EndedOnProbe(error) => may_pass(error),
                NegotiateError::Refused { code, .. } | NegotiateError::NotModern { code, .. } => {
                    is_passing(*code)
                }
                NegotiateError::Incompatible { .. } | NegotiateError::Unusable { .. } => false,
            },
        };
        Self::Connect { reason: error.to_string(), retryable }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRG-4: which link failures are worth another attempt; over HTTP 429, 502, 503 and 504 are transient.
    #[test]
    fn which_failures_may_pass() {
        #[track_caller]
        fn check(error: &LinkError, expected: bool) {
            assert_eq!(Cause::Link(error.clone()).retryable(), expected, "{error}");
        }
        check(&LinkError::Closed("gone".into()), true);
        check(&LinkError::Refused { reason: "busy".into(), transient: true }, true);
        check(&LinkError::Refused { reason: "forbidden".into(), transient: false }, false);
        check(&LinkError::Unusable("HTML".into()), false);
        check(&LinkError::TooLarge { bytes: 2, limit: 1 }, false);
        assert!(!Cause::Connect { reason: "no address".to_owned(), retryable: false }.retryable());
        #[track_caller]
        fn connecting(error: NegotiateError, expected: bool) {
            assert_eq!(Cause::from(ConnectError::Negotiate(error)).retryable(), expected);
        }
        connecting(NegotiateError::EndedOnProbe(LinkError::Closed("gone".into())), true);
        connecting(NegotiateError::Refused { code: code::INTERNAL_ERROR, message: "busy".to_owned() }, true);
        connecting(
            NegotiateError::NotModern { code: code::METHOD_NOT_FOUND, message: "no".to_owned() },
            false,
        );
        let (theirs, ours) = ("1999-01-01".to_owned(), "2026-07-28".to_owned());
        connecting(NegotiateError::Incompatible { theirs, ours }, false);
        assert!(!Cause::from(ConnectError::Unusable("no program".to_owned())).retryable());
        assert!(!Cause::Closed.retryable());
    }
}
