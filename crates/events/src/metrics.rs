//! All metrics: what is counted and measured, and which signal feeds it.
//!
//! A new metric is a row of [`Counter`] or [`Measure`], and a line in [`Metrics::count`] or [`Metrics::count_server`]
//! that names the signal that feeds it. Numbers are added without locks and only grow; a reader may see one of two
//! related numbers before the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_call::{Call, Outcome};

use crate::signal::{
    CallEnded, DisconnectReason, ExecutionOutcome, Line, ServerSignal, Signal, Stage, StateChange, WaitEnd,
};

/// Declares counters or measures: a variant, and the name that operators see.
macro_rules! rows {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $row:ident = $shown:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $row,)*
        }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: [Self; [$($shown),*].len()] = [$(Self::$row),*];

            /// The name that operators see.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$row => $shown,)*
                }
            }
        }
    };
}

rows! {
    /// A counter.
    Counter {
        /// Tool calls that reached the gate.
        Calls = "calls",
        /// Tool calls that failed, including those whose tool reported an error.
        Failed = "failed",
        /// Tool calls that their client cancelled.
        Cancelled = "cancelled",
        /// Recorded requests other than tool calls.
        Requests = "requests",
        /// Recorded requests, other than tool calls, that failed.
        RequestsFailed = "requestsFailed",
        /// Recorded requests, other than tool calls, that their client cancelled.
        RequestsCancelled = "requestsCancelled",
        /// Recorded requests refused because their principal may not make them.
        RefusedByPolicy = "refusedByPolicy",
        /// Recorded requests refused because a limit was exceeded.
        RefusedByLimit = "refusedByLimit",
        /// Recorded requests refused because they did not get their tool's lock.
        RefusedByLock = "refusedByLock",
        /// Recorded requests refused by the checks: unknown subject, or arguments that do not fit.
        RefusedByCheck = "refusedByCheck",
        /// Requests refused because they could not be recorded.
        RefusedByRecord = "refusedByRecord",
        /// Results that do not fit their tool's output schema.
        InvalidOutputs = "invalidOutputs",
        /// Enter events that were not recorded.
        AuditEnterFailures = "auditEnterFailures",
        /// Exit events that were not recorded.
        AuditExitFailures = "auditExitFailures",
        /// Panics of the audit sink.
        AuditPanics = "auditPanics",
        /// Checkpoints of the audit record.
        Checkpoints = "checkpoints",
        /// How often rows began to wait in the journal because the store refused them.
        AuditLags = "auditLags",
        /// Requests refused before they were read: wrong credentials, host or origin.
        SignInsRefused = "signInsRefused",
        /// Panics while a client was served.
        Panics = "panics",
        /// Requests refused by a full queue.
        QueueFull = "queueFull",
        /// Requests whose wait for their turn timed out.
        WaitsTimedOut = "waitsTimedOut",
        /// Requests that were cancelled while they waited for their turn.
        WaitsLeft = "waitsLeft",
        /// Attempts to start a server.
        Starts = "starts",
        /// Failed attempts to start a server.
        StartsFailed = "startsFailed",
        /// Servers that were lost while they served.
        Lost = "lost",
        /// Restarts that were scheduled.
        Restarts = "restarts",
        /// Servers that will not be restarted any more.
        GivenUp = "givenUp",
        /// Health probes that failed.
        ProbesFailed = "probesFailed",
        /// Server processes that ended.
        ProcessExits = "processExits",
        /// How often the tools of a server were listed.
        Listings = "listings",
        /// How often a server began to serve.
        BecameReady = "becameReady",
        /// How often a server went down and was to be restarted.
        BecameDown = "becameDown",
        /// How often a server went to sleep.
        BecameAsleep = "becameAsleep",
        /// How often a server failed for good.
        BecameFailed = "becameFailed",
        /// Calls of a bridge that were tried again.
        Retries = "retries",
        /// Results that were cast to their tool's output schema.
        Casts = "casts",
        /// The changes that casting made.
        CastChanges = "castChanges",
        /// The issues that were left after casting.
        CastIssues = "castIssues",
    }
}

