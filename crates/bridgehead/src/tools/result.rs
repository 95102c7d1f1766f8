//! The answer of a tool, in the form that its reader wants.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::CorrelationId;
use bridgehead_events::Signals;
use bridgehead_gateway::DirectResult;
use bridgehead_schema::{Envelope, Flat, ResultOrigin};
use bridgehead_wire::Raw;

/// The namespace of Rust tools, which have no server.
const OWN: &str = "bridgehead";

/// The answer of a tool, also one that the tool marks as an error.
///
/// It has three forms: [`ToolResult::raw`] is the server's JSON, byte for byte; [`ToolResult::envelope`] is data with
/// everything that is known about it; [`ToolResult::flat`] is one text for an agent, and the rest beside it.
#[derive(Clone)]
pub struct ToolResult {
    pub(super) answer: DirectResult,
    /// The name that was called.
    pub(super) name: Arc<str>,
    pub(super) correlation: CorrelationId,
    pub(super) latency: Duration,
    pub(super) signals: Signals,
}

impl fmt::Debug for ToolResult {
    /// Shows nothing of what the tool said.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolResult")
            .field("tool", &self.name)
            .field("is_error", &self.answer.is_error)
            .field("correlation", &self.correlation)
            .field("latency", &self.latency)
            .finish_non_exhaustive()
    }
}

impl ToolResult {
    /// The result, as the server wrote it.
    pub fn raw(&self) -> &Raw {
        &self.answer.result
    }

    /// Whether the tool marks its answer as an error.
    pub fn is_error(&self) -> bool {
        self.answer.is_error
    }

    /// The server; `None` for a Rust tool.
    pub fn server(&self) -> Option<&str> {
        self.answer.server.as_deref()
    }

    /// The id of the call.
    pub fn correlation(&self) -> CorrelationId {
        self.correlation
    }

    /// How long the call took, from its first poll on.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// The result as data with its metadata. If the tool has an output schema, the data is cast to it, with as few changes as
    /// possible, and `meta.cast` lists them.
    pub fn envelope(&self) -> Envelope {
        let envelope = self.uncast();
        match &self.answer.tool {
            Some(tool) => tool.cast(envelope, &self.signals),
            None => envelope,
        }
    }

    /// The result in the form agents use: one text, and the rest beside it. Its `namespace` is the server.
    pub fn flat(&self) -> Flat {
        self.uncast().flat()
    }

    fn uncast(&self) -> Envelope {
        let own_name = self.answer.tool.as_ref().map_or(&*self.name, |tool| &tool.name);
        let origin = ResultOrigin {
            server: self.server().unwrap_or(OWN).to_owned(),
            tool: own_name.to_owned(),
            correlation_id: self.correlation.to_string(),
            latency: self.latency,
        };
        // It was parsed as an object before.
        Envelope::new(&self.raw().decode().unwrap_or_default(), origin)
    }
}
