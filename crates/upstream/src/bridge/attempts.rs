//! Retries: how many, and how long to pause between them.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// The most attempts for one call.
pub const DEFAULT_ATTEMPTS: u32 = 3;
/// The pause after the first attempt; it doubles after each further attempt.
pub const BACKOFF_BASE: Duration = Duration::from_millis(1_000);

/// Waits for a duration. It is injected so that tests need not wait.
#[derive(Clone)]
pub struct Sleep(Arc<dyn Fn(Duration) -> Slept + Send + Sync>);

type Slept = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Sleep {
    /// Any function that waits.
    pub fn new<F>(sleep: impl Fn(Duration) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self(Arc::new(move |pause| Box::pin(sleep(pause))))
    }

    pub(super) async fn for_a(&self, pause: Duration) {
        (self.0)(pause).await;
    }
}

impl Default for Sleep {
    fn default() -> Self {
        Self::new(tokio::time::sleep)
    }
}

impl fmt::Debug for Sleep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sleep")
    }
}

/// The pause after attempt `number` (from 1): it doubles each time. The wait that an HTTP server asks for with
/// `Retry-After` happens inside the attempt instead.
pub(super) fn pause(number: u32, base: Duration) -> Duration {
    base.saturating_mul(2_u32.saturating_pow(number.saturating_sub(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// BRG-3: 1 s, then 2 s, without jitter.
    #[test]
    fn pauses_double() {
        assert_eq!([1, 2, 3].map(|number| pause(number, BACKOFF_BASE).as_secs()), [1, 2, 4]);
        assert!(pause(u32::MAX, BACKOFF_BASE) > Duration::from_secs(1 << 30));
    }
}
