//! A handler: a Rust function that takes arguments and the context of its call, and returns a future.
//!
//! A handler is used in two steps. Reading the arguments into the handler's type is part of the checks of a call;
//! running the future is its dispatch (`run`). Both steps run the embedder's code: a panic in either fails its
//! own call only.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bridgehead_wire::Code;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::context::ToolContext;
use crate::error::GatewayError;

/// The longest message about arguments that cannot be read. The message is the embedder's own.
const LONGEST_MESSAGE: usize = 256;

/// A handler's own failure.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ToolFailure {
    pub(super) message: String,
    pub(super) details: Option<Value>,
}

impl ToolFailure {
    /// A failure with a message for people.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), details: None }
    }

    /// Adds details for programs.
    #[must_use]
    pub fn with_details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }
}

impl From<&str> for ToolFailure {
    fn from(message: &str) -> Self {
        Self::new(message)
    }
}

impl From<String> for ToolFailure {
    fn from(message: String) -> Self {
        Self::new(message)
    }
}

/// The thing that a handler belongs to, as messages name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named<'a> {
    /// `tool`, `prompt` or `resource`.
    pub(crate) kind: &'static str,
    pub(crate) name: &'a str,
}

/// A handler with its arguments: running it is all that is left to do.
pub(crate) type BoundHandler<T> =
    Box<dyn FnOnce(ToolContext) -> BoxFuture<'static, Result<T, ToolFailure>> + Send>;

/// Why arguments are not what a handler takes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// JSON pointer to the argument.
    pub(crate) path: String,
    pub(crate) message: String,
}

type Reader<A, T> = dyn Fn(A) -> Result<BoundHandler<T>, Unreadable> + Send + Sync;

/// A handler that takes its arguments as an `A` and returns a `T`.
pub(crate) struct Handler<A, T>(Arc<Reader<A, T>>);

impl<A, T> Clone for Handler<A, T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<A: 'static, T: 'static> Handler<A, T> {
    /// A handler whose arguments `read` turns into the type that the function takes.
    pub(super) fn new<B, F, R>(read: fn(A) -> Result<B, Unreadable>, function: F) -> Self
    where
        B: Send + 'static,
        F: Fn(B, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<T, ToolFailure>> + Send + 'static,
    {
        let function = Arc::new(function);
        Self(Arc::new(move |arguments| {
            let arguments = read(arguments)?;
            let function = Arc::clone(&function);
            Ok(Box::new(move |context| Box::pin(function(arguments, context))))
        }))
    }

    /// Reads the arguments.
    pub(crate) fn read(&self, arguments: A) -> Result<BoundHandler<T>, Refused> {
        match catch_unwind(AssertUnwindSafe(|| (self.0)(arguments))) {
            Ok(read) => read.map_err(Refused::Unreadable),
            Err(panic) => Err(Refused::Panicked(panic)),
        }
    }
}

/// Why a handler does not run.
pub(crate) enum Refused {
    Unreadable(Unreadable),
    /// The embedder's code that reads the arguments panicked.
    Panicked(Box<dyn Any + Send>),
}

impl Refused {
    pub(crate) fn into_error(self, named: Named<'_>, debug: bool) -> GatewayError {
        match self {
            Self::Unreadable(Unreadable { path, message }) => {
                let message: String = message.chars().take(LONGEST_MESSAGE).collect();
                let Named { kind, name } = named;
                let place = if path.is_empty() { String::new() } else { format!(" at `{path}`") };
                let words = format!("the arguments of {kind} `{name}` cannot be read{place}: {message}");
                let issues = json!([{"path": path, "schemaPath": "", "message": message}]);
                GatewayError::new(Code::InvalidParams, words).with_details(&json!({"issues": issues}))
            }
            Self::Panicked(panic) => panicked(named, &*panic, debug),
        }
    }
}

/// The failure of a call whose handler panicked. The panic's text shows only if `debug` is set: it may quote
/// arguments.
pub(super) fn panicked(
    Named { kind, name }: Named<'_>,
    panic: &(dyn Any + Send),
    debug: bool,
) -> GatewayError {
    let words = crate::panics::words(panic);
    tracing::error!(name, panic = words, "a {kind} handler panicked");
    let error = GatewayError::new(Code::HandlerError, format!("{kind} `{name}` panicked")).after_sending();
    if debug {
        return error.with_details(&json!({"panic": words, "backtrace": crate::panics::last_backtrace()}));
    }
    error
}
