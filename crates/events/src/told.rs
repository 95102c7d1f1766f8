//! Builds the event that each signal publishes on the bus, if any. An event is built only if there is a
//! subscriber.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::{CorrelationId, Outcome};
use bridgehead_wire::Redactor;

use crate::log::CANCELLED;
use crate::signal::{CallEnded, CheckpointMade, ExecutionEnded, ExecutionOutcome, ServerSignal, Signal};
use crate::{Asked, AskedBy, Bus, Detail, Excerpt, InitOutcome};

impl Signal<'_> {
    /// Publishes its event on `bus`, if it has one and there is a subscriber.
    #[inline]
    pub(crate) fn tell(&self, bus: &Bus) {
        match self {
            Self::CallEntered(_)
            | Self::CallRefused(..)
            | Self::OutputInvalid { .. }
            | Self::Waited { .. }
            | Self::EnterFailed { .. }
            | Self::ExitFailed { .. }
            | Self::SinkPanicked(_)
            | Self::AuditLag { .. }
            | Self::SignInRefused { .. }
            | Self::AnswerPanicked { .. }
            | Self::FrontPanicked(_)
            | Self::Retry { .. }
            | Self::Cast { .. } => {}
            Self::CallEnded(ended) => {
                bus.tell(ended.call.correlation, ended.call.server.as_ref(), || ended.detail());
            }
            Self::Checkpoint(checkpoint) => bus.tell(CorrelationId::mint(), None, || checkpoint.detail()),
            Self::ExecutionEnded(ended) => bus.tell(ended.correlation, ended.server, || ended.detail()),
        }
    }
}

impl CallEnded<'_> {
    /// A tool that returns `isError` has completed: the error text is its result.
    fn detail(&self) -> Detail {
        let (call, redactor) = (self.call, Redactor::default());
        let about = match call.about.method {
            None => Asked::Tool(Arc::clone(&call.tool)),
            Some(method) => Asked::Method(method, call.about.subject.clone().unwrap_or_default()),
        };
        let client = call.about.client.as_deref().map(|client| Excerpt::new(&redactor, client));
        let by = Some(AskedBy { principal: Arc::clone(&call.principal), client });
        let (code, retryable, message) = match self.exit.outcome() {
            Outcome::Result { body, .. } => {
                let shown = redactor.paths(call.subject(), body);
                let summary = Excerpt::new(&redactor, &String::from_utf8_lossy(&shown));
                return Detail::Completed { about, by, summary, duration_ms: self.exit.duration_ms() };
            }
            Outcome::Error { code, message, .. } => (code.clone(), self.retryable, message.as_str()),
            Outcome::Cancelled => (Cow::Borrowed(CANCELLED), false, "the client no longer wants the answer"),
        };
        Detail::Failed { about, by, code, retryable, message: Excerpt::new(&redactor, message) }
    }
}

impl CheckpointMade<'_> {
    fn detail(&self) -> Detail {
        Detail::AuditCheckpoint {
            segment: self.segment.to_owned(),
            count: self.count,
            root: self.root.to_string(),
            head: self.head.to_string(),
            sealed: self.sealed,
        }
    }
}

impl ExecutionEnded<'_> {
    fn detail(&self) -> Detail {
        let (about, redactor) = (Asked::Tool(self.tool.into()), Redactor::default());
        let (code, retryable, message) = match self.outcome {
            ExecutionOutcome::Result(result) => {
                let summary = Excerpt::new(&redactor, result);
                return Detail::Completed { about, by: None, summary, duration_ms: milliseconds(self.took) };
            }
            ExecutionOutcome::Failed { code, retryable, message } => (code, retryable, message),
            ExecutionOutcome::Cancelled => (CANCELLED, false, "the caller no longer wants the answer"),
        };
        let message = Excerpt::new(&redactor, message);
        Detail::Failed { about, by: None, code: Cow::Borrowed(code), retryable, message }
    }
}

impl ServerSignal<'_> {
    /// Publishes its event on `bus`, under `name` for the server, if it has one and there is a
    /// subscriber.
    pub(crate) fn tell(&self, bus: &Bus, name: &Arc<str>, cause: CorrelationId) {
        if bus.is_watched()
            && let Some(detail) = self.detail()
        {
            bus.tell(cause, Some(name), || detail);
        }
    }

    /// The event that the bus publishes and the server's record keeps.
    #[must_use]
    pub fn detail(&self) -> Option<Detail> {
        let excerpt = |text: &str| Excerpt::new(&Redactor::default(), text);
        Some(match self {
            Self::StartBegan => Detail::InitStarted,
            Self::Serves { tools, took, .. } => Detail::InitFinished {
                outcome: InitOutcome::Ready,
                tools: tools.len(),
                duration_ms: milliseconds(*took),
                error: None,
            },
            Self::StartFailed { reason, took, .. } => Detail::InitFinished {
                outcome: InitOutcome::Failed,
                tools: 0,
                duration_ms: milliseconds(*took),
                error: Some(excerpt(reason)),
            },
            Self::Disconnected(_) => Detail::Disconnected,
            Self::Reconnected => Detail::Reconnected,
            Self::GivenUp => Detail::ReconnectExhausted,
            Self::Restart { attempt, delay, reason } => {
                Detail::Restart { attempt: *attempt, delay_ms: milliseconds(*delay), reason: excerpt(reason) }
            }
            Self::Probe { kind, took, error } => {
                Detail::Probe { kind: *kind, duration_ms: milliseconds(*took), error: error.map(excerpt) }
            }
            Self::ProcessExited { pid, status, reason } => {
                Detail::ProcessExited { pid: *pid, status: status.to_string(), reason: excerpt(reason) }
            }
            Self::Listed { before: None, now } => {
                Detail::ToolsDiscovered { names: now.iter().map(|name| Arc::from(*name)).collect() }
            }
            Self::Listed { before: Some(before), now } => refreshed(before, now),
            Self::State(_) => return None,
        })
    }
}

/// The tools now, compared with before.
fn refreshed(before: &[&str], now: &[&str]) -> Detail {
    let (old, new): (HashSet<_>, HashSet<_>) = (before.iter().collect(), now.iter().collect());
    let only = |these: &[&str], others: &HashSet<&&str>| {
        these.iter().filter(|name| !others.contains(name)).map(|name| Arc::from(*name)).collect()
    };
    Detail::ToolsRefreshed {
        added: only(now, &old),
        removed: only(before, &new),
        unchanged: now.iter().filter(|name| old.contains(name)).count(),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
