//! Processes that wait for a call, each for one.
//!
//! A process that has served a call is killed with all its tree, whatever the call came to, and another is started in
//! its place. Started means: it runs, its protocol is settled and its tools were listed, so that a call finds it warm.
//! What a call leaves behind, in memory or in processes, is gone before the next.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::upstream::{State, Upstream};

/// How many wait.
const IDLE: usize = 2;

/// Those that wait, the longest waiting first.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    idle: Mutex<VecDeque<Upstream>>,
    misses: AtomicU64,
}

impl Pool {
    /// One that serves, or else one that is about to; those that have ended meanwhile are left out.
    pub(crate) fn take(&self) -> Option<Upstream> {
        let mut ended = Vec::new();
        let taken = {
            let mut idle = self.idle.lock();
            idle.retain(|instance| {
                let lives = matches!(instance.state(), State::Ready(_) | State::Starting { .. });
                if !lives {
                    ended.push(instance.clone());
                }
                lives
            });
            let ready = idle
                .iter()
                .position(|instance| matches!(instance.state(), State::Ready(ready) if ready.link.is_open()));
            idle.remove(ready.unwrap_or(0))
        };
        ended.iter().for_each(Upstream::release);
        taken
    }

    pub(crate) fn missed(&self) {
        self.misses.fetch_add(1, Ordering::Relaxed);
    }

    /// How many wait, and how many calls found none.
    pub(crate) fn count(&self) -> (usize, u64) {
        (self.idle.lock().len(), self.misses.load(Ordering::Relaxed))
    }

    /// Whether one more may wait.
    pub(crate) fn wants(&self) -> bool {
        self.idle.lock().len() < IDLE
    }

    pub(crate) fn put(&self, instance: Upstream) {
        self.idle.lock().push_back(instance);
    }

    /// Ends all that wait.
    pub(crate) fn empty(&self) {
        let ended = std::mem::take(&mut *self.idle.lock());
        ended.iter().for_each(Upstream::release);
    }

    /// One that no other process has.
    pub(crate) fn number(&self) -> u64 {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        NUMBER.fetch_add(1, Ordering::Relaxed)
    }
}

/// A process for one call. Dropping it kills the process and has another wait for the next call.
#[derive(Debug)]
pub struct OneShot {
    pub(crate) instance: Upstream,
    pub(crate) of: Upstream,
}

impl Deref for OneShot {
    type Target = Upstream;

    fn deref(&self) -> &Upstream {
        &self.instance
    }
}

impl Drop for OneShot {
    fn drop(&mut self) {
        self.instance.release();
        self.of.refill();
    }
}
