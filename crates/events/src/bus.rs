//! Hands each event to everyone who asked for it, without ever waiting for any of them.
//!
//! Every subscriber has a queue of its own, as long as it chose. A full queue gives up its oldest event for the
//! new one and counts the loss; the count is delivered where the lost events would have stood. A ring shared
//! by all (as of a broadcast channel) would give every subscriber the same length and count what its filter
//! would have left out.
//!
//! What must stay true: the locks are held only to move a pointer in or out, never over an `await` or the
//! code of a subscriber; for each subscriber, events received plus events missed are the events published
//! since it subscribed that its filter lets pass; what one task publishes arrives in that order.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bridgehead_call::{Clock, CorrelationId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::{Detail, Event, Filter};

/// Where events are subscribed to; what is published comes from [`Signals`](crate::Signals). Clones are the same bus.
#[derive(Clone)]
pub struct Bus(Arc<Shared>);

/// One subscriber's events; dropping it ends the subscription.
pub struct Subscription {
    queue: Arc<Queue>,
    bus: Weak<Shared>,
}

/// What a subscriber gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An event.
    Event(Arc<Event>),
    /// So many events stood here and were lost, because the subscriber was too slow.
    Missed(u64),
}

struct Shared {
    clock: Arc<dyn Clock>,
    /// Replaced as a whole, so that a publisher walks a list of its own and wakes subscribers without the
    /// lock: a waker may end up dropping a [`Subscription`], which changes this.
    queues: RwLock<Arc<[Arc<Queue>]>>,
    /// The length of `queues`, to be read without its lock.
    watchers: AtomicUsize,
}

struct Queue {
    filter: Filter,
    capacity: usize,
    state: Mutex<Backlog>,
    changed: Notify,
}

#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Arc<Event>>,
    /// How many were lost before the first that waits.
    missed: u64,
    /// No bus is left that could publish.
    closed: bool,
}

/// What the subscriber finds in its queue.
enum Found {
    Delivery(Delivery),
    Nothing,
    End,
}

impl Bus {
    /// A bus without subscribers that takes the time of its events from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared { clock, queues: RwLock::default(), watchers: AtomicUsize::new(0) }))
    }

    /// Whether anybody listens. If nobody does, there is no need to build an event.
    #[must_use]
    pub fn is_watched(&self) -> bool {
        self.0.watchers.load(Ordering::Acquire) > 0
    }

    /// Publishes what happened just now. `detail` is built only if somebody listens. Only signals are told.
    pub(crate) fn tell(
        &self,
        correlation: CorrelationId,
        server: Option<&Arc<str>>,
        detail: impl FnOnce() -> Detail,
    ) {
        if self.is_watched() {
            self.publish(Event::new(self.0.clock.wall(), correlation, server.cloned(), detail()));
        }
    }

    /// Publishes an event to everyone who listens now and whose filter lets it pass. Never waits.
    pub(crate) fn publish(&self, event: Event) {
        if !self.is_watched() {
            return;
        }
        let event = Arc::new(event);
        let queues = Arc::clone(&self.0.queues.read());
        for queue in queues.iter().filter(|queue| queue.filter.matches(&event)) {
            queue.push(Arc::clone(&event));
        }
    }

    /// Listens to every event from now on, with at most `capacity` of them waiting (at least one).
    #[must_use]
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.subscribe_to(Filter::default(), capacity)
    }

    /// Listens to the events that `filter` lets pass, with at most `capacity` of them waiting (at least one).
    #[must_use]
    pub fn subscribe_to(&self, filter: Filter, capacity: usize) -> Subscription {
        let queue = Arc::new(Queue {
            filter,
            capacity: capacity.max(1),
            state: Mutex::default(),
            changed: Notify::new(),
        });
        self.0.change(|queues| queues.push(Arc::clone(&queue)));
        Subscription { queue, bus: Arc::downgrade(&self.0) }
    }
}

impl fmt::Debug for Bus {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Bus")
            .field("watchers", &self.0.watchers.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Subscription {
    /// The next event, or how many were lost before it; none once the bus is gone and all is delivered.
    ///
    /// Nothing is lost if the returned future is dropped before it is ready.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            match self.queue.take() {
                Found::Delivery(delivery) => return Some(delivery),
                Found::End => return None,
                // A push between the look above and this leaves a permit, so it is not slept through.
                Found::Nothing => self.queue.changed.notified().await,
            }
        }
    }

    /// What [`Subscription::next`] would give without waiting; none if there is nothing at the moment.
    pub fn try_next(&mut self) -> Option<Delivery> {
        match self.queue.take() {
            Found::Delivery(delivery) => Some(delivery),
            Found::Nothing | Found::End => None,
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(bus) = self.bus.upgrade() {
            bus.change(|queues| queues.retain(|queue| !Arc::ptr_eq(queue, &self.queue)));
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.queue.state.lock();
        formatter
            .debug_struct("Subscription")
            .field("filter", &self.queue.filter)
            .field("capacity", &self.queue.capacity)
            .field("waiting", &state.waiting.len())
            .field("missed", &state.missed)
            .finish()
    }
}

impl Shared {
    fn change(&self, change: impl FnOnce(&mut Vec<Arc<Queue>>)) {
        let mut queues = self.queues.write();
        let mut changed = queues.to_vec();
        change(&mut changed);
        *queues = changed.into();
        self.watchers.store(queues.len(), Ordering::Release);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for queue in self.queues.get_mut().iter() {
            queue.state.lock().closed = true;
            queue.changed.notify_one();
        }
    }
}

impl Queue {
    fn push(&self, event: Arc<Event>) {
        let mut state = self.state.lock();
        let oldest = if state.waiting.len() < self.capacity { None } else { state.waiting.pop_front() };
        state.missed += u64::from(oldest.is_some());
        state.waiting.push_back(event);
        drop(state);
        // Whatever the lost event held is freed here, outside the lock.
        drop(oldest);
        self.changed.notify_one();
    }

    fn take(&self) -> Found {
        let mut state = self.state.lock();
        if state.missed > 0 {
            return Found::Delivery(Delivery::Missed(std::mem::take(&mut state.missed)));
        }
        match state.waiting.pop_front() {
            Some(event) => Found::Delivery(Delivery::Event(event)),
            None if state.closed => Found::End,
            None => Found::Nothing,
        }
    }
}

#[cfg(test)]
mod tests;
