//! Queues the messages of one request, in order and bounded.
//!
//! Invariants: only progress is ever displaced, and only by newer progress. A queued question is seen or answered,
//! and there is always room for an answer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};

use bridgehead_wire::{Abilities, Id, Raw};
use parking_lot::Mutex;

use crate::link::doorbell::Doorbell;
use crate::link::{Event, Purpose};
use crate::transport::relay::loss::Loss;

/// The most queued progress for one slow receiver; beyond it the newest progress replaces the one before.
pub(super) const QUEUED_PROGRESS: usize = 256;
/// The most queued events for one receiver. Beyond it questions are refused and other messages dropped; an answer
/// is always queued.
pub(super) const QUEUED_EVENTS: usize = 2 * QUEUED_PROGRESS;

/// The queue of one request's messages.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) purpose: Purpose,
    /// The bits of the client's abilities, once the request is sent.
    abilities: AtomicU8,
    /// Whether log lines of the request are wanted.
    logs: AtomicBool,
    /// Whether a relay did not pass the request on.
    withheld: AtomicBool,
    pub(super) state: Mutex<Waiting>,
}

#[derive(Debug, Default)]
pub(super) struct Waiting {
    pub(super) queue: VecDeque<Event>,
    waker: Option<Waker>,
    /// The doorbell of the thread that the waiting task runs on.
    bell: Option<Arc<Doorbell>>,
    last_progress: Option<f64>,
}

impl Slot {
    pub(super) fn new(purpose: Purpose) -> Self {
        Self {
            purpose,
            abilities: AtomicU8::new(0),
            logs: AtomicBool::new(false),
            withheld: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// Whether log lines of the request are wanted.
    pub(super) fn wants_logs(&self) -> bool {
        self.logs.load(Ordering::Acquire)
    }

    /// Ends the request because of what a relay found.
    pub(super) fn lose(&self, loss: Loss) {
        self.withheld.store(!loss.sent, Ordering::Release);
        self.push(Event::Lost(loss.error));
    }

    /// Whether a relay did not pass the request on.
    pub(crate) fn was_withheld(&self) -> bool {
        self.withheld.load(Ordering::Acquire)
    }

    /// Takes a progress notification with the value `progress`.
    pub(super) fn progressed(&self, params: Raw, progress: f64) {
        let mut waiting = self.state.lock();
        // The protocol requires progress to increase; anything else is noise to the client.
        if waiting.last_progress.is_some_and(|last| progress <= last) {
            return;
        }
        waiting.last_progress = Some(progress);
        if waiting.queue.len() >= QUEUED_PROGRESS {
            match waiting.queue.back() {
                Some(Event::Progress(_)) => drop(waiting.queue.pop_back()),
                // Other events are never displaced: a question would stay unanswered.
                _ if waiting.is_full() => return,
                _ => {}
            }
        }
        waiting.push(Event::Progress(params));
    }

    /// For events that come once: the answer, or the end.
    #[inline]
    pub(super) fn push(&self, event: Event) {
        self.state.lock().push(event);
    }

    /// For events that the peer may send without limit and that may be lost.
    pub(super) fn push_if_room(&self, event: Event) {
        let mut waiting = self.state.lock();
        if !waiting.is_full() {
            waiting.push(event);
        }
    }

    pub(super) fn has_room(&self) -> bool {
        !self.state.lock().is_full()
    }

    /// Lets in the peer's questions that these abilities can answer.
    pub(crate) fn can_answer(&self, abilities: Abilities) {
        self.abilities.store(abilities.bits(), Ordering::Release);
    }

    /// Lets log lines in.
    pub(crate) fn want_logs(&self) {
        self.logs.store(true, Ordering::Release);
    }

    pub(super) fn abilities(&self) -> Abilities {
        Abilities::from_bits(self.abilities.load(Ordering::Acquire))
    }

    /// The ids of the questions that were never looked at. None arrive after the slot is released.
    pub(crate) fn unseen(&self) -> Vec<Id> {
        let asked = |event| match event {
            Event::Asked(asked) => Some(asked.id),
            _ => None,
        };
        self.state.lock().queue.drain(..).filter_map(asked).collect()
    }

    /// Whether an event is queued.
    #[inline]
    pub(crate) fn has_event(&self) -> bool {
        !self.state.lock().queue.is_empty()
    }

    /// The next event; if there is none, wakes the task of `context` when one arrives.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Event> {
        let mut waiting = self.state.lock();
        if let Some(event) = waiting.queue.pop_front() {
            return Poll::Ready(event);
        }
        if !waiting.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            waiting.waker = Some(context.waker().clone());
            waiting.bell = Doorbell::here();
        }
        Poll::Pending
    }
}

impl Waiting {
    fn is_full(&self) -> bool {
        self.queue.len() >= QUEUED_EVENTS
    }

    fn push(&mut self, event: Event) {
        self.queue.push_back(event);
        match (self.waker.take(), &self.bell) {
            (Some(waker), Some(bell)) => bell.wake(waker),
            (Some(waker), None) => waker.wake(),
            (None, _) => {}
        }
    }
}
