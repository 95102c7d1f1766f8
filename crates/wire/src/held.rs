//! Counts and limits the bytes that are held for each peer.
//!
//! Memory that is kept on behalf of a peer (a client's session or connection, a server) is first reserved on that peer's
//! [`Account`], and released when the [`Reservation`] is dropped. No account holds more than `per_peer` bytes, and all
//! accounts together hold no more than `total`. When `total` would be exceeded, the holders of optional data are asked to
//! release some ([`Budget::on_shortage`]), in the order in which they registered. If that is not enough, the reservation
//! is refused, and the code that asked for it tells its peer. An account may belong to a principal. Then, before a refusal, what
//! others have not finished sending makes way for it ([`Lenient::make_way`]).
//!
//! A reservation is two additions to counters and takes no lock, unless memory is short. Data that is no larger than
//! [`SMALL`] and lives no longer than a request need not be reserved: there is at most one such thing for each connection.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Up to this size, data that lives no longer than a request need not be reserved.
pub const SMALL: usize = 64 * 1024;

const MEGABYTE: usize = 1024 * 1024;

/// A holder of optional data, which it can release when memory is short.
pub trait Lenient: Send + Sync {
    /// Releases about this many bytes, if it holds them.
    fn let_go(&self, bytes: usize);

    /// Releases about this many bytes of what greedier principals are still sending, for this principal, which needs as many.
    fn make_way(&self, _bytes: usize, _principal: &str) {}
}

/// The limits, and how much is held in total.
pub struct Budget {
    total: AtomicUsize,
    per_peer: AtomicUsize,
    held: AtomicUsize,
    /// The most that was ever held at once.
    peak: AtomicUsize,
    lenient: Mutex<Vec<Weak<dyn Lenient>>>,
    /// The accounts of principals that have one.
    principals: Mutex<HashMap<Arc<str>, Weak<Account>>>,
}

/// What is held for one peer.
#[derive(Debug)]
pub struct Account {
    budget: Arc<Budget>,
    held: AtomicUsize,
    /// The principal that it belongs to, once that is known.
    owner: Mutex<Option<Arc<str>>>,
}

/// Bytes that are held, until this is dropped.
#[derive(Debug)]
pub struct Reservation {
    account: Arc<Account>,
    bytes: usize,
}

/// Why bytes cannot be held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoRoom {
    /// The limit of the peer would be exceeded.
    #[error(
        "more than {} MB would be held for this peer (`limits.held_per_peer_mb`): read answers or end requests first", .0 / MEGABYTE
    )]
    Peer(usize),
    /// The total limit would be exceeded.
    #[error(
        "more than {} MB would be held for all clients and servers (`limits.held_mb`): retry later, or raise it", .0 / MEGABYTE
    )]
    Total(usize),
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("held", &self.held()).finish_non_exhaustive()
    }
}

impl Budget {
    /// A budget with these limits, in bytes.
    pub fn new(total: usize, per_peer: usize) -> Arc<Self> {
        Arc::new(Self {
            total: AtomicUsize::new(total),
            per_peer: AtomicUsize::new(per_peer),
            held: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            lenient: Mutex::default(),
            principals: Mutex::default(),
        })
    }

    /// The budget of this process: everything that runs in it shares its memory.
    pub fn process() -> &'static Arc<Self> {
        static PROCESS: OnceLock<Arc<Budget>> = OnceLock::new();
        PROCESS.get_or_init(|| Self::new(512 * MEGABYTE, 64 * MEGABYTE))
    }

    /// Sets the limits; what is held already stays.
    pub fn limit(&self, total: usize, per_peer: usize) {
        self.total.store(total, Ordering::Relaxed);
        self.per_peer.store(per_peer, Ordering::Relaxed);
    }

    /// How much is held, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// The most that was ever held at once, in bytes.
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::Relaxed)
    }

    /// The account of a principal: of what it makes the gateway keep, whichever connection or session asked for it. It lives as
    /// long as something is held on it.
    pub fn of(self: &Arc<Self>, principal: &Arc<str>) -> Arc<Account> {
        let mut all = self.principals.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(principal).and_then(Weak::upgrade) {
            return known;
        }
        all.retain(|_, account| account.strong_count() > 0);
        let account = Account::new(self);
        account.belongs_to(principal);
        all.insert(Arc::clone(principal), Arc::downgrade(&account));
        account
    }

    /// Registers `lenient` to be asked for memory whenever there is no room, after those that registered before it.
    pub fn on_shortage(&self, lenient: Weak<impl Lenient + 'static>) {
        let mut all = self.lenient.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|lenient| lenient.strong_count() > 0);
        all.push(lenient);
    }

    fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        let most = self.total.load(Ordering::Relaxed);
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > most {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            return Err(NoRoom::Total(most));
        }
        // Most reservations stay below the peak, and a load costs less than a second write.
        if before + bytes > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Asks the registered holders in turn to release memory, until this many bytes are free.
    fn relieve(&self, bytes: usize, owner: Option<Arc<str>>) {
        self.ask_all(bytes, |lenient, missing| lenient.let_go(missing));
        if let Some(owner) = owner {
            self.ask_all(bytes, |lenient, missing| lenient.make_way(missing, &owner));
        }
    }

    fn ask_all(&self, bytes: usize, ask: impl Fn(&dyn Lenient, usize)) {
        let all = self.lenient.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for lenient in all.iter().filter_map(Weak::upgrade) {
            let most = self.total.load(Ordering::Relaxed);
            let missing = (self.held() + bytes).saturating_sub(most);
            if missing == 0 {
                return;
            }
            ask(&*lenient, missing);
        }
    }
}

