//! Idle connections of a server, a separate pool for each thread.
//!
//! A call takes a connection from the pool of its thread, drives it in its own task and gives it back. So no other
//! task is involved, and nothing is handed between threads. Nothing drives an idle connection; whether the server
//! has closed it is checked when it is taken.

use std::cell::RefCell;
use std::fmt;

use thread_local::ThreadLocal;

use super::wire::Wire;

/// The most idle connections on one thread.
const MOST_WAITING: usize = 128;

/// The connections of one server.
#[derive(Default)]
pub(crate) struct Pool(ThreadLocal<RefCell<Vec<Wire>>>);

impl Pool {
    /// An idle connection of this thread that can take a request.
    pub(crate) fn take(&self) -> Option<Wire> {
        let mut waiting = self.0.get()?.borrow_mut();
        while let Some(mut wire) = waiting.pop() {
            if wire.is_usable() {
                return Some(wire);
            }
        }
        None
    }

    /// Keeps a connection for the next request on this thread. The end of its last answer may still be unread.
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
