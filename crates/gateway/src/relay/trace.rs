//! The place of a call in a trace, where somebody records spans.
//!
//! Who records continues the trace: the server is told of a span of ours, which is a child of the client's. Who does
//! not passes on what came, byte for byte, and none of this runs.

use bridgehead_call::CorrelationId;
use bridgehead_wire::{RequestMeta, Traceparent};
use tracing::Span;

/// A call's own place in its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace {
    pub(crate) own: Traceparent,
    /// Whether it began here: then what the client says of its own state does not belong to it.
    pub(crate) began_here: bool,
}

impl Trace {
    /// Continues the trace that the request names, or begins one whose id is that of the call. Nothing for a span that
    /// nobody records.
    pub(crate) fn of(span: &Span, meta: &RequestMeta, correlation: CorrelationId) -> Option<Self> {
        if span.is_disabled() {
            return None;
        }
        let [.., a, b, c, d, e, f, g, h] = *CorrelationId::mint().as_bytes();
        let id = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
        let parent = meta.traceparent().as_deref().and_then(Traceparent::parse);
        let own = match parent {
            Some(parent) => parent.continued(id),
            None => Traceparent::new(u128::from_be_bytes(*correlation.as_bytes()), id, 1),
        }?;
        span.record("traceId", own.trace_id()).record("spanId", own.span_id());
        if let Some(parent) = &parent {
            span.record("parentSpanId", parent.span_id());
        }
        Some(Self { own, began_here: parent.is_none() })
    }
}
