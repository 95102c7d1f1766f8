//! Handles a panic: the request gets an answer, the panic is logged, and [`Gateway::panicked`] resolves. A
//! front answers panics in its own code and reports them here.
//!
//! A caught panic has a message but no backtrace; only the process-wide hook sees the backtrace. The server's
//! start installs that hook; a library call never does. Panics of tool handlers and of audit sinks are caught
//! closer to their source: they fail only their own call.

use std::any::Any;
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bridgehead_call::CorrelationId;
use bridgehead_events::Signal;
use bridgehead_wire::{Code, RpcError, Spliced, code};
use futures_util::FutureExt;

use crate::caller::ClientRequest;
use crate::error::GatewayError;
use crate::gateway::Gateway;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Stores the backtrace of a panic. Called from the panic hook.
pub fn note_backtrace() {
    let backtrace = std::backtrace::Backtrace::force_capture().to_string();
    LAST.with(|last| *last.borrow_mut() = Some(backtrace));
}

/// The backtrace of the last panic on this thread, if the hook stored it.
pub(crate) fn last_backtrace() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}

/// The message of a panic.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl Gateway {
    /// Waits until a panic has occurred while a client was served, outside of tool handlers and audit sinks.
    /// The request has been answered with an error by then; whether the process continues is up to its owner.
    pub async fn panicked(&self) {
        self.inner().panicked.cancelled().await;
    }

    /// Reports a panic in the code that serves clients around the gateway: the panic is logged, and
    /// [`panicked`](Self::panicked) resolves.
    pub fn report_panic(&self, panic: &(dyn Any + Send)) {
        self.signals().emit(&Signal::FrontPanicked(words(panic)));
        self.inner().panicked.cancel();
    }

    /// The outcome of a request; a panic on the way becomes an error.
    pub(crate) async fn guarded(
        &self,
        request: &ClientRequest,
        // Pinned by the caller: moved in here, it would make the future of every request twice as large.
        answering: Pin<&mut impl Future<Output = Result<Spliced, RpcError>>>,
    ) -> Result<Spliced, RpcError> {
        match AssertUnwindSafe(answering).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) => Err(self.answer_panic(request, &*panic)),
        }
    }

    fn answer_panic(&self, request: &ClientRequest, panic: &(dyn Any + Send)) -> RpcError {
        let (method, id) = (request.method.as_str(), request.correlation());
        let error = self.panicked_while(method, id, panic);
        error.to_rpc(code::INTERNAL_ERROR, None, ("method", method), id)
    }

    /// Reports a panic while a request was answered; returns the error for its client.
    pub(crate) fn panicked_while(
        &self,
        method: &str,
        correlation: CorrelationId,
        panic: &(dyn Any + Send),
    ) -> GatewayError {
        self.signals().emit(&Signal::AnswerPanicked { correlation, method, words: words(panic) });
        self.inner().panicked.cancel();
        let message = format!("the gateway panicked while it answered `{method}`; its log says where");
        GatewayError::new(Code::HandlerError, message).after_sending()
    }
}
