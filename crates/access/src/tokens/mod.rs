//! Tokens of configured issuers: which issuer a token belongs to, whether it is good, and who holds it.
//!
//! The issuer is chosen by what the token says before anything is proven. From then on only that issuer's rules count, and no
//! other one is tried. What is cheap comes first: form, algorithm, claims. A token that fails these causes no request and no
//! signature check. What must stay true: no text of a token is logged or shown, and what strangers can cause (requests, memory) is
//! bounded.

mod cache;
mod claims;
mod fetch;
mod flight;
mod introspection;
mod jwks;
mod metadata;

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bridgehead_call::{Clock, Moment};
use bridgehead_config::{Algorithm, AuthSettings, Issuer, Secret};
use bytes::Bytes;
use futures_util::StreamExt;
use jsonwebtoken::Validation;
use serde::Deserialize;
use serde_json::Value;
use tracing::{debug, warn};

pub(crate) use self::cache::Verdict;
use self::cache::{Checked, Entry, Holders};
use self::claims::{Claims, Source, Until};
pub use self::fetch::{Answer, Asked, Fetch, FetchError, Form, HttpFetch};
use self::flight::Flights;
use self::jwks::{IssuerKeys, NoKey};

/// A longer token is refused unread.
pub(crate) const LONGEST_TOKEN: usize = 8 * 1024;
/// How long a checked token is believed: one that was verified here, one that its issuer vouches for, one that the issuer refuses.
const VERIFIED_FOR: Duration = Duration::from_secs(5 * 60);
const INTROSPECTED_FOR: Duration = Duration::from_secs(60);
const INACTIVE_FOR: Duration = Duration::from_secs(10);
/// How many issuers are asked at the same time about tokens whose holders have something open.
const RECHECKS: usize = 8;
/// How soon a client may try again when the issuer does not answer.
pub(crate) const ISSUER_RETRY: Duration = Duration::from_secs(5);

/// All configured issuers.
pub(crate) struct Issuers {
    all: Vec<Arc<KnownIssuer>>,
    checked: Checked,
    flights: Flights<[u8; 32], Result<Verdict, TokenError>>,
    clock: Arc<dyn Clock>,
    fetch: Arc<dyn Fetch>,
    /// Whether the metadata of the first issuer is served to clients.
    legacy_discovery: bool,
}

