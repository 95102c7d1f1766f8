//! Where everything that happens is emitted: from here logs, counters and the bus are fed.
//!
//! Whoever notices something emits one [`Signal`], at one line, and writes no line, adds to no counter and tells no bus
//! of its own. A call emits two of them; each costs a few additions while nobody listens and no line is wanted.

use std::fmt;
use std::sync::Arc;

use bridgehead_call::{CorrelationId, SystemClock};
use tracing::Dispatch;

use crate::Bus;
use crate::metrics::{Metrics, Snapshot};
use crate::signal::{ServerSignal, Signal};

/// Takes what happens, and logs, counts and tells it. Clones are the same.
#[derive(Clone)]
pub struct Signals(Arc<Shared>);

struct Shared {
    metrics: Metrics,
    bus: Bus,
    /// Where what concerns whoever runs the program is logged, in place of the subscriber of the thread.
    logger: Option<Dispatch>,
}

impl Signals {
    /// Counts from zero and tells `bus`. Failures of the record and panics are logged to `logger`, if there is one.
    #[must_use]
    pub fn new(bus: Bus, logger: Option<Dispatch>) -> Self {
        Self(Arc::new(Shared { metrics: Metrics::default(), bus, logger }))
    }

    /// Logs, counts and tells what happened.
    #[inline]
    pub fn emit(&self, signal: &Signal<'_>) {
        self.0.metrics.count(signal);
        signal.log(self.0.logger.as_ref());
        signal.tell(&self.0.bus);
    }

    /// Counts and tells what happened to a server that is called `name` here. Its line is written and its record kept once
    /// for all who share it, by whoever runs it.
    pub fn hear(&self, signal: &ServerSignal<'_>, name: &Arc<str>, cause: CorrelationId) {
        self.0.metrics.count_server(signal);
        signal.tell(&self.0.bus, name, cause);
    }

    /// Where it is told.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// What was counted until now.
    #[must_use]
    pub fn metrics(&self) -> Snapshot {
        self.0.metrics.snapshot()
    }
}

/// A bus of its own, by the clock of the system.
impl Default for Signals {
    fn default() -> Self {
        Self::new(Bus::new(Arc::new(SystemClock::default())), None)
    }
}

impl fmt::Debug for Signals {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Signals").field("bus", &self.0.bus).finish_non_exhaustive()
    }
}
