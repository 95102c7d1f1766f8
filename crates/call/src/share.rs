//! How principals share what is scarce: places that are taken, waited for in turns, and given up for others.
//!
//! A place is taken for a principal, and the [`Permit`] knows it. While places are free, everybody gets one. While none is,
//! takers wait: first come, first served within a principal, and principals take turns. A principal that still holds places
//! of calls it has given up ([`Permit::linger`]) comes after those that do not.
//!
//! A call that waits for its client works on nothing: its place *rests*. When another principal waits, and the principal of a
//! resting place has more than its fair share (the places, divided by the principals that hold or want one), the place is
//! called back: the newest of the greediest principal first. Who has only one place keeps it for [`PATIENCE`]. A place that
//! works is never called back, and without another principal nothing is.
//!
//! What must stay true: a place is free only if nobody waits, and every permit gives its place back exactly once, however it
//! is dropped. No lock is held while anybody is told.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How long the only place of a principal may rest while a principal that has none waits.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// How often a waiter looks whether a place has rested for too long.
const LOOK: Duration = Duration::from_secs(1);

/// A number of places that principals share.
#[derive(Debug)]
pub struct Share {
    most: usize,
    line: Mutex<Line>,
}

/// How many places are in use at one moment, and how many takers wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Depth {
    /// Places in use, lingering ones included.
    pub running: usize,
    /// Takers that wait.
    pub waiting: usize,
    /// Places of calls that were given up and have not ended.
    pub lingering: usize,
}

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoTurn {
    /// As many wait as may.
    #[error("too many wait already")]
    Full,
    /// The deadline has passed.
    #[error("no turn came in time")]
    Late,
}

/// A place, in use. Dropping it lets the next taker in.
#[derive(Debug)]
pub struct Permit {
    seat: Seat,
    lingers: bool,
}

/// Names a place while its permit is elsewhere.
#[derive(Debug, Clone)]
pub struct Seat {
    share: Arc<Share>,
    principal: Arc<str>,
    number: u64,
}

/// A place rests for as long as this lives.
#[derive(Debug)]
pub struct Resting {
    seat: Seat,
    number: u64,
    told: oneshot::Receiver<()>,
}

/// The place of a call was called back for another principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it waited for its client, and made way for a call of another principal")]
pub struct Evicted;

#[derive(Debug)]
struct Line {
    free: usize,
    /// The number of the newest place, waiter or rest.
    newest: u64,
    /// Who holds how many places. A few principals at most hold something at once, so looking through them is cheaper than a
    /// hash.
    holders: Vec<Holder>,
    lingering: usize,
    waiting: usize,
    /// The waiting takers of each principal that has any, the oldest first.
    takers: HashMap<Arc<str>, VecDeque<Taker>>,
    /// The principals with waiting takers, in the order of their turns.
    turns: VecDeque<Arc<str>>,
    /// The places that rest, by the number of the rest.
    resting: BTreeMap<u64, Rest>,
    /// The places that were called back and are not yet given back, and whose they are.
    leaving: Vec<(u64, Arc<str>)>,
}

#[derive(Debug)]
struct Holder {
    principal: Arc<str>,
    held: usize,
    lingering: usize,
}

#[derive(Debug)]
struct Taker {
    number: u64,
    tell: oneshot::Sender<Turn>,
}

/// What a waiting taker is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has a place.
    Take,
    /// It made room in the line for another principal.
    GiveWay,
}

#[derive(Debug)]
struct Rest {
    /// The place.
    seat: u64,
    principal: Arc<str>,
    since: Instant,
    tell: oneshot::Sender<()>,
}

/// How one principal stands, as far as making way is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    /// How many places it has.
    pub held: usize,
    /// How many principals have a place or want one, the newcomer included.
    pub principals: usize,
}

impl Standing {
    /// Whether it has more than its fair share of `most` places.
    pub const fn is_above(self, most: usize) -> bool {
        self.held.saturating_mul(self.principals) > most
    }

    /// Whether it still has as many as a newcomer after it gave that one of its places.
    pub const fn can_spare(self, newcomer: usize) -> bool {
        self.held > newcomer + 1
    }
}

/// Which of these places makes way: the newest of the principal that has the most, if that is above its fair share of `most`
/// places. Each candidate comes with the standing of its principal and with its order among that principal's places; the one
/// that goes first is the greatest.
pub fn makes_way<T, O: Ord>(most: usize, candidates: impl Iterator<Item = (Standing, O, T)>) -> Option<T> {
    candidates
        .filter(|(standing, ..)| standing.is_above(most))
        .max_by(|(one, first, _), (other, second, _)| (one.held, first).cmp(&(other.held, second)))
        .map(|(.., place)| place)
}

impl Line {
    fn hold(&mut self, principal: &Arc<str>) {
        match self.holder(principal) {
            Some(holder) => holder.held += 1,
            None => {
                self.holders.push(Holder { principal: Arc::clone(principal), held: 1, lingering: 0 });
            }
        }
    }

