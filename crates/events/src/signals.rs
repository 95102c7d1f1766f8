//! Takes every signal and feeds logs, counters and the bus from it.
//!
//! The code that notices something emits one [`Signal`], at one line, and does no logging, counting or publishing itself.
//! A call emits two signals; each costs a few additions while there is no subscriber and no line is wanted.

use std::fmt;
use std::sync::Arc;

use bridgehead_call::{CorrelationId, SystemClock};
use tracing::Dispatch;

use crate::Bus;
use crate::metrics::{Metrics, MetricsSnapshot};
use crate::signal::{ServerSignal, Signal};

/// Logs, counts and publishes signals. Clones share the same counters and bus.
#[derive(Clone)]
pub struct Signals(Arc<Shared>);

struct Shared {
    metrics: Metrics,
    bus: Bus,
    /// Where failures that concern the operator are logged, instead of the thread's subscriber.
    logger: Option<Dispatch>,
}

impl Signals {
    /// Counts from zero and publishes on `bus`. Failures of the record and panics are logged to `logger`, if there is one.
    #[must_use]
    pub fn new(bus: Bus, logger: Option<Dispatch>) -> Self {
        Self(Arc::new(Shared { metrics: Metrics::default(), bus, logger }))
    }

    /// Logs, counts and publishes a signal.
    #[inline]
    pub fn emit(&self, signal: &Signal<'_>) {
        self.0.metrics.count(signal);
        signal.log(self.0.logger.as_ref());
        signal.tell(&self.0.bus);
    }

    /// Counts and publishes a signal of a server that is called `name` here. Its supervisor logs and records it, once for
    /// all gateways that share the server.
    pub fn hear(&self, signal: &ServerSignal<'_>, name: &Arc<str>, cause: CorrelationId) {
        self.0.metrics.count_server(signal);
        signal.tell(&self.0.bus, name, cause);
    }

    /// The bus that events are published on.
    #[must_use]
    pub fn bus(&self) -> &Bus {
        &self.0.bus
    }

    /// The metrics until now.
    #[must_use]
    pub fn metrics(&self) -> MetricsSnapshot {
        self.0.metrics.snapshot()
    }
}

/// With its own bus and the system clock.
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
