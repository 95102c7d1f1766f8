//! The public keys of one issuer: fetched at the start, refreshed in the background, and once more when a token names a key that is
//! not among them.
//!
//! Anybody can write a key id into a token, so what unknown ones cause is bounded: sixteen requests per issuer, then one in five seconds,
//! and none for a key id that was missing a moment ago. An address that forges key ids runs out of failures first (`throttle`), so
//! that a token with a new key is still found good. When the issuer cannot be reached, the keys stay in use for a day.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_call::Clock;
use bridgehead_config::{Algorithm, Url};
use bytes::Bytes;
use http::HeaderMap;
use jsonwebtoken::DecodingKey;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::Value;
use tracing::{debug, info, warn};

use super::fetch::{Asked, Fetch, FetchError, check_url};
use super::flight::Flights;
use super::metadata::{self, Metadata};

/// How long keys are fresh if the issuer does not say, and within which bounds it may.
const USUALLY_FRESH: Duration = Duration::from_secs(15 * 60);
const SHORTEST_FRESH: Duration = Duration::from_secs(5 * 60);
const LONGEST_FRESH: Duration = Duration::from_secs(24 * 60 * 60);
/// How long keys are used when they cannot be refreshed.
const LONGEST_STALE: Duration = Duration::from_secs(24 * 60 * 60);
/// How soon a failed refresh is tried again: without any keys, and with old ones.
const RETRY_WITHOUT_KEYS: Duration = Duration::from_secs(5);
const RETRY_WITH_KEYS: Duration = Duration::from_secs(60);
/// How many unknown key ids cause a request at once, and how soon another one may. More than an address can fail at once.
const FORCED_BURST: u32 = 16;
const EACH_FORCED: Duration = Duration::from_secs(5);
/// How long, and how many, missing key ids are remembered.
const MISSING_FOR: Duration = Duration::from_secs(300);
const MOST_MISSING: usize = 128;
/// How many keys of an issuer are used.
const MOST_KEYS: usize = 64;

/// The keys of one issuer.
pub(super) struct IssuerKeys {
    /// The issuer's name in the file, for messages.
    name: String,
    /// Its identifier.
    issuer: String,
    /// Where the keys are, if the configuration says so.
    configured: Option<Url>,
    fetch: Arc<dyn Fetch>,
    clock: Arc<dyn Clock>,
    state: ArcSwap<KeySet>,
    found: ArcSwap<Option<Metadata>>,
    /// When the metadata is looked for again, if it is wanted for its own sake.
    discovery_due: Mutex<Duration>,
    flights: Flights<(), ()>,
    forced: Mutex<Forced>,
}

/// The keys as they were fetched.
#[derive(Default)]
struct KeySet {
    keys: Vec<Arc<IssuerKey>>,
    /// When they were fetched, on the monotonic clock.
    fetched: Option<Duration>,
    /// When the next refresh is due.
    due: Duration,
    /// Why the last refresh failed.
    problem: Option<String>,
}

/// One public key.
pub(super) struct IssuerKey {
    kid: Option<String>,
    kind: KeyKind,
    /// The only algorithm that it is for, if it says so.
    algorithm: Option<String>,
    pub(super) decoding: DecodingKey,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    Rsa,
    P256,
    Ed25519,
}

/// What unknown key ids have caused.
#[derive(Debug, Default)]
struct Forced {
    /// When all requests are there again (GCRA).
    full_at: Duration,
    missing: VecDeque<(String, Duration)>,
}

/// Why there is no key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NoKey {
    /// The issuer has no such key.
    Unknown,
    /// Whether it has is not known, because it cannot be reached.
    Unavailable,
}

