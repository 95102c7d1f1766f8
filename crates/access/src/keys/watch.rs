//! Reads the keys file again when it changes.
//!
//! The file is polled, because that notices every way of replacing it: a rename, an edit in place, a mounted secret whose link is
//! switched, a folder on another machine. It costs one `stat` per poll. A change is applied when two polls in a row have seen the
//! same state, so that a half-written file revokes nobody, and within a second of the change. A file that cannot be used leaves
//! the known keys as they are.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Clock;
use tokio::time::{MissedTickBehavior, interval};
use tracing::{debug, warn};

use super::file::{Fingerprint, KeysFile};
use super::ring::KeyRing;

/// Two polls, and reading the file, take less than a second.
const POLL: Duration = Duration::from_millis(300);

/// Keeps the ring as the file says, for as long as it is polled; without a file it only notices keys that expire.
pub(crate) async fn watch(file: Option<KeysFile>, ring: Arc<KeyRing>, clock: Arc<dyn Clock>) {
    let mut ticks = interval(POLL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut watched = file.map(Watched::new);
    loop {
        ticks.tick().await;
        if let Some(before) = watched.take() {
            let (ring, clock) = (Arc::clone(&ring), Arc::clone(&clock));
            // The disk may be slow, and this thread serves clients.
            let polling = tokio::task::spawn_blocking(move || {
                let mut watched = before;
                watched.poll(&ring, &*clock);
                watched
            });
            watched = polling.await.ok();
        }
        ring.expire(clock.wall());
    }
}

/// The file as the last polls saw it.
#[derive(Debug)]
struct Watched {
    file: KeysFile,
    /// The state whose keys are in use; nothing is known at first.
    applied: Option<Option<Fingerprint>>,
    /// The state that the last poll saw.
    seen: Option<Option<Fingerprint>>,
}

impl Watched {
    const fn new(file: KeysFile) -> Self {
        Self { file, applied: None, seen: None }
    }

    fn poll(&mut self, ring: &KeyRing, clock: &dyn Clock) {
        // A file whose state cannot be read is unusable as well.
        let state = self.file.fingerprint().ok();
        let settled = self.seen == state;
        self.seen = state;
        if !settled || self.applied == state {
            return;
        }
        self.applied = state;
        match self.file.read() {
            Ok(keys) => {
                let (exists, keys) = (keys.is_some(), keys.unwrap_or_default());
                debug!(path = %self.file.path().display(), keys = keys.len(), "read the keys file");
                ring.set_from_file(keys, exists, clock.wall());
            }
            Err(error) => warn!(%error, "the keys file cannot be used; the known keys stay in effect"),
        }
    }
}