impl Account {
    /// The account of a new peer.
    pub fn new(budget: &Arc<Budget>) -> Arc<Self> {
        Arc::new(Self { budget: Arc::clone(budget), held: AtomicUsize::new(0), owner: Mutex::default() })
    }

    /// Notes the principal that it belongs to from now on.
    pub fn belongs_to(&self, principal: &Arc<str>) {
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(principal));
    }

    /// How much is held for the peer, in bytes.
    pub fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }

    /// Reserves this many bytes for the peer. The caller must hold no lock that a registered [`Lenient`] takes, because
    /// this may ask it to release memory.
    pub fn reserve(self: &Arc<Self>, bytes: usize) -> Result<Reservation, NoRoom> {
        let mut reservation = self.nothing();
        reservation.grow(bytes)?;
        Ok(reservation)
    }

    /// A reservation of no bytes, to grow.
    fn nothing(self: &Arc<Self>) -> Reservation {
        Reservation { account: Arc::clone(self), bytes: 0 }
    }

    fn take(&self, bytes: usize) -> Result<(), NoRoom> {
        let most = self.budget.per_peer.load(Ordering::Relaxed);
        let before = self.held.fetch_add(bytes, Ordering::Relaxed);
        let taken = if before.saturating_add(bytes) > most {
            Err(NoRoom::Peer(most))
        } else {
            self.budget.take(bytes).or_else(|_| {
                let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).clone();
                self.budget.relieve(bytes, owner);
                self.budget.take(bytes)
            })
        };
        if taken.is_err() {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
        }
        taken
    }
}

impl Reservation {
    /// How many bytes are reserved.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.account.take(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Releases some.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.account.held.fetch_sub(bytes, Ordering::Relaxed);
        self.account.budget.held.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Comfort(Mutex<Vec<Reservation>>);

    impl Lenient for Comfort {
        fn let_go(&self, bytes: usize) {
            let mut freed = 0;
            let mut held = self.0.lock().unwrap();
            while freed < bytes && !held.is_empty() {
                freed += held.remove(0).bytes();
            }
        }
    }

    /// BOUND-3: what a principal makes the gateway keep is on one account, however many hold it; the account goes with the last.
    #[test]
    fn a_principal_has_one_account() {
        let budget = Budget::new(100, 40);
        let (ada, bob): (Arc<str>, Arc<str>) = ("ada".into(), "bob".into());
        let held = [budget.of(&ada).reserve(30).unwrap(), budget.of(&ada).reserve(10).unwrap()];
        assert_eq!(budget.of(&ada).reserve(1).unwrap_err(), NoRoom::Peer(40));
        let other = budget.of(&bob).reserve(40).unwrap();
        assert_eq!((budget.of(&ada).held(), budget.of(&bob).held(), budget.held()), (40, 40, 80));
        drop((held, other));
        assert_eq!((budget.of(&bob).held(), budget.held()), (0, 0));
        assert_eq!(budget.principals.lock().unwrap().len(), 1, "those without anything are forgotten");
    }

    /// BOUND-3: held bytes are counted per peer and in total, and released; holders of optional data release theirs
    /// first, in the order in which they registered.
    #[test]
    fn held_bytes_are_counted_and_limited() {
        let budget = Budget::new(100, 40);
        let (one, other) = (Account::new(&budget), Account::new(&budget));
        let mut first = one.reserve(30).unwrap();
        assert_eq!(first.grow(11), Err(NoRoom::Peer(40)));
        first.grow(10).unwrap();
        assert_eq!((one.held(), budget.held(), first.bytes()), (40, 40, 40));
        first.shrink(10);
        first.grow(5).unwrap();
        assert_eq!((one.held(), budget.held(), first.bytes()), (35, 35, 35));
        let comforts: Vec<Arc<Comfort>> = (0..2).map(|_| Arc::new(Comfort(Mutex::default()))).collect();
        for comfort in &comforts {
            budget.on_shortage(Arc::downgrade(comfort));
            for _ in 0..3 {
                comfort.0.lock().unwrap().push(Account::new(&budget).reserve(10).unwrap());
            }
        }
        assert_eq!(budget.held(), 95);
        let second = other.reserve(40).unwrap();
        let left = |at: usize| comforts[at].0.lock().unwrap().len();
        assert_eq!((left(0), left(1), budget.held()), (0, 2, 95), "the first that registered releases first");
        assert_eq!(Account::new(&budget).reserve(30).unwrap_err(), NoRoom::Total(100));
        assert_eq!((left(1), budget.held()), (0, 75), "and nothing is left to release");
        drop((first, second));
        assert_eq!((one.held(), other.held(), budget.held()), (0, 0, 0));
        assert!(budget.peak() <= 100 && budget.peak() >= 95);
        let words = NoRoom::Peer(64 * MEGABYTE).to_string();
        assert!(
            words.starts_with("more than 64 MB would be held for this peer (`limits.held_per_peer_mb`)"),
            "{words}"
        );
    }
}
