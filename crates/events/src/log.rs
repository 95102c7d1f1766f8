//! Writes the log line of each signal, if it has one.
//!
//! The target of a line is the module where the thing happens, so that a log filter for one part of the program shows
//! its lines.

use std::fmt;

use bridgehead_call::Outcome;
use bridgehead_wire::Redactor;
use tracing::{Dispatch, Level, debug, dispatcher, enabled, error, info, trace, warn};

use crate::signal::{CallEnded, DisconnectReason, ServerSignal, Signal, StateChange};

const RECORD: &str = "bridgehead_gateway::gate::record";
const OUTPUT: &str = "bridgehead_gateway::surface::tools::output";
const PANICS: &str = "bridgehead_gateway::panics";
const FRONT: &str = "bridgehead_front::http";
const BRIDGE: &str = "bridgehead_upstream::bridge";
const SUPERVISOR: &str = "bridgehead_upstream::server::supervisor";

/// The outcome of a request that its client cancelled.
pub(crate) const CANCELLED: &str = "cancelled";

impl Signal<'_> {
    /// Writes its line. Failures that concern the operator go to `logger` if there is one, instead of the thread's
    /// subscriber.
    #[inline]
    pub(crate) fn log(&self, logger: Option<&Dispatch>) {
        match self {
            Self::CallEntered(_)
            | Self::CallRefused(..)
            | Self::Waited { .. }
            // Its client gets the error.
            | Self::EnterFailed { cancelled: false, .. }
            | Self::Checkpoint(_)
            // The store has logged it, with the reason.
            | Self::AuditLag { .. }
            | Self::ExecutionEnded(_)
            | Self::Cast { .. } => {}
            Self::CallEnded(ended) => ended.log(),
            Self::OutputInvalid { correlation, tool, server, why } => {
                warn!(target: OUTPUT, correlationId = %correlation, tool = %tool, server, %why, "a result does not fit its output schema");
            }
            Self::EnterFailed { call, error, cancelled: true } => to(logger, || {
                error!(target: RECORD, correlationId = %call.correlation, %error, "a cancelled call could not be recorded");
            }),
            Self::ExitFailed { call, error } => to(logger, || {
                error!(target: RECORD, correlationId = %call.correlation, method = call.method(), subject = call.subject(), %error, "the end of a call could not be recorded");
            }),
            Self::SinkPanicked(panic) => to(logger, || {
                error!(target: RECORD, panic, "the audit sink panicked");
            }),
            Self::AnswerPanicked { correlation, method, words } => to(logger, || {
                error!(target: PANICS, correlationId = %correlation, method, panic = words, "answering a request panicked");
            }),
            Self::FrontPanicked(panic) => to(logger, || {
                error!(target: PANICS, panic, "serving a client panicked");
            }),
            Self::SignInRefused { status, reason, operator: false } => {
                debug!(target: FRONT, status, %reason, "turned a request away");
            }
            Self::SignInRefused { status, reason, operator: true } => {
                debug!(target: FRONT, status, %reason, "turned an operator away");
            }
            Self::Retry { correlation, tool, attempt, pause, cause } => to(logger, || {
                warn!(target: BRIDGE, correlationId = %correlation, tool, attempt, delayMs = pause.as_millis(), %cause, "trying again");
            }),
        }
    }
}

/// Runs `log` with `logger` as its subscriber; without one, with the thread's subscriber.
#[cold]
fn to(logger: Option<&Dispatch>, log: impl FnOnce()) {
    match logger {
        Some(logger) => dispatcher::with_default(logger, log),
        None => log(),
    }
}

/// A server's name in log lines.
struct Label<'a>(&'a str);

impl fmt::Display for Label<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "mcp:{}", self.0)
    }
}

