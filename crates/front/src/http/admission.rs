//! Counts the connections, and decides which one makes way when there is no room for another.
//!
//! A connection is *fresh* until the head of its first request has arrived, *busy* from there to the end of the answer,
//! and *idle* between requests. When all places are taken, the oldest fresh connection makes way; if there is none, the one
//! that has been idle the longest. A busy connection is never closed for a new one, and neither is one whose client has
//! not read its whole answer.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use bridgehead_wire::held::{Account, Budget, NoRoom, Reservation};
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
        let (born, budget) = (Instant::now(), Arc::clone(budget));
        Arc::new(Self { most, born, next: AtomicU64::new(0), budget, table: Mutex::default() })
    }

    /// A place for a new connection, if need be that of an unused one; `None` if all are in use.
    pub(crate) fn enter(self: &Arc<Self>, shutdown: &CancellationToken) -> Option<Member> {
        let mut table = self.table.lock();
        if table.len() >= self.most && !make_way(&mut table) {
            return None;
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
        });
        table.insert(number, Arc::clone(&activity));
        Some(Member { admission: Arc::clone(self), number, activity })
    }

    /// Closes an unused connection to free its descriptor; returns whether there was one.
    pub(crate) fn evict(&self) -> bool {
        make_way(&mut self.table.lock())
    }
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Evicts the oldest fresh connection, else the one that has been idle the longest.
fn make_way(table: &mut HashMap<u64, Arc<Activity>>) -> bool {
    loop {
        let candidates = table.iter().filter_map(|(number, activity)| {
            let state = activity.state.load(Ordering::Acquire);
            let unused = state == FRESH || state == IDLE && !activity.writing.load(Ordering::Acquire);
            unused.then(|| (state, activity.since.load(Ordering::Acquire), *number))
        });
        let Some((state, _, number)) = candidates.min() else { return false };
        let Some(activity) = table.get(&number) else { return false };
        // Its next request may have arrived meanwhile.
        if activity.state.compare_exchange(state, EVICTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            debug!(requested = state == IDLE, "a connection makes way for another");
            activity.ends.cancel();
            table.remove(&number);
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
        }
        self.since.store(micros(self.born), Ordering::Release);
        self.state.store(IDLE, Ordering::Release);
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
}
