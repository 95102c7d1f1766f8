//! Runs long checks on threads of their own, a few at once, so that they do not hold up threads that serve
//! calls.

use std::sync::Arc;

use bridgehead_wire::Code;
use tokio::sync::Semaphore;

use super::{Call, Gate, Limits};
use crate::error::GatewayError;

/// How many run at once at most, on any machine.
const MOST: usize = 4;

/// The permits for such work.
pub(crate) fn places() -> Arc<Semaphore> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new(share(threads)))
}

/// How many permits a machine with this many threads gets: half of them, at least one and at most [`MOST`].
fn share(threads: usize) -> usize {
    (threads / 2).clamp(1, MOST)
}

impl Gate {
    /// Runs `work` on another thread. Waiting for a permit counts against the limits of the call. If the call
    /// is dropped, its work still runs to its end and keeps its permit until then.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        call: &Call<'_>,
        (tool, limits): (&str, Limits),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, GatewayError> {
        let waiting = tokio::time::timeout_at(limits.patience(call), Arc::clone(&self.apart).acquire_owned());
        // The semaphore is never closed, so only the timeout can fail here.
        let Ok(Ok(place)) = waiting.await else {
            let message = format!(
                "tool `{tool}`: a large check against its schema had to wait for others too long; try again later"
            );
            return Err(GatewayError::new(Code::ProviderUnavailable, message));
        };
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        let unfinished = |error| format!("a check failed to finish: {error}");
        done.await.map_err(|error| GatewayError::new(Code::HandlerError, unfinished(error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the threads, but at least one and at most four.
    #[test]
    fn half_of_the_machine_is_left() {
        #[track_caller]
        fn check(threads: usize, expected: usize) {
            assert_eq!(share(threads), expected, "{threads} threads");
        }
        check(1, 1);
        check(2, 1);
        check(3, 1);
        check(4, 2);
        check(6, 3);
        check(7, 3);
        check(8, 4);
        check(64, 4);
    }
}
