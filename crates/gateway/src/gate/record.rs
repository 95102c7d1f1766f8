//! The pair of audit events that a request leaves, however it ends, and the one event on the bus that tells its outcome.

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bridgehead_call::{
    About, AuditError, AuditSink, Call as AuditCall, Clock, Enter, EnterFuture, Exit, Moment,
    Outcome as Ending, Ticket,
};
use bridgehead_events::{Asked, Bus, Detail, Excerpt};
use bridgehead_wire::{Code, Method, Redactor};
use bytes::Bytes;
use futures_util::FutureExt;
use tracing::{Level, debug, enabled, error, trace};

use super::{Call, Counters, Gate, Outcome, Subject};
use crate::caller::ClientRequest;
use crate::logger::Logger;
use crate::panics;

/// What the bus calls a call that its client no longer wanted.
const CANCELLED: &str = "cancelled";

/// The record of one call, from before its first stage. Dropping it early is the call being cancelled or
/// panicking, and is recorded as that.
pub(crate) struct CallRecord {
    /// Gone once the end is written; never there for what is not recorded.
    open: Option<Open>,
}

impl std::fmt::Debug for CallRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let correlation = self.open.as_ref().map(|open| open.call.correlation);
        f.debug_struct("CallRecord").field("correlation", &correlation).finish_non_exhaustive()
    }
}

struct Open {
    audit: Arc<dyn AuditSink>,
    clock: Arc<dyn Clock>,
    bus: Bus,
    counters: Arc<Counters>,
    logger: Logger,
    call: AuditCall,
    arguments: Bytes,
    /// When its enter event was made, from where its duration runs.
    entered: Option<Moment>,
    stage: Stage,
    /// How long it waited: for the tool's lock and in the server's queue.
    queued: Duration,
}

/// How far the enter event is.
enum Stage {
    New,
    /// It is being recorded, and is to be seen to its end also where the call is not: its exit needs the ticket.
    Entering(EnterFuture),
    /// It was tried. Without a ticket nothing was recorded.
    Entered(Option<Ticket>),
}

impl CallRecord {
    pub(super) fn open<S: Subject>(gate: &Gate, call: &Call<'_>, subject: &S) -> Self {
        if !gate.records(call.request) {
            return Self { open: None };
        }
        let (tool, mut about) = named(call.request, subject.name());
        about.client = call.caller.client(call.request);
        if about.method.is_none() {
            gate.counters.calls.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            open: Some(Open {
                audit: Arc::clone(&gate.audit),
                clock: Arc::clone(&gate.clock),
                bus: gate.bus.clone(),
                counters: Arc::clone(&gate.counters),
                logger: gate.logger.clone(),
                call: AuditCall {
                    tool,
                    server: subject.server().cloned(),
                    principal: call.caller.principal.shared(),
                    correlation: call.correlation,
                    era: call.caller.era(),
                    transport: call.caller.transport.as_str(),
                    about,
                },
                arguments: subject.arguments(),
                entered: None,
                stage: Stage::New,
                queued: Duration::ZERO,
            }),
        }
    }

    /// The record in the hands of what goes on after the request is answered: a subscription. It is written when that ends.
    pub(crate) fn keep(&mut self) -> Self {
        Self { open: self.open.take() }
    }

    /// Writes the enter event. The call goes on only when it has been taken.
    pub(super) async fn enter(&mut self, validated: bool) -> Result<(), AuditError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        // Marked first: an enter that fails is not tried a second time on drop.
        let entering = open.begin_enter(validated);
        open.stage = Stage::Entered(None);
        open.stage = Stage::Entering(entering?);
        let Stage::Entering(entering) = &mut open.stage else { return Ok(()) };
        let entered = recorded(&open.logger, entering).await;
        let ticket = entered.as_ref().ok().copied().flatten();
        open.stage = Stage::Entered(ticket);
        entered.map(drop)
    }

    /// Adds to how long the call waited for the tool's lock or in the server's queue.
    pub(crate) fn waited(&mut self, queued: Duration) {
        if let Some(open) = &mut self.open {
            open.queued += queued;
        }
    }

    /// Writes the exit event and hands the outcome on unchanged: a failing exit is ours to note.
    pub(crate) fn exit(mut self, outcome: Outcome) -> Outcome {
        let Some(open) = self.open.take() else { return outcome };
        if open.is_tool() && has_failed(&outcome) {
            open.counters.failed.fetch_add(1, Ordering::Relaxed);
        }
        let retryable = matches!(&outcome, Outcome::Failed(error) if error.code.retryable());
        let ticket = if let Stage::Entered(ticket) = open.stage { ticket } else { None };
        open.close(ticket, ending(&outcome), retryable);
        outcome
    }
}

