//! Where time comes from: the wall clock for people, the monotonic clock for durations.
//!
//! Everything that measures takes a [`Clock`], so that a test can decide what time it is.

use std::time::{Duration, Instant};

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// UTC time of day, as a person would read it; it may jump when the machine's clock is set.
    pub wall: jiff::Timestamp,
    /// Time since the clock's fixed but arbitrary origin; it never goes back.
    pub monotonic: Duration,
}

/// A source of time.
pub trait Clock: Send + Sync + 'static {
    /// The time of day in UTC.
    fn wall(&self) -> jiff::Timestamp;

    /// The time since an origin that stays fixed for the life of this clock.
    fn monotonic(&self) -> Duration;

    /// Both readings at once.
    fn now(&self) -> Moment {
        Moment { wall: self.wall(), monotonic: self.monotonic() }
    }
}

/// The machine's own clocks; the monotonic origin is the construction of this value.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    origin: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time starts now.
    #[must_use]
    pub fn new() -> Self {
        Self { origin: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> jiff::Timestamp {
        jiff::Timestamp::now()
    }

    fn monotonic(&self) -> Duration {
        self.origin.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AUD-1: monotonic time, from which durations are taken, counts from the clock's origin.
    #[test]
    fn monotonic_time_counts_from_the_origin() {
        let clock = SystemClock { origin: Instant::now().checked_sub(Duration::from_secs(5)).unwrap() };
        let (first, now) = (clock.monotonic(), clock.now());
        assert!((5..60).contains(&first.as_secs()), "{first:?}");
        assert!(now.monotonic >= first);
    }
}
