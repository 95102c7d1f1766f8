//! What servers say outside of any request: that a resource changed, the state of a task, and log lines that belong
//! to no single call.

use std::fmt;
use std::sync::Arc;

use bridgehead_wire::Raw;

/// One such message, as the params of its notification.
#[derive(Debug, Clone)]
pub enum Notice {
    /// A resource has changed.
    Updated(Raw),
    /// The state of a task has changed.
    Task(Raw),
    /// A log line.
    Log(Raw),
}

/// Where a notice comes from.
#[derive(Debug, Clone, Copy)]
pub struct Origin<'a> {
    /// The server's name, as the listener knows it.
    pub server: &'a str,
    /// The session, if the process belongs to a single one.
    pub session: Option<u64>,
}

/// Receives notices. It must not block: the task that reads from a server calls it.
#[derive(Clone)]
pub struct NoticeSink(Arc<Take>);

type Take = dyn Fn(Origin<'_>, &Notice) + Send + Sync;

impl NoticeSink {
    /// Notices go to `take`.
    pub fn new(take: impl Fn(Origin<'_>, &Notice) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    pub(crate) fn give(&self, origin: Origin<'_>, notice: &Notice) {
        (self.0)(origin, notice);
    }
}

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NoticeSink")
    }
}
