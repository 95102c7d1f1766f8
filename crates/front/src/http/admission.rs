//! Counts the connections, and decides which one makes way when there is no room for another.
//!
//! A connection is *fresh* until the head of its first request has arrived, *busy* from there to the end of the answer,
//! and *idle* between requests. When all places are taken, the oldest fresh connection makes way; if there is none, the one
//! that has been idle the longest. A connection that answers a call is never closed for a new one, and neither is one whose
//! client has not read its whole answer.
//!
//! Streams that only stand open, and bodies that are still being sent, make way by principal. When all places are busy, a few
//! more connections may come as far as the door, to say who they are. Such a one is let in if a principal above its fair share
//! has streams open: the newest of the greediest ends. Otherwise its request is refused. When memory is short, the newest
//! unfinished bodies of the greediest principal end for a principal that has less ([`Lenient::make_way`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bridgehead_call::{Standing, makes_way};
use bridgehead_wire::held::{Account, Budget, Lenient, NoRoom, Reservation};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::debug;

const FRESH: u8 = 0;
const IDLE: u8 = 1;
const BUSY: u8 = 2;
const EVICTED: u8 = 3;

/// All connections of one listener.
#[derive(Debug)]
pub(crate) struct Admission {
    most: usize,
    /// How many more may come to say who they are, when all places are busy.
    door: usize,
    born: Instant,
    next: AtomicU64,
    budget: Arc<Budget>,
    table: Mutex<HashMap<u64, Arc<Activity>>>,
}

/// What is known of one connection.
#[derive(Debug)]
pub(crate) struct Activity {
    state: AtomicU8,
    /// When it entered that state, in microseconds since the listener began; not kept while it is busy.
    since: AtomicU64,
    born: Instant,
    /// Whether part of an answer waits for its client to read.
    writing: AtomicBool,
    /// Cancelled when it has to make way, and when the front shuts down: one check covers both.
    ends: CancellationToken,
    /// Counts the memory that is held for it.
    pub(crate) account: Arc<Account>,
    /// The part of that for the body of its request, if the body is long.
    body: Mutex<Option<Reservation>>,
    holds_body: AtomicBool,
    /// How much of that belongs to a body whose end has not come.
    unfinished: AtomicUsize,
    /// The principal of its last request.
    whose: Mutex<Option<Arc<str>>>,
    /// Whether it has no place yet.
    at_door: AtomicBool,
    /// Whether its answer is a stream that stands open, and no call.
    stands: AtomicBool,
    home: Weak<Admission>,
}

/// The step in which the reservation for a body grows.
const BODY_STEP: usize = 256 * 1024;

/// A place among the connections, given back when dropped.
#[derive(Debug)]
pub(crate) struct Member {
    admission: Arc<Admission>,
    number: u64,
    pub(crate) activity: Arc<Activity>,
}

impl Admission {
    /// Room for `most` connections, with accounts of this budget.
    pub(crate) fn new(most: usize, budget: &Arc<Budget>) -> Arc<Self> {
        Self::with_door(most, 0, budget)
    }

    /// The same, with room for so many more that say who they are.
    pub(crate) fn with_door(most: usize, door: usize, budget: &Arc<Budget>) -> Arc<Self> {
        let (born, budget) = (Instant::now(), Arc::clone(budget));
        let admission =
            Arc::new(Self { most, door, born, next: AtomicU64::new(0), budget, table: Mutex::default() });
        admission.budget.on_shortage(Arc::downgrade(&admission));
        admission
    }

    /// A place for a new connection, if need be that of an unused one, else one at the door; `None` if all are in use.
    pub(crate) fn enter(self: &Arc<Self>, shutdown: &CancellationToken) -> Option<Member> {
        let mut table = self.table.lock();
        let mut at_door = false;
        if table.len() >= self.most {
            let waiting = at_the_door(&table);
            at_door = table.len() - waiting >= self.most && !make_way(&mut table, Some(false));
            if at_door && waiting >= self.door && !(self.door > 0 && make_way(&mut table, Some(true))) {
                return None;
            }
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let activity = Arc::new(Activity {
            state: AtomicU8::new(FRESH),
            since: AtomicU64::new(micros(self.born)),
            born: self.born,
            writing: AtomicBool::new(false),
            ends: shutdown.child_token(),
            account: Account::new(&self.budget),
            body: Mutex::default(),
            holds_body: AtomicBool::new(false),
            unfinished: AtomicUsize::new(0),
            whose: Mutex::default(),
            at_door: AtomicBool::new(at_door),
            stands: AtomicBool::new(false),
            home: Arc::downgrade(self),
        });
        table.insert(number, Arc::clone(&activity));
        Some(Member { admission: Arc::clone(self), number, activity })
    }

    /// Closes an unused connection to free its descriptor; returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        make_way(&mut self.table.lock(), None)
    }

