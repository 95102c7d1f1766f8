//! Time that moves only when a test says so.
//!
//! Both clocks move together with [`FakeClock::advance`]; the wall clock alone may be set,
//! also back, as an administrator does. The monotonic clock never goes back.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Clock;
use jiff::Timestamp;
use parking_lot::Mutex;

/// A clock advanced by hand. Clones show the same time.
#[derive(Debug, Clone)]
pub struct FakeClock(Arc<Mutex<(Timestamp, Duration)>>);

impl FakeClock {
    /// A clock that stands at 2026-01-01T00:00:00Z, its monotonic reading at zero.
    pub fn new() -> Self {
        let start = Timestamp::from_second(1_767_225_600).expect("a second of this century");
        Self::at(start)
    }

    /// A clock that stands at a given time of day, its monotonic reading at zero.
    pub fn at(wall: Timestamp) -> Self {
        Self(Arc::new(Mutex::new((wall, Duration::ZERO))))
    }

    /// Moves both clocks on.
    pub fn advance(&self, by: Duration) {
        let mut time = self.0.lock();
        time.0 = time.0.checked_add(by).expect("a time that can be written");
        time.1 += by;
    }

    /// Sets the wall clock alone.
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

/// While this lives the paused clock of a runtime stands still, although the runtime is idle: it would jump ahead to the
/// next timer otherwise, also while the bytes of a socket are still on their way. So a test with real sockets can show
/// that nothing waited for a timer. After a minute of real time it lets go, so that what does wait fails instead of
/// hanging.
#[derive(Debug)]
pub struct Standstill {
    _ends: std::sync::mpsc::Sender<()>,
}

impl Standstill {
    /// Stops the clock of the current runtime, which must be paused and have one thread.
    pub fn begin() -> Self {
        let (ends, ended) = std::sync::mpsc::channel::<()>();
        // The clock of a runtime does not move ahead by itself while there is work outside of it.
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
