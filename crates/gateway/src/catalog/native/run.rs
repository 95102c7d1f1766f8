//! Runs a handler within the limits of its call.
//!
//! PIPE-9: a call may be silent for so long and take so long altogether. Progress restarts the first clock, and
//! both stand still while the client is asked. When the future of the run is dropped, so is the handler's.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use bridgehead_call::Seat;
use bridgehead_wire::Code;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::context::{RunningCall, ToolContext};
use super::handler::{BoundHandler, Named, panicked};
use crate::error::GatewayError;
use crate::gate::{Call, Gate, evicted, made_way};

/// Runs a handler. A failure and a panic of the handler both become `HANDLER_ERROR`.
pub(crate) async fn run<T>(
    gate: &Gate,
    call: &Call<'_>,
    named: Named<'_>,
    bound: BoundHandler<T>,
) -> Result<T, GatewayError> {
    let context = ToolContext::new(gate, call, named.name);
    let end = End(Arc::clone(&context.call));
    // The handler may panic before it returns a future, so it is called inside the guarded block.
    let mut running = pin!(AssertUnwindSafe(async { bound(context).await }).catch_unwind());
    let outcome = loop {
        let Some(deadline) = end.0.deadline(gate.limits) else {
            let mut resting = call.places.lock.get().map(Seat::rest);
            tokio::select! {
                biased;
                outcome = &mut running => break outcome,
                _evicted = evicted(&mut resting) => return Err(made_way(named.kind, named.name)),
                () = end.0.answered() => continue,
            }
        };
        let waiting = tokio::select! {
            biased;
            outcome = tokio::time::timeout_at(deadline, &mut running) => outcome,
            // From now on its lock rests.
            () = end.0.asks(), if call.places.lock.get().is_some() => continue,
        };
        match waiting {
            Ok(outcome) => break outcome,
            // Progress or a question may have moved the deadline meanwhile.
            Err(_) if end.0.deadline(gate.limits).is_some_and(|deadline| deadline <= Instant::now()) => {
                return Err(timed_out(named));
            }
            Err(_) => {}
        }
    };
    match outcome {
        Ok(Ok(data)) => {
            end.0.done();
            Ok(data)
        }
        Ok(Err(failure)) => {
            end.0.done();
            let error = GatewayError::new(Code::HandlerError, failure.message).after_sending();
            Err(match failure.details {
                Some(details) => error.with_details(&details),
                None => error,
            })
        }
        Err(panic) => Err(panicked(named, &*panic, gate.debug_errors)),
    }
}

fn timed_out(Named { kind, name }: Named<'_>) -> GatewayError {
    let message = format!(
        "{kind} `{name}` did not answer in time ({kind} failed: timeout); if it is slow by nature, let it report progress"
    );
    GatewayError::new(Code::ProviderTimeout, message).after_sending()
}

/// Ends the call when its run is over, however that happens.
struct End(Arc<RunningCall>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}
