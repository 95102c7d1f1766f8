//! Who asks, and what they may use.
//!
//! The front finds out who a request is made for ([`Principal`]); an [`Authorizer`] says what they may use. It is asked when
//! a view is built, not with every request: all principals of one class see the same [view](views), and whatever is not in
//! it is unknown to them. Only what depends on arguments is asked about again, with each call. How much somebody may do is
//! another question, and that of a [`Limiter`].

mod principal;
pub(crate) mod views;

use std::sync::Arc;

use bridgehead_wire::{Method, Raw};

pub use principal::{Principal, PrincipalKind};

use crate::error::CallError;

/// What is done with a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A tool is called.
    Call,
    /// A prompt is got, or completed.
    Get,
    /// A resource is read, followed or completed; for a template, one that it is the pattern of.
    Read,
}

/// What a principal may use or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thing<'a> {
    /// The server that it belongs to; none for the gateway's own.
    pub server: Option<&'a str>,
    /// The name or URI that the server knows it by.
    pub name: &'a str,
    /// Whether a tool says that it changes nothing.
    pub read_only: bool,
}

/// Whether something may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may.
    Allow,
    /// It is not there for this principal.
    Deny,
    /// It is there; each call is asked about, with its arguments.
    ByArguments,
}

/// Decides who may use what. Must not block: it is asked while lists are prepared.
pub trait Authorizer: Send + Sync + 'static {
    /// The class of a principal. All of one class get the same decisions, so that they share a view.
    fn class(&self, principal: &Principal) -> Arc<str>;

    /// Whether a principal may do something with a thing.
    fn decide(&self, principal: &Principal, action: Action, thing: Thing<'_>) -> Decision;

    /// Whether this call of a tool may be made. Asked only where the decision was [`Decision::ByArguments`].
    fn allows_call(&self, _principal: &Principal, _tool: Thing<'_>, _arguments: &Raw) -> bool {
        false
    }
}

/// A request that may be one too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limited<'a> {
    /// What is asked.
    pub method: &'a Method,
    /// The server that it goes to; none for the gateway's own.
    pub server: Option<&'a str>,
    /// The tool, prompt or resource, by the name that the client used.
    pub name: &'a str,
}

/// What a request holds for as long as it runs, and gives back by being dropped; none where nothing is counted back.
pub type Allowance = Option<Box<dyn Send>>;

/// Decides how much a principal may do. It never changes what they may use. Must not block: it is asked with each request.
pub trait Limiter: Send + Sync + 'static {
    /// Counts a request, or refuses it.
    ///
    /// # Errors
    /// The failure that the client gets, which should say when the request may come again.
    fn admit(&self, principal: &Principal, request: Limited<'_>) -> Result<Allowance, CallError>;
}