/// How rows name what a request is about: a tool by its name, all else by its method and what that is about.
fn named(request: &ClientRequest, name: &Arc<str>) -> (Arc<str>, About) {
    if request.method == Method::ToolsCall {
        return (Arc::clone(name), About::default());
    }
    (Arc::default(), About::of(request.method.known(), Arc::clone(name)))
}

impl Open {
    fn is_tool(&self) -> bool {
        self.call.about.method.is_none()
    }

    /// Hands the enter event to the sink. A sink that panics has failed.
    fn begin_enter(&mut self, validated: bool) -> Result<EnterFuture, AuditError> {
        let now = self.clock.now();
        self.entered = Some(now);
        let event = Enter::new(self.call.clone(), self.arguments.clone(), validated, now);
        catch_unwind(AssertUnwindSafe(|| self.audit.enter(&event)))
            .map_err(|panic| sink_panicked(&self.logger, &*panic))
    }

    fn close(&self, ticket: Option<Ticket>, ending: Ending, retryable: bool) {
        let now = self.clock.now();
        let event =
            Exit::new(&self.call, self.entered.unwrap_or(now), now, ending).after_waiting(self.queued);
        self.log(&event);
        self.bus.tell(self.call.correlation, self.call.server.as_ref(), || self.told(&event, retryable));
        let exited = catch_unwind(AssertUnwindSafe(|| self.audit.exit(ticket, event)));
        if let Err(error) = exited.unwrap_or_else(|panic| Err(sink_panicked(&self.logger, &*panic))) {
            self.counters.audit_exit_failures.fetch_add(1, Ordering::Relaxed);
            self.logger.tell(|| {
                error!(correlationId = %self.call.correlation, method = self.call.method(), subject = self.call.subject(), %error, "the end of a call could not be recorded");
            });
        }
    }

    /// How long it took and how it ended; what was said only at `trace`, and without its secrets.
    fn log(&self, exit: &Exit) {
        let AuditCall { server, correlation, .. } = &self.call;
        let (method, subject) = (self.call.method(), self.call.subject());
        let outcome = match exit.outcome() {
            Ending::Result { is_error: false, .. } => "result",
            Ending::Result { is_error: true, .. } => "tool error",
            Ending::Error { code, .. } => code,
            Ending::Cancelled => CANCELLED,
        };
        debug!(
            correlationId = %correlation, method, subject, server = server.as_deref(), outcome,
            durationMs = exit.duration_ms(), queuedMs = exit.queued_ms(), "call ended"
        );
        if enabled!(Level::TRACE) {
            let redactor = Redactor::default();
            let shown = |json: &Bytes| String::from_utf8_lossy(&redactor.json(subject, json)).into_owned();
            let result = match exit.outcome() {
                Ending::Result { body, .. } => shown(body),
                Ending::Error { message, .. } => redactor.text(message).into_owned(),
                Ending::Cancelled => String::new(),
            };
            trace!(correlationId = %correlation, arguments = shown(&self.arguments), result, "call in full");
        }
    }

