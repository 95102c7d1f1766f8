//! Calls that run, and how somebody other than their client ends them: by the session and the tool.
//!
//! Whoever runs a call, a shared server, a lease or a process of the call's own, is reached by dropping its errand. A call
//! takes a place when it is dispatched; places are used again, so that an ordinary call allocates nothing.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bridgehead_audit::CorrelationId;
use parking_lot::Mutex;

use crate::life::CancelReason;

/// How many locks the places are spread over, so that calls of one client do not wait for each other.
const SHARDS: usize = 16;

/// The calls that run now.
#[derive(Debug, Default)]
pub(crate) struct Cancels([Mutex<Shard>; SHARDS]);

#[derive(Debug, Default)]
struct Shard {
    places: Vec<Option<Running>>,
    free: Vec<usize>,
}

#[derive(Debug)]
struct Running {
    session: u64,
    tool: Arc<str>,
    waker: Option<Waker>,
    cancelled: Option<CancelReason>,
}

/// Resolves when its call is cancelled. The call is forgotten when this is dropped.
#[derive(Debug)]
pub(crate) struct Cancelled<'a> {
    shard: &'a Mutex<Shard>,
    at: usize,
}

impl Cancels {
    /// Notes a call of a session.
    pub(crate) fn watch(&self, session: u64, tool: &Arc<str>, id: CorrelationId) -> Cancelled<'_> {
        let shard = &self.0[usize::from(id.as_bytes()[15]) % SHARDS];
        let running = Running { session, tool: Arc::clone(tool), waker: None, cancelled: None };
        let mut places = shard.lock();
        let at = match places.free.pop() {
            Some(at) => {
                places.places[at] = Some(running);
                at
            }
            None => {
                places.places.push(Some(running));
                places.places.len() - 1
            }
        };
        drop(places);
        Cancelled { shard, at }
    }

    /// Cancels all calls of this tool that the session has under way, and says whether there were any.
    pub(crate) fn cancel(&self, session: u64, tool: &str, reason: CancelReason) -> bool {
        let mut wakers = Vec::new();
        let mut found = false;
        for shard in &self.0 {
            let mut shard = shard.lock();
            let concerned = shard
                .places
                .iter_mut()
                .flatten()
                .filter(|call| call.session == session && &*call.tool == tool);
            for call in concerned {
                found = true;
                call.cancelled = Some(reason);
                wakers.extend(call.waker.take());
            }
        }
        wakers.into_iter().for_each(Waker::wake);
        found
    }
}

impl Future for Cancelled<'_> {
    type Output = CancelReason;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CancelReason> {
        let mut shard = self.shard.lock();
        let Some(call) = shard.places.get_mut(self.at).and_then(Option::as_mut) else { return Poll::Pending };
        if let Some(reason) = call.cancelled {
            return Poll::Ready(reason);
        }
        if !call.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            call.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Cancelled<'_> {
    fn drop(&mut self) {
        let mut shard = self.shard.lock();
        let gone = shard.places.get_mut(self.at).and_then(Option::take);
        shard.free.push(self.at);
        drop(shard);
        // The waker may be the last of its task.
        drop(gone);
    }
}
