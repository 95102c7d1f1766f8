//! Limits how many calls run at once: fair queues, one for each server or shared by name.
//!
//! Who gets a permit is the matter of [`Share`]: principals take turns, so that one that sends many calls delays the others by
//! no more than one call each. If no more calls may wait, the principal with the most waiting calls loses its newest, unless the
//! newcomer would have as many: then the newcomer is refused.
//!
//! A call that is cancelled while it waits leaves the queue without a trace; one that was sent keeps its permit until its
//! server is done with it. A queue outlives catalogs: its calls are counted through every merge.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bridgehead_call::{Depth, NoTurn, Permit, Share};
use bridgehead_config::{Queue as Settings, ServerName};
use bridgehead_events::{Line, Signal, Signals, WaitEnd};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::gate::{Place, Places};

/// A limit on calls that run at once, with a waiting line.
#[derive(Debug)]
pub(crate) struct Queue {
    settings: Settings,
    share: Arc<Share>,
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

/// The slot of one call. While its client is asked the slot is free for others, because the server does not
/// work on the call.
#[derive(Debug)]
pub(crate) struct QueueSlot<'q> {
    queue: &'q Queue,
    principal: &'q Arc<str>,
    places: &'q Places,
    permit: Option<Place<'q, Permit>>,
}

impl<'q> QueueSlot<'q> {
    pub(crate) const fn new(
        queue: &'q Queue,
        (principal, places): (&'q Arc<str>, &'q Places),
        permit: Permit,
    ) -> Self {
        Self { queue, principal, places, permit: Some(places.hold(permit)) }
    }

    pub(crate) fn pause(&mut self) {
        self.permit = None;
    }

    /// Takes a permit again if one is free; a call that has begun does not wait again.
    pub(crate) fn go_on(&mut self) {
        self.permit = self.queue.try_enter(self.principal).map(|permit| self.places.hold(permit));
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
        let share = Share::new(settings.concurrency);
        Self { settings, share }
    }

    /// A permit, if one is free now.
    #[inline]
    pub(crate) fn try_enter(&self, principal: &Arc<str>) -> Option<Permit> {
        self.share.try_take(principal)
    }

    /// Waits for a permit until `deadline`.
    pub(crate) async fn enter(&self, principal: &Arc<str>, deadline: Instant) -> Result<Permit, NoPermit> {
        let began = Instant::now();
        self.share.take(principal, self.settings.max_waiting, deadline).await.map_err(|none| {
            let Depth { running, waiting, .. } = self.depth();
            match none {
                NoTurn::Full => NoPermit::Full { running, waiting, cure: self.cure("max_waiting") },
                NoTurn::Late => {
                    NoPermit::TimedOut { waited: began.elapsed(), running, cure: self.cure("concurrency") }
                }
            }
        })
    }

    fn cure(&self, setting: &str) -> String {
        match &self.settings.name {
            Some(name) => format!("raise `queues.{name}.{setting}`"),
            None => format!("name a `queue` for it with a higher `{setting}`"),
        }
    }

    pub(crate) fn depth(&self) -> Depth {
        self.share.depth()
    }

    /// As `server_health` shows it: `held` counts the running calls that their clients have given up.
    pub(crate) fn describe(&self) -> Value {
        let Depth { running, waiting, lingering } = self.depth();
        json!({"name": self.name(), "running": running, "waiting": waiting, "held": lingering})
    }

    pub(crate) fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
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
    use std::sync::LazyLock;

    use super::*;

    static ADA: LazyLock<Arc<str>> = LazyLock::new(|| "ada".into());

    fn queue(concurrency: usize, max_waiting: usize) -> Arc<Queue> {
        Arc::new(Queue::new(Settings { name: Some("slow".into()), concurrency, max_waiting }))
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(5)
    }

    fn depth(queue: &Queue) -> (usize, usize) {
        let Depth { running, waiting, .. } = queue.depth();
        (running, waiting)
    }

