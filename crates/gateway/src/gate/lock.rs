//! Stage one: the turn of a tool whose calls take turns.
//!
//! Whoever comes first goes first. A waiter waits on the clocks of its own call and no longer: whoever holds the turn may
//! hold it for long, a call that is parked for its client among them.

use bridgehead_wire::Code;
use tokio::sync::MutexGuard;
use tokio::time::Instant;

use super::record::CallRecord;
use super::{Call, Gate};
use crate::catalog::Target;
use crate::error::CallError;
use crate::relay::queue::Wait;

/// The turn, for as long as it is kept. None for a tool whose calls run side by side. A wait is noted in the record,
/// also one that ends because the client has gone.
pub(super) async fn enter<'c>(
    gate: &Gate,
    call: &'c Call<'_>,
    record: &mut CallRecord,
) -> Result<Option<MutexGuard<'c, ()>>, CallError> {
    let Some(lock) = call.route.as_ref().ok().and_then(|route| route.lock.as_ref()) else { return Ok(None) };
    // Free only if nobody waits: it goes from hand to hand.
    if let Ok(lock) = lock.try_lock() {
        return Ok(Some(lock));
    }
    let _waiting = Wait::new(Instant::now(), |queued| record.waited(queued));
    // In a box: the timer would make the future of every call larger.
    match Box::pin(tokio::time::timeout_at(gate.patience(call), lock.lock())).await {
        Ok(lock) => Ok(Some(lock)),
        Err(_) => {
            let message = format!(
                "tool `{}` was not called: its calls take turns, and none came within {} ms; try again later",
                call.tool,
                call.began.elapsed().as_millis()
            );
            Err(CallError::new(Code::ProviderUnavailable, message))
        }
    }
}

impl Gate {
    /// Until when a call waits for whatever comes before it is sent: silent for as long as it may be, and never past
    /// its end.
    pub(super) fn patience(&self, call: &Call<'_>) -> Instant {
        let (silent, total) = match call.route.as_ref().map(|route| &route.target) {
            Ok(Target::Upstream { upstream, .. }) => {
                let limits = upstream.config();
                (limits.request_timeout, limits.max_total)
            }
            _ => self.limits,
        };
        (Instant::now() + silent).min(call.began + total)
    }
}
