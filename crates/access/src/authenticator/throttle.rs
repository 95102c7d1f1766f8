//! Slows down an address that shows wrong credentials.
//!
//! Failures count, requests do not: many users behind one address can sign in at once. An address whose failures are used up is
//! refused before any work is done for it. What an address may have checked at the same time is bounded, so that it cannot fail
//! more often before the first failure counts; further checks wait for their turn. The table is bounded; when it is full, the
//! address that has been quiet the longest is forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many failures an address has at once, and how soon it gets another one: 10 in a minute.
const BURST: u32 = 10;
const EACH: Duration = Duration::from_secs(6);
/// How many addresses are remembered.
const MOST: usize = 4096;
/// How many credentials of an address are checked at the same time.
const CHECKS: usize = 4;

/// Whom an attempt counts against: an IPv4 address, the first half of an IPv6 address, or everybody on Unix sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    /// An address, or the network of one.
    Address(IpAddr),
    /// A Unix socket.
    Local,
}

impl Origin {
    pub(crate) fn of(address: Option<IpAddr>) -> Self {
        match address.map(|address| address.to_canonical()) {
            None => Self::Local,
            // Whoever has an IPv6 address usually has the whole /64 around it.
            Some(IpAddr::V6(address)) => {
                Self::Address(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)).into())
            }
            Some(address) => Self::Address(address),
        }
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address(IpAddr::V6(network)) => write!(formatter, "{network}/64"),
            Self::Address(address) => write!(formatter, "{address}"),
            Self::Local => formatter.write_str("unix"),
        }
    }
}

/// What all addresses have done.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<HashMap<Origin, Known>>);

/// What is known of an address.
#[derive(Debug)]
struct Known {
    /// When the address would have all its failures again (GCRA).
    full_at: Duration,
    checks: Arc<Semaphore>,
}

impl Known {
    /// How long the address has to wait until it may fail once more.
    fn wait(&self, now: Duration) -> Duration {
        (self.full_at.max(now) + EACH).saturating_sub(now + EACH * BURST)
    }

    /// Whether forgetting the address would change nothing.
    fn is_quiet(&self, now: Duration) -> bool {
        self.full_at <= now && self.checks.available_permits() == CHECKS
    }
}

impl Throttle {
    /// Whether the address may show another credential. `now` is on the monotonic clock.
    ///
    /// # Errors
    /// How long the address has to wait.
    pub(crate) fn admit(&self, origin: Origin, now: Duration) -> Result<(), Duration> {
        let wait = self.0.lock().get(&origin).map_or(Duration::ZERO, |known| known.wait(now));
        if wait.is_zero() { Ok(()) } else { Err(wait) }
    }

    /// Waits until a credential of the address may be checked, in the order of asking.
    pub(crate) async fn turn(&self, origin: Origin, now: Duration) -> Option<OwnedSemaphorePermit> {
        let checks = Arc::clone(&Self::known(&mut self.0.lock(), origin, now).checks);
        checks.acquire_owned().await.ok()
    }

    /// Counts a failure.
    pub(crate) fn fail(&self, origin: Origin, now: Duration) {
        let mut table = self.0.lock();
        let known = Self::known(&mut table, origin, now);
        // Checks that were under way may fail after the last one that is allowed. They count too, within bounds.
        known.full_at = (known.full_at.max(now) + EACH).min(now + EACH * (BURST + CHECKS as u32));
    }

