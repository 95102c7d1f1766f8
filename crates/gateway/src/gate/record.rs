//! The pair of audit events that a request leaves, however it ends, and the signals of its beginning and end.

use std::any::Any;
use std::borrow::Cow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{
    About, AuditError, AuditSink, Call as AuditCall, Clock, Enter, EnterFuture, Exit, Moment,
    Outcome as Ending, Ticket,
};
use bridgehead_events::{CallEnded, Signal, Signals, Stage as RefusedAt};
use bridgehead_wire::{Code, Method, Redactor};
use bytes::Bytes;
use futures_util::FutureExt;

use super::{Call, Gate, Outcome, Subject};
use crate::access::Charge;
use crate::caller::ClientRequest;
use crate::panics;

/// The record of one call, opened before its first stage. If it is dropped early, the call was cancelled or
/// panicked, and the record says so.
pub(crate) struct CallRecord {
    /// `None` once the exit is written, and for a request that is not recorded.
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
    signals: Signals,
    call: AuditCall,
    arguments: Bytes,
    /// When the enter event was made; the duration counts from here.
    entered: Option<Moment>,
    stage: Stage,
    /// How long it waited: for the tool's lock and in the server's queue.
    queued: Duration,
    /// Why its subject, which exists, does not exist for its principal. The client is told what it would be told of an
    /// unknown one; the record says this.
    denied: Option<String>,
    /// Whether its charge is given back.
    refunded: bool,
    /// How often it is charged again, because it was sent again.
    again: u32,
}

/// The progress of the enter event.
enum Stage {
    New,
    /// Being recorded. It runs to its end even if the call is dropped: the exit needs the ticket.
    Entering(EnterFuture),
    /// The sink was asked. Without a ticket nothing was recorded.
    Entered(Option<Ticket>),
}

impl CallRecord {
    pub(super) fn open<S: Subject>(gate: &Gate, call: &Call<'_>, subject: &S) -> Self {
        if !gate.records(call.request) {
            return Self { open: None };
        }
        let (tool, mut about) = named(call.request, subject);
        if gate.audit.keeps() || gate.signals.bus().is_watched() {
            about.client = call.caller.client(call.request);
        }
        let record = Self {
            open: Some(Open {
                audit: Arc::clone(&gate.audit),
                clock: Arc::clone(&gate.clock),
                signals: gate.signals.clone(),
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
                denied: subject.denied().map(str::to_owned),
                refunded: false,
                again: 0,
            }),
        };
        if let Some(open) = &record.open {
            open.signals.emit(&Signal::CallEntered(&open.call));
        }
        record
    }

    /// Signals that a stage of the gate refused the request. The pair of audit events is written anyway.
    pub(super) fn refused(&self, stage: RefusedAt) {
        if let Some(open) = &self.open {
            open.signals.emit(&Signal::CallRefused(&open.call, stage));
        }
    }

    /// Notes what the call takes from budgets, for its enter event.
    pub(super) fn charged(&mut self, charge: &Charge) {
        if let Some(open) = &mut self.open {
            let about = &mut open.call.about;
            (about.cost, about.budgets) = (Some(charge.cost), Some(Arc::clone(&charge.budgets)));
        }
    }

    /// Notes that the call provably did not run, so that its charge is given back.
    pub(super) fn refunded(&mut self) {
        if let Some(open) = &mut self.open {
            open.refunded = open.call.about.cost.is_some();
        }
    }

    /// Notes that the call was sent again so often, and is charged each time.
    pub(super) fn charged_again(&mut self, times: u32) {
        if let Some(open) = &mut self.open {
            open.again = times;
        }
    }

    /// Hands the record to something that outlives the request: a subscription. The exit is written when that
    /// ends.
    pub(crate) fn keep(&mut self) -> Self {
        Self { open: self.open.take() }
    }