rows! {
    /// A duration that is measured.
    Measure {
        /// How long recorded requests took, from their enter to their exit.
        Call = "call",
        /// How long requests waited for their tool's lock. Requests that did not wait are not measured.
        LockWait = "lockWait",
        /// How long requests waited in the queue of their server. Requests that did not wait are not measured.
        QueueWait = "queueWait",
        /// How long attempts to start a server took.
        Start = "start",
        /// How long health probes took.
        Probe = "probe",
    }
}

/// The upper bounds of a measure's buckets; longer times go into one more bucket, the last.
pub const BOUNDS: [Duration; 17] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(60),
];

/// The numbers themselves.
pub(crate) struct Metrics {
    counters: [AtomicU64; Counter::ALL.len()],
    measures: [Histogram; Measure::ALL.len()],
}

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; BOUNDS.len() + 1],
    /// The sum of all times, in nanoseconds: 64 bits hold 580 years.
    sum: AtomicU64,
}

/// All metrics at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricsSnapshot {
    counters: [u64; Counter::ALL.len()],
    measures: [Distribution; Measure::ALL.len()],
}

/// The distribution of a measure's times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many times are at most each of [`BOUNDS`] and above the bound before; the last bucket holds those above all
    /// bounds.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// The sum of all times.
    pub sum: Duration,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            counters: std::array::from_fn(|_| AtomicU64::new(0)),
            measures: std::array::from_fn(|_| Histogram::default()),
        }
    }
}

impl Metrics {
    /// Counts a signal.
    #[inline]
    pub(crate) fn count(&self, signal: &Signal<'_>) {
        match signal {
            Signal::CallEntered(call) => {
                self.add(if is_tool(call) { Counter::Calls } else { Counter::Requests });
            }
            Signal::CallEnded(ended) => self.count_end(ended),
            Signal::CallRefused(_, stage) => self.add(match stage {
                Stage::Authorize => Counter::RefusedByPolicy,
                Stage::Limit => Counter::RefusedByLimit,
                Stage::Lock => Counter::RefusedByLock,
                Stage::Check => Counter::RefusedByCheck,
                Stage::Record => Counter::RefusedByRecord,
            }),
            Signal::OutputInvalid { .. } => self.add(Counter::InvalidOutputs),
            Signal::Waited { line, end, waited } => {
                // A request that finds the queue full does not wait.
                if *end != WaitEnd::Full {
                    self.measure(
                        if *line == Line::Lock { Measure::LockWait } else { Measure::QueueWait },
                        *waited,
                    );
                }
                match end {
                    WaitEnd::Turn => {}
                    WaitEnd::Full => self.add(Counter::QueueFull),
                    WaitEnd::TimedOut => self.add(Counter::WaitsTimedOut),
                    WaitEnd::Left => self.add(Counter::WaitsLeft),
                }
            }
            Signal::EnterFailed { .. } => self.add(Counter::AuditEnterFailures),
            Signal::ExitFailed { .. } => self.add(Counter::AuditExitFailures),
            Signal::SinkPanicked(_) => self.add(Counter::AuditPanics),
            Signal::Checkpoint(_) => self.add(Counter::Checkpoints),
            Signal::AuditLag { behind: true } => self.add(Counter::AuditLags),
            Signal::AuditLag { behind: false } => {}
            Signal::SignInRefused { .. } => self.add(Counter::SignInsRefused),
            Signal::AnswerPanicked { .. } | Signal::FrontPanicked(_) => self.add(Counter::Panics),
            Signal::ExecutionEnded(ended) => {
                self.add(Counter::Calls);
                self.measure(Measure::Call, ended.took);
                match ended.outcome {
                    ExecutionOutcome::Result(_) => {}
                    ExecutionOutcome::Failed { .. } => self.add(Counter::Failed),
                    ExecutionOutcome::Cancelled => self.add(Counter::Cancelled),
                }
            }
            Signal::Retry { .. } => self.add(Counter::Retries),
            Signal::Cast { changes, issues } => {
                self.add(Counter::Casts);
                self.add_many(Counter::CastChanges, *changes);
                self.add_many(Counter::CastIssues, *issues);
            }
        }
    }