impl IssuerKeys {
    pub(super) fn new(
        name: &str,
        issuer: &str,
        configured: Option<Url>,
        fetch: Arc<dyn Fetch>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            name: name.to_owned(),
            issuer: issuer.to_owned(),
            configured,
            fetch,
            clock,
            state: ArcSwap::default(),
            found: ArcSwap::default(),
            discovery_due: Mutex::default(),
            flights: Flights::new(),
            forced: Mutex::default(),
        }
    }

    /// The key for a token, without asking the issuer.
    pub(super) fn known(&self, kid: Option<&str>, algorithm: Algorithm) -> Option<Arc<IssuerKey>> {
        let set = self.usable()?;
        let mut fitting = set.keys.iter().filter(|key| key.fits(algorithm));
        match kid {
            Some(kid) => fitting.find(|key| key.kid.as_deref() == Some(kid)).map(Arc::clone),
            // A token without a key id can only mean the only key.
            None => fitting.next().filter(|_| fitting.next().is_none()).map(Arc::clone),
        }
    }

    /// Whether a key id is known here, for any algorithm.
    pub(super) fn has(&self, kid: &str) -> bool {
        self.usable().is_some_and(|set| set.keys.iter().any(|key| key.kid.as_deref() == Some(kid)))
    }

    /// The key for a token. Asks the issuer if the key is not known, as often as that is allowed.
    pub(super) async fn find(
        self: &Arc<Self>,
        kid: Option<&str>,
        algorithm: Algorithm,
    ) -> Result<Arc<IssuerKey>, NoKey> {
        if let Some(key) = self.known(kid, algorithm) {
            return Ok(key);
        }
        let now = self.clock.monotonic();
        let asks = match (self.usable(), kid) {
            // There is nothing to miss a key in, so the issuer is asked as often as a failed refresh is tried again.
            (None, _) => self.state.load().due <= now,
            (Some(_), None) => false,
            (Some(_), Some(kid)) => self.forced.lock().may_ask(kid, now),
        };
        if asks {
            debug!(issuer = self.name, "asking for the issuer's keys, because a token names an unknown one");
            self.refresh().await;
            if let Some(key) = self.known(kid, algorithm) {
                return Ok(key);
            }
            if let Some(kid) = kid {
                self.forced.lock().remember(kid, self.clock.monotonic());
            }
        }
        Err(if self.usable().is_some() { NoKey::Unknown } else { NoKey::Unavailable })
    }

    /// Refreshes the keys if it is time to.
    pub(super) async fn refresh_if_due(self: &Arc<Self>) {
        if self.state.load().due <= self.clock.monotonic() {
            self.refresh().await;
        }
    }

    /// Asks the issuer for its keys. All who ask at the same time share one request.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let keys = Arc::clone(self);
        self.flights.join((), move || Box::pin(async move { keys.fetch_now().await })).await;
    }

    /// The issuer's metadata; asks for it if it is not known yet.
    pub(super) async fn metadata(&self) -> Result<Metadata, String> {
        if let Some(found) = &**self.found.load() {
            return Ok(found.clone());
        }
        let found = metadata::discover(&self.issuer, &*self.fetch).await?;
        self.found.store(Arc::new(Some(found.clone())));
        Ok(found)
    }

    /// Looks for the metadata if it is not known and it is time to.
    pub(super) async fn discover_if_due(&self) {
        let now = self.clock.monotonic();
        if self.found.load().is_some()
            || std::mem::replace(&mut *self.discovery_due.lock(), now + RETRY_WITH_KEYS) > now
        {
            return;
        }
        if let Err(problem) = self.metadata().await {
            warn!(issuer = self.name, problem, "cannot serve the issuer's metadata to clients");
        }
    }

    /// The issuer's own metadata document, if it was fetched.
    pub(super) fn document(&self) -> Option<Bytes> {
        self.found.load().as_ref().as_ref().map(|found| found.document.clone())
    }

    /// Why the last refresh failed.
    pub(super) fn problem(&self) -> Option<String> {
        self.state.load().problem.clone()
    }

    /// The keys, unless they are too old to be believed.
    fn usable(&self) -> Option<Arc<KeySet>> {
        let set = self.state.load_full();
        let age = self.clock.monotonic().saturating_sub(set.fetched?);
        (age <= LONGEST_STALE).then_some(set)
    }

    async fn fetch_now(&self) {
        let fetched = self.fetch_keys().await;
        let now = self.clock.monotonic();
        match fetched {
            Ok((keys, fresh)) => {
                info!(issuer = self.name, keys = keys.len(), "read the issuer's keys");
                self.state.store(Arc::new(KeySet {
                    keys,
                    fetched: Some(now),
                    due: now + fresh,
                    problem: None,
                }));
            }
            Err(problem) => {
                let before = self.state.load_full();
                let usable = self.usable().is_some();
                let retry = if usable { RETRY_WITH_KEYS } else { RETRY_WITHOUT_KEYS };
                let effect = if usable {
                    "the keys of before stay in use"
                } else {
                    "its tokens are refused until then"
                };
                warn!(
                    issuer = self.name,
                    problem,
                    effect,
                    retry_s = retry.as_secs(),
                    "cannot read the issuer's keys"
                );
                // The address may have changed, too.
                self.found.store(Arc::default());
                self.state.store(Arc::new(KeySet {
                    keys: before.keys.clone(),
                    fetched: before.fetched,
                    due: now + retry,
                    problem: Some(problem),
                }));
            }
        }
    }

    async fn fetch_keys(&self) -> Result<(Vec<Arc<IssuerKey>>, Duration), String> {
        let url = match &self.configured {
            Some(url) => url.clone(),
            None => self.metadata().await?.jwks.ok_or("its metadata names no `jwks_uri`; set `jwks`")?,
        };
        check_url(&url)?;
        let answer = self.fetch.fetch(Asked::get(url.clone())).await.map_err(|error| match error {
            FetchError::TooLarge => format!("{url}: {error}; that is more keys than any issuer needs"),
            error => format!("{url}: {error}"),
        })?;
        let document: Document = metadata::json(&answer).map_err(|error| format!("{url}: {error}"))?;
        if document.keys.len() > MOST_KEYS {
            warn!(
                issuer = self.name,
                keys = document.keys.len(),
                used = MOST_KEYS,
                "the issuer has too many keys"
            );
        }
        let keys: Vec<Arc<IssuerKey>> =
            document.keys.into_iter().filter_map(IssuerKey::read).take(MOST_KEYS).map(Arc::new).collect();
        match keys.is_empty() {
            true => Err(format!("{url}: there is no key that signs with RSA, P-256 or Ed25519")),
            false => Ok((keys, freshness(&answer.headers))),
        }
    }
}