    /// Writes the enter event. The call continues only after the sink has accepted it.
    pub(super) async fn enter(&mut self, validated: bool) -> Result<(), AuditError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        // Marked first, so that the drop does not try a failed enter a second time.
        let entering = open.begin_enter(validated);
        open.stage = Stage::Entered(None);
        let entered = match entering {
            Ok(entering) => {
                open.stage = Stage::Entering(entering);
                let Stage::Entering(entering) = &mut open.stage else { return Ok(()) };
                recorded(&open.signals, entering).await
            }
            Err(error) => Err(error),
        };
        let ticket = entered.as_ref().ok().copied().flatten();
        open.stage = Stage::Entered(ticket);
        if let Err(error) = &entered {
            open.enter_failed(error, false);
        }
        entered.map(drop)
    }

    /// Has the record say that its subject is denied to the principal, whatever the client is told.
    pub(crate) fn denied(&mut self, why: String) {
        if let Some(open) = &mut self.open {
            open.denied = Some(why);
        }
    }

    /// Adds the time that the call waited for the tool's lock or in the server's queue.
    pub(crate) fn waited(&mut self, queued: Duration) {
        if let Some(open) = &mut self.open {
            open.queued += queued;
        }
    }

    /// Writes the exit event and returns the outcome unchanged: a failing exit is signalled, but does not
    /// fail the call.
    pub(crate) fn exit(mut self, outcome: Outcome) -> Outcome {
        let Some(open) = self.open.take() else { return outcome };
        let retryable = matches!(&outcome, Outcome::Failed(error) if error.code.retryable());
        let ticket = if let Stage::Entered(ticket) = open.stage { ticket } else { None };
        let ending = match &open.denied {
            Some(why) => {
                let code = Cow::Borrowed(Code::Denied.as_str());
                Ending::Error { code, message: why.clone(), details: None }
            }
            None => ending(&outcome),
        };
        open.close(ticket, ending, retryable);
        outcome
    }
}

/// How rows name a request: a tool call by the tool's name, any other request by its method and its subject. What nobody offers
/// is called as the client likes, and a URI carries what the client put into it: both may hold a secret.
fn named<S: Subject>(request: &ClientRequest, subject: &S) -> (Arc<str>, About) {
    if request.method == Method::ToolsCall {
        let is_offered = subject.server().is_some();
        let name = if is_offered { Arc::clone(subject.name()) } else { shown(subject.name()) };
        return (name, About::default());
    }
    (Arc::default(), About::of(request.method.known(), shown(subject.name())))
}

/// A name without secrets.
fn shown(name: &Arc<str>) -> Arc<str> {
    match Redactor::default().text(name) {
        Cow::Borrowed(_) => Arc::clone(name),
        Cow::Owned(hidden) => hidden.into(),
    }
}

impl Open {
    /// Hands the enter event to the sink. A panic of the sink counts as a failure.
    fn begin_enter(&mut self, validated: bool) -> Result<EnterFuture, AuditError> {
        let now = self.clock.now();
        self.entered = Some(now);
        let event = Enter::new(self.call.clone(), self.arguments.clone(), validated, now);
        catch_unwind(AssertUnwindSafe(|| self.audit.enter(&event)))
            .map_err(|panic| sink_panicked(&self.signals, &*panic))
    }

    fn close(&self, ticket: Option<Ticket>, ending: Ending, retryable: bool) {
        write_exit(&*self.audit, &self.signals, (ticket, &self.call), self.end(ending, retryable));
    }

    /// The exit event of a call that ends now.
    fn end(&self, ending: Ending, retryable: bool) -> Exit {
        let now = self.clock.now();
        let entered = self.entered.unwrap_or(now);
        let exit = Exit::new(&self.call, entered, now, ending).after_waiting(self.queued);
        let exit = if self.refunded { exit.refunding() } else { exit };
        let exit = match self.call.about.cost {
            Some(cost) if self.again > 0 => exit.charging(cost.saturating_mul(u64::from(self.again))),
            _ => exit,
        };
        self.signals.emit(&Signal::CallEnded(CallEnded {
            call: &self.call,
            arguments: &self.arguments,
            exit: &exit,
            took: now.monotonic.saturating_sub(entered.monotonic),
            retryable,
        }));
        exit
    }

