//! Runs a handler within the limits of its call.
//!
//! PIPE-9: a call may be silent for so long and take so long altogether. Progress restarts the first clock, and
//! both stand still while the client is asked. When the future of the run is dropped, so is the handler's.
//!
//! A handler that blocks holds up its thread and nothing else, if the runtime has other threads.

use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;

use bridgehead_call::Seat;
use bridgehead_wire::Code;
use futures_util::FutureExt;
use tokio::runtime::{Handle, RuntimeFlavor};
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
    let mut handled = pin!(async { bound(context).await });
    let polled = poll_fn(|context| {
        make_way();
        handled.as_mut().poll(context)
    });
    let mut running = pin!(AssertUnwindSafe(polled).catch_unwind());
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

/// Hands over to another thread what this one would do besides running a handler, because the handler may block.
///
/// A thread of the runtime that was woken by a timer or a socket goes on with the task that waited for it, and wakes no other
/// thread. If that task blocks, nobody looks at timers and sockets, and everything stands still until some other thread happens to
/// be woken. The same goes for a task that was just woken here, which the runtime keeps for this thread. A second new task pushes
/// the first out of that place, and so wakes a thread that takes it and then looks at timers and sockets.
fn make_way() {
    let others =
        Handle::try_current().ok().filter(|own| own.runtime_flavor() != RuntimeFlavor::CurrentThread);
    if let Some(runtime) = others {
        drop(runtime.spawn(std::future::ready(())));
        drop(runtime.spawn(std::future::ready(())));
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
