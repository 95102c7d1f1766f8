//! The generic cell rate algorithm: one atomic number per key says when the key is fully recovered.
//!
//! Each admitted request moves that time one interval into the future. A request is refused if the time would then be more
//! than `burst` intervals ahead. So `burst` requests may come at once, then one per interval. A cell that is not used
//! recovers by itself, and a recovered cell is the same as a new one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_config::Rate;

/// How far one request moves the time, and how far ahead it may be. Both in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    interval: u64,
    ahead: u64,
}

/// When a key is fully recovered, in nanoseconds of the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Cell(AtomicU64);

impl Pace {
    pub(super) fn new(rate: Rate) -> Self {
        let interval = (nanoseconds(rate.per) / u64::from(rate.count.get())).max(1);
        Self { interval, ahead: interval.saturating_mul(u64::from(rate.burst.get())) }
    }

    /// Counts a request, or says how long it has to wait.
    pub(super) fn take(self, cell: &Cell, now: Duration) -> Result<(), Duration> {
        let now = nanoseconds(now);
        let after = |recovered: u64| recovered.max(now).saturating_add(self.interval);
        let taken = cell.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |recovered| {
            Some(after(recovered)).filter(|after| after - now <= self.ahead)
        });
        match taken {
            Ok(_) => Ok(()),
            Err(recovered) => Err(Duration::from_nanos(after(recovered) - now - self.ahead)),
        }
    }

    /// Takes back a request that was counted just now.
    pub(super) fn give_back(self, cell: &Cell) {
        let back = |recovered: u64| Some(recovered.saturating_sub(self.interval));
        let _ = cell.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
    }
}

impl Cell {
    /// Whether it is fully recovered.
    pub(super) fn is_recovered(&self, now: Duration) -> bool {
        self.0.load(Ordering::Relaxed) <= nanoseconds(now)
    }
}

/// Enough for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn pace(count: u32, per: Duration, burst: u32) -> Pace {
        let at_least_one = |number| NonZeroU32::new(number).unwrap();
        Pace::new(Rate { count: at_least_one(count), per, burst: at_least_one(burst) })
    }

    /// ACC-5 (case 27): a burst at once, then one per interval; a refusal says when the next may come.
    #[test]
    fn a_burst_then_the_rate() {
        let (pace, cell) = (pace(60, Duration::from_secs(60), 3), Cell::default());
        let at = Duration::from_millis;
        for _ in 0..3 {
            assert_eq!(pace.take(&cell, at(10_000)), Ok(()));
        }
        assert_eq!(pace.take(&cell, at(10_000)), Err(at(1000)));
        assert_eq!(pace.take(&cell, at(10_999)), Err(at(1)));
        assert_eq!(pace.take(&cell, at(11_000)), Ok(()));
        assert_eq!(pace.take(&cell, at(11_000)), Err(at(1000)));
        pace.give_back(&cell);
        assert_eq!(pace.take(&cell, at(11_000)), Ok(()), "what was given back can be taken again");
        assert!(!cell.is_recovered(at(13_999)) && cell.is_recovered(at(14_000)));
    }

    /// Settings at the ends of their ranges neither overflow nor divide to nothing.
    #[test]
    fn extreme_rates() {
        let long = pace(1, Duration::from_secs(u64::MAX), u32::MAX);
        let cell = Cell::default();
        assert_eq!(long.take(&cell, Duration::ZERO), Ok(()));
        assert_eq!(long.take(&cell, Duration::MAX), Ok(()));
        let fast = pace(u32::MAX, Duration::from_nanos(1), 1);
        assert_eq!(fast.take(&Cell::default(), Duration::ZERO), Ok(()));
    }

    /// A bucket that drains: what the algorithm must equal.
    struct Bucket {
        level: u64,
        last: u64,
    }

    proptest! {
        /// ACC-5: it admits what a bucket admits that holds `burst` requests and drains by one per interval. Whoever waits
        /// as long as a refusal says is admitted, and whoever waits less is not.
        #[test]
        fn it_equals_a_draining_bucket(
            count in 1_u32..100, per in 1_u64..10_000, burst in 1_u32..20,
            steps in proptest::collection::vec(0_u64..3_000_000_000, 1..100),
        ) {
            let (pace, cell) = (pace(count, Duration::from_millis(per), burst), Cell::default());
            let (mut bucket, mut now) = (Bucket { level: 0, last: 0 }, 0);
            for step in steps {
                now += step;
                bucket.level = bucket.level.saturating_sub(now - bucket.last);
                bucket.last = now;
                let fits = bucket.level + pace.interval <= pace.interval * u64::from(burst);
                bucket.level += if fits { pace.interval } else { 0 };
                let taken = pace.take(&cell, Duration::from_nanos(now));
                prop_assert_eq!(taken.is_ok(), fits);
                if let Err(wait) = taken {
                    let then = Duration::from_nanos(now) + wait;
                    prop_assert!(pace.take(&cell, then - Duration::from_nanos(1)).is_err());
                    prop_assert_eq!(pace.take(&cell, then), Ok(()));
                    pace.give_back(&cell);
                }
            }
        }
    }
}
