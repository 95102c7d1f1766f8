//! Routes every request to the upstream that serves it and runs every call through the five-stage
//! chain. Opens no socket and starts no process: the front brings requests, `upstream` holds links.

mod caller;

pub use caller::{Ask, Caller, Principal, ProgressSink, Transport};

use std::sync::Arc;

use bridgehead_schema::HeaderParameter;
use bridgehead_wire::{Raw, Revision, RpcError, Spliced};

/// The gateway as the front sees it.
#[derive(Debug, Clone)]
pub struct Gateway {}

impl Gateway {
    /// Answers one request of either era. Dropping the future cancels the request.
    pub async fn answer(&self, _caller: &Caller, _ask: Ask, _progress: Option<ProgressSink>) -> Result<Spliced, RpcError> {
        Err(RpcError::new(bridgehead_wire::code::METHOD_NOT_FOUND, "not yet"))
    }

    /// The result of a legacy `initialize` that negotiated `revision`.
    pub fn initialize(&self, _revision: Revision) -> Raw {
        Raw::literal("{}")
    }

    /// The arguments of a tool that travel as `Mcp-Param-*` headers too; none for an unknown tool.
    pub fn header_parameters(&self, _tool: &str) -> Arc<[HeaderParameter]> {
        Arc::new([])
    }

    /// Ticks whenever the set of tools has become another one.
    pub fn catalog_changes(&self) -> tokio::sync::watch::Receiver<u64> {
        tokio::sync::watch::channel(0).1
    }
}
