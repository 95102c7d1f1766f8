//! Limits how many calls run at once: fair queues, one for each server or shared by name.
//!
//! First come, first served. A call that is cancelled while it waits leaves the queue without a trace. A
//! queue outlives catalogs: its calls are counted through every merge.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_config::{Queue as Settings, ServerName};
use bridgehead_events::{Line, Signal, Signals, WaitEnd};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// A limit on calls that run at once, with a waiting line.
#[derive(Debug)]
pub(crate) struct Queue {
    settings: Settings,
    permits: Semaphore,
    waiting: AtomicUsize,
}

/// How many calls are in a queue at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depth {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
}

/// A wait. Its length is reported when it ends, even if it is abandoned.
pub(crate) struct Wait<'s, F: FnOnce(Duration)> {
    signals: &'s Signals,
    line: Line,
    began: Instant,
    /// How the wait ended. Until this is set, dropping means that the call has gone.
    pub(crate) end: WaitEnd,
    tell: Option<F>,
}

impl<'s, F: FnOnce(Duration)> Wait<'s, F> {
    pub(crate) fn new(signals: &'s Signals, line: Line, began: Instant, tell: F) -> Self {
        Self { signals, line, began, end: WaitEnd::Left, tell: Some(tell) }
    }
}

impl<F: FnOnce(Duration)> Drop for Wait<'_, F> {
    fn drop(&mut self) {
        let waited = self.began.elapsed();
        self.signals.emit(&Signal::Waited { line: self.line, end: self.end, waited });
        if let Some(tell) = self.tell.take() {
            tell(waited);
        }
    }
}

/// The right to run. Dropping it lets the next call in.
#[derive(Debug)]
pub(crate) struct Permit<'q> {
    _permit: SemaphorePermit<'q>,
}

/// The slot of one call. While its client is asked the slot is free for others, because the server does not
/// work on the call.
#[derive(Debug)]
pub(crate) struct QueueSlot<'q> {
    queue: &'q Queue,
    permit: Option<Permit<'q>>,
}

impl<'q> QueueSlot<'q> {
    pub(crate) const fn new(queue: &'q Queue, permit: Permit<'q>) -> Self {
        Self { queue, permit: Some(permit) }
    }

    pub(crate) fn pause(&mut self) {
        self.permit = None;
    }

    /// Takes a permit again if one is free; a call that has begun does not wait again.
    pub(crate) fn go_on(&mut self) {
        self.permit = self.queue.try_enter();
    }
}

/// Why a call got no permit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPermit {
    #[error("its queue is full ({running} running, {waiting} waiting); try again later, or {cure}")]
    Full { running: usize, waiting: usize, cure: String },
    #[error(
        "no turn came within {} ms: {running} at once is the limit of its queue; if the server can do more at \
         once, {cure}",
        .waited.as_millis()
    )]
    TimedOut { waited: Duration, running: usize, cure: String },
}

impl NoPermit {
    /// How the wait ended.
    pub(crate) fn end(&self) -> WaitEnd {
        match self {
            Self::Full { .. } => WaitEnd::Full,
            Self::TimedOut { .. } => WaitEnd::TimedOut,
        }
    }
}

impl Queue {
    fn new(settings: Settings) -> Self {
        // More than a semaphore can count is as good as no bound.
        let permits = Semaphore::new(settings.concurrency.min(Semaphore::MAX_PERMITS));
        Self { settings, permits, waiting: AtomicUsize::new(0) }
    }

    /// A permit, if one is free now.
    #[inline]
    pub(crate) fn try_enter(&self) -> Option<Permit<'_>> {
        self.permits.try_acquire().ok().map(|permit| Permit { _permit: permit })
    }

    /// Waits for a permit until `deadline`.
    pub(crate) async fn enter(&self, deadline: Instant) -> Result<Permit<'_>, NoPermit> {
        let began = Instant::now();
        let full = |waiting| NoPermit::Full {
            running: self.depth().running,
            waiting,
            cure: self.cure("max_waiting"),
        };
        let line = Waiter::join(self).map_err(full)?;
        let turn = tokio::time::timeout_at(deadline, self.permits.acquire()).await;
        drop(line);
        match turn {
            // The semaphore is never closed, so only the timeout can fail here.
            Ok(Ok(permit)) => Ok(Permit { _permit: permit }),
            _ => Err(NoPermit::TimedOut {
                waited: began.elapsed(),
                running: self.depth().running,
                cure: self.cure("concurrency"),
            }),
        }
    }

    fn cure(&self, setting: &str) -> String {
        match &self.settings.name {
            Some(name) => format!("raise `queues.{name}.{setting}`"),
            None => format!("name a `queue` for it with a higher `{setting}`"),
        }
    }

    pub(crate) fn depth(&self) -> Depth {
        Depth {
            running: self.settings.concurrency.saturating_sub(self.permits.available_permits()),
            waiting: self.waiting.load(Ordering::Relaxed),
        }
    }

    /// As `server_health` shows it.
    pub(crate) fn describe(&self) -> Value {
        let Depth { running, waiting } = self.depth();
        json!({"name": self.name(), "running": running, "waiting": waiting})
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
    }
}

/// Counts as waiting until dropped, however the wait ends.
struct Waiter<'q>(&'q Queue);

