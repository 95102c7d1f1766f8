//! Processes and sessions of a server for clients that can be asked something.
//!
//! One that everybody shares is told at its handshake that it may ask anything, and its question on a shared stream says
//! nothing about whose call it is for. So there are others, next to it: such a server is told exactly what the clients
//! of a *class* declared. A call of a client that can be asked has one for itself where it would meet another such call
//! on the stream of a server that asks, and always once a question could not be attributed: at most `max_leases` at a
//! time, and whoever comes then waits. A client that declared nothing needs none of it.
//!
//! A server may keep the roots that it was told, so those of one client are never told to a server that another uses,
//! once it is known to ask for them: a session then has one for itself. A call that belongs to no session uses the one
//! that is kept for its principal and its roots, where the server asks for roots of its own accord: its client is asked
//! for them first, and the server gets them whenever it asks. Where a server asks for roots within calls only, and so may
//! be told others by each, such a call has one that ends with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_config::{Interactive, Isolation, Roots, Server};
use bridgehead_wire::{Abilities, Era, Method};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::info;

use crate::server::{Unavailable, Upstream, UpstreamState};
use crate::sharing::key::Scope;

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
    /// Set once it was seen to ask for them outside of calls.
    unbidden: AtomicBool,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    entries: Vec<Entry>,
    classes: Vec<(Abilities, Upstream)>,
    /// Counts uses, to find the one that was not used for longest.
    clock: u64,
}

/// One that serves a call at a time, or the calls of whom it is kept for.
#[derive(Debug)]
struct Entry {
    number: u64,
    upstream: Upstream,
    abilities: Abilities,
    /// Who used it last, and finds there what was left.
    whose: Option<Keeper>,
    why: Reason,
    /// How many calls use it.
    users: usize,
    /// Held while there are some.
    turn: Option<OwnedSemaphorePermit>,
    used: u64,
}

/// Whom a process or session is kept for from call to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Keeper {
    /// A session of a legacy client, by its number.
    Session(u64),
    /// Calls of a principal whose client has these roots.
    Roots {
        /// Who calls.
        principal: Arc<str>,
        /// What its client answered.
        roots: Roots,
    },
}

/// Why a client has a process or session beside the shared one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It has roots, and the server keeps those that it was told.
    Roots,
    /// The server asks during calls.
    Questions,
    /// The server is told what its clients declared.
    Class,
    /// `isolation = "session"`.
    Isolation,
}

impl Reason {
    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Roots => "its client has roots, and this server keeps the roots that it was told",
            Self::Questions => {
                "this server asks during calls, and on a shared stream a question does not say whose call it is for"
            }
            Self::Class => {
                "its client can be asked some things only, and this server is told what it may ask when it starts"
            }
            Self::Isolation => "`isolation = \"session\"`",
        }
    }
}

/// A process or session that a call uses instead of the shared one, for as long as this lives.
#[derive(Debug)]
pub struct Lease {
    upstream: Upstream,
    /// Where it goes back to, and under which number; none for one that a class shares.
    home: Option<(Upstream, u64)>,
    /// Whether it is of no use to another.
    once: bool,
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
            pool.entries[at].users -= 1;
            if self.once {
                let entry = pool.entries.swap_remove(at);
                drop(pool);
                entry.upstream.release();
            } else if pool.entries[at].users == 0 {
                pool.entries[at].turn = None;
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
            unbidden: AtomicBool::new(false),
            pool: Mutex::default(),
        }
    }
}

