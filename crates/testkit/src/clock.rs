//! Time that moves only when a test moves it.
//!
//! [`FakeClock::advance`] moves both clocks together. The wall clock alone may be set, also back, as an administrator
//! does. The monotonic clock never goes back.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Clock;
use jiff::Timestamp;
use parking_lot::Mutex;

/// A clock that a test advances. Clones show the same time.
#[derive(Debug, Clone)]
pub struct FakeClock(Arc<Mutex<(Timestamp, Duration)>>);

impl FakeClock {
    /// A clock stopped at 2026-01-01T00:00:00Z, with its monotonic reading at zero.
    pub fn new() -> Self {
        let start = Timestamp::from_second(1_767_225_600).expect("a second of this century");
        Self::at(start)
    }

    /// A clock stopped at the given time, with its monotonic reading at zero.
    pub fn at(wall: Timestamp) -> Self {
        Self(Arc::new(Mutex::new((wall, Duration::ZERO))))
    }

    /// Advances both clocks.
    pub fn advance(&self, by: Duration) {
        let mut time = self.0.lock();
        time.0 = time.0.checked_add(by).expect("a time that can be written");
        time.1 += by;
    }

    /// Sets only the wall clock.
    pub fn set_wall(&self, to: Timestamp) {
        self.0.lock().0 = to;
    }
}

impl Default for FakeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for FakeClock {
    fn wall(&self) -> Timestamp {
        self.0.lock().0
    }

    fn monotonic(&self) -> Duration {
        self.0.lock().1
    }
}

/// While this value lives, the runtime's paused clock stands still even if the runtime is idle. Otherwise the clock
/// would jump to the next timer, even while bytes of a socket are in transit. A test with real sockets can thus show
/// that nothing waited for a timer. After a minute of real time it releases the clock, so that a test that does wait
/// fails instead of hanging.
#[derive(Debug)]
pub struct FrozenClock {
    _ends: std::sync::mpsc::Sender<()>,
}

impl FrozenClock {
    /// Stops the clock of the current runtime, which must be paused and have one thread.
    pub fn begin() -> Self {
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        // A runtime's clock does not advance by itself while a blocking task runs.
        drop(tokio::task::spawn_blocking(move || ended.recv_timeout(Duration::from_secs(60)).is_err()));
        Self { _ends: ends }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_only_when_told() {
        let clock = FakeClock::new();
        let twin = clock.clone();
        assert_eq!(clock.wall().to_string(), "2026-01-01T00:00:00Z");
        assert_eq!(clock.monotonic(), Duration::ZERO);

        clock.advance(Duration::from_millis(1_500));
        assert_eq!(twin.wall().to_string(), "2026-01-01T00:00:01.5Z");
        assert_eq!(twin.monotonic(), Duration::from_millis(1_500));

        clock.set_wall("1999-01-01T00:00:00Z".parse().unwrap());
        assert_eq!(twin.wall().to_string(), "1999-01-01T00:00:00Z");
        assert_eq!(twin.monotonic(), Duration::from_millis(1_500));
    }
}