    /// Gives a connection at the door a place, now that its principal is known; returns whether there is one.
    fn let_in(&self, activity: &Activity, principal: &Arc<str>) -> bool {
        let mut table = self.table.lock();
        let busy = table.len() - at_the_door(&table);
        if busy >= self.most && !make_way(&mut table, Some(false)) && !self.end_stream(&mut table, principal)
        {
            return false;
        }
        activity.at_door.store(false, Ordering::Release);
        true
    }

    /// Ends the newest standing stream of the principal that has the most connections, if it has to make way for this one.
    fn end_stream(&self, table: &mut HashMap<u64, Arc<Activity>>, newcomer: &Arc<str>) -> bool {
        let mut held: HashMap<Arc<str>, usize> = HashMap::from([(Arc::clone(newcomer), 0)]);
        for activity in table.values().filter(|activity| !activity.at_door.load(Ordering::Acquire)) {
            if let Some(whose) = activity.whose.lock().clone() {
                *held.entry(whose).or_default() += 1;
            }
        }
        let own = held.get(newcomer).copied().unwrap_or_default();
        let candidates = table.iter().filter_map(|(number, activity)| {
            let whose = activity.whose.lock().clone()?;
            let standing = Standing { held: held.get(&whose).copied()?, principals: held.len() };
            let open = activity.stands.load(Ordering::Acquire) && activity.is_busy();
            (open && whose != *newcomer && standing.can_spare(own)).then_some((standing, *number, *number))
        });
        makes_way(self.most, candidates).is_some_and(|number| close(table, number, BUSY))
    }
}

/// Unfinished bodies make way: the newest of the principal whose bodies hold most.
impl Lenient for Admission {
    fn let_go(&self, _bytes: usize) {}

    fn make_way(&self, bytes: usize, principal: &str) {
        let mut freed = 0;
        while freed < bytes {
            let mut table = self.table.lock();
            let mut held: HashMap<Arc<str>, (usize, u64)> = HashMap::new();
            let mut own = 0;
            for (number, activity) in &*table {
                let unfinished = activity.unfinished.load(Ordering::Acquire);
                let Some(whose) = activity.whose.lock().clone().filter(|_| unfinished > 0) else { continue };
                if *whose == *principal {
                    own += unfinished;
                } else {
                    let (sum, newest) = held.entry(whose).or_default();
                    (*sum, *newest) = (*sum + unfinished, (*newest).max(*number));
                }
            }
            let Some((sum, number)) = held.into_values().max() else { return };
            // It keeps no less than the newcomer has then.
            if sum < own + 2 * (bytes - freed) {
                return;
            }
            let Some(activity) = table.get(&number).cloned() else { return };
            // One that is just growing is locked; the next shortage finds it.
            let Some(body) = activity.body.try_lock().and_then(|mut body| body.take()) else { return };
            if !close(&mut table, number, BUSY) {
                return;
            }
            drop(table);
            freed += body.bytes();
        }
    }
}

fn at_the_door(table: &HashMap<u64, Arc<Activity>>) -> usize {
    table.values().filter(|activity| activity.at_door.load(Ordering::Acquire)).count()
}

