//! One request for all who wait for the same answer.
//!
//! The first caller starts the work, later ones join it, and the last who gives up drops it. Nothing is kept afterwards, so a
//! stranger who starts and gives up leaves nothing behind.

use std::collections::HashMap;
use std::hash::Hash;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use parking_lot::Mutex;

type Running<V> = BoxFuture<'static, V>;

/// The work that is under way, by what it is about.
#[derive(Debug)]
pub(super) struct Flights<K, V: Clone>(Mutex<HashMap<K, WeakShared<Running<V>>>>);

impl<K: Eq + Hash, V: Clone> Flights<K, V> {
    pub(super) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// Joins the work for `key`, or starts it.
    pub(super) fn join(&self, key: K, start: impl FnOnce() -> Running<V>) -> Shared<Running<V>> {
        let mut open = self.0.lock();
        if let Some(running) =
            open.get(&key).and_then(WeakShared::upgrade).filter(|running| running.peek().is_none())
        {
            return running;
        }
        open.retain(|_, running| running.upgrade().is_some());
        let running = start().shared();
        if let Some(weak) = running.downgrade() {
            open.insert(key, weak);
        }
        running
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// ACC-2 (case 8): many who wait for one answer cost one request; an abandoned one is forgotten.
    #[tokio::test]
    async fn work_is_shared() {
        let flights = Flights::new();
        let started = Arc::new(AtomicUsize::new(0));
        let (open, gate) = tokio::sync::oneshot::channel::<()>();
        let gate = gate.map(|_| ()).shared();
        let work = |key: u8| {
            let (started, gate) = (Arc::clone(&started), gate.clone());
            flights.join(key, move || {
                started.fetch_add(1, Ordering::Relaxed);
                async move {
                    gate.await;
                    7
                }
                .boxed()
            })
        };
        let (one, two, other) = (work(1), work(1), work(2));
        assert_eq!(started.load(Ordering::Relaxed), 2);
        drop(other);
        open.send(()).unwrap();
        assert_eq!((one.await, two.await), (7, 7));
        assert_eq!(work(1).await, 7);
        assert_eq!(started.load(Ordering::Relaxed), 3, "an answer is not kept");
        let kept = work(3);
        assert_eq!(kept.clone().await, 7);
        assert_eq!(work(3).await, 7);
        assert_eq!(started.load(Ordering::Relaxed), 5, "not even while somebody holds it");
        assert!(flights.0.lock().len() <= 1, "abandoned work is forgotten");
    }
}
