//! What becomes of a panic: its request is answered, it is logged, and whoever runs the gateway can hear of it.
//! A front answers what panics in its own code, and reports it here.
//!
//! A caught panic brings its message but not its backtrace; only the process-wide hook sees that one. The
//! hook is installed by the server's start, never by a library call on its own. Panics of tool handlers and of audit
//! sinks are caught closer to them: they are failures of their call alone.

use std::any::Any;
use std::cell::RefCell;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use bridgehead_events::Signal;
use bridgehead_wire::{Code, RpcError, Spliced, code};
use futures_util::FutureExt;

use crate::caller::ClientRequest;
use crate::error::CallError;
use crate::gateway::Gateway;

thread_local! {
    static LAST: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Notes the backtrace of a panic. Called from the panic hook.
pub fn note_backtrace() {
    let backtrace = std::backtrace::Backtrace::force_capture().to_string();
    LAST.with(|last| *last.borrow_mut() = Some(backtrace));
}

/// The backtrace of the last panic on this thread, if a hook noted it.
pub(crate) fn last_backtrace() -> Option<String> {
    LAST.with(|last| last.borrow_mut().take())
}

/// What a panic said.
pub(crate) fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

impl Gateway {
    /// Waits until serving a client has panicked outside of tool handlers and audit sinks. The request got an error
    /// by then; whether the process goes on is up to whoever runs it.
    pub async fn panicked(&self) {
        self.inner().panicked.cancelled().await;
    }

    /// Takes note of a panic in the code that serves clients around the gateway: it is logged, and
    /// [`panicked`](Self::panicked) resolves.
    pub fn report_panic(&self, panic: &(dyn Any + Send)) {
        self.signals().emit(&Signal::FrontPanicked(words(panic)));
        self.inner().panicked.cancel();
    }

    /// What the request comes to, a panic on the way included.
    pub(crate) async fn guarded(
        &self,
        request: &ClientRequest,
        // Pinned by whoever made it: moved in here, it would make the future of every request twice as large.
        answering: Pin<&mut impl Future<Output = Result<Spliced, RpcError>>>,
    ) -> Result<Spliced, RpcError> {
        match AssertUnwindSafe(answering).catch_unwind().await {
            Ok(outcome) => outcome,
            Err(panic) => Err(self.answer_panic(request, &*panic)),
        }
    }

    fn answer_panic(&self, request: &ClientRequest, panic: &(dyn Any + Send)) -> RpcError {
        let (method, id) = (request.method.as_str(), request.correlation());
        self.signals().emit(&Signal::AnswerPanicked { correlation: id, method, words: words(panic) });
        self.inner().panicked.cancel();
        let message = format!("the gateway panicked while it answered `{method}`; its log says where");
        let error = CallError::new(Code::HandlerError, message).after_sending();
        error.to_rpc(code::INTERNAL_ERROR, None, ("method", method), id)
    }
}
