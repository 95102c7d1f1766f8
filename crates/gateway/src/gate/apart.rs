//! Work that would hold up a thread which serves others: it runs on a thread of its own, and little of it at once.

use std::sync::Arc;

use bridgehead_wire::Code;
use tokio::sync::Semaphore;

use super::{Call, Gate, Limits};
use crate::error::CallError;

/// How much of it runs at once, whatever the machine has.
const MOST: usize = 4;

/// The places for such work.
pub(crate) fn places() -> Arc<Semaphore> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Arc::new(Semaphore::new(share(threads)))
}

/// How many of a machine's threads such work may have; half of them are left to those who serve.
fn share(threads: usize) -> usize {
    (threads / 2).clamp(1, MOST)
}

impl Gate {
    /// Runs `work` apart. Whoever waits for a place does so on the clocks of the call. A call that is dropped leaves
    /// its work to its end, which still counts.
    pub(crate) async fn apart<T: Send + 'static>(
        &self,
        call: &Call<'_>,
        (tool, limits): (&str, Limits),
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, CallError> {
        let waiting = tokio::time::timeout_at(limits.patience(call), Arc::clone(&self.apart).acquire_owned());
        // A semaphore that is never closed gives a permit.
        let Ok(Ok(place)) = waiting.await else {
            let message = format!(
                "tool `{tool}`: a large check against its schema had to wait for others for too long; try again later"
            );
            return Err(CallError::new(Code::ProviderUnavailable, message));
        };
        let done = tokio::task::spawn_blocking(move || {
            let _place = place;
            work()
        });
        done.await
            .map_err(|error| CallError::new(Code::HandlerError, format!("a check did not end: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Half of the machine, but one place at the least and four at the most.
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
