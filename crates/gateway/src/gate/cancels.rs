//! Lets others than the client cancel running calls: by session and tool, and those of the embedding program by id, too.
//!
//! Dropping its request ends a call, whether it runs on a shared server, on a lease or in a process of its
//! own. A call takes a place when it is dispatched. Places are reused, so an ordinary call allocates nothing.
//!
//! Almost no call is cancelled, so the cost for all others is kept small: a place, one atomic load per poll,
//! and a waker when the call has to wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};

use bridgehead_call::CorrelationId;
use parking_lot::Mutex;

use crate::life::CancelReason;

/// How many locks the places are spread over, so that calls of one client do not wait for each other.
const SHARDS: usize = 16;

/// The calls that run now.
#[derive(Debug, Default)]
pub(crate) struct Cancels([Shard; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    /// How many calls were cancelled here, changed under the lock. A call looks for itself only when this has
    /// changed.
    cancelled: AtomicUsize,
    places: Mutex<Places>,
}

#[derive(Debug, Default)]
struct Places {
    all: Vec<Option<Running>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Running {
    session: u64,
    by: Handle,
    waker: Option<Waker>,
    cancelled: Option<CancelReason>,
}

/// What a running call is cancelled by.
#[derive(Debug)]
enum Handle {
    /// A tool that runs: it is cancelled by its name, for any reason.
    Tool(Arc<str>),
    /// A call of the embedding program: it is cancelled by its id, and by the name of its tool if the program no longer wants
    /// it. A tool that takes too long is cancelled where it runs, so that its call fails instead.
    Direct(Arc<str>, CorrelationId),
}

/// The place of one running call. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Watched<'a> {
    shard: &'a Shard,
    at: usize,
    /// The value of `Shard::cancelled` when the call last looked.
    seen: usize,
}

impl Cancels {
    // Any spread works: no call is looked up by its shard.
    #[cfg_attr(false, mutants::skip)]
    fn shard(&self, id: CorrelationId) -> &Shard {
        &self.0[usize::from(id.as_bytes()[15]) % SHARDS]
    }

    /// Registers a call of a session, to be cancelled by its tool.
    #[inline]
    pub(crate) fn watch(&self, session: u64, tool: &Arc<str>, id: CorrelationId) -> Watched<'_> {
        self.register(session, Handle::Tool(Arc::clone(tool)), id)
    }

    /// Registers a call of the embedding program, to be cancelled by its id.
    pub(crate) fn watch_id(&self, session: u64, tool: &Arc<str>, id: CorrelationId) -> Watched<'_> {
        self.register(session, Handle::Direct(Arc::clone(tool), id), id)
    }

    fn register(&self, session: u64, by: Handle, id: CorrelationId) -> Watched<'_> {
        let shard = self.shard(id);
        let running = Some(Running { session, by, waker: None, cancelled: None });
        let mut places = shard.places.lock();
        let seen = shard.cancelled.load(Ordering::Relaxed);
        let at = match places.free.pop() {
            Some(at) => {
                places.all[at] = running;
                at
            }
            None => {
                places.all.push(running);
                places.all.len() - 1
            }
        };
        drop(places);
        Watched { shard, at, seen }
    }

    /// Cancels all running calls of this tool in the session, and returns whether there were any.
    pub(crate) fn cancel(&self, session: u64, tool: &str, reason: CancelReason) -> bool {
        self.cancel_where(reason, |call| {
            call.session == session
                && match &call.by {
                    Handle::Tool(known) => **known == *tool,
                    Handle::Direct(known, _) => reason == CancelReason::Client && **known == *tool,
                }
        })
    }

    /// Cancels the running calls with this id in the session, and returns whether there were any. The caller of the gateway
    /// chooses ids, so there may be several.
    pub(crate) fn cancel_id(&self, session: u64, id: CorrelationId, reason: CancelReason) -> bool {
        self.cancel_where(reason, |call| {
            call.session == session && matches!(call.by, Handle::Direct(_, known) if known == id)
        })
    }

    /// Cancels all running calls of the session that are cancelled by their ids.
    pub(crate) fn cancel_session(&self, session: u64, reason: CancelReason) {
        self.cancel_where(reason, |call| call.session == session && matches!(call.by, Handle::Direct(..)));
    }

    fn cancel_where(&self, reason: CancelReason, concerns: impl Fn(&Running) -> bool) -> bool {
        let mut wakers = Vec::new();
        let mut found = false;
        for shard in &self.0 {
            let mut places = shard.places.lock();
            for call in places.all.iter_mut().flatten().filter(|call| concerns(call)) {
                found = true;
                call.cancelled = Some(reason);
                wakers.extend(call.waker.take());
                shard.cancelled.fetch_add(1, Ordering::Release);
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        found
    }
}

impl Watched<'_> {
    /// Why the call was cancelled, if it was. Costs one load while no call of the shard was cancelled.
    #[inline]
    pub(crate) fn cancelled(&mut self) -> Option<CancelReason> {
        let cancelled = self.shard.cancelled.load(Ordering::Acquire);
        if cancelled == self.seen {
            return None;
        }
        self.seen = cancelled;
        self.shard.places.lock().all.get(self.at)?.as_ref()?.cancelled
    }

    /// Registers the waker of a waiting call; returns the reason if the call was just cancelled.
    #[inline]
    pub(crate) fn wait(&self, context: &Context<'_>) -> Option<CancelReason> {
        let mut places = self.shard.places.lock();
        let call = places.all.get_mut(self.at)?.as_mut()?;
        if !call.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            call.waker = Some(context.waker().clone());
        }
        call.cancelled
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        let mut places = self.shard.places.lock();
        let gone = places.all.get_mut(self.at).and_then(Option::take);
        places.free.push(self.at);
        drop(places);
        // Dropped outside the lock: it may be the last waker of its task.
        drop(gone);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// POOL-10: a call learns that it was cancelled whether it waits or not; the same tool of another session
    /// is not affected, and a reused place knows nothing of its previous call.
    #[test]
    fn a_call_hears_of_its_end_and_of_no_other() {
        let (cancels, tool, woken) = (Cancels::default(), Arc::from("tool"), Arc::<Woken>::default());
        let (waker, id) = (Waker::from(Arc::clone(&woken)), CorrelationId::mint());
        let context = Context::from_waker(&waker);
        let mut others = cancels.watch(2, &tool, id);
        assert_eq!(others.wait(&context), None);
        for reason in [CancelReason::Client, CancelReason::Timeout] {
            let (mut running, mut waiting) = (cancels.watch(1, &tool, id), cancels.watch(1, &tool, id));
            assert_eq!((running.cancelled(), waiting.wait(&context)), (None, None));
            assert!(!cancels.cancel(1, "other", reason));
            let before = woken.0.load(Ordering::SeqCst);
            assert!(cancels.cancel(1, "tool", reason));
            assert_eq!(woken.0.load(Ordering::SeqCst), before + 1, "only the waiting call is woken");
            assert_eq!((running.wait(&context), waiting.cancelled()), (Some(reason), Some(reason)));
            assert_eq!((running.cancelled(), others.cancelled()), (Some(reason), None));
        }
        assert!(!cancels.cancel(1, "tool", CancelReason::Client), "the calls have ended");
    }

    /// LIB-1, POOL-10: a call of the embedding program is cancelled by its id, with its session, or by its tool if nobody wants
    /// it any more; a tool that takes too long is cancelled where it runs.
    #[test]
    fn a_call_is_cancelled_by_its_id() {
        let (cancels, tool, id) = (Cancels::default(), Arc::from("tool"), CorrelationId::mint());
        let mut by_tool = cancels.watch(1, &tool, id);
        let [mut one, mut other, mut elsewhere] = [(1, id), (1, CorrelationId::mint()), (2, id)]
            .map(|(session, id)| cancels.watch_id(session, &tool, id));
        assert!(cancels.cancel_id(1, id, CancelReason::Client));
        assert_eq!((one.cancelled(), other.cancelled()), (Some(CancelReason::Client), None));
        assert!(cancels.cancel(1, "tool", CancelReason::Timeout));
        assert_eq!((by_tool.cancelled(), other.cancelled()), (Some(CancelReason::Timeout), None));
        cancels.cancel_session(1, CancelReason::Client);
        assert_eq!((other.cancelled(), elsewhere.cancelled()), (Some(CancelReason::Client), None));
        assert!(
            cancels.cancel(2, "tool", CancelReason::Client)
                && !cancels.cancel(2, "other", CancelReason::Client)
        );
        assert_eq!(elsewhere.cancelled(), Some(CancelReason::Client));
        drop((one, other));
        assert!(!cancels.cancel_id(1, id, CancelReason::Client), "the call has ended");
    }
}