    /// POOL-7, PIPE-9: a call whose client is asked frees its permit, and continues without one if it is
    /// taken.
    #[tokio::test(start_paused = true)]
    async fn a_paused_call_leaves_its_place() {
        let (queue, places) = (queue(1, 8), Places::default());
        let mut turn = QueueSlot::new(&queue, (&ADA, &places), queue.try_enter(&ADA).unwrap());
        assert_eq!(depth(&queue), (1, 0));
        turn.pause();
        assert_eq!(depth(&queue), (0, 0));
        turn.go_on();
        assert_eq!(depth(&queue), (1, 0));
        turn.pause();
        let other = queue.try_enter(&ADA).unwrap();
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
        let first = queue.try_enter(&ADA).unwrap();
        assert!(queue.try_enter(&ADA).is_none());
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..3)
            .map(|number| {
                let (queue, order) = (Arc::clone(&queue), Arc::clone(&order));
                tokio::spawn(async move {
                    let _place = queue.enter(&ADA, soon()).await.unwrap();
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
        let _place = queue.try_enter(&ADA).unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter(&ADA, soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        let refused = queue.enter(&ADA, soon()).await.unwrap_err().to_string();
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
        let permit = queue.try_enter(&ADA).unwrap();
        let waiting = tokio::spawn({
            let queue = Arc::clone(&queue);
            async move { queue.enter(&ADA, soon()).await.map(drop) }
        });
        tokio::task::yield_now().await;
        assert_eq!(depth(&queue), (1, 1));
        waiting.abort();
        assert!(waiting.await.unwrap_err().is_cancelled());
        assert_eq!(depth(&queue), (1, 0));
        drop(permit);
        assert!(queue.try_enter(&ADA).is_some());
    }

    /// Calls of these principals wait for the only permit, in this order. Returns who ran, and who was refused, in order.
    async fn turns(max_waiting: usize, waiting: &[&'static str]) -> (Vec<String>, Vec<String>) {
        let queue = queue(1, max_waiting);
        let first = queue.try_enter(&ADA).unwrap();
        let (ran, refused) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let mut tasks = Vec::new();
        for (number, principal) in waiting.iter().copied().enumerate() {
            let (queue, ran, refused) = (Arc::clone(&queue), Arc::clone(&ran), Arc::clone(&refused));
            tasks.push(tokio::spawn(async move {
                let outcome = queue.enter(&principal.into(), soon()).await;
                let ended = if outcome.is_ok() { &ran } else { &refused };
                ended.lock().push(format!("{principal}{number}"));
            }));
            tokio::task::yield_now().await;
        }
        drop(first);
        futures_util::future::join_all(tasks).await;
        assert_eq!(depth(&queue), (0, 0));
        let taken = |list: &Mutex<Vec<String>>| std::mem::take(&mut *list.lock());
        (taken(&ran), taken(&refused))
    }

    /// ACC-5: principals take turns; each one's calls keep their order.
    #[tokio::test(start_paused = true)]
    async fn principals_take_turns() {
        let (ran, refused) = turns(16, &["a", "a", "a", "a", "b", "c", "b"]).await;
        assert_eq!(ran, ["a0", "b4", "c5", "a1", "b6", "a2", "a3"]);
        assert_eq!(refused, [""; 0]);
    }

    /// ACC-5: if the line is full, the principal with the most waiting calls loses its newest one. A newcomer who would
    /// have as many is refused.
    #[tokio::test(start_paused = true)]
    async fn a_full_line_makes_room_for_a_newcomer() {
        let (ran, refused) = turns(4, &["a", "a", "a", "a", "b", "b", "b", "c", "d", "e"]).await;
        assert_eq!(refused, ["a3", "a2", "b6", "b5", "a1", "e9"]);
        assert_eq!(ran, ["a0", "b4", "c7", "d8"]);
        let (ran, refused) = turns(1, &["a", "b"]).await;
        assert_eq!((ran, refused), (vec!["a0".to_owned()], vec!["b1".to_owned()]));
        let (ran, refused) = turns(0, &["a"]).await;
        assert_eq!((ran, refused), (vec![], vec!["a0".to_owned()]));
    }

    /// ACC-5: a call that leaves takes neither a permit nor a turn with it, also if its turn came at the same moment.
    #[tokio::test(start_paused = true)]
    async fn leaving_gives_the_turn_to_the_next() {
        let queue = queue(1, 8);
        let permit = queue.try_enter(&ADA).unwrap();
        let wait = |principal: &str| {
            let (queue, principal): (_, Arc<str>) = (Arc::clone(&queue), principal.into());
            tokio::spawn(async move { queue.enter(&principal, soon()).await.map(std::mem::forget).is_ok() })
        };
        let (first, second, third) = (wait("a"), wait("b"), wait("a"));
        tokio::task::yield_now().await;
        assert_eq!(depth(&queue), (1, 3));
        second.abort();
        tokio::task::yield_now().await;
        assert_eq!(depth(&queue), (1, 2), "b left");
        // The first has its turn, and is gone before it notices.
        drop(permit);
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert!(third.await.unwrap(), "the turn went to the next");
        assert_eq!(depth(&queue), (1, 0));
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
