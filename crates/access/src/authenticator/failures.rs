//! Counts sign-ins that failed, for the record: one line per address and minute, however many there were.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;

use super::throttle::Origin;

/// How long failures of one address are counted together.
const MINUTE: Duration = Duration::from_secs(60);
/// How many addresses are counted one by one; the others are counted together.
const MOST: usize = 1024;

/// The sign-ins of one address that failed within a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FailedSignIns {
    /// The address, an IPv6 one with its network; `unix` for Unix sockets, `others` if there were too many addresses.
    pub origin: String,
    /// How many failed.
    pub count: u64,
    /// Why the first of them failed.
    pub reason: String,
}

#[derive(Debug, Default)]
pub(super) struct Failures(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    by_origin: HashMap<Option<Origin>, Counted>,
}

#[derive(Debug)]
struct Counted {
    since: Duration,
    count: u64,
    reason: String,
}

impl Failures {
    /// Counts one. `now` is on the monotonic clock.
    pub(super) fn count(&self, origin: Origin, reason: &str, now: Duration) {
        let mut open = self.0.lock();
        let full = open.by_origin.len() >= MOST && !open.by_origin.contains_key(&Some(origin));
        let counted = open.by_origin.entry((!full).then_some(origin));
        counted.or_insert_with(|| Counted { since: now, count: 0, reason: reason.to_owned() }).count += 1;
    }

    /// Those whose minute is over. They are not told again.
    pub(super) fn take(&self, now: Duration) -> Vec<FailedSignIns> {
        self.take_if(|counted| now.saturating_sub(counted.since) >= MINUTE)
    }

    /// All that were not told yet: nobody counts any more.
    pub(super) fn take_all(&self) -> Vec<FailedSignIns> {
        self.take_if(|_| true)
    }

    fn take_if(&self, due: impl Fn(&Counted) -> bool) -> Vec<FailedSignIns> {
        let mut open = self.0.lock();
        let told =
            open.by_origin.extract_if(|_, counted| due(counted)).map(|(origin, counted)| FailedSignIns {
                origin: origin.map_or_else(|| "others".to_owned(), |origin| origin.to_string()),
                count: counted.count,
                reason: counted.reason,
            });
        told.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// ACC-9: failed sign-ins are told once per address and minute, and their number is bounded.
    #[test]
    fn one_line_per_address_and_minute() {
        let failures = Failures::default();
        let second = Duration::from_secs;
        let eve = Origin::of(Some("192.0.2.1".parse().unwrap()));
        failures.count(eve, "first", second(0));
        failures.count(eve, "second", second(30));
        failures.count(Origin::Local, "third", second(30));
        assert_eq!(failures.take(second(59)), []);
        let told = FailedSignIns { origin: "192.0.2.1".into(), count: 2, reason: "first".into() };
        assert_eq!(failures.take(second(60)), [told]);
        assert_eq!(failures.take(second(90)).len(), 1);
        assert_eq!(failures.take(second(900)), []);
        failures.count(eve, "last", second(900));
        let told = FailedSignIns { origin: "192.0.2.1".into(), count: 1, reason: "last".into() };
        assert_eq!(failures.take_all(), [told], "its minute has only begun");
        assert_eq!(failures.take_all(), []);
        for number in 0_u32..2000 {
            failures.count(Origin::of(Some(number.to_be_bytes().into())), "many", second(0));
        }
        let told = failures.take(second(60));
        assert_eq!((told.len(), told.iter().map(|one| one.count).sum::<u64>()), (MOST + 1, 2000));
        assert!(told.iter().any(|one| one.origin == "others"));
    }
}