    /// A tool that says `isError` has completed: what it says is its result.
    fn told(&self, exit: &Exit, retryable: bool) -> Detail {
        let redactor = Redactor::default();
        let about = match self.call.about.method {
            None => Asked::Tool(Arc::clone(&self.call.tool)),
            Some(method) => Asked::Method(method, self.call.about.subject.clone().unwrap_or_default()),
        };
        let failed = |code, retryable, message: &str| Detail::Failed {
            about: about.clone(),
            code,
            retryable,
            message: Excerpt::new(&redactor, message),
        };
        match exit.outcome() {
            Ending::Result { body, .. } => {
                let shown = redactor.paths(self.call.subject(), body);
                let summary = Excerpt::new(&redactor, &String::from_utf8_lossy(&shown));
                Detail::Completed { about, summary, duration_ms: exit.duration_ms() }
            }
            Ending::Error { code, message, .. } => failed(code.clone(), retryable, message),
            Ending::Cancelled => {
                failed(Cow::Borrowed(CANCELLED), false, "the client no longer wants the answer")
            }
        }
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        if open.is_tool() {
            open.counters.cancelled.fetch_add(1, Ordering::Relaxed);
        }
        let ending = if std::thread::panicking() {
            Ending::Error {
                code: Cow::Borrowed(Code::HandlerError.as_str()),
                message: "the call panicked".to_owned(),
                details: None,
            }
        } else {
            Ending::Cancelled
        };
        let entering = match std::mem::replace(&mut open.stage, Stage::New) {
            Stage::Entered(ticket) => return open.close(ticket, ending, false),
            Stage::Entering(entering) => Some(entering),
            Stage::New => None,
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        // Cancelled while it waited for its turn, or for its enter: it still leaves its pair.
        runtime.spawn(async move {
            let entered = match entering.map_or_else(|| open.begin_enter(false), Ok) {
                Ok(mut entering) => recorded(&open.logger, &mut entering).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &entered {
                open.logger.tell(|| {
                    error!(correlationId = %open.call.correlation, %error, "a cancelled call could not be recorded");
                });
            }
            open.close(entered.ok().flatten(), ending, false);
        });
    }
}

/// Waits until the sink has taken the enter. A sink that panics has failed.
async fn recorded(logger: &Logger, entering: &mut EnterFuture) -> Result<Option<Ticket>, AuditError> {
    AssertUnwindSafe(entering)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(sink_panicked(logger, &*panic)))
}

/// What the panic said is for the log alone: it may quote the event.
fn sink_panicked(logger: &Logger, panic: &(dyn Any + Send)) -> AuditError {
    logger.tell(|| error!(panic = panics::words(panic), "the audit sink panicked"));
    AuditError::Failed("the sink panicked".to_owned())
}

/// Whether a call counts as failed: what its tool calls an error does, too.
fn has_failed(outcome: &Outcome) -> bool {
    match outcome {
        Outcome::Result(_, result) => result.is_error,
        Outcome::Prepared(_) => false,
        Outcome::Relayed(_) | Outcome::Failed(_) => true,
    }
}

fn ending(outcome: &Outcome) -> Ending {
    match outcome {
        Outcome::Result(body, result) => {
            Ending::Result { body: body.bytes().clone(), is_error: result.is_error }
        }
        Outcome::Prepared(body) => Ending::Result { body: body.to_raw().bytes().clone(), is_error: false },
        Outcome::Relayed(error) => {
            let details = error.data().map(|data| data.bytes().clone());
            Ending::Error { code: Cow::Owned(error.code().to_string()), message: error.message(), details }
        }
        Outcome::Failed(error) => {
            let details = error.details.as_ref().map(|details| Bytes::from(details.to_string()));
            let message = error.message.clone();
            Ending::Error { code: Cow::Borrowed(error.code.as_str()), message, details }
        }
    }
}

#[cfg(test)]
mod tests {
    use bridgehead_wire::{Raw, RpcError};

    use super::*;
    use crate::error::CallError;
    use crate::relay::rewrite::Input;

    /// What is not recorded shows nothing of a call.
    #[test]
    fn an_empty_record_shows_no_call() {
        let shown = format!("{:?}", CallRecord { open: None });
        assert_eq!(shown, "CallRecord { correlation: None, .. }");
    }

    /// SRV-7, PIPE-6: what counts as failed, and how the end of each is written down.
    #[test]
    fn how_calls_end() {
        #[track_caller]
        fn check(outcome: &Outcome, failed: bool, expected: &str) {
            assert_eq!(has_failed(outcome), failed, "{expected}");
            let written = match ending(outcome) {
                Ending::Result { body, is_error } => {
                    format!("{is_error} {}", String::from_utf8(body.to_vec()).unwrap())
                }
                Ending::Error { code, message, details } => {
                    format!(
                        "{code} {message} {:?}",
                        details.map(|it| String::from_utf8(it.to_vec()).unwrap())
                    )
                }
                Ending::Cancelled => "cancelled".to_owned(),
            };
            assert_eq!(written, expected);
        }
        let result = |text| crate::relay::request::read(Raw::literal(text), Input::Refused).unwrap();
        check(&result(r#"{"content":[]}"#), false, r#"false {"content":[]}"#);
        check(&result(r#"{"content":[],"isError":true}"#), true, r#"true {"content":[],"isError":true}"#);
        let relayed = RpcError::with_data(-7, "no", &serde_json::json!([1]));
        check(&Outcome::Prepared(Raw::literal("{}").into()), false, "false {}");
        check(&Outcome::Relayed(relayed), true, r#"-7 no Some("[1]")"#);
        let failed = CallError::new(Code::ProviderTimeout, "late");
        check(&Outcome::Failed(failed), true, "PROVIDER_TIMEOUT late None");
    }
}
