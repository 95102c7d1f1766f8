//! Cancelled requests that a server may still work on, and what is held for them.
//!
//! A client that hangs up gets nothing free by it: the lock and the places of its call stay taken until the server has answered
//! the cancelled request or has ended, or a grace has passed. Many servers answer nothing to what is cancelled, and a closed
//! response proves nothing.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::Exchange;

/// A cancelled request that may still run. Clones are the same.
#[derive(Clone)]
pub struct Unfinished(Arc<Mutex<Option<Held>>>);

/// What is kept until the request has ended; `None` from then on.
type Held = Vec<Box<dyn Send>>;

impl Unfinished {
    /// Watches for the end of a cancelled request, for as long as `grace`.
    pub(super) fn watch(abandoned: Exchange, grace: Duration, runtime: &Handle) -> Self {
        let this = Self(Arc::new(Mutex::new(Some(Vec::new()))));
        let ending = Ending(this.clone());
        runtime.spawn(async move {
            // A late end is as good as one that was not seen.
            let _ = tokio::time::timeout(grace, abandoned.ends()).await;
            drop(ending);
        });
        this
    }

    /// Keeps this until the request has ended. If it has, drops it now.
    pub fn hold(&self, place: impl Send + 'static) {
        let mut held = self.0.lock();
        if let Some(held) = &mut *held {
            return held.push(Box::new(place));
        }
        drop(held);
        drop(place);
    }
}

impl std::fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unfinished").field("ended", &self.0.lock().is_none()).finish_non_exhaustive()
    }
}

/// Lets go of what is held, when dropped: also if the runtime ends.
struct Ending(Unfinished);

impl Drop for Ending {
    fn drop(&mut self) {
        let held = self.0.0.lock().take();
        drop(held);
    }
}
