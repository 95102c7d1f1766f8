//! Waits of tests: each ends within [`PATIENCE`], and then says where it stands and what it waited for.
//!
//! The bound is real time and is measured by a thread, so that it also ends the waits of a test whose clock is paused, and
//! neither moves such a clock nor keeps it from moving.

use std::panic::Location;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, LazyLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The longest that a test waits for anything. Long enough for a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what comes soon, and fails the test if it does not come.
#[track_caller]
pub fn soon<T>(what: &str, coming: impl Future<Output = T>) -> impl Future<Output = T> {
    within(PATIENCE, what.to_owned(), coming)
}

/// Asks again and again until there is an answer, and fails the test if there never is one.
#[track_caller]
pub fn found<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> impl Future<Output = T> {
    soon(what, async move {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::task::yield_now().await;
        }
    })
}

/// Waits until something holds, and fails the test if it never does. A paused clock stays where it is meanwhile.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) -> impl Future<Output = ()> {
    soon(what, async move {
        while !holds() {
            for _ in 0..32 {
                tokio::task::yield_now().await;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    })
}

#[track_caller]
fn within<T>(patience: Duration, what: String, coming: impl Future<Output = T>) -> impl Future<Output = T> {
    let place = Location::caller();
    async move {
        let mut coming = pin!(coming);
        let mut watch = None;
        std::future::poll_fn(move |context| {
            if let Poll::Ready(come) = coming.as_mut().poll(context) {
                return Poll::Ready(come);
            }
            let watch = watch.get_or_insert_with(|| Watch::start(patience));
            assert!(!watch.is_over(context), "{place}: not within {patience:?}: {what}");
            Poll::Pending
        })
        .await
    }
}

/// Says when the time of a wait is over, and wakes its task then. One thread watches all waits.
struct Watch(Arc<Over>);

#[derive(Default)]
struct Over {
    is_over: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// How often the thread looks.
const LOOK: Duration = Duration::from_millis(20);

impl Watch {
    fn start(patience: Duration) -> Self {
        static WATCHING: LazyLock<Sender<(Instant, Weak<Over>)>> = LazyLock::new(|| {
            let (sender, started) = channel();
            std::thread::spawn(move || watch(&started));
            sender
        });
        let over = Arc::new(Over::default());
        let sent = WATCHING.send((Instant::now() + patience, Arc::downgrade(&over)));
        sent.expect("the thread watches until the program ends");
        Self(over)
    }

    fn is_over(&self, context: &Context<'_>) -> bool {
        *self.0.waker.lock() = Some(context.waker().clone());
        self.0.is_over.load(Ordering::SeqCst)
    }
}

fn watch(started: &Receiver<(Instant, Weak<Over>)>) {
    let mut open = Vec::new();
    loop {
        std::thread::sleep(LOOK);
        open.extend(started.try_iter());
        let now = Instant::now();
        open.retain(|(until, over): &(Instant, Weak<Over>)| {
            let Some(over) = over.upgrade().filter(|_| *until <= now) else { return over.strong_count() > 0 };
            over.is_over.store(true, Ordering::SeqCst);
            if let Some(waker) = over.waker.lock().take() {
                waker.wake();
            }
            false
        });
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::pin::Pin;

    use super::*;

    /// How a wait ends that nothing ends.
    async fn told(waiting: Pin<Box<dyn Future<Output = ()> + Send>>) -> String {
        let failed = tokio::spawn(AssertUnwindSafe(waiting)).await.unwrap_err();
        *failed.into_panic().downcast::<String>().unwrap()
    }

    /// QA-7: a wait has a bound, with a paused clock too, and says what it waited for and where.
    #[tokio::test(start_paused = true)]
    async fn a_wait_has_a_bound() {
        let patience = Duration::from_millis(50);
        let began = tokio::time::Instant::now();
        let words = told(Box::pin(within(patience, "a word".to_owned(), std::future::pending()))).await;
        assert!(words.contains("waiting.rs:") && words.contains("not within 50ms: a word"), "{words}");
        assert_eq!(began.elapsed(), Duration::ZERO, "a paused clock does not move");
        // It moves if something waits for its time.
        let slept = soon("an hour", tokio::time::sleep(Duration::from_secs(3600)));
        slept.await;
        assert_eq!(began.elapsed(), Duration::from_secs(3600));
    }

    #[tokio::test]
    async fn what_comes_in_time_is_returned() {
        assert_eq!(soon("a number", async { 7 }).await, 7);
        let (told, tells) = tokio::sync::oneshot::channel();
        let telling = tokio::spawn(async move {
            tokio::task::yield_now().await;
            told.send(8).unwrap();
        });
        assert_eq!(soon("another number", tells).await, Ok(8));
        telling.await.unwrap();
        let mut asked = 0;
        let third = async || {
            asked += 1;
            (asked == 3).then_some(asked)
        };
        assert_eq!(found("the third answer", third).await, 3);
        let mut looks = 0;
        until("the third look", || {
            looks += 1;
            looks == 3
        })
        .await;
    }
}
