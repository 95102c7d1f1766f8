//! Stages three and five: the pair of audit events that every call leaves, however it ends.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bridgehead_audit::{
    AuditError, AuditSink, Call as AuditCall, Clock, Enter, Exit, Moment, Outcome as Ending,
};
use tracing::{debug, error};

use super::{Call, Chain, Counters, Outcome};
use crate::error::Code;

/// The record of one call, from before its first stage. Dropping it early is the call being cancelled or
/// panicking, and is recorded as that.
pub(super) struct Record {
    /// Absent with a sink that keeps nothing: then nothing is built either.
    pair: Option<Pair>,
    counters: Arc<Counters>,
    closed: bool,
}

struct Pair {
    audit: Arc<dyn AuditSink>,
    clock: Arc<dyn Clock>,
    call: AuditCall,
    arguments: bytes::Bytes,
    opened: Moment,
    entered: bool,
}

impl Record {
    pub(super) fn open(chain: &Chain, call: &Call<'_>) -> Self {
        let pair = (!chain.audit.is_noop()).then(|| Pair {
            audit: Arc::clone(&chain.audit),
            clock: Arc::clone(&chain.clock),
            call: AuditCall {
                tool: Arc::clone(&call.tool),
                server: call.server().map(Arc::from),
                principal: call.caller.principal.as_str().into(),
                correlation: call.correlation,
            },
            arguments: call.arguments.bytes().clone(),
            opened: chain.clock.now(),
            entered: false,
        });
        Self { pair, counters: Arc::clone(&chain.counters), closed: false }
    }

    /// Writes the enter event. The call goes on only when it has been taken.
    pub(super) async fn enter(&mut self, validated: bool) -> Result<(), AuditError> {
        let Some(pair) = &mut self.pair else { return Ok(()) };
        let event = pair.enter_event(validated);
        // Marked first: an enter that fails, or is cut off half way, is not tried a second time on drop.
        pair.entered = true;
        pair.audit.enter(&event).await
    }

    /// Writes the exit event and hands the outcome on unchanged: a failing exit is ours to note.
    pub(super) fn exit(mut self, outcome: Outcome) -> Outcome {
        self.closed = true;
        if !matches!(&outcome, Outcome::Result(_, result) if !result.is_error) {
            self.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(pair) = &self.pair {
            pair.exit(&self.counters, ending(&outcome));
        }
        outcome
    }
}

impl Pair {
    fn enter_event(&self, validated: bool) -> Enter {
        Enter::new(self.call.clone(), self.arguments.clone(), validated, self.opened)
    }

    fn exit(&self, counters: &Counters, ending: Ending) {
        let event = Exit::new(&self.call, self.opened, self.clock.now(), ending);
        if let Err(error) = self.audit.exit(event) {
            counters.audit_exit_failures.fetch_add(1, Ordering::Relaxed);
            error!(correlationId = %self.call.correlation, tool = %self.call.tool, %error, "the end of a call could not be recorded");
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        self.counters.cancelled.fetch_add(1, Ordering::Relaxed);
        let Some(pair) = self.pair.take() else { return };
        let ending = if std::thread::panicking() {
            Ending::Error {
                code: Cow::Borrowed(Code::HandlerError.as_str()),
                message: "the call panicked".to_owned(),
            }
        } else {
            Ending::Cancelled
        };
        debug!(correlationId = %pair.call.correlation, tool = %pair.call.tool, "call dropped");
        if pair.entered {
            pair.exit(&self.counters, ending);
        } else if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // Cancelled while it waited for its turn: it still leaves its pair.
            let counters = Arc::clone(&self.counters);
            runtime.spawn(async move {
                if let Err(error) = pair.audit.enter(&pair.enter_event(false)).await {
                    error!(correlationId = %pair.call.correlation, %error, "a cancelled call could not be recorded");
                }
                pair.exit(&counters, ending);
            });
        }
    }
}

fn ending(outcome: &Outcome) -> Ending {
    match outcome {
        Outcome::Result(body, result) => {
            Ending::Result { body: body.bytes().clone(), is_error: result.is_error }
        }
        Outcome::Relayed(error) => {
            Ending::Error { code: Cow::Owned(error.code().to_string()), message: error.message() }
        }
        Outcome::Failed(error) => {
            Ending::Error { code: Cow::Borrowed(error.code.as_str()), message: error.message.clone() }
        }
    }
}
