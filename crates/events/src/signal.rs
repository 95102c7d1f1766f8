//! The signals: one type for each thing that can happen, filled in by the code that notices it.
//!
//! A signal borrows its data and decides nothing. Three files, each with an exhaustive `match`, decide what follows
//! from it: `log.rs` what is logged, `metrics.rs` what is counted, `told.rs` what the bus publishes. So a new signal
//! compiles only once all three have decided, and no other place logs, counts or publishes it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{AuditError, Call, CorrelationId, Exit};
use bridgehead_wire::Revision;

use crate::ProbeKind;

/// Something that happened; pass it to [`Signals::emit`](crate::Signals::emit).
pub enum Signal<'a> {
    /// A request reached the gate.
    CallEntered(&'a Call),
    /// A request was refused before it ran, at this stage of the gate. Its [`Signal::CallEnded`] follows.
    CallRefused(&'a Call, Stage),
    /// A request ended, with any outcome.
    CallEnded(CallEnded<'a>),
    /// A result does not fit its tool's output schema.
    OutputInvalid {
        /// The call.
        correlation: CorrelationId,
        /// The tool, by the name that the client used.
        tool: &'a str,
        /// Its server; `None` for a Rust tool.
        server: Option<&'a str>,
        /// What does not fit.
        why: &'a str,
    },
    /// A request's wait for other requests ended.
    Waited {
        /// What it waited for.
        line: Line,
        /// How the wait ended.
        end: WaitEnd,
        /// How long it waited.
        waited: Duration,
    },
    /// The enter event of a request was not recorded.
    EnterFailed {
        /// The request.
        call: &'a Call,
        /// Why.
        error: &'a AuditError,
        /// Whether the request was already cancelled; if not, its client gets the error.
        cancelled: bool,
    },
    /// The exit event of a request was not recorded.
    ExitFailed {
        /// The request.
        call: &'a Call,
        /// Why.
        error: &'a AuditError,
    },
    /// The audit sink panicked with this message.
    SinkPanicked(&'a str),
    /// A checkpoint of the audit record was made.
    Checkpoint(CheckpointMade<'a>),
    /// Rows began to wait in the journal because the store refuses them, or no longer wait.
    AuditLag {
        /// Whether they wait.
        behind: bool,
    },
    /// A client was refused before its request was read.
    SignInRefused {
        /// The HTTP status: 401 for missing or wrong credentials, 403 for a forbidden host or origin.
        status: u16,
        /// Why, in words.
        reason: &'a str,
        /// Whether the request was for the operators' API.
        operator: bool,
    },
    /// Answering a request panicked.
    AnswerPanicked {
        /// The request.
        correlation: CorrelationId,
        /// Its method.
        method: &'a str,
        /// The panic's message.
        words: &'a str,
    },
    /// Serving a client panicked outside of the gateway, with this message.
    FrontPanicked(&'a str),
    /// A call of a provider ended.
    ExecutionEnded(ExecutionEnded<'a>),
    /// A bridge retries a call.
    Retry {
        /// The call.
        correlation: CorrelationId,
        /// The tool.
        tool: &'a str,
        /// How many attempts were made.
        attempt: u32,
        /// The pause before the next attempt.
        pause: Duration,
        /// Why.
        cause: &'a dyn Display,
    },
    /// A result was cast to its tool's output schema.
    Cast {
        /// How many changes casting made.
        changes: usize,
        /// How many issues are left.
        issues: usize,
    },
}

/// A stage of the gate that can refuse requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The policy: whether the principal may make the request.
    Authorize,
    /// The limit: how much the principal may do.
    Limit,
    /// The tool's lock.
    Lock,
    /// The checks of its surface: the subject exists, and the arguments fit.
    Check,
    /// Recording the enter.
    Record,
}

/// What requests wait for, in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The lock of a tool whose calls take turns.
    Lock,
    /// The queue of a server.
    Queue,
}

/// How a wait ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitEnd {
    /// It was the request's turn.
    Turn,
    /// Too many requests were already waiting.
    Full,
    /// Its turn did not come in time.
    TimedOut,
    /// The request was cancelled.
    Left,
}

/// A request that ended.
pub struct CallEnded<'a> {
    /// The request.
    pub call: &'a Call,
    /// Its arguments, as JSON text.
    pub arguments: &'a [u8],
    /// Its exit event.
    pub exit: &'a Exit,
    /// How long it took; the exit event has only whole milliseconds.
    pub took: Duration,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// A checkpoint of the audit record.
pub struct CheckpointMade<'a> {
    /// The segment of the record.
    pub segment: &'a str,
    /// How many rows it has.
    pub count: u64,
    /// The root over them.
    pub root: &'a dyn Display,
    /// The head after the last of them.
    pub head: &'a dyn Display,
    /// Whether the segment is sealed, so that no row follows.
    pub sealed: bool,
}

/// A call of a provider that ended.
pub struct ExecutionEnded<'a> {
    /// The call.
    pub correlation: CorrelationId,
    /// The server, if there is one.
    pub server: Option<&'a Arc<str>>,
    /// The tool, by the name that the caller used.
    pub tool: &'a str,
    /// How it ended.
    pub outcome: ExecutionOutcome<'a>,
    /// How long it took.
    pub took: Duration,
}

/// How a call of a provider ended.
pub enum ExecutionOutcome<'a> {
    /// With this result.
    Result(&'a str),
    /// Without a result.
    Failed {
        /// The stable error code.
        code: &'static str,
        /// Whether the same call may succeed later.
        retryable: bool,
        /// What went wrong.
        message: &'a str,
    },
    /// Its caller cancelled it.
    Cancelled,
}

/// Something that happened to a server. Several gateways may share a server, so its line is logged once and its record
/// is kept once, while each gateway counts it and publishes it under its own name for the server.
pub enum ServerSignal<'a> {
    /// An attempt to start it began.
    StartBegan,
    /// The attempt ended, and it serves.
    Serves {
        /// How it is reached.
        transport: &'static str,
        /// Its process id, if the gateway started it.
        pid: Option<u32>,
        /// The protocol revision that it speaks.
        revision: Revision,
        /// Its tools.
        tools: &'a [&'a str],
        /// How often it has been restarted.
        restarts: u32,
        /// How long the attempt took.
        took: Duration,
        /// Whether it serves one call only.
        one_shot: bool,
    },
    /// The attempt ended, and it does not serve.
    StartFailed {
        /// How many attempts failed before this one.
        attempt: u32,
        /// Why.
        reason: &'a str,
        /// Whether it was not even started, because it could not be limited or confined as configured.
        sandbox: bool,
        /// How long the attempt took.
        took: Duration,
    },
    /// It no longer serves.
    Disconnected(DisconnectReason<'a>),
    /// It serves again.
    Reconnected,
    /// It will not be restarted any more.
    GivenUp,
    /// A restart is scheduled.
    Restart {
        /// The number of this restart since it was last well, from 1.
        attempt: u32,
        /// The delay before it.
        delay: Duration,
        /// Why.
        reason: &'a str,
    },
    /// Its health was probed.
    Probe {
        /// The request that probed it.
        kind: ProbeKind,
        /// How long the answer took.
        took: Duration,
        /// Why the probe failed.
        error: Option<&'a str>,
    },
    /// Its process is gone.
    ProcessExited {
        /// Its process id.
        pid: u32,
        /// How it ended.
        status: &'a dyn Display,
        /// Why, as far as we know.
        reason: &'a str,
    },
    /// Its tools were listed.
    Listed {
        /// The tools it had before; `None` if unknown.
        before: Option<&'a [&'a str]>,
        /// The tools it has now.
        now: &'a [&'a str],
    },
    /// Its state changed.
    State(StateChange<'a>),
}

impl<'a> ServerSignal<'a> {
    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<&'a str> {
        match self {
            Self::Disconnected(DisconnectReason::Lost(reason)) => Some(reason),
            _ => None,
        }
    }
}

/// Why a server no longer serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DisconnectReason<'a> {
    /// It was lost, for this reason.
    Lost(&'a str),
    /// A restart was requested.
    Asked,
    /// It is not in use.
    Unused,
}

/// The new state of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateChange<'a> {
    /// It was asleep and is needed: it starts.
    Woken,
    /// It had failed, and another start was requested.
    StartedAnew,
    /// It sleeps until it is needed.
    Asleep,
    /// It serves.
    Ready,
    /// It is down, and is being restarted.
    Down,
    /// It has been down for so long that its tools leave the lists.
    Unlisted,
    /// It will not serve, for this reason.
    Failed(&'a str),
    /// It was started for one call and cannot serve it, for this reason.
    Spent(&'a str),
    /// The gateway stopped it.
    Stopped,
}
