//! The lock of a subject whose requests take turns.
//!
//! First come, first served; principals take turns. A call waits no longer than its own limits allow: another call may
//! hold the lock for long. One that waits for its client makes way for a call of another principal after a while.

use bridgehead_call::Permit;
use bridgehead_events::{Line, Stage, WaitEnd};
use bridgehead_wire::Code;
use tokio::time::Instant;

use super::{Call, CallRecord, Gate, Limits, Place, Subject};
use crate::error::GatewayError;
use crate::relay::queue::Wait;

/// Takes the lock; `None` for a subject whose requests run side by side. The record notes the wait, even if
/// it ends because the client has gone.
pub(super) async fn enter<'c, S: Subject>(
    gate: &Gate,
    call: &'c Call<'_>,
    subject: &S,
    record: &mut CallRecord,
) -> Result<Option<Place<'c, Permit>>, GatewayError> {
    let Some((lock, limits)) = subject.lock(gate) else { return Ok(None) };
    let hold = |permit: Permit| {
        let _ = call.places.lock.set(permit.seat());
        Ok(Some(call.places.hold(permit)))
    };
    let principal = call.caller.principal.id();
    if let Some(permit) = lock.try_take(principal) {
        return hold(permit);
    }
    let mut wait = Wait::new(&gate.signals, Line::Lock, Instant::now(), |queued| record.waited(queued));
    // Boxed: inline, the timer would make the future of every call larger.
    match Box::pin(lock.take(principal, usize::MAX, limits.patience(call))).await {
        Ok(permit) => {
            wait.end = WaitEnd::Turn;
            hold(permit)
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
