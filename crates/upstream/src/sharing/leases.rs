//! Processes and sessions of a server for clients that can be asked questions.
//!
//! The shared process is told at its handshake that it may ask anything, and its question on a shared stream does
//! not say which call it belongs to. So other processes run beside it, each told exactly what the clients of a
//! *class* declared. A call of a client that can be asked gets its own process if it would otherwise share the
//! stream of an asking server with another such call, and always once a question could not be attributed. At most
//! `max_leases` exist at a time; further calls wait. A client that declared nothing needs no lease.
//!
//! A server may remember the roots it was given. Once a server is known to ask for roots, those of one client are
//! never given to a process that another client uses: each session gets its own. A call outside any session uses
//! the process kept for its principal and roots, if the server asks for roots unprompted: the client is asked
//! first, and the server gets the answer whenever it asks. If the server asks for roots only within calls, and may
//! get different ones each time, such a call gets a process that ends with it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use bridgehead_call::{Permit, Seat, Share};
use bridgehead_config::{Interactive, Isolation, Roots, ServerConfig};
use bridgehead_wire::{Abilities, Era, Method};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::info;

use crate::server::{Unavailable, Upstream, UpstreamState};
use crate::sharing::key::Scope;

/// How long an unused lease keeps running.
const IDLE: Duration = Duration::from_secs(300);
/// The most classes of clients with their own process; further classes use the shared one.
const MOST_CLASSES: usize = 16;

/// The leases of one server.
#[derive(Debug)]
pub(crate) struct Leases {
    turns: Arc<Share>,
    /// Set once a question could have belonged to more than one call.
    exclusive: AtomicBool,
    /// Set once the server has asked a question.
    asks: AtomicBool,
    /// Set once it has asked for roots.
    roots: AtomicBool,
    /// Set once it has asked for roots outside of calls.
    unbidden: AtomicBool,
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    entries: Vec<Entry>,
    classes: Vec<(Abilities, Upstream)>,
    /// Counts uses, to find the least recently used entry.
    clock: u64,
}

/// A process for one call at a time, or for the calls of its keeper.
#[derive(Debug)]
struct Entry {
    number: u64,
    upstream: Upstream,
    abilities: Abilities,
    /// Who used it last; it may still hold that client's state.
    whose: Option<LeaseOwner>,
    why: Reason,
    /// How many calls use it.
    users: usize,
    /// Held while it has users.
    turn: Option<Permit>,
    used: u64,
}

/// An entry: its number, its process, and its place among those in use.
type Joined = (u64, Upstream, Option<Seat>);

/// Whom a process or session is kept for between calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseOwner {
    /// A session of a legacy client, by its number.
    Session(u64),
    /// Calls of a principal whose client has these roots.
    Roots {
        /// The principal of the calls.
        principal: Arc<str>,
        /// The roots that its client answered with.
        roots: Roots,
    },
}

/// Why a client has a process or session beside the shared one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// It has roots, and the server remembers the roots it was given.
    Roots,
    /// The server asks questions during calls.
    Questions,
    /// The server is told at its handshake what the clients declared.
    Class,
    /// `isolation = "session"`.
    Isolation,
}

impl Reason {
    /// The reason as text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Roots => "its client has roots, and this server remembers the roots it was given",
            Self::Questions => {
                "this server asks during calls, and on a shared stream a question does not say which call it belongs to"
            }
            Self::Class => {
                "its client answers only some questions, and this server is told what it may ask when it starts"
            }
            Self::Isolation => "`isolation = \"session\"`",
        }
    }
}

/// A process or session that a call uses instead of the shared one, for as long as this lives.
#[derive(Debug)]
pub struct Lease {
    upstream: Upstream,
    /// The upstream to return it to, and its number there; `None` for one that a class shares.
    home: Option<(Upstream, u64)>,
    /// Its place among the leases, if it has one.
    seat: Option<Seat>,
    /// Whether it cannot be used again.
    once: bool,
}

impl Lease {
    /// The leased process or session.
    pub const fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Its place among those that are in use, which rests while its call waits for its client.
    pub fn seat(&self) -> Option<Seat> {
        self.seat.clone()
    }

    /// Notes that its call was given up, and that it is kept because the server may still work on it.
    pub fn linger(&mut self) {
        if let Some((home, number)) = &self.home {
            let mut pool = home.leases().pool.lock();
            let entry = pool.entries.iter_mut().find(|entry| entry.number == *number);
            if let Some(turn) = entry.and_then(|entry| entry.turn.as_mut()) {
                turn.linger();
            }
        }
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
    pub(crate) fn new(server: &ServerConfig) -> Self {
        Self {
            turns: Share::new(server.max_leases.max(1)),
            exclusive: AtomicBool::new(false),
            asks: AtomicBool::new(false),
            roots: AtomicBool::new(false),
            unbidden: AtomicBool::new(false),
            pool: Mutex::default(),
        }
    }
}

impl Upstream {
    /// The lease for a call of a client with these abilities; `None` if this upstream will do. `whose` names the
    /// keeper, if the server may remember the client. Waits until `deadline` if all leases are in use; principals take turns.
    pub async fn lease(
        &self,
        principal: &Arc<str>,
        abilities: Abilities,
        whose: Option<LeaseOwner>,
        deadline: Instant,
    ) -> Result<Option<Lease>, Unavailable> {
        let interactive = self.config().interactive;
        // A modern server asks in its results, which always belong to a call.
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
            // Without any ambiguity so far, calls do not wait for a lease: there may be no question at all.
            let free =
                !self.leases().exclusive.load(Ordering::Relaxed) && turns.depth().running >= turns.most();
            if !crowded || free {
                return Ok(class.map(|upstream| Lease { upstream, home: None, seat: None, once: false }));
            }
        }
        let joined = self.join(&mut self.leases().pool.lock(), abilities, whose.as_ref());
        if let Some((number, upstream, seat)) = joined {
            return Ok(Some(Lease { upstream, home: Some((self.clone(), number)), seat, once: false }));
        }
        let turn = match turns.try_take(principal) {
            Some(turn) => Ok(turn),
            None => turns.take(principal, usize::MAX, deadline).await,
        };
        let Ok(turn) = turn else {
            return Err(Unavailable::AllLeased(self.config().max_leases));
        };
        let once = rooted && whose.is_none();
        let (number, upstream, seat) = self.take(abilities, whose, rooted, turn)?;
        Ok(Some(Lease { upstream, home: Some((self.clone(), number)), seat, once }))
    }

