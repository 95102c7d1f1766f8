//! The lock of a subject whose requests take turns.
//!
//! Whoever comes first goes first. A waiter waits on the clocks of its own call and no longer: whoever holds the lock may
//! hold it for long, a call that is parked for its client among them.

use bridgehead_events::{Line, Stage, WaitEnd};
use bridgehead_wire::Code;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::{Call, CallRecord, Gate, Limits, Subject};
use crate::error::CallError;
use crate::relay::queue::Wait;

/// The lock, for as long as it is kept. None for what runs side by side. A wait is noted in the record, also one that ends
/// because the client has gone.
pub(super) async fn enter<'s, S: Subject>(
    gate: &Gate,
    call: &Call<'_>,
    subject: &'s S,
    record: &mut CallRecord,
) -> Result<Option<MutexGuard<'s, ()>>, CallError> {
    let Some((lock, limits)) = subject.lock(gate) else { return Ok(None) };
    // Free only if nobody waits: it goes from hand to hand.
    if let Ok(held) = lock.try_lock() {
        return Ok(Some(held));
    }
    let mut wait = Wait::new(&gate.signals, Line::Lock, Instant::now(), |queued| record.waited(queued));
    // In a box: the timer would make the future of every call larger.
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
                "tool `{}` was not called: its calls take turns, and none came within {} ms; try again later",
                subject.name(),
                call.began.elapsed().as_millis()
            );
            Err(CallError::new(Code::ProviderUnavailable, message))
        }
    }
}

impl Limits {
    /// Until when a call waits for whatever comes before it is sent: silent for as long as it may be, and never past
    /// its end.
    pub(super) fn patience(self, call: &Call<'_>) -> Instant {
        (Instant::now() + self.silent).min(call.began + self.total)
    }
}