    fn holder(&mut self, principal: &Arc<str>) -> Option<&mut Holder> {
        let is = |holder: &&mut Holder| {
            Arc::ptr_eq(&holder.principal, principal) || holder.principal == *principal
        };
        self.holders.iter_mut().find(is)
    }

    fn held(&self, principal: &str) -> usize {
        self.holders.iter().find(|holder| *holder.principal == *principal).map_or(0, |holder| holder.held)
    }

    fn lingering(&self, principal: &str) -> usize {
        let found = self.holders.iter().find(|holder| *holder.principal == *principal);
        found.map_or(0, |holder| holder.lingering)
    }

    fn try_take(&mut self, principal: &Arc<str>) -> Option<u64> {
        self.free = self.free.checked_sub(1)?;
        self.hold(principal);
        self.newest += 1;
        Some(self.newest)
    }

    /// Takes a place back, and gives it to whoever is next.
    fn give_back(&mut self, principal: &Arc<str>, lingered: bool) {
        if let Some(holder) = self.holder(principal) {
            holder.held -= 1;
            holder.lingering -= usize::from(lingered);
            if holder.held == 0 {
                self.holders.retain(|holder| holder.held > 0);
            }
        }
        self.lingering -= usize::from(lingered);
        match self.next_taker() {
            Some((principal, taker)) => {
                self.hold(&principal);
                // A taker that stops waiting leaves the line first, so this one still listens.
                let _ = taker.tell.send(Turn::Take);
            }
            None => self.free += 1,
        }
    }

    /// The taker whose turn it is, out of the line.
    fn next_taker(&mut self) -> Option<(Arc<str>, Taker)> {
        let at = match self.lingering {
            0 => 0,
            _ => (0..self.turns.len()).min_by_key(|at| self.lingering(&self.turns[*at]))?,
        };
        let principal = self.turns.remove(at)?;
        let takers = self.takers.get_mut(&principal)?;
        let taker = takers.pop_front()?;
        if takers.is_empty() {
            self.takers.remove(&principal);
        } else {
            self.turns.push_back(Arc::clone(&principal));
        }
        self.waiting -= 1;
        Some((principal, taker))
    }

    /// Lets a taker wait, if fewer than `most` do or another gives way. Returns its number.
    fn join(&mut self, principal: &Arc<str>, most: usize) -> Option<(u64, oneshot::Receiver<Turn>)> {
        if self.waiting >= most {
            self.make_room_for(principal)?;
        }
        let (tell, told) = oneshot::channel();
        self.newest += 1;
        let taker = Taker { number: self.newest, tell };
        match self.takers.entry(Arc::clone(principal)) {
            Entry::Occupied(mut takers) => takers.get_mut().push_back(taker),
            Entry::Vacant(none) => {
                none.insert(VecDeque::from([taker]));
                self.turns.push_back(Arc::clone(principal));
            }
        }
        self.waiting += 1;
        Some((self.newest, told))
    }

    /// Refuses the newest taker of the principal with the most waiting ones; nobody, if the newcomer would then have as many.
    fn make_room_for(&mut self, newcomer: &Arc<str>) -> Option<()> {
        let own = self.takers.get(newcomer).map_or(0, VecDeque::len);
        let newest = |takers: &VecDeque<Taker>| takers.back().map(|taker| taker.number);
        let takers = self.takers.values_mut().max_by_key(|takers| (takers.len(), newest(takers)))?;
        if takers.len() <= own + 1 {
            return None;
        }
        let refused = takers.pop_back()?;
        self.waiting -= 1;
        let _ = refused.tell.send(Turn::GiveWay);
        Some(())
    }

    /// Takes a taker out of the line. Returns whether it was still waiting.
    fn leave(&mut self, principal: &Arc<str>, number: u64) -> bool {
        let Some(takers) = self.takers.get_mut(principal) else { return false };
        let Ok(at) = takers.binary_search_by_key(&number, |taker| taker.number) else { return false };
        takers.remove(at);
        if takers.is_empty() {
            self.takers.remove(principal);
            self.turns.retain(|other| other != principal);
        }
        self.waiting -= 1;
        true
    }

    /// Calls a resting place back for this waiting principal, if one has to make way and none is on its way already.
    fn call_back(&mut self, most: usize, waiter: &str) {
        if self.resting.is_empty() || self.leaving.len() >= self.waiting {
            return;
        }
        let own = self.held(waiter);
        let waits_only = self.takers.keys().filter(|principal| self.held(principal) == 0).count();
        let principals = self.holders.len() + waits_only;
        let candidates = self.resting.iter().filter(|(_, rest)| *rest.principal != *waiter);
        let candidates = candidates.filter_map(|(_, rest)| {
            let leaving = self.leaving.iter().filter(|(_, whose)| *whose == rest.principal).count();
            let standing = Standing { held: self.held(&rest.principal) - leaving, principals };
            let rested = own == 0 && rest.since.elapsed() >= PATIENCE;
            (standing.can_spare(own) || rested).then_some((standing, rest.seat, rest.seat))
        });
        let Some(seat) = makes_way(most, candidates) else { return };
        // Several calls may use one place, such as a process for the calls of one client.
        for (_, rest) in self.resting.extract_if(.., |_, rest| rest.seat == seat) {
            self.leaving.push((seat, rest.principal));
            let _ = rest.tell.send(());
        }
        self.leaving.dedup();
    }
}