    fn count_end(&self, ended: &CallEnded<'_>) {
        self.measure(Measure::Call, ended.took);
        let (failed, cancelled) = match is_tool(ended.call) {
            true => (Counter::Failed, Counter::Cancelled),
            false => (Counter::RequestsFailed, Counter::RequestsCancelled),
        };
        match ended.exit.outcome() {
            Outcome::Result { is_error: false, .. } => {}
            Outcome::Result { is_error: true, .. } | Outcome::Error { .. } => self.add(failed),
            Outcome::Cancelled => self.add(cancelled),
        }
    }

    /// Counts a signal of a server.
    pub(crate) fn count_server(&self, signal: &ServerSignal<'_>) {
        match signal {
            ServerSignal::StartBegan => self.add(Counter::Starts),
            ServerSignal::Serves { took, .. } => self.measure(Measure::Start, *took),
            ServerSignal::StartFailed { took, .. } => {
                self.add(Counter::StartsFailed);
                self.measure(Measure::Start, *took);
            }
            ServerSignal::Disconnected(DisconnectReason::Lost(_)) => self.add(Counter::Lost),
            ServerSignal::Disconnected(DisconnectReason::Asked | DisconnectReason::Unused)
            | ServerSignal::Reconnected => {}
            ServerSignal::GivenUp => self.add(Counter::GivenUp),
            ServerSignal::Restart { .. } => self.add(Counter::Restarts),
            ServerSignal::Probe { took, error, .. } => {
                self.measure(Measure::Probe, *took);
                if error.is_some() {
                    self.add(Counter::ProbesFailed);
                }
            }
            ServerSignal::ProcessExited { .. } => self.add(Counter::ProcessExits),
            ServerSignal::Listed { .. } => self.add(Counter::Listings),
            ServerSignal::State(change) => match change {
                StateChange::Ready => self.add(Counter::BecameReady),
                StateChange::Down => self.add(Counter::BecameDown),
                StateChange::Asleep => self.add(Counter::BecameAsleep),
                StateChange::Failed(_) => self.add(Counter::BecameFailed),
                StateChange::Woken
                | StateChange::StartedAnew
                | StateChange::Unlisted
                | StateChange::Spent(_)
                | StateChange::Stopped => {}
            },
        }
    }

    #[inline]
    fn add(&self, counter: Counter) {
        self.counters[counter as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn add_many(&self, counter: Counter, many: usize) {
        let many = u64::try_from(many).unwrap_or(u64::MAX);
        self.counters[counter as usize].fetch_add(many, Ordering::Relaxed);
    }

    #[inline]
    fn measure(&self, measure: Measure, time: Duration) {
        let histogram = &self.measures[measure as usize];
        let bucket = BOUNDS.partition_point(|bound| *bound < time);
        histogram.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        histogram.sum.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(crate) fn snapshot(&self) -> MetricsSnapshot {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        MetricsSnapshot {
            counters: self.counters.each_ref().map(read),
            measures: self.measures.each_ref().map(|histogram| Distribution {
                buckets: histogram.buckets.each_ref().map(read),
                sum: Duration::from_nanos(read(&histogram.sum)),
            }),
        }
    }
}

fn is_tool(call: &Call) -> bool {
    call.about.method.is_none()
}

impl MetricsSnapshot {
    /// The value of a counter.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// The distribution of a measure.
    #[must_use]
    pub fn measure(&self, measure: Measure) -> &Distribution {
        &self.measures[measure as usize]
    }
}

impl Distribution {
    /// How many times were measured.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }
}
