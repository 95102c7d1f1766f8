//! Slows down an address that shows unknown credentials.
//!
//! Only attempts count that need work: a key or a token that is not known. They count before the work is done, and an attempt
//! whose credential proves good is given back, so that many users behind one address can sign in. The table is bounded; when it is
//! full, the address that has been quiet the longest is forgotten.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use parking_lot::Mutex;

/// How many attempts an address has at once, and how soon it gets another one: 10 in a minute.
const BURST: u32 = 10;
const EACH: Duration = Duration::from_secs(6);
/// How many addresses are remembered.
const MOST: usize = 4096;

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

/// The attempts of all addresses. Each is one time (GCRA): when the address would have all its attempts again.
#[derive(Debug, Default)]
pub(crate) struct Throttle(Mutex<HashMap<Origin, Duration>>);

impl Throttle {
    /// Counts an attempt. `now` is on the monotonic clock.
    ///
    /// # Errors
    /// How long the address has to wait.
    pub(crate) fn count(&self, origin: Origin, now: Duration) -> Result<(), Duration> {
        let mut table = self.0.lock();
        if table.len() >= MOST && !table.contains_key(&origin) {
            table.retain(|_, full_at| *full_at > now);
        }
        if table.len() >= MOST && !table.contains_key(&origin) {
            let quiet = table.iter().min_by_key(|(_, full_at)| **full_at).map(|(origin, _)| *origin);
            quiet.and_then(|quiet| table.remove(&quiet));
        }
        let full_at = table.entry(origin).or_insert(now);
        let next = (*full_at).max(now) + EACH;
        let wait = next.saturating_sub(now + EACH * BURST);
        if wait > Duration::ZERO {
            return Err(wait);
        }
        *full_at = next;
        Ok(())
    }

    /// Gives an attempt back: its credential was good.
    pub(crate) fn forgive(&self, origin: Origin) {
        if let Some(full_at) = self.0.lock().get_mut(&origin) {
            *full_at = full_at.saturating_sub(EACH);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(address: &str) -> Origin {
        Origin::of(Some(address.parse().unwrap()))
    }

    const fn second(count: u64) -> Duration {
        Duration::from_secs(count)
    }

    /// ACC-2: ten attempts in a minute, then one every six seconds; other addresses are not concerned.
    #[test]
    fn an_address_is_slowed_down() {
        let throttle = Throttle::default();
        let eve = of("192.0.2.1");
        for attempt in 0..10 {
            assert_eq!(throttle.count(eve, second(100)), Ok(()), "{attempt}");
        }
        assert_eq!(throttle.count(eve, second(100)), Err(second(6)));
        assert_eq!(throttle.count(eve, second(101)), Err(second(5)));
        assert_eq!(throttle.count(of("192.0.2.2"), second(101)), Ok(()));
        assert_eq!(throttle.count(eve, second(106)), Ok(()));
        assert!(throttle.count(eve, second(106)).is_err());
        throttle.forgive(eve);
        assert_eq!(throttle.count(eve, second(106)), Ok(()), "a good credential costs nothing");
        for attempt in 0..10 {
            assert_eq!(throttle.count(eve, second(200)), Ok(()), "{attempt}");
        }
        assert!(throttle.count(eve, second(200)).is_err());
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
        while throttle.count(eve, second(100)).is_ok() {}
        let many = |number: u32| Origin::of(Some(IpAddr::from(number.to_be_bytes())));
        for number in 0..2 * u32::try_from(MOST).unwrap() {
            assert_eq!(throttle.count(many(number), second(101)), Ok(()));
        }
        assert_eq!(throttle.0.lock().len(), MOST);
        assert!(throttle.count(eve, second(101)).is_err(), "a busy address is not forgotten");
        throttle.count(many(1 << 30), second(1000)).unwrap();
        assert_eq!(throttle.0.lock().len(), 1, "quiet addresses are forgotten");
    }
}
