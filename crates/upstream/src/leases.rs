//! Processes and sessions of a server for clients that can be asked something.
//!
//! One that everybody shares is told at its handshake that it may ask anything, and its question on a shared stream says
//! nothing about whose call it is for. So there are others, next to it: such a server is told exactly what the clients
//! of a *class* declared. A call of a client that can be asked has one for itself where it would meet another such call
//! on the stream of a server that asks, and always once a question could not be attributed: at most `max_leases` at a
//! time, and whoever comes then waits. A client that declared nothing needs none of it.
//!
//! A server may keep the roots that it was told, so those of one client are never told to a server that another uses,
//! once it is known to ask for them: a session then has one for itself, and a call that belongs to no session has one
//! that ends with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_config::{Interactive, Server};
use bridgehead_wire::{Abilities, Era, Method};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::info;

use crate::key::Scope;
use crate::upstream::{State, Unavailable, Upstream};

/// How long one that nobody uses keeps running.
const IDLE: Duration = Duration::from_secs(300);
/// How many classes of clients have one; further ones use the shared one.
const MOST_CLASSES: usize = 16;

/// Those of one server.
#[derive(Debug)]
pub(crate) struct Leases {
    turns: Arc<Semaphore>,
    /// Set once a question could have been for more than one call.
    exclusive: AtomicBool,
    /// Set once it was seen to ask.
    asks: AtomicBool,
    /// Set once it was seen to ask for roots.
    roots: AtomicBool,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    entries: Vec<Entry>,
    classes: Vec<(Abilities, Upstream)>,
    /// Counts uses, to find the one that was not used for longest.
    clock: u64,
}

/// One that serves a call at a time.
#[derive(Debug)]
struct Entry {
    number: u64,
    upstream: Upstream,
    abilities: Abilities,
    /// The session that used it last, which finds there what it left.
    whose: Option<u64>,
    taken: bool,
    used: u64,
}

/// A process or session that a call uses instead of the shared one, for as long as this lives.
#[derive(Debug)]
pub struct Lease {
    upstream: Upstream,
    /// Where it goes back to, and under which number; none for one that a class shares.
    home: Option<(Upstream, u64)>,
    /// Whether it is of no use to another.
    once: bool,
    _turn: Option<OwnedSemaphorePermit>,
}

impl Lease {
    /// What it is of.
    pub const fn upstream(&self) -> &Upstream {
        &self.upstream
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some((home, number)) = &self.home {
            let mut pool = home.leases().pool.lock();
            let Some(at) = pool.entries.iter().position(|entry| entry.number == *number) else { return };
            if self.once {
                let entry = pool.entries.swap_remove(at);
                drop(pool);
                entry.upstream.release();
            } else {
                pool.entries[at].taken = false;
            }
        }
    }
}

impl Leases {
    pub(crate) fn new(server: &Server) -> Self {
        let turns = Semaphore::new(server.max_leases.clamp(1, Semaphore::MAX_PERMITS));
        Self {
            turns: Arc::new(turns),
            exclusive: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            roots: AtomicBool::new(false),
            pool: Mutex::default(),
        }
    }
}

impl Upstream {
    /// What the call of a client with these abilities is to use instead of this; none if this will do. `whose` is
    /// the number of its session, if it is one that servers remember. Waits until `deadline` where all are in use.
    pub async fn lease(
        &self,
        abilities: Abilities,
        whose: Option<u64>,
        deadline: Instant,
    ) -> Result<Option<Lease>, Unavailable> {
        let interactive = self.config().interactive;
        // A modern one asks by its results, which are always somebody's.
        let is_modern =
            matches!(&self.state(), State::Ready(ready) if ready.peer.revision.era() == Era::Modern);
        if interactive == Interactive::Shared || is_modern || !abilities.answers_any() {
            return Ok(None);
        }
        let rooted = abilities.knows(&Method::RootsList) && self.keeps_roots();
        let turns = Arc::clone(&self.leases().turns);
        if interactive == Interactive::Auto && !self.leases().exclusive.load(Ordering::Relaxed) && !rooted {
            let class = if self.has_classes(abilities) { self.class(abilities)? } else { None };
            let crowded = class.as_ref().unwrap_or(self).is_crowded(self.leases());
            // Where nothing went wrong yet, calls are not made to wait: there may be no question at all.
            let free = !self.leases().exclusive.load(Ordering::Relaxed) && turns.available_permits() == 0;
            if !crowded || free {
                return Ok(class.map(|upstream| Lease { upstream, home: None, once: false, _turn: None }));
            }
        }
        let Ok(Ok(turn)) = tokio::time::timeout_at(deadline, turns.acquire_owned()).await else {
            return Err(Unavailable::AllLeased(self.config().max_leases));
        };
        let (number, upstream) = self.take(abilities, whose, rooted)?;
        let once = rooted && whose.is_none();
        Ok(Some(Lease { upstream, home: Some((self.clone(), number)), once, _turn: Some(turn) }))
    }

