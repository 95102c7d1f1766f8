//! Wakes many tasks of another thread with a single system call.
//!
//! Saves 0.33 of 1.51 writes per call (1.18 with it): `syscw` of `/proc/PID/io`, 64 connections, two threads, a stdio server,
//! `cargo xtask bench --only 'call, modern, 64' --threads 2`.
//!
//! Waking a task from another thread costs one write to that thread's event descriptor. A reader that has answers
//! for many tasks leaves their wakers at the doorbell of their thread. Only the first waker triggers that write;
//! the thread then wakes all of them locally, which costs no system call.

use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::task::Waker;

use parking_lot::Mutex;
use tokio::runtime::{Handle, RuntimeFlavor};

/// The doorbell of one single-threaded runtime.
#[derive(Debug)]
pub(crate) struct Doorbell {
    runtime: Handle,
    /// Tasks to wake. While there are any, a task that will wake them is scheduled.
    left: Mutex<Vec<Waker>>,
}

thread_local! {
    // Weak, because a thread may outlive its runtime: a handle would keep the runtime's descriptors open.
    static HERE: RefCell<Weak<Doorbell>> = const { RefCell::new(Weak::new()) };
}

impl Doorbell {
    /// The doorbell of this thread's runtime, if that runtime has a single thread.
    pub(crate) fn here() -> Option<Arc<Self>> {
        let runtime = Handle::try_current().ok()?;
        HERE.with_borrow_mut(|here| match here.upgrade() {
            Some(bell) if bell.runtime.id() == runtime.id() => Some(bell),
            _ if runtime.runtime_flavor() != RuntimeFlavor::CurrentThread => None,
            _ => {
                let bell = Arc::new(Self { runtime, left: Mutex::default() });
                *here = Arc::downgrade(&bell);
                Some(bell)
            }
        })
    }

    fn is_here(self: &Arc<Self>) -> bool {
        HERE.with_borrow(|here| here.as_ptr() == Arc::as_ptr(self))
    }

    /// Wakes a task of this doorbell's runtime.
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
            assert_eq!(task.seen(), 3 * (round - 1), "the wakers wait at the doorbell");
            assert_eq!(
                Handle::current().metrics().num_alive_tasks(),
                1,
                "one task to wake them is scheduled"
            );
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
        assert!(other.join().unwrap(), "each thread has its own doorbell");
    }

    /// A thread that runs two runtimes in succession has a doorbell for each: the wakers of an ended runtime would
    /// never be woken.
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