#[derive(Deserialize)]
struct Document {
    keys: Vec<Value>,
}

impl IssuerKey {
    /// A key of the document; `None` if it is not for the signatures that are accepted. Symmetric keys never are.
    fn read(written: Value) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(written).ok()?;
        let signs =
            jwk.common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
                && jwk.common.key_operations.as_ref().is_none_or(|all| all.contains(&KeyOperations::Verify));
        let kind = match &jwk.algorithm {
            AlgorithmParameters::RSA(_) => KeyKind::Rsa,
            AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => KeyKind::P256,
            AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => KeyKind::Ed25519,
            _ => return None,
        };
        let decoding = DecodingKey::from_jwk(&jwk).ok()?;
        let algorithm = jwk.common.key_algorithm.map(|algorithm| algorithm.to_string());
        signs.then_some(Self { kid: jwk.common.key_id, kind, algorithm, decoding })
    }

    /// Whether a token with this algorithm may be signed by this key.
    fn fits(&self, algorithm: Algorithm) -> bool {
        let kind = match algorithm {
            Algorithm::RS256 | Algorithm::PS256 => KeyKind::Rsa,
            Algorithm::ES256 => KeyKind::P256,
            Algorithm::EdDSA => KeyKind::Ed25519,
        };
        self.kind == kind && self.algorithm.as_deref().is_none_or(|only| only == algorithm.as_str())
    }
}

impl Forced {
    /// Whether an unknown key id may cause a request now, which is then counted.
    fn may_ask(&mut self, kid: &str, now: Duration) -> bool {
        self.missing.retain(|(_, since)| now.saturating_sub(*since) < MISSING_FOR);
        let full_at = self.full_at.max(now) + EACH_FORCED;
        if self.missing.iter().any(|(missing, _)| missing == kid)
            || full_at > now + EACH_FORCED * FORCED_BURST
        {
            return false;
        }
        self.full_at = full_at;
        true
    }

