//! The place of a call in a trace, if spans are recorded.
//!
//! If they are, the gateway continues the trace: the server gets the gateway's span, a child of the client's.
//! If they are not, the client's trace context passes byte for byte, and none of this runs.

use bridgehead_call::CorrelationId;
use bridgehead_wire::{RequestMeta, Traceparent};
use tracing::Span;

/// A call's own place in its trace.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trace {
    pub(crate) own: Traceparent,
    /// Whether the trace began here: then the client's `tracestate` does not belong to it.
    pub(crate) began_here: bool,
}

impl Trace {
    /// Continues the trace that the request names, or begins one whose id is the call's correlation id.
    /// `None` if the span is not recorded.
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