impl Share {
    /// This many places.
    pub fn new(most: usize) -> Arc<Self> {
        let line = Line {
            free: most,
            newest: 0,
            holders: Vec::new(),
            lingering: 0,
            waiting: 0,
            takers: HashMap::new(),
            turns: VecDeque::new(),
            resting: BTreeMap::new(),
            leaving: Vec::new(),
        };
        Arc::new(Self { most, line: Mutex::new(line) })
    }

    /// A place, if one is free now.
    #[inline]
    pub fn try_take(self: &Arc<Self>, principal: &Arc<str>) -> Option<Permit> {
        let number = self.line.lock().try_take(principal)?;
        Some(self.permit(principal, number))
    }

    /// Waits for a place until `deadline`, if fewer than `most_waiting` wait.
    ///
    /// # Errors
    /// If too many wait, or no turn came in time.
    pub async fn take(
        self: &Arc<Self>,
        principal: &Arc<str>,
        most_waiting: usize,
        deadline: Instant,
    ) -> Result<Permit, NoTurn> {
        let joined = {
            let mut line = self.line.lock();
            // One may have become free since the taker tried.
            if let Some(number) = line.try_take(principal) {
                drop(line);
                return Ok(self.permit(principal, number));
            }
            let joined = line.join(principal, most_waiting);
            line.call_back(self.most, principal);
            joined
        };
        let (number, told) = joined.ok_or(NoTurn::Full)?;
        let mut waiting = Waiting { share: self, principal, number, told };
        loop {
            let look = deadline.min(Instant::now() + LOOK);
            match tokio::time::timeout_at(look, &mut waiting.told).await {
                Ok(Ok(Turn::Take)) => return Ok(self.permit(principal, number)),
                Ok(_) => return Err(NoTurn::Full),
                Err(_) if look >= deadline => return Err(NoTurn::Late),
                Err(_) => self.line.lock().call_back(self.most, principal),
            }
        }
    }

    fn permit(self: &Arc<Self>, principal: &Arc<str>, number: u64) -> Permit {
        let seat = Seat { share: Arc::clone(self), principal: Arc::clone(principal), number };
        Permit { seat, lingers: false }
    }

    /// How many places there are.
    pub const fn most(&self) -> usize {
        self.most
    }

    /// How many places are in use, and how many takers wait.
    pub fn depth(&self) -> Depth {
        let line = self.line.lock();
        Depth { running: self.most - line.free, waiting: line.waiting, lingering: line.lingering }
    }
}

impl Permit {
    /// The place, to let it rest while the permit is elsewhere.
    pub fn seat(&self) -> Seat {
        self.seat.clone()
    }

    /// Notes that the call of this place was given up, and that the place is kept because its end is not known.
    pub fn linger(&mut self) {
        if !std::mem::replace(&mut self.lingers, true) {
            let mut line = self.seat.share.line.lock();
            line.lingering += 1;
            if let Some(holder) = line.holder(&self.seat.principal) {
                holder.lingering += 1;
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut line = self.seat.share.line.lock();
        line.leaving.retain(|(seat, _)| *seat != self.seat.number);
        line.give_back(&self.seat.principal, self.lingers);
    }
}

impl Seat {
    /// Lets the place rest, until the value is dropped.
    pub fn rest(&self) -> Resting {
        let (tell, told) = oneshot::channel();
        let mut line = self.share.line.lock();
        line.newest += 1;
        let number = line.newest;
        let principal = Arc::clone(&self.principal);
        line.resting.insert(number, Rest { seat: self.number, principal, since: Instant::now(), tell });
        for waiter in line.turns.iter().cloned().collect::<Vec<_>>() {
            line.call_back(self.share.most, &waiter);
        }
        drop(line);
        Resting { seat: self.clone(), number, told }
    }
}

impl Resting {
    /// Resolves when the place is called back for another principal.
    pub async fn evicted(&mut self) -> Evicted {
        match (&mut self.told).await {
            Ok(()) => Evicted,
            // Only this guard takes the rest out otherwise.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        self.seat.share.line.lock().resting.remove(&self.number);
    }
}

/// A taker in the line, which leaves it when dropped.
struct Waiting<'s> {
    share: &'s Arc<Share>,
    principal: &'s Arc<str>,
    number: u64,
    told: oneshot::Receiver<Turn>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut line = self.share.line.lock();
        // A place that came too late goes to the next taker. One that was taken is not there any more.
        if !line.leave(self.principal, self.number) && self.told.try_recv() == Ok(Turn::Take) {
            line.give_back(self.principal, false);
        }
    }
}

#[cfg(test)]
mod tests;
