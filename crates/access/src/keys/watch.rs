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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use bridgehead_config::ApiKey;
    use bridgehead_testkit::FakeClock;

    use super::super::ring::Lookup;
    use super::*;

    fn key(expires: Option<jiff::Timestamp>) -> ApiKey {
        ApiKey { name: "ci".to_owned(), sha256: [1; 32], groups: Vec::new(), scopes: Vec::new(), expires }
    }

    /// ACC-2: a file that is just being written revokes nobody: a change counts when two polls have seen it.
    #[test]
    fn a_change_must_settle() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeysFile::new(folder.path().join("keys.toml"));
        file.append(&key(None)).unwrap();
        let clock = FakeClock::new();
        let ring = KeyRing::new(Vec::new(), clock.wall());
        let is_known = || matches!(ring.find(&[1; 32], clock.wall()), Lookup::Valid(_));
        let mut watched = Watched::new(file.clone());
        watched.poll(&ring, &clock);
        assert!(!is_known());
        watched.poll(&ring, &clock);
        assert!(is_known());
        let text = std::fs::read_to_string(file.path()).unwrap();
        std::fs::write(file.path(), "").unwrap();
        watched.poll(&ring, &clock);
        std::fs::write(file.path(), &text).unwrap();
        std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
        watched.poll(&ring, &clock);
        assert!(is_known(), "the file was empty for a moment only");
        std::fs::remove_file(file.path()).unwrap();
        watched.poll(&ring, &clock);
        assert!(is_known());
        watched.poll(&ring, &clock);
        assert!(!is_known());
    }

    /// ACC-2 (case 11): what the holder of a key keeps open ends when the key expires, with or without a keys file.
    #[tokio::test(start_paused = true)]
    async fn an_expiry_is_noticed() {
        let clock = FakeClock::new();
        let expires = clock.wall() + jiff::SignedDuration::from_secs(60);
        let ring = Arc::new(KeyRing::new(vec![key(Some(expires))], clock.wall()));
        let Lookup::Valid(holder) = ring.find(&[1; 32], clock.wall()) else { panic!("the key is valid") };
        let watching = tokio::spawn(watch(None, Arc::clone(&ring), Arc::new(clock.clone())));
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!holder.validity().has_ended());
        clock.advance(Duration::from_secs(60));
        let ended = tokio::time::timeout(Duration::from_secs(1), holder.validity().ended());
        ended.await.expect("it ends within a second");
        watching.abort();
    }
}
