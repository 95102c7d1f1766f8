//! What is counted and measured: the one place for a metric.
//!
//! A new one is a row of [`Counter`] or [`Measure`], and a line in [`Metrics::count`] or [`Metrics::count_server`] that
//! says which signal feeds it. Numbers are added without locks and only grow; a reader may see one of two that belong
//! together before the other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_call::{Call, Outcome};

use crate::signal::{
    CallEnded, Change, ExecutionOutcome, Line, Parting, ServerSignal, Signal, Stage, WaitEnd,
};

/// Declares what there is to count or to measure: a variant, and its name in what operators see.
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

            /// As operators see it.
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
    /// What is counted.
    Counter {
        /// Calls of tools that reached the gate.
        Calls = "calls",
        /// Those of them that failed, also in the words of their tool.
        Failed = "failed",
        /// Those that their client did not wait for.
        Cancelled = "cancelled",
        /// Recorded requests other than calls of tools.
        Requests = "requests",
        /// Those of them that failed.
        RequestsFailed = "requestsFailed",
        /// Those that their client did not wait for.
        RequestsCancelled = "requestsCancelled",
        /// Recorded requests that their principal may not make.
        RefusedByPolicy = "refusedByPolicy",
        /// Those that were one too many.
        RefusedByLimit = "refusedByLimit",
        /// Those that did not get their tool's lock.
        RefusedByLock = "refusedByLock",
        /// Those that the checks turned away: no such thing, or arguments that do not fit.
        RefusedByCheck = "refusedByCheck",
        /// Those that were not made because they could not be recorded.
        RefusedByRecord = "refusedByRecord",
        /// Results that do not fit what their tool promises.
        InvalidOutputs = "invalidOutputs",
        /// Enter events that were not recorded.
        AuditEnterFailures = "auditEnterFailures",
        /// Exit events that were not recorded.
        AuditExitFailures = "auditExitFailures",
        /// Panics of the audit sink.
        AuditPanics = "auditPanics",
        /// Statements over the record.
        Checkpoints = "checkpoints",
        /// How often rows began to wait in the journal because the store took none.
        AuditLags = "auditLags",
        /// Requests that were turned away before they were read: wrong credentials, host or origin.
        SignInsRefused = "signInsRefused",
        /// Panics while a client was served.
        Panics = "panics",
        /// Requests that a full queue turned away.
        QueueFull = "queueFull",
        /// Requests whose turn did not come in time.
        WaitsTimedOut = "waitsTimedOut",
        /// Requests that were given up while they waited for their turn.
        WaitsLeft = "waitsLeft",
        /// Attempts to start a server.
        Starts = "starts",
        /// Those of them that failed.
        StartsFailed = "startsFailed",
        /// Servers that were lost while they served.
        Lost = "lost",
        /// Restarts that were due.
        Restarts = "restarts",
        /// Servers that were given up.
        GivenUp = "givenUp",
        /// Health probes that failed.
        ProbesFailed = "probesFailed",
        /// Processes of servers that ended.
        ProcessExits = "processExits",
        /// How often the tools of a server were listed.
        Listings = "listings",
        /// How often a server began to serve.
        BecameReady = "becameReady",
        /// How often one was down, to be brought back.
        BecameDown = "becameDown",
        /// How often one went to sleep.
        BecameAsleep = "becameAsleep",
        /// How often one was down for good.
        BecameFailed = "becameFailed",
        /// Calls of a bridge that were tried again.
        Retries = "retries",
        /// Results that were cast to what their tool promises.
        Casts = "casts",
        /// The changes that this took.
        CastChanges = "castChanges",
        /// What still did not fit then.
        CastIssues = "castIssues",
    }
}

rows! {
    /// What is measured, in time.
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

/// The longest times of the buckets of a measure; what took longer than all of them has a bucket of its own, the last.
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
    /// All times together, in nanoseconds: as many as fit are 580 years.
    sum: AtomicU64,
}

/// What was counted and measured until one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    counters: [u64; Counter::ALL.len()],
    measures: [Distribution; Measure::ALL.len()],
}

/// How the times of a measure are spread.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Distribution {
    /// How many took no longer than each of [`BOUNDS`] and longer than the one before; in the last, than all.
    pub buckets: [u64; BOUNDS.len() + 1],
    /// All of them together.
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
    /// Says what each signal counts.
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
                // Whoever finds the queue full does not wait.
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

    /// Says what each signal of a server counts.
    pub(crate) fn count_server(&self, signal: &ServerSignal<'_>) {
        match signal {
            ServerSignal::StartBegan => self.add(Counter::Starts),
            ServerSignal::Serves { took, .. } => self.measure(Measure::Start, *took),
            ServerSignal::StartFailed { took, .. } => {
                self.add(Counter::StartsFailed);
                self.measure(Measure::Start, *took);
            }
            ServerSignal::Disconnected(Parting::Lost(_)) => self.add(Counter::Lost),
            ServerSignal::Disconnected(Parting::Asked | Parting::Unused) | ServerSignal::Reconnected => {}
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
                Change::Ready => self.add(Counter::BecameReady),
                Change::Down => self.add(Counter::BecameDown),
                Change::Asleep => self.add(Counter::BecameAsleep),
                Change::Failed(_) => self.add(Counter::BecameFailed),
                Change::Woken
                | Change::StartedAnew
                | Change::Unlisted
                | Change::Spent(_)
                | Change::Stopped => {}
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

    pub(crate) fn snapshot(&self) -> Snapshot {
        let read = |number: &AtomicU64| number.load(Ordering::Relaxed);
        Snapshot {
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

impl Snapshot {
    /// How much was counted.
    #[must_use]
    pub fn count(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// What was measured.
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