impl<'q> Waiter<'q> {
    /// Fails with the number of waiting calls if the queue is full.
    fn join(queue: &'q Queue) -> Result<Self, usize> {
        let most = queue.settings.max_waiting;
        let joined = queue.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |waiting| {
            (waiting < most).then_some(waiting + 1)
        });
        joined.map(|_| Self(queue))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All queues of a gateway. Each lives as long as a share or a call uses it.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    known: Mutex<HashMap<QueueKey, Weak<Queue>>>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
enum QueueKey {
    Named(Arc<str>),
    Own(ServerName),
}

impl Queues {
    /// The queue that `settings` define for a server: the existing one, unless its settings have changed.
    pub(crate) fn of(&self, server: &ServerName, settings: &Settings) -> Arc<Queue> {
        let whose = match &settings.name {
            Some(name) => QueueKey::Named(Arc::clone(name)),
            None => QueueKey::Own(server.clone()),
        };
        let mut known = self.known.lock();
        if let Some(queue) =
            known.get(&whose).and_then(Weak::upgrade).filter(|queue| queue.settings == *settings)
        {
            return queue;
        }
        known.retain(|_, queue| queue.strong_count() > 0);
        let queue = Arc::new(Queue::new(settings.clone()));
        known.insert(whose, Arc::downgrade(&queue));
        queue
    }

    /// The named queues, sorted by name.
    pub(crate) fn named(&self) -> Vec<Arc<Queue>> {
        let mut named: Vec<_> = self.known.lock().values().filter_map(Weak::upgrade).collect();
        named.retain(|queue| queue.name().is_some());
        named.sort_by(|one, other| one.name().cmp(&other.name()));
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(concurrency: usize, max_waiting: usize) -> Arc<Queue> {
        Arc::new(Queue::new(Settings { name: Some("slow".into()), concurrency, max_waiting }))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn depth(queue: &Queue) -> (usize, usize) {
        let Depth { running, waiting } = queue.depth();
        (running, waiting)
    }

    /// POOL-7, PIPE-9: a call whose client is asked frees its permit, and continues without one if it is
    /// taken.
    #[tokio::test(start_paused = true)]
    async fn a_paused_call_leaves_its_place() {
        let queue = queue(1, 8);
        let mut turn = QueueSlot::new(&queue, queue.try_enter().unwrap());
        assert_eq!(depth(&queue), (1, 0));
        turn.pause();
        assert_eq!(depth(&queue), (0, 0));
        turn.go_on();
        assert_eq!(depth(&queue), (1, 0));
        turn.pause();
        let other = queue.try_enter().unwrap();
        turn.go_on();
        drop(turn);
        assert_eq!(depth(&queue), (1, 0), "the permit belongs to the other call");
        drop(other);
        assert_eq!(depth(&queue), (0, 0));
    }

    /// POOL-7: as many calls as allowed run; the others wait in the order in which they came.
    #[tokio::test(start_paused = true)]
    async fn first_come_first_served() {
        let queue = queue(1, 8);
        let first = queue.try_enter().unwrap();
        assert!(queue.try_enter().is_none());
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
                tokio::spawn(async move {
                    let _place = queue.enter(soon()).await.unwrap();
                    order.lock().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(depth(&queue), (1, 3));
        drop(first);
        futures_util::future::join_all(waiting).await;
        assert_eq!(*order.lock(), [0, 1, 2]);
        assert_eq!(depth(&queue), (0, 0));
    }

    /// POOL-7: a full queue refuses, and the error names the key to raise.
    #[tokio::test(start_paused = true)]
    async fn a_full_queue() {
        let queue = queue(1, 1);
        let _place = queue.try_enter().unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter(soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let refused = queue.enter(soon()).await.unwrap_err().to_string();
        assert!(
            refused.contains("(1 running, 1 waiting)") && refused.contains("`queues.slow.max_waiting`"),
            "{refused}"
        );
        let late = waiting.await.unwrap().unwrap_err().to_string();
        assert!(late.contains("within 5000 ms") && late.contains("`queues.slow.concurrency`"), "{late}");
    }

    /// POOL-7: a call that stops waiting leaves the queue and takes no permit with it.
    #[tokio::test(start_paused = true)]
    async fn leaving_the_line() {
        let queue = queue(1, 1);
        let permit = queue.try_enter().unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter(soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(depth(&queue), (1, 1));
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(depth(&queue), (1, 0));
        drop(permit);
        assert!(queue.try_enter().is_some());
    }

    /// POOL-7: one queue per name, and without a name one per server; changed settings make a new queue.
    #[test]
    fn whose_queue_it_is() {
        let queues = Queues::default();
        let (one, other): (ServerName, ServerName) = ("one".parse().unwrap(), "other".parse().unwrap());
        let named = Settings { name: Some("shared".into()), ..Settings::default() };
        let same = |left: &Arc<Queue>, right: &Arc<Queue>| Arc::ptr_eq(left, right);
        let own = queues.of(&one, &Settings::default());
        assert!(same(&own, &queues.of(&one, &Settings::default())));
        assert!(!same(&own, &queues.of(&other, &Settings::default())));
        let shared = queues.of(&one, &named);
        assert!(same(&shared, &queues.of(&other, &named)));
        assert!(!same(&shared, &queues.of(&one, &Settings { concurrency: 1, ..named })));
        assert_eq!((own.name(), shared.name()), (None, Some("shared")));
    }
}