    /// Whether it is a legacy server that was seen to ask for roots, and so may know those of whoever used it.
    pub fn keeps_roots(&self) -> bool {
        let leases = self.leases();
        if leases.roots.load(Ordering::Relaxed) {
            return true;
        }
        let asked =
            |upstream: &Self| matches!(upstream.state(), State::Ready(ready) if ready.link.has_asked_roots());
        let asked = asked(self) || leases.pool.lock().classes.iter().any(|(_, class)| asked(class));
        if asked {
            leases.roots.store(true, Ordering::Relaxed);
        }
        asked
    }

    /// Whether clients that did not declare everything have one of their class: where that costs a session only, or
    /// where the server is known to ask.
    fn has_classes(&self, abilities: Abilities) -> bool {
        let State::Ready(ready) = self.state() else { return false };
        if ready.link.has_asked() {
            self.leases().asks.store(true, Ordering::Relaxed);
        }
        abilities != Abilities::ALL
            && (ready.link.has_own_streams() || self.leases().asks.load(Ordering::Relaxed))
    }

    /// Whether a question could be taken for that of another call here, and so this is no place for one more. `leases`
    /// are those of the whole server.
    fn is_crowded(&self, leases: &Leases) -> bool {
        let State::Ready(ready) = self.state() else { return false };
        let link = &ready.link;
        if link.was_ambiguous() {
            if !leases.exclusive.swap(true, Ordering::Relaxed) {
                info!(server = %self.name(), "asks during calls; calls of clients that can be asked do not share it any more");
            }
            return true;
        }
        // One that never asked is shared by all: most never do.
        link.has_asked() && !link.has_own_streams() && link.has_askable()
    }

    fn class(&self, abilities: Abilities) -> Result<Option<Self>, Unavailable> {
        let mut pool = self.leases().pool.lock();
        if let Some((_, known)) = pool.classes.iter().find(|(class, _)| *class == abilities) {
            return Ok(Some(known.clone()));
        }
        if pool.classes.len() >= MOST_CLASSES {
            return Ok(None);
        }
        let upstream = self.beside(Scope::Class(abilities), leased(self.config()))?;
        pool.classes.push((abilities, upstream.clone()));
        Ok(Some(upstream))
    }

    /// One that nobody uses: the session's own of before, else a new one, else the one that was not used for longest.
    /// One that may know the roots of another is not given away.
    fn take(
        &self,
        abilities: Abilities,
        whose: Option<u64>,
        rooted: bool,
    ) -> Result<(u64, Self), Unavailable> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut pool = self.leases().pool.lock();
        pool.clock += 1;
        let clock = pool.clock;
        let has_room = pool.entries.len() < self.config().max_leases.max(1);
        let mut idle: Vec<&mut Entry> = pool.entries.iter_mut().filter(|entry| !entry.taken).collect();
        idle.sort_by_key(|entry| entry.used);
        let fits = |entry: &Entry| entry.abilities == abilities;
        let at = idle
            .iter()
            .position(|entry| fits(entry) && entry.whose == whose && (whose.is_some() || !rooted))
            .or_else(|| if has_room || rooted { None } else { idle.iter().position(|entry| fits(entry)) });
        if let Some(at) = at {
            let entry = &mut idle[at];
            (entry.taken, entry.whose, entry.used) = (true, whose, clock);
            return Ok((entry.number, entry.upstream.clone()));
        }
        // There is a turn for every one that is in use, so that without room somebody else's is not.
        let given_up = idle.first().filter(|_| !has_room).map(|entry| entry.number);
        if let Some(number) = given_up
            && let Some(at) = pool.entries.iter().position(|entry| entry.number == number)
        {
            pool.entries.swap_remove(at).upstream.release();
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let upstream = self.beside(Scope::Lease(number, abilities), leased(self.config()))?;
        pool.entries.push(Entry {
            number,
            upstream: upstream.clone(),
            abilities,
            whose,
            taken: true,
            used: clock,
        });
        Ok((number, upstream))
    }

    /// How many processes or sessions there are beside the shared one for clients that can be asked.
    pub fn leased(&self) -> usize {
        let pool = self.leases().pool.lock();
        pool.entries.len() + pool.classes.len()
    }
}

/// The configuration of a lease: it sleeps when nobody uses it.
fn leased(server: &Server) -> Arc<Server> {
    let idle = server.idle_timeout.unwrap_or(IDLE).min(IDLE);
    Arc::new(Server { idle_timeout: Some(idle), lazy: false, ..server.clone() })
}
