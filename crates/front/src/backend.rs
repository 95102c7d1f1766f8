//! What the front asks of the gateway; a trait, so that tests can put a scripted one in its place.

use std::sync::Arc;

use bridgehead_gateway::{Ask, Caller, Gateway, ProgressSink};
use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Raw, Revision, RpcError, Spliced};
use tokio::sync::watch;

/// The gateway as the front uses it.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Answers one request of either era. Dropping the future cancels the request.
    fn answer(
        &self,
        caller: &Caller,
        ask: &Ask,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<Spliced, RpcError>> + Send;

    /// The result of a legacy `initialize` that negotiated `revision`.
    fn initialize(&self, revision: Revision) -> Raw;

    /// The arguments of a tool that travel as `Mcp-Param-*` headers too; none for an unknown tool.
    fn header_parameters(&self, tool: &str) -> Arc<[HeaderParameter]>;

    /// Ticks whenever the set of tools has become another one.
    fn catalog_changes(&self) -> watch::Receiver<u64>;
}

impl Backend for Gateway {
    fn answer(
        &self,
        caller: &Caller,
        ask: &Ask,
        progress: Option<ProgressSink>,
    ) -> impl Future<Output = Result<Spliced, RpcError>> + Send {
        Self::answer(self, caller, ask, progress)
    }

    fn initialize(&self, revision: Revision) -> Raw {
        Self::initialize(self, revision)
    }

    fn header_parameters(&self, tool: &str) -> Arc<[HeaderParameter]> {
        Self::header_parameters(self, tool)
    }

    fn catalog_changes(&self) -> watch::Receiver<u64> {
        Self::catalog_changes(self)
    }
}
