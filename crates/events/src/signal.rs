//! The things that happen, each as one type that whoever notices it fills in.
//!
//! A signal borrows what it speaks of and decides nothing. What comes of it is said elsewhere, in a `match` without a
//! rest for each: what is logged in `log.rs`, what is counted in `metrics.rs`, what the bus is told in `told.rs`. So a
//! new signal compiles only when all three have decided, and no other place logs, counts or tells it.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{AuditError, Call, CorrelationId, Exit};
use bridgehead_wire::Revision;

use crate::ProbeKind;

/// Something that happened, to be given to [`Signals::emit`](crate::Signals::emit).
pub enum Signal<'a> {
    /// A request reached the gate.
    CallEntered(&'a Call),
    /// A request was turned away before it ran, at this stage of the gate. Its end follows.
    CallRefused(&'a Call, Stage),
    /// A request ended, in whichever way.
    CallEnded(CallEnded<'a>),
    /// A result does not fit what its tool promises.
    OutputInvalid {
        /// The call.
        correlation: CorrelationId,
        /// The tool, by the name that the client used.
        tool: &'a str,
        /// Its server; none for a Rust tool.
        server: Option<&'a str>,
        /// What does not fit.
        why: &'a str,
    },
    /// A request had to wait for others, and waits no longer.
    Waited {
        /// For what.
        line: Line,
        /// How the wait ended.
        end: WaitEnd,
        /// How long it was.
        waited: Duration,
    },
    /// The enter event of a request was not recorded.
    EnterFailed {
        /// The request.
        call: &'a Call,
        /// Why.
        error: &'a AuditError,
        /// Whether the request had been cancelled by then; if not, its client is told.
        cancelled: bool,
    },
    /// The exit event of a request was not recorded.
    ExitFailed {
        /// The request.
        call: &'a Call,
        /// Why.
        error: &'a AuditError,
    },
    /// The audit sink panicked, with these words.
    SinkPanicked(&'a str),
    /// The record of calls was stated.
    Checkpoint(Checkpoint<'a>),
    /// Rows wait in the journal because the store takes none, or no longer wait.
    AuditLag {
        /// Whether they wait.
        behind: bool,
    },
    /// Somebody was turned away before a request of theirs was read.
    SignInRefused {
        /// The HTTP status: 401 without the right credentials, 403 for where they come from.
        status: u16,
        /// Why, in words.
        reason: &'a str,
        /// Whether it was the operators' API that they wanted.
        operator: bool,
    },
    /// Answering a request panicked.
    AnswerPanicked {
        /// The request.
        correlation: CorrelationId,
        /// Its method.
        method: &'a str,
        /// What the panic said.
        words: &'a str,
    },
    /// Serving a client panicked around the gateway, with these words.
    FrontPanicked(&'a str),
    /// A call of a provider ended.
    ExecutionEnded(ExecutionEnded<'a>),
    /// A call of a bridge is tried again.
    Retry {
        /// The call.
        correlation: CorrelationId,
        /// The tool.
        tool: &'a str,
        /// How often it was tried.
        attempt: u32,
        /// The pause before it is tried again.
        pause: Duration,
        /// Why.
        cause: &'a dyn Display,
    },
    /// A result was cast to what its tool promises.
    Cast {
        /// How many changes that took.
        changes: usize,
        /// How much still does not fit.
        issues: usize,
    },
}

/// A stage of the gate that turns requests away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Whether its principal may make it.
    Authorize,
    /// How much its principal may do.
    Limit,
    /// The tool's lock.
    Lock,
    /// The checks of its surface: there is such a thing, and the arguments fit.
    Check,
    /// The record of its enter.
    Record,
}

/// What requests wait for, each behind those that came before.
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
    /// Too many waited already.
    Full,
    /// No turn came in time.
    TimedOut,
    /// Whoever waited has gone.
    Left,
}

/// A request that ended.
pub struct CallEnded<'a> {
    /// The request.
    pub call: &'a Call,
    /// What it said, as JSON text.
    pub arguments: &'a [u8],
    /// Its exit event.
    pub exit: &'a Exit,
    /// How long it took, which the exit event has in whole milliseconds.
    pub took: Duration,
    /// Whether the same request may succeed later.
    pub retryable: bool,
}

/// A statement over the record of calls.
pub struct Checkpoint<'a> {
    /// The segment of the record.
    pub segment: &'a str,
    /// How many rows it has.
    pub count: u64,
    /// The root over them.
    pub root: &'a dyn Display,
    /// The head behind the last of them.
    pub head: &'a dyn Display,
    /// Whether no row follows.
    pub sealed: bool,
}

/// A call of a provider that ended.
pub struct ExecutionEnded<'a> {
    /// The call.
    pub correlation: CorrelationId,
    /// The server, if there is one.
    pub server: Option<&'a Arc<str>>,
    /// The tool, as it was called.
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
    /// Without one.
    Failed {
        /// The stable error code.
        code: &'static str,
        /// Whether the same call may succeed later.
        retryable: bool,
        /// What went wrong.
        message: &'a str,
    },
    /// Its caller no longer wanted it.
    Cancelled,
}

/// Something that happened to a server. Several gateways may share one, so its line is written once and its record is
/// kept once, while each of them counts it and tells it under its own name for the server.
pub enum ServerSignal<'a> {
    /// An attempt to start it began.
    StartBegan,
    /// The attempt ended, and it serves.
    Serves {
        /// How it is reached.
        transport: &'static str,
        /// Its process, if it is one of ours.
        pid: Option<u32>,
        /// What it speaks.
        revision: Revision,
        /// Its tools.
        tools: &'a [&'a str],
        /// How often it has been started again.
        restarts: u32,
        /// How long the attempt took.
        took: Duration,
        /// Whether it is there for one call only.
        one_shot: bool,
    },
    /// The attempt ended, and it does not serve.
    StartFailed {
        /// How many attempts failed before this one.
        attempt: u32,
        /// Why.
        reason: &'a str,
        /// Whether it was not even tried, because it could not be limited or confined as asked.
        sandbox: bool,
        /// How long the attempt took.
        took: Duration,
    },
    /// It serves no more.
    Disconnected(Parting<'a>),
    /// It serves again.
    Reconnected,
    /// It will not be tried again.
    GivenUp,
    /// A restart is due.
    Restart {
        /// Which one since it was last well, from 1.
        attempt: u32,
        /// How long it will be waited for.
        delay: Duration,
        /// Why.
        reason: &'a str,
    },
    /// It was asked whether it is well.
    Probe {
        /// What it was asked.
        kind: ProbeKind,
        /// How long the answer took.
        took: Duration,
        /// What was wrong with the answer.
        error: Option<&'a str>,
    },
    /// Its process is gone.
    ProcessExited {
        /// The number it had.
        pid: u32,
        /// How it ended.
        status: &'a dyn Display,
        /// Why, as far as we know.
        reason: &'a str,
    },
    /// Its tools were listed.
    Listed {
        /// Those it had before; none if that is not known.
        before: Option<&'a [&'a str]>,
        /// Those it has.
        now: &'a [&'a str],
    },
    /// Its state is another one.
    State(Change<'a>),
}

impl<'a> ServerSignal<'a> {
    /// Why it was lost, if it was.
    #[must_use]
    pub fn loss(&self) -> Option<&'a str> {
        match self {
            Self::Disconnected(Parting::Lost(reason)) => Some(reason),
            _ => None,
        }
    }
}

/// Why a server serves no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parting<'a> {
    /// It was lost, for this reason.
    Lost(&'a str),
    /// Somebody asked for a restart.
    Asked,
    /// Nobody uses it.
    Unused,
}

/// What the state of a server has become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    /// It was asleep and is needed: it starts.
    Woken,
    /// It had failed, and somebody asked for another start.
    StartedAnew,
    /// It sleeps until it is needed.
    Asleep,
    /// It serves.
    Ready,
    /// It is down, and is brought back.
    Down,
    /// It is down for so long that its tools leave the lists.
    Unlisted,
    /// It will not serve, for this reason.
    Failed(&'a str),
    /// It was to serve one call, and will not, for this reason.
    Spent(&'a str),
    /// It was ended by us.
    Stopped,
}
