//! Who makes a request, and what that principal may use.
//!
//! The front authenticates the [`Principal`] of a request; an [`Authorizer`] decides what it may use. The
//! authorizer is asked when a view is built, not with every request: all principals of one class share a
//! [view](views), and anything outside the view is unknown to them. Only decisions that depend on arguments
//! are made again for each call. How much a principal may do is a separate question, decided by a
//! [`Limiter`].

mod limiter;
mod principal;
pub(crate) mod views;

use std::sync::Arc;

use bridgehead_wire::Raw;

pub use limiter::{Account, Allowance, Charge, Limited, Limiter};
pub use principal::{Principal, PrincipalKind, Validity};

/// What a principal does with a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Calls a tool.
    Call,
    /// Gets a prompt, or completes its arguments.
    Get,
    /// Reads, subscribes to or completes a resource. For a template: any resource that the template matches.
    Read,
}

/// A thing that a principal may or may not be allowed to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thing<'a> {
    /// The server that it belongs to; `None` for the gateway's own.
    pub server: Option<&'a str>,
    /// The name or URI that the server knows it by.
    pub name: &'a str,
    /// Whether a tool says that it changes nothing.
    pub read_only: bool,
}

/// Whether a principal may use a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The principal may use it.
    Allow,
    /// The thing does not exist for this principal.
    Deny,
    /// The thing exists; the authorizer decides about each call by its arguments.
    ByArguments,
}

/// Decides who may use what. Must not block: it is asked while lists are prepared.
pub trait Authorizer: Send + Sync + 'static {
    /// The class of a principal. All principals of one class get the same decisions, so they share a view.
    fn class(&self, principal: &Principal) -> Arc<str>;

    /// Whether a principal may do something with a thing.
    fn decide(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Decision;

    /// Whether a principal may make this call of a tool. Called only where the decision was
    /// [`Decision::ByArguments`].
    fn allows_call(&self, _principal: &Principal, _tool: Thing<'_>, _arguments: &Raw) -> bool {
        false
    }
}
