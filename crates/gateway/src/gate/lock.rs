//! The lock of a subject whose requests take turns.
//!
//! First come, first served. A call waits no longer than its own limits allow: another call may hold the lock
//! for long, for example while it is parked for its client.

use bridgehead_events::{Line, Stage, WaitEnd};
use bridgehead_wire::Code;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::{Call, CallRecord, Gate, Limits, Subject};
use crate::error::GatewayError;
use crate::relay::queue::Wait;

/// Takes the lock; `None` for a subject whose requests run side by side. The record notes the wait, even if
/// it ends because the client has gone.
pub(super) async fn enter<'s, S: Subject>(
    gate: &Gate,
    call: &Call<'_>,
    subject: &'s S,
    record: &mut CallRecord,
) -> Result<Option<MutexGuard<'s, ()>>, GatewayError> {
    let Some((lock, limits)) = subject.lock(gate) else { return Ok(None) };
    // Succeeds only if no call waits: the mutex is fair.
    if let Ok(held) = lock.try_lock() {
        return Ok(Some(held));
    }
    let mut wait = Wait::new(&gate.signals, Line::Lock, Instant::now(), |queued| record.waited(queued));
    // Boxed: inline, the timer would make the future of every call larger.
    match Box::pin(tokio::time::timeout_at(limits.patience(call), lock.lock())).await {
        Ok(held) => {
            wait.end = WaitEnd::Turn;
            Ok(Some(held))
        }
        Err(_) => {
            wait.end = WaitEnd::TimedOut;
            drop(wait);
            record.refused(Stage::Lock);
            let message = format!(
                "tool `{}` was not called: its calls take turns, and no turn came within {} ms; try again later",
                subject.name(),
                call.began.elapsed().as_millis()
            );
            Err(GatewayError::new(Code::ProviderUnavailable, message))
        }
    }
}

impl Limits {
    /// The deadline of any wait before the call is sent: the silence limit from now, but never past the
    /// call's total limit.
    pub(super) fn patience(self, call: &Call<'_>) -> Instant {
        (Instant::now() + self.silent).min(call.began + self.total)
    }
}
