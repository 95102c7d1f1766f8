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

pub use limiter::{Account, Allowance, Charge, Correction, Limited, Limiter};
pub use principal::{Principal, PrincipalKind, Validity};

/// What a principal does with a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Calls a tool.
    Call,
    /// Gets a prompt, or completes its arguments.
    Get,
    /// Reads, subscribes to or completes a resource.
    Read,
    /// Reads some resource that a template matches; the name of the thing is the template. What is read later is decided
    /// again, as [`Action::Read`].
    ReadSome,
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
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The principal may use it.
    Allow,
    /// The thing does not exist for this principal.
    Deny,
    /// The tool exists; the authorizer decides about each call by its arguments.
    ByArguments,
    /// The tool exists; a call needs all of these scopes.
    Scoped(Scopes),
}

/// The scopes that a call of a tool needs.
pub type Scopes = Arc<[Arc<str>]>;

/// Decides about things for one principal.
pub type Decide<'a> = dyn Fn(Action, Thing<'_>) -> Decision + 'a;

/// Decides who may use what. Must not block: it is asked while lists are prepared.
///
/// An authorizer whose decisions change tells the gateway ([`crate::Gateway::policy_changed`]).
pub trait Authorizer: Send + Sync + 'static {
    /// The class of a principal. All principals of one class get the same decisions, so they share a view.
    fn class(&self, principal: &Principal) -> Arc<str>;

    /// Whether a principal may do something with a thing.
    fn decide(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Decision;

    /// Decides about a whole catalog for one principal, so that what depends on the principal alone is found once.
    fn decide_for<'a>(&'a self, principal: &'a Principal) -> Box<Decide<'a>> {
        Box::new(move |action, thing: Thing<'_>| self.decide(principal, action, thing))
    }

    /// Whether a principal might be allowed to do this with something of a server (`None`: of the gateway), whatever the
    /// server offers. A server of which a principal may use nothing does not exist for it, not even as one that is down.
    fn may_use(&self, _principal: &Principal, _action: Action, _server: Option<&str>) -> bool {
        true
    }

    /// Why [`Authorizer::decide`] denies this, for the record.
    fn why_denied(&self, _principal: &Principal, _action: Action, _thing: Thing<'_>) -> String {
        "the authorizer denies it".to_owned()
    }

    /// Whether a principal may make this call of a tool. Called only where the decision was
    /// [`Decision::ByArguments`].
    fn allows_call(&self, _principal: &Principal, _tool: Thing<'_>, _arguments: &Raw) -> bool {
        false
    }
}
