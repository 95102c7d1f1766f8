//! Hands each event to every subscriber that asked for it, without ever waiting for one.
//!
//! Every subscriber has its own queue, with a length that it chose. A full queue drops its oldest event for the new
//! one and counts the loss; the count is delivered in place of the lost events. A ring shared by all (like a
//! broadcast channel) would give every subscriber the same length, and would count events that its filter excludes.
//!
//! What must stay true: the locks are held only to move a pointer in or out, never over an `await` or the code of a
//! subscriber. For each subscriber, events received plus events missed are the events published since it subscribed
//! that pass its filter. Events of one task arrive in the order of publishing.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bridgehead_call::{Clock, CorrelationId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::{Detail, Event, Filter};

/// Delivers events to subscribers; [`Signals`](crate::Signals) publishes them. Clones are the same bus.
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
    /// This many events were lost here, because the subscriber was too slow.
    Missed(u64),
}

struct Shared {
    clock: Arc<dyn Clock>,
    /// Replaced as a whole, so that a publisher walks its own copy and wakes subscribers without the lock: a waker
    /// may drop a [`Subscription`], which changes this list.
    queues: RwLock<Arc<[Arc<Queue>]>>,
    /// The length of `queues`, readable without its lock.
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
    /// How many events were lost before the first waiting one.
    missed: u64,
    /// The bus is gone: nothing more can be published.
    closed: bool,
}

/// What the subscriber finds in its queue.
enum Found {
    Delivery(Delivery),
    Nothing,
    End,
}

impl Bus {
    /// A bus without subscribers; its events get their time from `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Shared { clock, queues: RwLock::default(), watchers: AtomicUsize::new(0) }))
    }

    /// Whether there is a subscriber. Without one, there is no need to build an event.
    #[must_use]
    #[inline]
    pub fn is_watched(&self) -> bool {
        self.0.watchers.load(Ordering::Acquire) > 0
    }

    /// Publishes what happened just now. `detail` is built only if there is a subscriber. Only signals call this.
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

    /// Publishes an event to every current subscriber whose filter it passes. Never waits.
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

    /// Subscribes to every event from now on, with at most `capacity` of them waiting (at least one).
    #[must_use]
    pub fn subscribe(&self, capacity: usize) -> Subscription {
        self.subscribe_to(Filter::default(), capacity)
    }

    /// Subscribes to the events that pass `filter`, with at most `capacity` of them waiting (at least one).
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
    /// The next event, or how many were lost before it; `None` once the bus is gone and everything is delivered.
    ///
    /// Nothing is lost if the returned future is dropped before it is ready.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            match self.queue.take() {
                Found::Delivery(delivery) => return Some(delivery),
                Found::End => return None,
                // A push between `take` and this line leaves a permit, so this wait ends at once.
                Found::Nothing => self.queue.changed.notified().await,
            }
        }
    }

    /// Like [`Subscription::next`], but without waiting; `None` if there is nothing at the moment.
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
        // Frees the lost event outside the lock.
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
