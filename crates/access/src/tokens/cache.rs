//! Tokens that were checked, by the SHA-256 of their text.
//!
//! Saves the signature check of every request but the first: a known token costs one hash and one look-up. An entry is used for
//! a few minutes at most, and never beyond the token's own expiry, whatever happens to the clock. The text of a token is kept only if
//! its issuer has to be asked about it again, for as long as its holder has something open.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Moment;
use bridgehead_config::Secret;
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
        required: Arc<str>,
        /// All that it has.
        held: Arc<str>,
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
    /// What the holders of the token have in common.
    pub(super) holders: Holders,
    /// The token, if its issuer is asked about it again while something is open.
    pub(super) token: Option<Secret>,
    /// When to ask again, if the issuer did not answer.
    pub(super) again: Option<Duration>,
}

/// What ties together all that was opened with a token, however often it was checked since.
#[derive(Debug, Clone, Default)]
pub(super) struct Holders {
    /// Cancelled when the issuer says that the token is no longer good.
    pub(super) revoked: CancellationToken,
    /// Every principal and every validity of the token has a clone.
    pub(super) kept: Arc<()>,
}

impl Entry {
    /// Whether the token was good when it was checked, and has not expired since.
    fn was_good(&self, now: Moment) -> bool {
        !matches!(self.verdict, Verdict::Inactive) && now.wall < self.expires
    }

    /// Whether anybody but this entry keeps something for the token.
    fn is_open(&self) -> bool {
        let (own, is_shared) = match &self.verdict {
            Verdict::Good(principal) => (2, principal.is_shared()),
            Verdict::LacksScopes { .. } | Verdict::Inactive => (1, false),
        };
        is_shared || Arc::strong_count(&self.holders.kept) > own
    }
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

    /// Whether a token was good when it was last checked, however long ago.
    pub(super) fn was_good(&self, digest: &[u8; 32], now: Moment) -> bool {
        self.shard(digest).lock().get(digest).is_some_and(|entry| entry.was_good(now))
    }

    /// The holders of a token that was checked before, so that checking it again keeps what they have open.
    pub(super) fn holders(&self, digest: &[u8; 32]) -> Option<Holders> {
        self.shard(digest).lock().get(digest).map(|entry| entry.holders.clone())
    }

    /// The tokens that were good, whose issuer has to be asked again, and whose holders have something open. The next time
    /// they are due is in `again`. Of the others the text is forgotten.
    pub(super) fn due(&self, now: Moment, again: Duration) -> Vec<([u8; 32], Secret)> {
        let mut due = Vec::new();
        for shard in &self.shards {
            for (digest, entry) in shard.lock().iter_mut() {
                if entry.fresh_until > now.monotonic || entry.token.is_none() {
                    continue;
                }
                if !entry.was_good(now) || !entry.is_open() {
                    entry.token = None;
                } else if entry.again.is_none_or(|again| again <= now.monotonic) {
                    entry.again = Some(now.monotonic + again);
                    due.extend(entry.token.clone().map(|token| (*digest, token)));
                }
            }
        }
        due
    }

    /// Remembers a token. When there is no room, expired tokens and then the one that is checked again first are forgotten.
    pub(super) fn insert(&self, digest: [u8; 32], entry: Entry, now: Moment) {
        let mut shard = self.shard(&digest).lock();
        if shard.len() >= self.most && !shard.contains_key(&digest) {
            shard.retain(|_, entry| {
                now.wall < entry.expires && (now.monotonic < entry.fresh_until || entry.is_open())
            });
        }
        if shard.len() >= self.most && !shard.contains_key(&digest) {
            let first = shard.iter().min_by_key(|(_, entry)| (entry.is_open(), entry.fresh_until));
            let first = first.map(|(digest, _)| *digest);
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
    use bridgehead_gateway::Validity;

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
            holders: Holders::default(),
            token: None,
            again: None,
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
        assert!(checked.holders(&[1; 32]).is_some() && checked.holders(&[2; 32]).is_none());
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

    /// ACC-2: a token is asked about again while its holder keeps something open; its text is forgotten otherwise.
    #[test]
    fn open_tokens_are_due() {
        let checked = Checked::new();
        let holders = Holders::default();
        let validity = Validity::new(Some(holders.revoked.clone()), None).counted(Arc::clone(&holders.kept));
        let principal = Principal::named("ada").valid(validity);
        let open = principal.clone();
        let good = |principal| Entry {
            verdict: Verdict::Good(principal),
            holders: holders.clone(),
            token: Some(Secret::new("opaque")),
            ..entry(60, 1000)
        };
        let due = |second| checked.due(at(second), Duration::from_secs(5)).len();
        checked.insert([1; 32], good(principal), at(0));
        drop(holders);
        assert_eq!([due(59), due(60), due(64), due(65)], [0, 1, 0, 1]);
        assert!(checked.was_good(&[1; 32], at(999)) && !checked.was_good(&[1; 32], at(1000)));
        let session = open.validity().until_revoked();
        drop(open);
        assert_eq!(due(70), 1, "a session keeps the validity only");
        drop(session);
        assert_eq!(due(75), 0);
        assert!(checked.shard(&[1; 32]).lock()[&[1; 32]].token.is_none());
        checked.insert([2; 32], Entry { token: Some(Secret::new("bad")), ..entry(10, 1000) }, at(0));
        assert_eq!(due(80), 0, "a token that is not good is not asked about");
        assert!(!checked.was_good(&[2; 32], at(0)));
    }
}
