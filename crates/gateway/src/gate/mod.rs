//! The five stages that every call passes, built-in or upstream, in one function.

mod apart;
mod cancels;
mod dispatch;
mod lock;
mod output;
mod record;
mod validate;

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_audit::{AuditSink, Clock, CorrelationId};
use bridgehead_config::ResourceUris;
use bridgehead_events::Bus;
use bridgehead_wire::{Code, Raw, RpcError, Shape, Spliced};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tracing::{Instrument, debug_span};

use crate::caller::{Caller, ClientRequest, ProgressSink};
use crate::catalog::Route;
use crate::error::CallError;
use crate::logger::Logger;
use crate::relay::request::Outcome;
use crate::relay::rewrite::{Input, Reply};
use crate::relay::trace::Trace;
use record::CallRecord;

pub(crate) use apart::places;
pub(crate) use cancels::Cancels;

/// One tool invocation.
pub(crate) struct Call<'a> {
    pub(crate) caller: &'a Caller,
    pub(crate) request: &'a ClientRequest,
    /// The name the client used.
    pub(crate) tool: Arc<str>,
    /// Where it goes, or why it goes nowhere.
    pub(crate) route: Result<Arc<Route>, CallError>,
    pub(crate) arguments: Raw,
    /// When its clocks began to run.
    pub(crate) began: Instant,
    pub(crate) correlation: CorrelationId,
    /// Its place in a trace, where somebody records spans.
    pub(crate) trace: Option<Trace>,
    pub(crate) progress: Option<ProgressSink>,
}

impl Call<'_> {
    pub(crate) fn server(&self) -> Option<&str> {
        self.route.as_ref().ok().and_then(|route| route.server.as_deref())
    }
}

/// What the gate needs besides the call.
pub(crate) struct Gate {
    pub(crate) audit: Arc<dyn AuditSink>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) server_info: Raw,
    /// How resources are addressed in results.
    pub(crate) uris: ResourceUris,
    /// How long a call of a tool without a server may be silent, and how long it may take altogether.
    pub(crate) limits: (Duration, Duration),
    /// The places for work that would hold up a thread that serves.
    pub(crate) apart: Arc<Semaphore>,
    /// Whether errors may show what happened inside.
    pub(crate) debug_errors: bool,
    pub(crate) counters: Arc<Counters>,
    /// How others than its client end a call.
    pub(crate) cancels: Cancels,
    pub(crate) bus: Bus,
    /// Where failures of the record are told of.
    pub(crate) logger: Logger,
}

/// What has been counted since the start.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) calls: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) audit_exit_failures: AtomicU64,
    pub(crate) invalid_outputs: AtomicU64,
}

impl Gate {
    /// Read top to bottom: this is the order a call meets. Dropping the future at any point releases the
    /// turn, cancels the call upstream and still leaves its pair of audit events.
    pub(crate) async fn run(&self, call: &Call<'_>) -> Outcome {
        self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let mut record = CallRecord::open(self, call);
        let lock = pin!(lock::enter(self, call, &mut record)).instrument(debug_span!("lock")).await;
        let checked = match &lock {
            Ok(_) => pin!(validate::check(self, call)).instrument(debug_span!("validate")).await,
            Err(late) => Err(late.clone()),
        };
        let entered = pin!(record.enter(checked.is_ok())).instrument(debug_span!("audit_enter")).await;
        if let Err(error) = entered {
            let error = CallError::new(Code::AuditEnterFailed, format!("the call was not made: {error}"));
            return record.exit(Outcome::Failed(error));
        }
        let outcome = match checked {
            Ok(checked) => {
                let dispatched = pin!(dispatch::run(self, call, checked, &mut record));
                dispatched.instrument(debug_span!("dispatch", server = call.server())).await
            }
            Err(error) => Outcome::Failed(error),
        };
        debug_span!("audit_exit").in_scope(|| record.exit(outcome))
    }

    /// What the client gets for it.
    pub(crate) fn answer(&self, call: &Call<'_>, outcome: Outcome) -> Result<Spliced, RpcError> {
        let revision = call.caller.revision;
        match outcome {
            Outcome::Result(_, result) => Ok(result.finish(revision, &self.server_info, call.correlation)),
            Outcome::Relayed(error) => Err(error),
            Outcome::Failed(error) => match error.code.shape() {
                Shape::Rpc(code) => {
                    Err(error.to_rpc(code, call.server(), ("tool", &call.tool), call.correlation))
                }
                Shape::ToolResult | Shape::Internal => {
                    let structured = call.server().is_none();
                    let result = envelope_result(&error.envelope(), true, structured);
                    let marked = Reply::read(&result, Input::Refused)
                        .map(|result| result.finish(revision, &self.server_info, call.correlation));
                    Ok(marked.unwrap_or_else(|_| result.into()))
                }
            },
        }
    }
}

/// ENV-1: the envelope as text and, for our own tools, as structured content with the same JSON.
pub(crate) fn envelope_result(envelope: &serde_json::Value, is_error: bool, structured: bool) -> Raw {
    let text = envelope.to_string();
    let mut result = serde_json::json!({"content": [{"type": "text", "text": text}], "isError": is_error});
    if structured {
        result["structuredContent"] = envelope.clone();
    }
    Raw::encode(&result)
}