    /// Signals that the enter event was not recorded.
    fn enter_failed(&self, error: &AuditError, cancelled: bool) {
        enter_failed(&self.signals, &self.call, error, cancelled);
    }
}

/// Signals that an enter event was not recorded.
pub(super) fn enter_failed(signals: &Signals, call: &AuditCall, error: &AuditError, cancelled: bool) {
    signals.emit(&Signal::EnterFailed { call, error, cancelled });
}

/// Hands an exit event to the sink. A failure or a panic of the sink is signalled.
pub(super) fn write_exit(
    audit: &dyn AuditSink,
    signals: &Signals,
    (ticket, call): (Option<Ticket>, &AuditCall),
    exit: Exit,
) {
    let exited = catch_unwind(AssertUnwindSafe(|| audit.exit(ticket, exit)));
    if let Err(error) = exited.unwrap_or_else(|panic| Err(sink_panicked(signals, &*panic))) {
        signals.emit(&Signal::ExitFailed { call, error: &error });
    }
}

impl Drop for CallRecord {
    fn drop(&mut self) {
        // A call that is dropped before its enter is recorded does not run.
        if matches!(&self.open, Some(Open { stage: Stage::Entering(_), .. })) {
            self.refunded();
        }
        let Some(mut open) = self.open.take() else { return };
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
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            // Without a runtime nothing can be recorded; the call's end is still signalled.
            open.end(ending, false);
            return;
        };
        // Cancelled while it waited for its turn or for its enter event: it still leaves its pair.
        runtime.spawn(async move {
            let entered = match entering.map_or_else(|| open.begin_enter(false), Ok) {
                Ok(mut entering) => recorded(&open.signals, &mut entering).await,
                Err(error) => Err(error),
            };
            if let Err(error) = &entered {
                open.enter_failed(error, true);
            }
            open.close(entered.ok().flatten(), ending, false);
        });
    }
}

/// Waits until the sink has accepted the enter event. A panic of the sink counts as a failure.
pub(super) async fn recorded(
    signals: &Signals,
    entering: &mut EnterFuture,
) -> Result<Option<Ticket>, AuditError> {
    AssertUnwindSafe(entering)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| Err(sink_panicked(signals, &*panic)))
}

/// The panic message goes to the log only: it may quote the event.
pub(super) fn sink_panicked(signals: &Signals, panic: &(dyn Any + Send)) -> AuditError {
    signals.emit(&Signal::SinkPanicked(panics::words(panic)));
    AuditError::Failed("the sink panicked".to_owned())
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
    use crate::error::GatewayError;
    use crate::relay::rewrite::Input;

    /// A record that is not written shows nothing of its call.
    #[test]
    fn an_empty_record_shows_no_call() {
        let shown = format!("{:?}", CallRecord { open: None });
        assert_eq!(shown, "CallRecord { correlation: None, .. }");
    }

    /// AUD-4: a name that is a secret is not kept.
    #[test]
    fn a_name_that_is_a_secret_is_hidden() {
        let (plain, token) =
            (Arc::from("files__read"), Arc::from("ghp_0123456789abcdefghijABCDEFGHIJ012345"));
        assert!(Arc::ptr_eq(&shown(&plain), &plain));
        assert!(!shown(&token).contains("0123456789"), "{}", shown(&token));
    }

    /// PIPE-6: how the end of each call is recorded.
    #[test]
    fn how_calls_end() {
        #[track_caller]
        fn check(outcome: &Outcome, expected: &str) {
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
        check(&result(r#"{"content":[]}"#), r#"false {"content":[]}"#);
        check(&result(r#"{"content":[],"isError":true}"#), r#"true {"content":[],"isError":true}"#);
        let relayed = RpcError::with_data(-7, "no", &serde_json::json!([1]));
        check(&Outcome::Prepared(Raw::literal("{}").into()), "false {}");
        check(&Outcome::Relayed(relayed), r#"-7 no Some("[1]")"#);
        let failed = GatewayError::new(Code::ProviderTimeout, "late");
        check(&Outcome::Failed(failed), "PROVIDER_TIMEOUT late None");
    }
}
