//! Wakes many tasks of another thread by a single call to the system.
//!
//! A task that is woken from another thread costs a write to that thread's event descriptor, each time. Where a
//! reader has answers for many tasks at once, they are left at the door of their thread instead: only the first
//! one rings, and whoever opens wakes them all, which costs nothing there.

use std::cell::RefCell;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The door of one single-threaded runtime.
#[derive(Debug)]
pub(crate) struct Doorbell {
    runtime: Handle,
    /// Tasks to be woken; somebody is on the way to open as long as there are any.
    left: Mutex<Vec<Waker>>,
}

thread_local! {
    static HERE: RefCell<Option<Arc<Doorbell>>> = const { RefCell::new(None) };
}

impl Doorbell {
    /// The door of this thread's runtime, if the runtime has but one thread.
    pub(crate) fn here() -> Option<Arc<Self>> {
        let runtime = Handle::try_current().ok()?;
        HERE.with_borrow_mut(|here| match here {
            Some(bell) if bell.runtime.id() == runtime.id() => Some(Arc::clone(bell)),
            _ if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread => None,
            _ => Some(Arc::clone(here.insert(Arc::new(Self { runtime, left: Mutex::default() })))),
        })
    }

    fn is_here(self: &Arc<Self>) -> bool {
        HERE.with_borrow(|here| here.as_ref().is_some_and(|bell| Arc::ptr_eq(bell, self)))
    }

    /// Wakes a task that waits behind this door.
    pub(crate) fn wake(self: &Arc<Self>, waker: Waker) {
        if self.is_here() {
            return waker.wake();
        }
        let mut left = self.left.lock();
        let first = left.is_empty();
        left.push(waker);
        drop(left);
        if first {
            let bell = Arc::clone(self);
            self.runtime.spawn(async move { bell.open() });
        }
    }

    fn open(&self) {
        let left = std::mem::take(&mut *self.left.lock());
        left.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    impl Count {
        fn seen(&self) -> usize {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn only_the_first_rings_and_all_are_woken() {
        let bell = Doorbell::here().unwrap();
        let task = Arc::new(Count::default());
        for round in 1..=2 {
            let (there, woken) = (Arc::clone(&bell), Arc::clone(&task));
            let other =
                std::thread::spawn(move || (0..3).for_each(|_| there.wake(Arc::clone(&woken).into())));
            other.join().unwrap();
            assert_eq!(task.seen(), 3 * (round - 1), "they wait at the door");
            assert_eq!(Handle::current().metrics().num_alive_tasks(), 1, "one is on the way to open");
            tokio::task::yield_now().await;
            assert_eq!(task.seen(), 3 * round);
        }
    }

    #[tokio::test]
    async fn on_the_same_thread_nobody_rings() {
        let bell = Doorbell::here().unwrap();
        assert!(Arc::ptr_eq(&bell, &Doorbell::here().unwrap()));
        let task = Arc::new(Count::default());
        bell.wake(Arc::clone(&task).into());
        assert_eq!(task.seen(), 1);
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async move { !Arc::ptr_eq(&bell, &Doorbell::here().unwrap()) })
        });
        assert!(other.join().unwrap(), "each thread has its own");
    }

    /// A thread that runs one runtime after the other has a door for each: nobody opens that of one that is gone.
    #[test]
    fn each_runtime_has_its_own() {
        let [first, second] = std::array::from_fn(|_| {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { (Doorbell::here().unwrap(), Handle::current().id()) })
        });
        assert!(!Arc::ptr_eq(&first.0, &second.0));
        assert_eq!(second.0.runtime.id(), second.1);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_runtime_of_several_threads_has_no_door() {
        assert!(tokio::spawn(async { Doorbell::here().is_none() }).await.unwrap());
    }
}
