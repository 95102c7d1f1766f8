//! The keys that are known, by digest.
//!
//! A look-up reads one map and takes no lock. The map is replaced as a whole when the configuration or the keys file changes. What
//! must stay true: a key that is gone, has changed or has expired ends what its principal keeps open, and an unchanged one
//! keeps it, however often the file is read.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use bridgehead_config::ApiKey;
use bridgehead_gateway::{Principal, PrincipalKind, Validity};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The known keys.
#[derive(Debug)]
pub struct KeyRing {
    known: ArcSwap<HashMap<[u8; 32], Arc<KnownKey>>>,
    /// The two places that keys come from. Changing them and the map is one step.
    sources: Mutex<Sources>,
    /// Whether there ever was a key or a keys file.
    used: AtomicBool,
}

#[derive(Debug, Default)]
struct Sources {
    configured: Vec<ApiKey>,
    from_file: Vec<ApiKey>,
}

#[derive(Debug)]
struct KnownKey {
    key: ApiKey,
    principal: Principal,
    revoked: CancellationToken,
    /// Whether it had expired when this value was made; `revoked` is then not cancelled and nobody holds it.
    expired: bool,
}

/// What is known of a digest.
#[derive(Debug, Clone)]
pub enum Lookup {
    /// The key is valid, and this is its holder.
    Valid(Principal),
    /// The key has expired.
    Expired,
    /// There is no such key.
    Unknown,
}

impl KeyRing {
    /// A ring with the keys of the configuration.
    pub fn new(configured: Vec<ApiKey>, now: Timestamp) -> Self {
        let ring =
            Self { known: ArcSwap::default(), sources: Mutex::default(), used: AtomicBool::new(false) };
        ring.set_configured(configured, now);
        ring
    }

    /// Looks a key up.
    pub fn find(&self, digest: &[u8; 32], now: Timestamp) -> Lookup {
        match self.known.load().get(digest) {
            None => Lookup::Unknown,
            Some(known) if has_expired(&known.key, now) => Lookup::Expired,
            Some(known) => Lookup::Valid(known.principal.clone()),
        }
    }

    /// Replaces the keys of the configuration.
    pub fn set_configured(&self, keys: Vec<ApiKey>, now: Timestamp) {
        let mut sources = self.sources.lock();
        self.used.fetch_or(!keys.is_empty(), Ordering::Relaxed);
        sources.configured = keys;
        self.rebuild(&sources, now);
    }

    /// Replaces the keys of the keys file. `exists` says whether there is such a file, even an empty one.
    pub fn set_from_file(&self, keys: Vec<ApiKey>, exists: bool, now: Timestamp) {
        let mut sources = self.sources.lock();
        self.used.fetch_or(exists, Ordering::Relaxed);
        sources.from_file = keys;
        self.rebuild(&sources, now);
    }

    /// Whether there ever was a key, or a file for keys. It stays so: when the last key is revoked, nobody is admitted who was
    /// not before.
    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::Relaxed)
    }

    /// Ends what holders of expired keys keep open. Also notices a clock that was set back.
    pub fn expire(&self, now: Timestamp) {
        let stale = |known: &Arc<KnownKey>| known.expired != has_expired(&known.key, now);
        if self.known.load().values().any(stale) {
            self.rebuild(&self.sources.lock(), now);
        }
    }

    fn rebuild(&self, sources: &Sources, now: Timestamp) {
        let before = self.known.load_full();
        let mut after: HashMap<[u8; 32], Arc<KnownKey>> = HashMap::new();
        for key in sources.configured.iter().chain(&sources.from_file) {
            if let Some(first) = after.get(&key.sha256) {
                if first.key.name != key.name {
                    warn!(
                        key = key.name,
                        first = first.key.name,
                        "two keys have one digest; the first is used"
                    );
                }
                continue;
            }
            let expired = has_expired(key, now);
            let kept = before.get(&key.sha256).filter(|known| known.key == *key && known.expired == expired);
            let known = kept.map_or_else(|| Arc::new(KnownKey::new(key.clone(), expired)), Arc::clone);
            after.insert(key.sha256, known);
        }
        let ended: Vec<Arc<KnownKey>> = before
            .iter()
            .filter(|(digest, known)| after.get(*digest).is_none_or(|now| !Arc::ptr_eq(now, known)))
            .map(|(_, known)| Arc::clone(known))
            .collect();
        // New look-ups must not find a key whose streams are being ended.
        self.known.store(Arc::new(after));
        for known in ended {
            info!(
                key = known.key.name,
                "a key was revoked, changed or has expired; what its holder kept open ends"
            );
            known.revoked.cancel();
        }
    }
}

