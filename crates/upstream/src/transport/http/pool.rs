//! Connections that wait for their next request, apart for each thread.
//!
//! A call takes a connection of the thread it runs on, drives it in its own task and gives it back: no other
//! task has a part in it, and nothing is handed over between threads. A connection that waits is driven by
//! nobody; whether its server has closed it is seen when it is taken.

use std::cell::RefCell;
use std::fmt;

use thread_local::ThreadLocal;

use super::wire::Wire;

/// How many connections may wait on one thread.
const MOST_WAITING: usize = 128;

/// The connections of one server.
#[derive(Default)]
pub(crate) struct Pool(ThreadLocal<RefCell<Vec<Wire>>>);

impl Pool {
    /// A connection that can take a request, if one waits on this thread.
    pub(crate) fn take(&self) -> Option<Wire> {
        let mut waiting = self.0.get()?.borrow_mut();
        while let Some(mut wire) = waiting.pop() {
            if wire.is_usable() {
                return Some(wire);
            }
        }
        None
    }

    /// Keeps a connection for the next request on this thread, though the end of its last answer may not have been
    /// read.
    pub(crate) fn put(&self, mut wire: Wire) {
        if !wire.rest() {
            return;
        }
        let mut waiting = self.0.get_or_default().borrow_mut();
        if waiting.len() < MOST_WAITING {
            waiting.push(wire);
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Pool")
    }
}
