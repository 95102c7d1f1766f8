//! Why a bridge gave no answer: one error type for failed connections and for failed calls.

use std::time::Duration;

use bridgehead_wire::{Fault, RpcError, code};

use super::timeout::InvalidTimeout;
use crate::link::LinkError;
use crate::link::negotiate::NegotiateError;
use crate::transport::ConnectError;

/// A failed connect or call.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{what} failed after {attempts} {}: {cause}", if *.attempts == 1 { "attempt" } else { "attempts" })]
#[non_exhaustive]
pub struct BridgeError {
    /// The operation that failed: the tool call, or the connection.
    pub what: String,
    /// The number of attempts; 1 for a connection.
    pub attempts: u32,
    /// Why the last attempt failed.
    #[source]
    pub cause: Cause,
    /// Whether the tool may have done its work anyway, in any of the attempts.
    pub may_have_run: bool,
}

impl BridgeError {
    /// A failure before anything was sent.
    pub(super) fn new(what: impl Into<String>, attempts: u32, cause: Cause) -> Self {
        Self { what: what.into(), attempts, cause, may_have_run: false }
    }

    /// Whether a retry may succeed later.
    pub fn retryable(&self) -> bool {
        self.cause.retryable()
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.cause.fault()
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        self.cause.hint()
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

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        match self {
            Self::Timeout(_) | Self::Link(_) | Self::Connect { .. } => Fault::Server,
            Self::Rpc(error) if is_of_caller(error.code()) => Fault::Caller,
            Self::Rpc(_) => Fault::Server,
            Self::Timing(_) | Self::Closed => Fault::Caller,
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Timeout(_) => "raise `timeout_ms` of the options, or find out why the server is slow",
            Self::Link(error) if may_pass(error) => "call again later; a lost connection is made again",
            Self::Link(_) => {
                "check that the address is that of an MCP server, and raise `limit` if its answer is large"
            }
            Self::Rpc(error) if is_of_caller(error.code()) => {
                "compare the tool's name and arguments with the server's list of tools"
            }
            Self::Rpc(_) => "read the server's message; its own log may say more",
            Self::Connect { .. } => "check the address or the command, and that the server runs",
            Self::Timing(_) => "give the timeout as a positive number of milliseconds",
            Self::Closed => "connect again; a closed bridge stays closed",
        }
    }
}

/// Whether the server blames the request itself.
const fn is_of_caller(code: i64) -> bool {
    matches!(code, code::INVALID_PARAMS | code::METHOD_NOT_FOUND | code::INVALID_REQUEST)
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

    /// BRG-5: an error says whose fault it is, and what to do about it.
    #[test]
    fn whose_fault_it_is_and_what_to_do() {
        #[track_caller]
        fn check(cause: Cause, fault: Fault, hint: &str) {
            let error = BridgeError::new("tool `say`", 1, cause);
            assert_eq!(error.fault(), fault, "{error}");
            assert!(error.hint().contains(hint), "{error}: {}", error.hint());
        }
        let rpc = |code| Cause::Rpc(RpcError::new(code, "no"));
        check(Cause::Timeout(Duration::from_secs(1)), Fault::Server, "`timeout_ms`");
        check(Cause::Link(LinkError::Closed("gone".into())), Fault::Server, "again later");
        check(Cause::Link(LinkError::Unusable("HTML".into())), Fault::Server, "an MCP server");
        check(rpc(code::INVALID_PARAMS), Fault::Caller, "name and arguments");
        check(rpc(code::METHOD_NOT_FOUND), Fault::Caller, "name and arguments");
        check(rpc(code::INTERNAL_ERROR), Fault::Server, "server's message");
        check(
            Cause::Connect { reason: String::new(), retryable: true },
            Fault::Server,
            "the address or the command",
        );
        check(Cause::Closed, Fault::Caller, "connect again");
    }

    /// BRG-4: which link failures are worth another attempt; over HTTP 429, 502, 503 and 504 are transient.
    #[test]
    fn which_failures_may_pass() {
        #[track_caller]
        fn check(error: &LinkError, expected: bool) {
            assert_eq!(Cause::Link(error.clone()).retryable(), expected, "{error}");
        }
        check(&LinkError::Closed("gone".into()), true);
        check(&LinkError::Refused { reason: "busy".into(), transient: true, denied: false }, true);
        check(&LinkError::Refused { reason: "forbidden".into(), transient: false, denied: true }, false);
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