    /// Whether a call outside any session must bring its client's roots, because a process of this server may be
    /// kept for them.
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

    /// A process in use that is kept for these roots, if its calls may run concurrently.
    fn join(&self, pool: &mut Pool, abilities: Abilities, whose: Option<&LeaseOwner>) -> Option<Joined> {
        let alone = self.config().interactive == Interactive::Exclusive
            || self.leases().exclusive.load(Ordering::Relaxed);
        let whose = whose.filter(|whose| matches!(whose, LeaseOwner::Roots { .. }) && !alone)?;
        pool.clock += 1;
        let clock = pool.clock;
        let entry = pool.entries.iter_mut().find(|entry| {
            entry.users > 0
                && entry.abilities == abilities
                && entry.whose.as_ref() == Some(whose)
                && !entry.upstream.is_crowded(self.leases())
        })?;
        (entry.users, entry.used) = (entry.users + 1, clock);
        Some((entry.number, entry.upstream.clone(), entry.turn.as_ref().map(Permit::seat)))
    }

    /// Whether a legacy server has asked for roots, and so may remember those of its clients.
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

    /// Whether clients that did not declare everything get a process of their class: if that costs only a session,
    /// or if the server is known to ask.
    fn has_classes(&self, abilities: Abilities) -> bool {
        let UpstreamState::Ready(ready) = self.state() else { return false };
        if ready.link.has_asked() {
            self.leases().asks.store(true, Ordering::Relaxed);
        }
        abilities != Abilities::ALL
            && (ready.link.has_own_streams() || self.leases().asks.load(Ordering::Relaxed))
    }

    /// Whether a further call here could make a question ambiguous. `leases` are those of the whole server.
    fn is_crowded(&self, leases: &Leases) -> bool {
        let UpstreamState::Ready(ready) = self.state() else { return false };
        let link = &ready.link;
        if link.was_ambiguous() {
            if !leases.exclusive.swap(true, Ordering::Relaxed) {
                info!(server = %self.name(), "asks during calls; calls of clients that can be asked no longer share it");
            }
            return true;
        }
        // A server that never asked is shared by all: most never ask.
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
        info!(server = %self.name(), why = Reason::Class.as_str(), "a class of clients gets its own process or session");
        pool.classes.push((abilities, upstream.clone()));
        Ok(Some(upstream))
    }

    /// Takes an unused process: the keeper's own from before, else a new one, else the least recently used. A
    /// process that may know another client's roots is never given away.
    fn take(
        &self,
        abilities: Abilities,
        whose: Option<LeaseOwner>,
        rooted: bool,
        turn: Permit,
    ) -> Result<Joined, Unavailable> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let mut pool = self.leases().pool.lock();
        // Another call of the same client may have come first.
        if let Some(joined) = self.join(&mut pool, abilities, whose.as_ref()) {
            return Ok(joined);
        }
        pool.clock += 1;
        let clock = pool.clock;
        let seat = Some(turn.seat());
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
            return Ok((entry.number, entry.upstream.clone(), seat));
        }
        // Every process in use has a permit, so without room an idle entry exists.
        let given_up = idle.first().filter(|_| !has_room).map(|entry| entry.number);
        if let Some(number) = given_up
            && let Some(at) = pool.entries.iter().position(|entry| entry.number == number)
        {
            pool.entries.swap_remove(at).upstream.release();
        }
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut server = leased(self.config());
        if let Some(LeaseOwner::Roots { roots, .. }) = &whose {
            server.roots = Some(roots.clone());
        }
        let upstream = self.beside(Scope::Lease(number, abilities), Arc::new(server))?;
        let why = if rooted { Reason::Roots } else { Reason::Questions };
        info!(server = %self.name(), why = why.as_str(), "a client gets its own process or session");
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
        Ok((number, upstream, seat))
    }

    /// How many processes or sessions exist beside the shared one, by reason.
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

    /// How many processes or sessions exist beside the shared one for clients that can be asked.
    pub fn leased(&self) -> usize {
        let pool = self.leases().pool.lock();
        pool.entries.len() + pool.classes.len()
    }
}

/// The configuration of a lease: it sleeps when unused.
fn leased(server: &ServerConfig) -> ServerConfig {
    let idle = server.idle_timeout.unwrap_or(IDLE).min(IDLE);
    ServerConfig { idle_timeout: Some(idle), lazy: false, ..server.clone() }
}

#[cfg(test)]
mod tests;