    fn remember(&mut self, kid: &str, now: Duration) {
        if self.missing.len() >= MOST_MISSING {
            self.missing.pop_front();
        }
        self.missing.push_back((kid.to_owned(), now));
    }
}

/// How long an answer is fresh, by its `Cache-Control`.
fn freshness(headers: &HeaderMap) -> Duration {
    let told = headers
        .get_all(http::header::CACHE_CONTROL)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .find_map(|part| part.trim().strip_prefix("max-age=")?.trim_matches('"').parse().ok());
    told.map_or(USUALLY_FRESH, |seconds| Duration::from_secs(seconds).clamp(SHORTEST_FRESH, LONGEST_FRESH))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::json;

    use super::*;

    /// ACC-2 (case 5): a key is used for the signatures that it is meant for, and a symmetric key for none.
    #[test]
    fn what_a_key_is_for() {
        #[track_caller]
        fn check(more: &Value, expected: &[Algorithm]) {
            let mut key = json!({"kty": "RSA", "n": "AQAB", "e": "AQAB"});
            for (name, value) in more.as_object().unwrap() {
                key[name] = value.clone();
            }
            let key = IssuerKey::read(key);
            let fits = |algorithm: &Algorithm| key.as_ref().is_some_and(|key| key.fits(*algorithm));
            let found: Vec<Algorithm> = Algorithm::ALL.into_iter().filter(fits).collect();
            assert_eq!(found, expected, "{more}");
        }
        let rsa = [Algorithm::RS256, Algorithm::PS256];
        check(&json!({}), &rsa);
        check(&json!({"use": "sig", "key_ops": ["verify"]}), &rsa);
        check(&json!({"alg": "PS256"}), &[Algorithm::PS256]);
        check(&json!({"alg": "RS512"}), &[]);
        check(&json!({"use": "enc"}), &[]);
        check(&json!({"key_ops": ["encrypt"]}), &[]);
        check(&json!({"kty": "oct", "k": "AQAB"}), &[]);
        check(&json!({"kty": "EC", "crv": "P-256", "x": "AQAB", "y": "AQAB"}), &[Algorithm::ES256]);
        check(&json!({"kty": "EC", "crv": "P-384", "x": "AQAB", "y": "AQAB"}), &[]);
        check(&json!({"kty": "OKP", "crv": "Ed25519", "x": "AQAB"}), &[Algorithm::EdDSA]);
        check(&json!({"n": "*"}), &[]);
    }

    #[test]
    fn how_long_keys_are_fresh() {
        #[track_caller]
        fn check(header: Option<&'static str>, minutes: u64) {
            let mut headers = HeaderMap::new();
            if let Some(header) = header {
                headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static(header));
            }
            assert_eq!(freshness(&headers), Duration::from_secs(minutes * 60), "{header:?}");
        }
        check(None, 15);
        check(Some("public"), 15);
        check(Some("public, max-age=1200"), 20);
        check(Some("max-age=0"), 5);
        check(Some("max-age=999999999"), 24 * 60);
        check(Some("max-age=x"), 15);
    }

    /// ACC-2 (case 6): unknown key ids cause a bounded number of requests, and a missing one none for five minutes.
    #[test]
    fn unknown_key_ids_are_bounded() {
        let second = Duration::from_secs;
        let mut forced = Forced::default();
        assert!(forced.may_ask("a", second(0)));
        forced.remember("a", second(0));
        assert!(!forced.may_ask("a", second(299)), "it was missing a moment ago");
        assert!(forced.may_ask("a", second(300)));
        let many = |forced: &mut Forced, now| (0..100).filter(|_| forced.may_ask("b", second(now))).count();
        assert_eq!(many(&mut forced, 400), 16);
        assert_eq!(many(&mut forced, 404), 0);
        assert_eq!(many(&mut forced, 410), 2);
        for number in 0..500 {
            forced.remember(&number.to_string(), second(400));
        }
        assert_eq!(forced.missing.len(), MOST_MISSING);
    }
}