struct KnownIssuer {
    settings: Issuer,
    /// What its tokens may be for besides its own audiences.
    public_url: Option<String>,
    keys: Arc<IssuerKeys>,
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TokenError {
    /// It is not good.
    Invalid(&'static str),
    /// Whether it is good is not known, because its issuer does not answer.
    Unavailable,
}

/// The parts of a JWT that are read before anything is proven.
struct Unproven {
    /// `None` if it cannot be used.
    header: Option<UnprovenHeader>,
    claims: Claims,
}

#[derive(Deserialize)]
struct UnprovenHeader {
    alg: String,
    kid: Option<String>,
    typ: Option<String>,
    /// Extensions that a reader must understand (RFC 7515 §4.1.11); none is understood here.
    crit: Option<Value>,
}

impl Issuers {
    pub(crate) fn new(settings: &AuthSettings, clock: Arc<dyn Clock>, fetch: Arc<dyn Fetch>) -> Self {
        let issuers = &settings.issuers;
        let known = |issuer: &Issuer| {
            let (fetch, clock) = (Arc::clone(&fetch), Arc::clone(&clock));
            let keys = IssuerKeys::new(&issuer.name, &issuer.issuer, issuer.jwks.clone(), fetch, clock);
            let public_url = settings.public_url.clone();
            Arc::new(KnownIssuer { settings: issuer.clone(), public_url, keys: Arc::new(keys) })
        };
        let all: Vec<_> = issuers.iter().map(known).collect();
        let introspecting: Vec<&str> =
            issuers.iter().filter(|one| one.introspection.is_some()).map(|one| one.name.as_str()).collect();
        if let [first, _, ..] = introspecting.as_slice() {
            warn!(issuers = ?introspecting, used = first, "several issuers are asked about tokens; opaque tokens go to the first");
        }
        let legacy_discovery = settings.legacy_discovery;
        Self { all, checked: Checked::new(), flights: Flights::new(), clock, fetch, legacy_discovery }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The metadata document of the first issuer, if it is served to clients and known.
    pub(crate) fn served_document(&self) -> Option<Bytes> {
        self.all.first().filter(|_| self.legacy_discovery).and_then(|issuer| issuer.keys.document())
    }

    /// Why issuers could not be read, by name.
    pub(crate) fn problems(&self) -> Vec<(String, String)> {
        let problem =
            |issuer: &Arc<KnownIssuer>| Some((issuer.settings.name.clone(), issuer.keys.problem()?));
        self.all.iter().filter_map(problem).collect()
    }

    /// What is known of a token without checking it again.
    pub(crate) fn known(&self, digest: &[u8; 32], now: Moment) -> Option<Verdict> {
        self.checked.find(digest, now)
    }

    /// Whether a token was good when it was last checked. Its holder is no stranger.
    pub(crate) fn was_good(&self, digest: &[u8; 32], now: Moment) -> bool {
        self.checked.was_good(digest, now)
    }

    /// Asks the issuers again about the opaque tokens whose holders have something open, so that what a revoked token opened
    /// ends.
    pub(crate) async fn recheck_open(self: &Arc<Self>) {
        let due = self.checked.due(self.clock.now(), ISSUER_RETRY);
        let asking = due.into_iter().map(|(digest, token)| self.check(token, digest));
        let asking = futures_util::stream::iter(asking).buffer_unordered(RECHECKS);
        asking.for_each(|_| std::future::ready(())).await;
    }

    /// Checks a token. All who show the same one at the same time share the work.
    pub(crate) async fn check(
        self: &Arc<Self>,
        token: Secret,
        digest: [u8; 32],
    ) -> Result<Verdict, TokenError> {
        let issuers = Arc::clone(self);
        let checking = self
            .flights
            .join(digest, move || Box::pin(async move { issuers.check_now(&token, digest).await }));
        checking.await
    }

    /// Reads the keys of all issuers that have none yet, or whose keys are due.
    pub(crate) async fn refresh_due(&self) {
        let due = self.all.iter().filter(|issuer| issuer.settings.introspection.is_none());
        let served = self.all.first().filter(|_| self.legacy_discovery);
        let documents = async {
            if let Some(issuer) = served {
                issuer.keys.discover_if_due().await;
            }
        };
        // One slow issuer must not keep another one waiting.
        let refreshing = futures_util::future::join_all(due.map(|issuer| issuer.keys.refresh_if_due()));
        futures_util::future::join(refreshing, documents).await;
    }

    async fn check_now(&self, token: &Secret, digest: [u8; 32]) -> Result<Verdict, TokenError> {
        let Some(unproven) = Unproven::read(token.expose()) else {
            let Some(issuer) = self.all.iter().find(|issuer| issuer.settings.introspection.is_some()) else {
                return Err(TokenError::Invalid("this is neither a key nor a token of a known issuer"));
            };
            return self.introspect(issuer, token, digest).await;
        };
        let told = unproven.claims.get("iss").and_then(Value::as_str);
        let Some(issuer) = self.all.iter().find(|issuer| Some(issuer.settings.issuer.as_str()) == told)
        else {
            return Err(TokenError::Invalid("the token is of an unknown issuer"));
        };
        if issuer.settings.introspection.is_some() {
            return self.introspect(issuer, token, digest).await;
        }
        let Some(header) = &unproven.header else {
            return Err(TokenError::Invalid("the token's header cannot be read"));
        };
        let (claims, until) = self.verify(issuer, token, (header, &unproven.claims)).await?;
        Ok(self.remember(issuer, &claims, until, digest, None))
    }

    async fn verify(
        &self,
        issuer: &KnownIssuer,
        token: &Secret,
        (header, claims): (&UnprovenHeader, &Claims),
    ) -> Result<(Claims, Until), TokenError> {
        let algorithm = issuer.settings.algorithms.iter().find(|known| known.as_str() == header.alg);
        let algorithm = *algorithm.ok_or(TokenError::Invalid("the token's algorithm is not accepted"))?;
        if header.crit.is_some() {
            return Err(TokenError::Invalid("the token needs an extension that is not supported"));
        }
        let kind = header.typ.as_deref().unwrap_or("JWT").to_ascii_lowercase();
        if !["jwt", "at+jwt"].contains(&kind.strip_prefix("application/").unwrap_or(&kind)) {
            return Err(TokenError::Invalid("this is not an access token"));
        }
        let until = issuer.check(claims, self.clock.wall(), Source::Jwt)?;
        let kid = header.kid.as_deref();
        let known = issuer.keys.known(kid, algorithm);
        // A key id of another issuer is not worth a request: it is not new, it is wrong.
        if known.is_none() && kid.is_some_and(|kid| self.all.iter().any(|other| other.keys.has(kid))) {
            return Err(TokenError::Invalid("the token is signed with a key of another issuer or kind"));
        }
        let key = match known {
            Some(key) => key,
            None => issuer.keys.find(kid, algorithm).await.map_err(|error| match error {
                NoKey::Unknown => TokenError::Invalid("the token is signed with an unknown key"),
                NoKey::Unavailable => TokenError::Unavailable,
            })?,
        };
        // The library's own clock cannot be injected, so times are left to `check`. The rest is checked by both.
        let mut rules = Validation::new(library_name(algorithm));
        (rules.validate_exp, rules.validate_nbf) = (false, false);
        rules.set_required_spec_claims(&["exp", "sub", "iss", "aud"]);
        rules.set_issuer(&[&issuer.settings.issuer]);
        let audiences: Vec<&String> = issuer.public_url.iter().chain(&issuer.settings.audiences).collect();
        rules.set_audience(&audiences);
        let proven = jsonwebtoken::decode::<Claims>(token.expose(), &key.decoding, &rules)
            .map_err(|_| TokenError::Invalid("the token's signature is wrong"))?;
        Ok((proven.claims, until))
    }

    async fn introspect(
        &self,
        issuer: &Arc<KnownIssuer>,
        token: &Secret,
        digest: [u8; 32],
    ) -> Result<Verdict, TokenError> {
        let claims = issuer.ask_about(token.clone(), &*self.fetch).await.map_err(|problem| {
            warn!(issuer = issuer.settings.name, problem, "cannot ask the issuer about a token");
            TokenError::Unavailable
        })?;
        let checked = claims.map(|claims| {
            let until = issuer.check(&claims, self.clock.wall(), Source::Introspection)?;
            Ok((claims, until))
        });
        match checked {
            Some(Ok((claims, until))) => {
                Ok(self.remember(issuer, &claims, until, digest, Some(token.clone())))
            }
            refused => {
                if let Some(Err(TokenError::Invalid(reason))) = refused {
                    debug!(
                        issuer = issuer.settings.name,
                        reason, "the issuer vouches for a token that is not for us"
                    );
                }
                let now = self.clock.now();
                if let Some(holders) = self.checked.holders(&digest) {
                    holders.revoked.cancel();
                }
                let entry = Entry {
                    verdict: Verdict::Inactive,
                    fresh_until: now.monotonic + INACTIVE_FOR,
                    expires: jiff::Timestamp::MAX,
                    holders: Holders::default(),
                    token: None,
                    again: None,
                };
                self.checked.insert(digest, entry, now);
                Ok(Verdict::Inactive)
            }
        }
    }

    /// Remembers a good token, and says who holds it. `asked` is the token, if the issuer was asked about it.
    fn remember(
        &self,
        issuer: &KnownIssuer,
        claims: &Claims,
        until: Until,
        digest: [u8; 32],
        asked: Option<Secret>,
    ) -> Verdict {
        let now = self.clock.now();
        // A token that was checked before keeps its switch: streams that were opened with it end with it.
        let before = self.checked.holders(&digest).filter(|holders| !holders.revoked.is_cancelled());
        let holders = before.unwrap_or_default();
        let scopes = claims::scopes(claims, &issuer.settings);
        let verdict = match claims::lacks_scope(&scopes, &issuer.settings) {
            true => Verdict::LacksScopes {
                required: issuer.settings.required_scopes.join(" ").into(),
                held: scopes.join(" ").into(),
            },
            false => {
                Verdict::Good(claims::principal(claims, &issuer.settings, &scopes, until, now.wall, &holders))
            }
        };
        let entry = Entry {
            verdict: verdict.clone(),
            fresh_until: now.monotonic + if asked.is_some() { INTROSPECTED_FOR } else { VERIFIED_FOR },
            expires: until.0,
            holders,
            token: asked,
            again: None,
        };
        self.checked.insert(digest, entry, now);
        verdict
    }
}

impl KnownIssuer {
    fn check(&self, claims: &Claims, now: jiff::Timestamp, source: Source) -> Result<Until, TokenError> {
        let checked = claims::check(claims, &self.settings, self.public_url.as_deref(), now, source);
        checked.map_err(TokenError::Invalid)
    }

    async fn ask_about(&self, token: Secret, fetch: &dyn Fetch) -> Result<Option<Claims>, String> {
        let settings = self.settings.introspection.clone().ok_or("it is not configured to be asked")?;
        let url = match &settings.url {
            Some(url) => url.clone(),
            None => {
                let found = self.keys.metadata().await?.introspection;
                found.ok_or("its metadata names no `introspection_endpoint`; set `introspection.url`")?
            }
        };
        introspection::introspect(url, settings, token, fetch).await
    }
}

impl Unproven {
    /// Reads a token that has the form of a JWT: three parts, the first of which is a JSON object. Everything else is opaque.
    fn read(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (header, claims, _signature) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let header: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(header).ok()?).ok()?;
        // From here on it is a JWT, and only the issuer that it names is told of it, even if it cannot be read.
        let header = serde_json::from_value(Value::Object(header)).ok();
        let claims =
            URL_SAFE_NO_PAD.decode(claims).ok().and_then(|claims| serde_json::from_slice(&claims).ok());
        Some(Self { header, claims: claims.unwrap_or_default() })
    }
}

pub(crate) const fn library_name(algorithm: Algorithm) -> jsonwebtoken::Algorithm {
    match algorithm {
        Algorithm::RS256 => jsonwebtoken::Algorithm::RS256,
        Algorithm::PS256 => jsonwebtoken::Algorithm::PS256,
        Algorithm::ES256 => jsonwebtoken::Algorithm::ES256,
        Algorithm::EdDSA => jsonwebtoken::Algorithm::EdDSA,
    }
}