    fn known(table: &mut HashMap<Origin, Known>, origin: Origin, now: Duration) -> &mut Known {
        if table.len() >= MOST && !table.contains_key(&origin) {
            table.retain(|_, known| !known.is_quiet(now));
        }
        if table.len() >= MOST && !table.contains_key(&origin) {
            let quiet = table.iter().min_by_key(|(_, known)| known.full_at).map(|(origin, _)| *origin);
            quiet.and_then(|quiet| table.remove(&quiet));
        }
        let new = || Known { full_at: now, checks: Arc::new(Semaphore::new(CHECKS)) };
        table.entry(origin).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn of(address: &str) -> Origin {
        Origin::of(Some(address.parse().unwrap()))
    }

    const fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// Shows a wrong credential.
    fn fail(throttle: &Throttle, origin: Origin, now: Duration) -> Result<(), Duration> {
        throttle.admit(origin, now).inspect(|()| throttle.fail(origin, now))
    }

    /// ACC-2: ten failures in a minute, then one every six seconds; other addresses are not concerned, and what does not fail
    /// costs nothing.
    #[test]
    fn an_address_is_slowed_down() {
        let throttle = Throttle::default();
        let eve = of("192.0.2.1");
        for attempt in 0..10 {
            assert_eq!(fail(&throttle, eve, second(100)), Ok(()), "{attempt}");
        }
        assert_eq!(throttle.admit(eve, second(100)), Err(second(6)));
        assert_eq!(throttle.admit(eve, second(101)), Err(second(5)));
        assert_eq!(throttle.admit(of("192.0.2.2"), second(101)), Ok(()));
        for _ in 0..30 {
            assert_eq!(throttle.admit(eve, second(106)), Ok(()), "what does not fail costs nothing");
        }
        assert_eq!(fail(&throttle, eve, second(106)), Ok(()));
        assert_eq!(throttle.admit(eve, second(106)), Err(second(6)));
        for attempt in 0..10 {
            assert_eq!(fail(&throttle, eve, second(200)), Ok(()), "{attempt}");
        }
        for _ in 0..100 {
            throttle.fail(eve, second(200));
        }
        assert_eq!(
            throttle.admit(eve, second(200)),
            Err(second(30)),
            "what was under way counts within bounds"
        );
    }

    /// ACC-2: an address has a few checks under way at the same time; others do not wait for them.
    #[tokio::test]
    async fn checks_of_an_address_take_turns() {
        let throttle = Throttle::default();
        let (eve, ada) = (of("192.0.2.1"), of("192.0.2.2"));
        let turns = futures_util::future::join_all((0..CHECKS).map(|_| throttle.turn(eve, second(1)))).await;
        assert!(turns.iter().all(Option::is_some));
        let waiting = throttle.turn(eve, second(1)).now_or_never();
        assert!(waiting.is_none(), "one more waits");
        assert!(throttle.turn(ada, second(1)).now_or_never().is_some());
        drop(turns);
        assert!(throttle.turn(eve, second(1)).now_or_never().is_some());
    }

    /// ACC-2: an IPv6 address counts as its network, and an IPv4 address in IPv6 form as itself.
    #[test]
    fn addresses_count_by_network() {
        assert_eq!(of("2001:db8:1:2:3::4"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("::ffff:192.0.2.1"), of("::ffff:192.0.2.2"));
        assert_eq!(of("2001:db8:1:2:3::4").to_string(), "2001:db8:1:2::/64");
        assert_eq!(
            (of("192.0.2.1").to_string(), Origin::of(None).to_string()),
            ("192.0.2.1".into(), "unix".into())
        );
    }

    /// ACC-2: the table is bounded, and forgets quiet addresses first.
    #[test]
    fn the_table_is_bounded() {
        let throttle = Throttle::default();
        let eve = of("192.0.2.1");
        while fail(&throttle, eve, second(100)).is_ok() {}
        let many = |number: u32| Origin::of(Some(IpAddr::from(number.to_be_bytes())));
        for number in 0..2 * u32::try_from(MOST).unwrap() {
            assert_eq!(fail(&throttle, many(number), second(101)), Ok(()));
        }
        assert_eq!(throttle.0.lock().len(), MOST);
        assert!(throttle.admit(eve, second(101)).is_err(), "a busy address is not forgotten");
        fail(&throttle, many(1 << 30), second(1000)).unwrap();
        assert_eq!(throttle.0.lock().len(), 1, "quiet addresses are forgotten");
    }
}