impl CallEnded<'_> {
    /// Logs how long it took and how it ended; the content only at `trace`, and without its secrets.
    fn log(&self) {
        let Self { call, exit, .. } = self;
        let (method, subject) = (call.method(), call.subject());
        let outcome = match exit.outcome() {
            Outcome::Result { is_error: false, .. } => "result",
            Outcome::Result { is_error: true, .. } => "tool error",
            Outcome::Error { code, .. } => code,
            Outcome::Cancelled => CANCELLED,
        };
        debug!(
            target: RECORD, correlationId = %call.correlation, method, subject, server = call.server.as_deref(), outcome,
            durationMs = exit.duration_ms(), queuedMs = exit.queued_ms(), "call ended"
        );
        if enabled!(target: RECORD, Level::TRACE) {
            let redactor = Redactor::default();
            let shown = |json: &[u8]| String::from_utf8_lossy(&redactor.json(subject, json)).into_owned();
            let result = match exit.outcome() {
                Outcome::Result { body, .. } => shown(body),
                Outcome::Error { message, .. } => redactor.text(message).into_owned(),
                Outcome::Cancelled => String::new(),
            };
            trace!(target: RECORD, correlationId = %call.correlation, arguments = shown(self.arguments), result, "call in full");
        }
    }
}

impl ServerSignal<'_> {
    /// Writes its line about the server with this configured name.
    pub fn log(&self, name: &str) {
        let server = Label(name);
        match self {
            Self::StartBegan | Self::Reconnected | Self::GivenUp | Self::Listed { .. } => {}
            Self::ProcessExited { pid, status, reason } => {
                trace!(target: SUPERVISOR, %server, pid, %status, reason, "its process has ended");
            }
            Self::Serves { transport, pid, revision, tools, restarts, took, one_shot } => {
                if *one_shot {
                    debug!(target: SUPERVISOR, %server, pid, ?took, "a process for one call is ready");
                } else {
                    info!(target: SUPERVISOR, %server, transport, pid, %revision, tools = tools.len(), restarts, ?took, "serves");
                }
                trace!(target: SUPERVISOR, %server, names = ?tools, "its tools");
            }
            Self::StartFailed { reason, sandbox: true, .. } => {
                error!(target: SUPERVISOR, %server, reason, "was not started");
            }
            Self::StartFailed { attempt, reason, .. } => {
                error!(target: SUPERVISOR, %server, attempt, reason, "did not come up");
            }
            Self::Disconnected(DisconnectReason::Lost(reason)) => {
                warn!(target: SUPERVISOR, %server, reason, "lost");
            }
            Self::Disconnected(DisconnectReason::Asked) => {
                warn!(target: SUPERVISOR, %server, "restarts as asked");
            }
            Self::Disconnected(DisconnectReason::Unused) => {
                info!(target: SUPERVISOR, %server, "is not used and goes to sleep");
            }
            Self::Restart { attempt, delay, .. } => {
                warn!(target: SUPERVISOR, %server, attempt, ?delay, "restart scheduled");
            }
            Self::Probe { kind, took, error: None } => {
                trace!(target: SUPERVISOR, %server, kind = kind.as_str(), ?took, "answered its health probe");
            }
            Self::Probe { error: Some(reason), .. } => {
                error!(target: SUPERVISOR, %server, reason, "health probe failed");
            }
            Self::State(change) => change.log(&server),
        }
    }
}

impl StateChange<'_> {
    fn log(&self, server: &Label<'_>) {
        match self {
            Self::Asleep | Self::Ready | Self::Down | Self::Stopped => {}
            Self::Woken => debug!(target: SUPERVISOR, %server, "is woken"),
            Self::StartedAnew => warn!(target: SUPERVISOR, %server, "is started again as asked"),
            Self::Unlisted => warn!(target: SUPERVISOR, %server, "still down; its tools leave the lists"),
            Self::Failed(reason) => {
                warn!(target: SUPERVISOR, %server, reason, "does not serve, and will not be started again");
            }
            Self::Spent(reason) => {
                debug!(target: SUPERVISOR, %server, reason, "a process for one call cannot serve it");
            }
        }
    }
}