impl KnownKey {
    fn new(key: ApiKey, expired: bool) -> Self {
        let revoked = CancellationToken::new();
        let principal = Principal::new(&format!("key:{}", key.name), PrincipalKind::Key)
            .called(&key.name)
            .in_groups(key.groups.iter().map(String::as_str))
            .with_scopes(key.scopes.iter().map(String::as_str))
            // The expiry is told by the same token, because the wall clock may be set.
            .valid(Validity::new(Some(revoked.clone()), None));
        Self { key, principal, revoked, expired }
    }
}

fn has_expired(key: &ApiKey, now: Timestamp) -> bool {
    key.expires.is_some_and(|expires| expires <= now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn key(name: &str, digest: u8) -> ApiKey {
        ApiKey {
            name: name.to_owned(),
            sha256: [digest; 32],
            groups: vec!["build".to_owned()],
            scopes: vec!["read".to_owned()],
            expires: None,
        }
    }

    #[track_caller]
    fn valid(ring: &KeyRing, digest: u8, now: Timestamp) -> Principal {
        match ring.find(&[digest; 32], now) {
            Lookup::Valid(principal) => principal,
            other => panic!("{other:?}"),
        }
    }

    /// ACC-1 (case 11): a key names its holder, its groups and its scopes; two keys of one name are valid side by side.
    #[test]
    fn a_key_names_its_holder() {
        let ring = KeyRing::new(vec![key("ci", 1), key("ci", 2)], NOW);
        ring.set_from_file(vec![key("ada", 3), key("eve", 1)], true, NOW);
        for digest in [1, 2] {
            let principal = valid(&ring, digest, NOW);
            assert_eq!((principal.as_str(), principal.kind()), ("key:ci", PrincipalKind::Key));
            assert_eq!(principal.groups().collect::<Vec<_>>(), ["build"]);
            assert_eq!(principal.scopes().collect::<Vec<_>>(), ["read"]);
            assert_eq!(principal.name(), "ci");
        }
        assert_eq!(valid(&ring, 3, NOW).as_str(), "key:ada");
        assert!(matches!(ring.find(&[9; 32], NOW), Lookup::Unknown));
    }

    /// ACC-2 (case 11): a key that is removed or changed ends what its holder keeps open; all others stay.
    #[test]
    fn a_removed_key_ends() {
        let ring = KeyRing::new(vec![key("kept", 1)], NOW);
        ring.set_from_file(vec![key("removed", 2), key("changed", 3), key("same", 4)], true, NOW);
        let held: Vec<Principal> = (1..=4).map(|digest| valid(&ring, digest, NOW)).collect();
        let changed = ApiKey { groups: Vec::new(), ..key("changed", 3) };
        ring.set_from_file(vec![changed, key("same", 4)], true, NOW);
        let ended: Vec<bool> = held.iter().map(|principal| principal.validity().has_ended()).collect();
        assert_eq!(ended, [false, true, true, false]);
        assert!(matches!(ring.find(&[2; 32], NOW), Lookup::Unknown));
        let again = valid(&ring, 3, NOW);
        assert!(!again.validity().has_ended() && again.groups().next().is_none());
        ring.set_configured(Vec::new(), NOW);
        assert!(held[0].validity().has_ended() && !held[3].validity().has_ended());
    }

    /// ACC-2 (case 11): an expired key is refused at once and its streams end; a clock that is set back makes it valid again.
    #[test]
    fn a_key_expires_by_the_wall_clock() {
        let ring = KeyRing::new(vec![ApiKey { expires: Some(at(100)), ..key("ci", 1) }], NOW);
        let held = valid(&ring, 1, at(99));
        assert!(matches!(ring.find(&[1; 32], at(100)), Lookup::Expired));
        ring.expire(at(99));
        assert!(!held.validity().has_ended());
        ring.expire(at(100));
        assert!(held.validity().has_ended());
        ring.expire(at(101));
        let again = valid(&ring, 1, at(50));
        ring.expire(at(50));
        assert!(!again.validity().has_ended() || !valid(&ring, 1, at(50)).validity().has_ended());
        let held = valid(&ring, 1, at(50));
        assert!(!held.validity().has_ended());
        ring.expire(at(100));
        assert!(held.validity().has_ended());
    }

    /// ACC-1: once there was a key, the absence of keys does not admit anybody.
    #[test]
    fn keys_stay_in_use() {
        let ring = KeyRing::new(Vec::new(), NOW);
        assert!(!ring.is_used());
        ring.set_from_file(Vec::new(), false, NOW);
        assert!(!ring.is_used());
        ring.set_from_file(Vec::new(), true, NOW);
        assert!(ring.is_used());
        ring.set_from_file(Vec::new(), false, NOW);
        assert!(ring.is_used());
        let ring = KeyRing::new(vec![key("ci", 1)], NOW);
        ring.set_configured(Vec::new(), NOW);
        assert!(ring.is_used());
    }
}
