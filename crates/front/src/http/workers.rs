//! Threads that serve connections besides the one that accepts them.
//!
//! Each runs its own runtime, so that a call stays on one thread from its first byte to its last: handing a
//! call over costs more than most calls do. A new connection goes to the thread with the fewest connections.
//! Among equals the accepting thread comes first, because the links to the servers live there too.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How often an idle thread wakes. A runtime makes a system call, to wake itself, for every new timer that ends before all
/// the timers that it knew when it last slept. This timer ends before those of calls, so they cost no such system call.
/// Saves 0.13 of 1.31 writes per call, counted like those of the link's doorbell (`docs/decisions/0027-standing-timer.md`).
const BEAT: Duration = Duration::from_secs(10);

/// The threads. They end when this is dropped.
#[derive(Debug)]
pub struct Workers {
    seats: Vec<Seat>,
    _stop: DropGuard,
}

/// One thread, and how many connections it serves.
#[derive(Debug)]
struct Seat {
    /// `None` for the accepting thread itself.
    runtime: Option<Handle>,
    busy: Arc<AtomicUsize>,
}

/// A connection's place on a thread, given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    /// Where to serve it, if not on the accepting thread.
    pub(crate) runtime: Option<Handle>,
    busy: Arc<AtomicUsize>,
}

impl Workers {
    /// Starts this many threads; with none, the accepting thread serves every connection.
    pub fn start(threads: usize) -> io::Result<Self> {
        let stop = CancellationToken::new();
        let mut seats = vec![Seat { runtime: None, busy: Arc::default() }];
        for number in 1..=threads {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            seats.push(Seat { runtime: Some(runtime.handle().clone()), busy: Arc::default() });
            let stop = stop.clone();
            std::thread::Builder::new()
                .name(format!("front-{number}"))
                .spawn(move || runtime.block_on(until(&stop)))?;
        }
        Ok(Self { seats, _stop: stop.drop_guard() })
    }

    /// A place for a new connection.
    pub(crate) fn place(&self) -> Place {
        // Picks the first of several that are equally free: the accepting thread is the first of all.
        let free = self.seats.iter().min_by_key(|seat| seat.busy.load(Ordering::Relaxed));
        let (runtime, busy) =
            free.map_or_else(Default::default, |seat| (seat.runtime.clone(), Arc::clone(&seat.busy)));
        busy.fetch_add(1, Ordering::Relaxed);
        Place { runtime, busy }
    }
}

async fn until(stop: &CancellationToken) {
    while tokio::time::timeout(BEAT, stop.cancelled()).await.is_err() {}
}

impl Drop for Place {
    fn drop(&mut self) {
        self.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_accepting_thread_comes_first_then_the_freest() {
        let workers = Workers::start(1).unwrap();
        let here = workers.place();
        assert!(here.runtime.is_none());
        let there = workers.place();
        let other = there.runtime.clone().unwrap();
        let (ours, theirs) =
            (std::thread::current().id(), other.spawn(async { std::thread::current().id() }).await);
        assert_ne!(ours, theirs.unwrap());
        let third = workers.place();
        assert!(third.runtime.is_none(), "equally busy: the accepting thread");
        drop(there);
        assert!(workers.place().runtime.is_some());
        drop((here, third));
        let alone = Workers::start(0).unwrap();
        let places: Vec<_> = (0..5).map(|_| alone.place()).collect();
        assert!(places.iter().all(|place| place.runtime.is_none()));
    }

    #[tokio::test]
    async fn the_threads_end_with_their_owner() {
        let workers = Workers::start(1).unwrap();
        let other = workers.seats[1].runtime.clone().unwrap();
        let task = other.spawn(std::future::pending::<()>());
        drop(workers);
        assert!(task.await.unwrap_err().is_cancelled(), "the runtime is gone, and its tasks with it");
    }
}
