//! Tokens that were checked, by the SHA-256 of their text.
//!
//! Saves the signature check of every request but the first: a known token costs one hash and one look-up. An entry is used for
//! a few minutes at most, and never beyond the token's own expiry, whatever happens to the clock. The token itself is not kept.

use std::collections::HashMap;
use std::time::Duration;

use bridgehead_call::Moment;
use bridgehead_gateway::Principal;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The map is divided, so that requests on several threads seldom wait for each other.
const SHARDS: usize = 16;
/// How many tokens are remembered in each part.
const MOST: usize = 1024;

/// What is known of a token.
#[derive(Debug, Clone)]
pub(crate) enum Verdict {
    /// It is good, and this is its holder.
    Good(Principal),
    /// It is good, but lacks scopes that every request needs. Scopes are listed as in a challenge.
    LacksScopes {
        /// All that every request needs.
        required: std::sync::Arc<str>,
        /// All that it has.
        held: std::sync::Arc<str>,
    },
    /// The issuer says that it is not good.
    Inactive,
}

/// What was found out about a token.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) verdict: Verdict,
    /// When it has to be checked again, on the monotonic clock.
    pub(super) fresh_until: Duration,
    /// When the token expires.
    pub(super) expires: Timestamp,
    /// Cancelled when the issuer says that the token is no longer good.
    pub(super) revoked: CancellationToken,
}

/// The tokens that were checked.
#[derive(Debug)]
pub(super) struct Checked {
    shards: [Mutex<HashMap<[u8; 32], Entry>>; SHARDS],
    most: usize,
}

impl Checked {
    pub(super) fn new() -> Self {
        Self::of(MOST)
    }

    fn of(most: usize) -> Self {
        Self { shards: std::array::from_fn(|_| Mutex::default()), most }
    }

    /// What is known of a token, if that is fresh.
    pub(super) fn find(&self, digest: &[u8; 32], now: Moment) -> Option<Verdict> {
        let shard = self.shard(digest).lock();
        let entry = shard.get(digest)?;
        (now.monotonic < entry.fresh_until && now.wall < entry.expires).then(|| entry.verdict.clone())
    }

    /// The switch of a token that was good when it was checked before, so that checking it again keeps what its holder has open.
    pub(super) fn revoked(&self, digest: &[u8; 32]) -> Option<CancellationToken> {
        self.shard(digest).lock().get(digest).map(|entry| entry.revoked.clone())
    }

    /// Remembers a token. When there is no room, expired tokens and then the one that is checked again first are forgotten.
    pub(super) fn insert(&self, digest: [u8; 32], entry: Entry, now: Moment) {
        let mut shard = self.shard(&digest).lock();
        if shard.len() >= self.most && !shard.contains_key(&digest) {
            shard.retain(|_, entry| now.monotonic < entry.fresh_until && now.wall < entry.expires);
        }
        if shard.len() >= self.most && !shard.contains_key(&digest) {
            let first = shard.iter().min_by_key(|(_, entry)| entry.fresh_until).map(|(digest, _)| *digest);
            first.and_then(|first| shard.remove(&first));
        }
        shard.insert(digest, entry);
    }

    fn shard(&self, digest: &[u8; 32]) -> &Mutex<HashMap<[u8; 32], Entry>> {
        // A digest is as random as anything, so its first byte divides the tokens evenly.
        &self.shards[usize::from(digest[0]) % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Moment {
        let wall = Timestamp::from_second(second.try_into().unwrap()).unwrap();
        Moment { wall, monotonic: Duration::from_secs(second) }
    }

    fn entry(fresh_until: u64, expires: u64) -> Entry {
        Entry {
            verdict: Verdict::Inactive,
            fresh_until: Duration::from_secs(fresh_until),
            expires: at(expires).wall,
            revoked: CancellationToken::new(),
        }
    }

    /// ACC-2: a checked token is known for a while and never after its expiry, also when the clock is set.
    #[test]
    fn an_entry_ends_with_its_token() {
        let checked = Checked::new();
        checked.insert([1; 32], entry(300, 1000), at(0));
        assert!(checked.find(&[1; 32], at(299)).is_some());
        assert!(checked.find(&[1; 32], at(300)).is_none());
        assert!(checked.find(&[2; 32], at(0)).is_none());
        let stepped = |wall: u64| Moment { wall: at(wall).wall, monotonic: Duration::from_secs(10) };
        assert!(checked.find(&[1; 32], stepped(999)).is_some());
        assert!(checked.find(&[1; 32], stepped(1000)).is_none(), "the clock was set forward");
        assert!(checked.revoked(&[1; 32]).is_some() && checked.revoked(&[2; 32]).is_none());
    }

    /// ACC-2: the number of remembered tokens is bounded; expired ones go first.
    #[test]
    fn the_map_is_bounded() {
        let checked = Checked::of(2);
        let digest = |last: u8| {
            let mut digest = [0; 32];
            digest[31] = last;
            digest
        };
        checked.insert(digest(1), entry(300, 50), at(0));
        checked.insert(digest(2), entry(200, 1000), at(0));
        checked.insert(digest(3), entry(250, 1000), at(60));
        let known = |last| checked.find(&digest(last), at(61)).is_some();
        assert_eq!([1, 2, 3].map(known), [false, true, true]);
        checked.insert(digest(3), entry(260, 1000), at(60));
        assert_eq!([2, 3].map(known), [true, true], "an entry that is replaced needs no room");
        checked.insert(digest(4), entry(270, 1000), at(60));
        assert_eq!([2, 3, 4].map(known), [false, true, true], "the one that is checked again first goes");
    }
}
