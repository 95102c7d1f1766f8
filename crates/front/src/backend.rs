//! The gateway as the front sees it; a trait, so that tests can use a scripted one.

use std::any::Any;
use std::sync::Arc;

use bridgehead_events::Signal;
use bridgehead_gateway::{Caller, ClientRequest, Feed, Gateway, Principal, ProgressSink, Session};
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Era, Method, Raw, Revision, RpcError, Spliced};

/// The gateway as the front uses it.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Answers one request of either era. Dropping the future cancels the request.
    fn answer(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<Spliced, RpcError>> + Send;

    /// Counts an `initialize` for the limits of a principal.
    ///
    /// # Errors
    /// If the principal has made too many requests.
    fn admit(&self, _principal: &Principal, _method: &Method) -> Result<(), RpcError> {
        Ok(())
    }

    /// The result of a legacy `initialize` that negotiated `revision`.
    fn initialize(&self, principal: &Principal, revision: Revision) -> Raw;

    /// Resolves when the handshake may be answered: a starting backend may soon have more to say.
    fn wait_for_instructions(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// The arguments of a tool that travel as `Mcp-Param-*` headers too; none for an unknown tool.
    fn header_parameters(&self, principal: &Principal, tool: &str) -> Arc<[HeaderParameter]>;

    /// Whether a principal's clients of an era can use a method.
    fn serves(&self, principal: &Principal, era: Era, method: &Method) -> bool;

    /// The feed of a principal's legacy session: the notifications that it gets unprompted. A session always has the same
    /// feed.
    fn feed(&self, principal: &Principal, session: &Session) -> Feed;

    /// Whether it takes requests.
    fn is_ready(&self) -> bool {
        true
    }

    /// Is told that a client or an operator was refused before the body of the request was read.
    fn turned_away(&self, _status: u16, _reason: &str, _operator: bool) {}

    /// Is told that the front itself panicked while it served a client. The client was answered if that was possible.
    fn panicked(&self, panic: &(dyn Any + Send)) {
        tracing::error!(panic = crate::panics::words(panic), "serving a client panicked");
    }
}

impl Backend for Gateway {
    fn answer(
        &self,
        caller: &Caller,
        request: &ClientRequest,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<Spliced, RpcError>> + Send {
        Self::answer(self, caller, request, progress)
    }

    fn admit(&self, principal: &Principal, method: &Method) -> Result<(), RpcError> {
        Self::admit(self, principal, method)
    }

    fn initialize(&self, principal: &Principal, revision: Revision) -> Raw {
        Self::initialize(self, principal, revision)
    }

    fn wait_for_instructions(&self) -> impl Future<Output = ()> + Send {
        Self::wait_for_instructions(self)
    }

    fn header_parameters(&self, principal: &Principal, tool: &str) -> Arc<[HeaderParameter]> {
        Self::header_parameters(self, principal, tool)
    }

    fn serves(&self, principal: &Principal, era: Era, method: &Method) -> bool {
        Self::serves(self, principal, era, method)
    }

    fn feed(&self, principal: &Principal, session: &Session) -> Feed {
        Self::feed(self, principal, session)
    }

    fn is_ready(&self) -> bool {
        self.is_started()
    }

    fn turned_away(&self, status: u16, reason: &str, operator: bool) {
        self.signals().emit(&Signal::SignInRefused { status, reason, operator });
    }

    fn panicked(&self, panic: &(dyn Any + Send)) {
        Self::report_panic(self, panic);
    }
}