impl Upstream {
    /// What the call of a client with these abilities is to use instead of this; none if this will do. `whose` says whom
    /// it is kept for, if its client is one that servers remember. Waits until `deadline` where all are in use.
    pub async fn lease(
        &self,
        abilities: Abilities,
        whose: Option<Keeper>,
        deadline: Instant,
    ) -> Result<Option<Lease>, Unavailable> {
        let interactive = self.config().interactive;
        // A modern one asks by its results, which are always somebody's.
        let is_modern =
            matches!(&self.state(), UpstreamState::Ready(ready) if ready.peer.revision.era() == Era::Modern);
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
                return Ok(class.map(|upstream| Lease { upstream, home: None, once: false }));
            }
        }
        let joined = self.join(&mut self.leases().pool.lock(), abilities, whose.as_ref());
        if let Some((number, upstream)) = joined {
            return Ok(Some(Lease { upstream, home: Some((self.clone(), number)), once: false }));
        }
        let Ok(Ok(turn)) = tokio::time::timeout_at(deadline, turns.acquire_owned()).await else {
            return Err(Unavailable::AllLeased(self.config().max_leases));
        };
        let once = rooted && whose.is_none();
        let (number, upstream) = self.take(abilities, whose, rooted, turn)?;
        Ok(Some(Lease { upstream, home: Some((self.clone(), number)), once }))
    }

    /// Whether a call that belongs to no session is to bring the roots of its client with it, because there may be one
    /// of this server that is kept for them.
    pub fn wants_roots(&self, abilities: Abilities) -> bool {
        let leases = self.leases();
        if self.config().interactive == Interactive::Shared
            || !abilities.knows(&Method::RootsList)
            || !self.keeps_roots()
        {
            return false;
        }
        let unbidden = |upstream: &Self| matches!(upstream.state(), UpstreamState::Ready(ready) if ready.link.has_asked_roots_unbidden());
        let seen = leases.unbidden.load(Ordering::Relaxed)
            || unbidden(self)
            || leases.pool.lock().classes.iter().any(|(_, class)| unbidden(class));
        if seen {
            leases.unbidden.store(true, Ordering::Relaxed);
        }
        seen
    }

    /// One that is kept for these roots and in use, where its calls may run beside each other.
    fn join(&self, pool: &mut Pool, abilities: Abilities, whose: Option<&Keeper>) -> Option<(u64, Self)> {
        let alone = self.config().interactive == Interactive::Exclusive
            || self.leases().exclusive.load(Ordering::Relaxed);
        let whose = whose.filter(|whose| matches!(whose, Keeper::Roots { .. }) && !alone)?;
        pool.clock += 1;
        let clock = pool.clock;
        let entry = pool.entries.iter_mut().find(|entry| {
            entry.users > 0
                && entry.abilities == abilities
                && entry.whose.as_ref() == Some(whose)
                && !entry.upstream.is_crowded(self.leases())
        })?;
        (entry.users, entry.used) = (entry.users + 1, clock);
        Some((entry.number, entry.upstream.clone()))
    }

    /// Whether it is a legacy server that was seen to ask for roots, and so may know those of whoever used it.
    pub fn keeps_roots(&self) -> bool {
        let leases = self.leases();
        if leases.roots.load(Ordering::Relaxed) {
            return true;
        }
        let asked = |upstream: &Self| matches!(upstream.state(), UpstreamState::Ready(ready) if ready.link.has_asked_roots());
        let asked = asked(self) || leases.pool.lock().classes.iter().any(|(_, class)| asked(class));
        if asked {
            leases.roots.store(true, Ordering::Relaxed);
        }
        asked
    }

    /// Whether clients that did not declare everything have one of their class: where that costs a session only, or
    /// where the server is known to ask.
    fn has_classes(&self, abilities: Abilities) -> bool {
        let UpstreamState::Ready(ready) = self.state() else { return false };
        if ready.link.has_asked() {
            self.leases().asks.store(true, Ordering::Relaxed);
        }
        abilities != Abilities::ALL
            && (ready.link.has_own_streams() || self.leases().asks.load(Ordering::Relaxed))
    }

    /// Whether a question could be taken for that of another call here, and so this is no place for one more. `leases`
    /// are those of the whole server.
    fn is_crowded(&self, leases: &Leases) -> bool {
        let UpstreamState::Ready(ready) = self.state() else { return false };
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
        let upstream = self.beside(Scope::Class(abilities), Arc::new(leased(self.config())))?;
        info!(server = %self.name(), why = Reason::Class.as_str(), "clients of a class have one of their own beside the shared one");
        pool.classes.push((abilities, upstream.clone()));
        Ok(Some(upstream))
    }

    /// One that nobody uses: the session's own of before, else a new one, else the one that was not used for longest.
    /// One that may know the roots of another is not given away.
    fn take(
        &self,
        abilities: Abilities,
        whose: Option<Keeper>,
        rooted: bool,
        turn: OwnedSemaphorePermit,
    ) -> Result<(u64, Self), Unavailable> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut pool = self.leases().pool.lock();
        // Another call of the same client may have come first.
        if let Some(joined) = self.join(&mut pool, abilities, whose.as_ref()) {
            return Ok(joined);
        }
        pool.clock += 1;
        let clock = pool.clock;
        let has_room = pool.entries.len() < self.config().max_leases.max(1);
        let mut idle: Vec<&mut Entry> = pool.entries.iter_mut().filter(|entry| entry.users == 0).collect();
        idle.sort_by_key(|entry| entry.used);
        let fits = |entry: &Entry| entry.abilities == abilities;
        let at = idle
            .iter()
            .position(|entry| fits(entry) && entry.whose == whose && (whose.is_some() || !rooted))
            .or_else(|| if has_room || rooted { None } else { idle.iter().position(|entry| fits(entry)) });
        if let Some(at) = at {
            let entry = &mut idle[at];
            (entry.users, entry.turn, entry.whose, entry.used) = (1, Some(turn), whose, clock);
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
        let mut server = leased(self.config());
        if let Some(Keeper::Roots { roots, .. }) = &whose {
            server.roots = Some(roots.clone());
        }
        let upstream = self.beside(Scope::Lease(number, abilities), Arc::new(server))?;
        let why = if rooted { Reason::Roots } else { Reason::Questions };
        info!(server = %self.name(), why = why.as_str(), "a client has one of its own beside the shared one");
        pool.entries.push(Entry {
            number,
            upstream: upstream.clone(),
            abilities,
            whose,
            why,
            users: 1,
            turn: Some(turn),
            used: clock,
        });
        Ok((number, upstream))
    }

    /// How many processes or sessions there are beside the shared one, and why.
    pub fn reasons_beside(&self) -> BTreeMap<Reason, usize> {
        let mut reasons = BTreeMap::new();
        let mut count = |reason, more: usize| {
            if more > 0 {
                *reasons.entry(reason).or_default() += more;
            }
        };
        count(
            if self.config().isolation == Isolation::Session { Reason::Isolation } else { Reason::Roots },
            self.session_count(),
        );
        let pool = self.leases().pool.lock();
        count(Reason::Class, pool.classes.len());
        pool.entries.iter().for_each(|entry| count(entry.why, 1));
        reasons
    }

    /// How many processes or sessions there are beside the shared one for clients that can be asked.
    pub fn leased(&self) -> usize {
        let pool = self.leases().pool.lock();
        pool.entries.len() + pool.classes.len()
    }
}

/// The configuration of a lease: it sleeps when nobody uses it.
fn leased(server: &Server) -> Server {
    let idle = server.idle_timeout.unwrap_or(IDLE).min(IDLE);
    Server { idle_timeout: Some(idle), lazy: false, ..server.clone() }
}

#[cfg(test)]
mod tests;