/// Closes a connection that is still in this state; returns whether it was.
fn close(table: &mut HashMap<u64, Arc<Activity>>, number: u64, state: u8) -> bool {
    let Some(activity) = table.get(&number) else { return false };
    // Its next request may have arrived, or its answer ended, meanwhile.
    if activity.state.compare_exchange(state, EVICTED, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return false;
    }
    debug!(requested = state != FRESH, "a connection makes way for another");
    activity.ends.cancel();
    table.remove(&number);
    true
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Evicts the oldest fresh connection, else the one that has been idle the longest; of those at the door, or of the others, if
/// that is said.
fn make_way(table: &mut HashMap<u64, Arc<Activity>>, at_door: Option<bool>) -> bool {
    loop {
        let candidates = table.iter().filter_map(|(number, activity)| {
            let state = activity.state.load(Ordering::Acquire);
            let unused = state == FRESH || state == IDLE && !activity.writing.load(Ordering::Acquire);
            let unused = unused && at_door.is_none_or(|at| activity.at_door.load(Ordering::Acquire) == at);
            unused.then(|| (state, activity.since.load(Ordering::Acquire), *number))
        });
        let Some((state, _, number)) = candidates.min() else { return false };
        if close(table, number, state) {
            return true;
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.admission.table.lock().remove(&self.number);
    }
}

impl Activity {
    /// A request has arrived; returns whether it may be served. [`Activity::finish`] marks the end of its answer.
    pub(crate) fn begin(&self) -> bool {
        self.state
            .try_update(Ordering::AcqRel, Ordering::Acquire, |state| (state != EVICTED).then_some(BUSY))
            .is_ok()
    }

    /// The answer has left, or is no longer wanted.
    pub(crate) fn finish(&self) {
        if self.holds_body.swap(false, Ordering::AcqRel) {
            drop(self.body.lock().take());
            self.has_body();
        }
        self.stands.store(false, Ordering::Release);
        self.since.store(micros(self.born), Ordering::Release);
        // An evicted connection stays evicted.
        let _ = self.state.compare_exchange(BUSY, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Notes the principal of its request; returns whether there is a place for it.
    pub(crate) fn claim(&self, principal: &Arc<str>) -> bool {
        let mut whose = self.whose.lock();
        if !whose.as_ref().is_some_and(|known| Arc::ptr_eq(known, principal) || known == principal) {
            *whose = Some(Arc::clone(principal));
            self.account.belongs_to(principal);
        }
        drop(whose);
        !self.at_door.load(Ordering::Acquire)
            || self.home.upgrade().is_none_or(|home| home.let_in(self, principal))
    }

    /// Notes that its answer is a stream that stands open.
    pub(crate) fn stands(&self) {
        self.stands.store(true, Ordering::Release);
    }

    /// Notes that the end of its request's body has come.
    pub(crate) fn has_body(&self) {
        self.unfinished.store(0, Ordering::Release);
    }

    /// Reserves memory for the part of a request's body that has arrived, until the answer has left.
    pub(crate) fn hold_body(&self, bytes: usize) -> Result<(), NoRoom> {
        let mut body = self.body.lock();
        let held = body.as_ref().map_or(0, Reservation::bytes);
        if bytes > held {
            let more = (bytes - held).next_multiple_of(BODY_STEP);
            match &mut *body {
                Some(held) => held.grow(more)?,
                None => *body = Some(self.account.reserve(more)?),
            }
            self.holds_body.store(true, Ordering::Release);
            self.unfinished.store(held + more, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a request is being served.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.load(Ordering::Acquire) == BUSY
    }

    /// Whether no request has come yet.
    pub(crate) fn is_fresh(&self) -> bool {
        self.state.load(Ordering::Acquire) == FRESH
    }

    /// Sets whether part of an answer waits for the client to read.
    pub(crate) fn writes(&self, writing: bool) {
        self.writing.store(writing, Ordering::Release);
    }

    /// Waits until it has to make way (`true`) or the front shuts down (`false`).
    pub(crate) async fn ended(&self) -> bool {
        self.ends.cancelled().await;
        self.state.load(Ordering::Acquire) == EVICTED
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    /// BOUND-3: memory for a body is reserved in steps; bytes within the last step are reserved already, even if the
    /// limits have changed.
    #[tokio::test]
    async fn a_body_is_held_in_steps() {
        let budget = Budget::new(10 * BODY_STEP, 3 * BODY_STEP);
        let member = Admission::new(1, &budget).enter(&CancellationToken::new()).unwrap();
        let check = |bytes: usize, held: usize| {
            member.activity.hold_body(bytes).unwrap();
            assert_eq!(budget.held(), held, "{bytes}");
        };
        check(1, BODY_STEP);
        check(BODY_STEP, BODY_STEP);
        check(BODY_STEP + 1, 2 * BODY_STEP);
        check(2 * BODY_STEP, 2 * BODY_STEP);
        assert_eq!(member.activity.hold_body(3 * BODY_STEP + 1), Err(NoRoom::Peer(3 * BODY_STEP)));
        budget.limit(BODY_STEP, BODY_STEP);
        check(2 * BODY_STEP, 2 * BODY_STEP);
        assert!(member.activity.hold_body(2 * BODY_STEP + 1).is_err());
        member.activity.finish();
        assert_eq!(budget.held(), 0, "given back with the end of the answer");
    }

    fn is_evicted(member: &Member) -> bool {
        member.activity.ends.is_cancelled()
    }

    /// BOUND-4: connections that never sent a request make way first, the oldest before others; then the one that has been
    /// idle the longest. A connection that is busy or has not read its answer never does.
    #[tokio::test(start_paused = true)]
    async fn who_makes_way() {
        let admission = Admission::new(5, Budget::process());
        let mut members = Vec::new();
        for _ in 0..5 {
            members.push(admission.enter(&CancellationToken::new()).unwrap());
            advance(Duration::from_millis(1)).await;
        }
        let [idle, fresh, busy, unread, younger] = &members[..] else { unreachable!() };
        for member in [unread, idle, busy] {
            assert!(member.activity.begin());
        }
        unread.activity.finish();
        unread.activity.writes(true);
        advance(Duration::from_millis(1)).await;
        idle.activity.finish();
        let first = admission.enter(&CancellationToken::new()).unwrap();
        assert!(is_evicted(fresh) && !is_evicted(younger));
        assert!(!fresh.activity.begin(), "its request is not served any more");
        assert!(first.activity.begin());
        let second = admission.enter(&CancellationToken::new()).unwrap();
        assert!(is_evicted(younger) && !is_evicted(idle));
        assert!(second.activity.begin());
        let third = admission.enter(&CancellationToken::new()).unwrap();
        assert!(is_evicted(idle) && !is_evicted(unread));
        assert!(third.activity.begin());
        assert!(admission.enter(&CancellationToken::new()).is_none(), "all are in use");
        unread.activity.writes(false);
        assert!(admission.evict() && is_evicted(unread) && !is_evicted(busy));
        let fourth = admission.enter(&CancellationToken::new()).unwrap();
        assert!(fourth.activity.begin() && admission.enter(&CancellationToken::new()).is_none());
        drop(members);
        assert_eq!(admission.table.lock().len(), 4, "an evicted connection has no place to give back");
    }

    /// WIRE-5: streams of one principal do not take all connections. Whoever comes when all are busy says who it is; a principal
    /// with fewer gets the place of the newest stream of the greediest, and of no call. With one principal nobody makes way.
    #[tokio::test(start_paused = true)]
    async fn streams_of_one_principal_make_way_for_another() {
        let admission = Admission::with_door(4, 1, Budget::process());
        let come = || admission.enter(&CancellationToken::new()).unwrap();
        let [eve, ada, bob] = ["eve", "ada", "bob"].map(Arc::<str>::from);
        let asks = |member: &Member, principal: &Arc<str>| {
            assert!(member.activity.begin());
            member.activity.claim(principal)
        };
        let mut held = Vec::new();
        for number in 0..4 {
            held.push(come());
            assert!(asks(&held[number], &eve));
            if number < 3 {
                held[number].activity.stands();
            }
        }
        let own = come();
        assert!(!asks(&own, &eve) && !held.iter().any(is_evicted), "nobody makes way for its own principal");
        own.activity.finish();
        let first = come();
        assert!(is_evicted(&own), "who was refused leaves the door");
        assert!(asks(&first, &ada));
        let ended = || held.iter().map(is_evicted).collect::<Vec<_>>();
        assert_eq!(ended(), [false, false, true, false], "the newest stream, but not the call");
        held[2].activity.finish();
        assert!(!held[2].activity.begin(), "it is closed");
        assert!(asks(&come(), &bob));
        assert_eq!(ended(), [false, true, true, false]);
        let more = come();
        assert!(asks(&more, &bob), "the place of the connection that is gone");
        let last = come();
        assert!(!asks(&last, &ada) && ended() == [false, true, true, false], "nobody has two more");
    }

    /// WIRE-5: bodies that one principal does not finish make way for another that needs memory, the newest first, and no more
    /// than needed; whoever has as much gets none of it.
    #[tokio::test]
    async fn unfinished_bodies_make_way() {
        let budget = Budget::new(8 * BODY_STEP, 8 * BODY_STEP);
        let admission = Admission::new(32, &budget);
        let asks = |principal: &str| {
            let member = admission.enter(&CancellationToken::new()).unwrap();
            assert!(member.activity.begin() && member.activity.claim(&principal.into()));
            member
        };
        let held: Vec<_> = (0..8).map(|_| asks("eve")).collect();
        for member in &held {
            member.activity.hold_body(BODY_STEP).unwrap();
        }
        held[7].activity.has_body();
        let more = asks("eve");
        assert!(more.activity.hold_body(1).is_err() && !held.iter().any(is_evicted));
        let ada = asks("ada");
        ada.activity.hold_body(2 * BODY_STEP).unwrap();
        let ended: Vec<_> = held.iter().map(is_evicted).collect();
        assert_eq!(
            ended,
            [false, false, false, false, false, true, true, false],
            "what is finished is worked on"
        );
        let bob = asks("bob");
        bob.activity.hold_body(4 * BODY_STEP).unwrap_err();
        assert_eq!(budget.held(), 8 * BODY_STEP, "she would have less than him");
    }
}
