//! Names the principal of a request by what it shows: a key, the endpoint's token, a token of an issuer, the header of a trusted
//! proxy, or nothing but a local connection.
//!
//! The form of a credential decides its kind, and a kind that refuses it is the last word: no other one is tried. A credential is
//! read from the one `Authorization` header and nowhere else. What must stay true: a known credential costs one hash and one
//! look-up, and passes whatever others do at its address; an address whose wrong credentials are used up is refused before any work
//! is done for it; a request that came through a proxy is never that of the local user.

mod challenge;
mod failures;
mod throttle;

#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bridgehead_call::Clock;
use bridgehead_config::{ApiKey, AuthSettings, ListenerAuth, Secret, StepUp, TrustedProxy};
use bridgehead_front::{
    Authenticating, Authenticator, LocalUser, Peer, PeerUser, Refusal, Token, bearer_token,
};
use bridgehead_gateway::{Principal, PrincipalKind};
use bytes::Bytes;
use futures_util::future::{Either, ready};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tokio::time::{MissedTickBehavior, interval};
use tracing::warn;

use self::challenge::Challenges;
pub use self::failures::FailedSignIns;
use self::failures::Failures;
use self::throttle::{Origin, Throttle};
use crate::keys::{self, KeyRing, KeysFile, KeysFileError, Lookup};
use crate::tokens::{Fetch, ISSUER_RETRY, Issuers, LONGEST_TOKEN, TokenError, Verdict};

/// How often the background work looks at what is due.
const TICK: Duration = Duration::from_secs(1);
/// The longest name that a proxy may give.
const LONGEST_PROXY_NAME: usize = 255;

/// All credentials that a gateway accepts. It is shared by the authenticators of all listeners.
pub struct AcceptedCredentials {
    local: bool,
    step_up: StepUp,
    /// Whether `[auth]` or the endpoint's token ask for credentials; keys may be added later.
    configured: bool,
    keys: Arc<KeyRing>,
    keys_file: Option<KeysFile>,
    token: Option<Token>,
    issuers: Arc<Issuers>,
    proxy: Option<Proxy>,
    challenges: ArcSwap<Challenges>,
    throttle: Throttle,
    failures: Failures,
    clock: Arc<dyn Clock>,
}

/// What [`AcceptedCredentials`] need besides the settings.
pub struct Means {
    /// The endpoint's bearer token, if there is one.
    pub token: Option<Token>,
    /// All scopes that rules use: the first challenge asks for them.
    pub scopes: Vec<String>,
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// How issuers are asked: [`HttpFetch`](crate::HttpFetch) outside tests.
    pub fetch: Arc<dyn Fetch>,
}

/// The trusted proxy, with its header names parsed.
struct Proxy {
    settings: TrustedProxy,
    /// The header that names the principal; `None` if the proxy names nobody.
    user: Option<HeaderName>,
    groups: Option<HeaderName>,
    /// Whether a stranger's use of the header was logged.
    told: AtomicBool,
}

/// The authenticator of one listener.
struct ListenerAuthenticator {
    credentials: Arc<AcceptedCredentials>,
    auth: Option<ListenerAuth>,
    local: LocalUser,
}

impl AcceptedCredentials {
    /// Prepares everything, and reads the keys file.
    ///
    /// # Errors
    /// If there is a keys file that cannot be used.
    pub fn new(settings: &AuthSettings, means: Means) -> Result<Arc<Self>, KeysFileError> {
        let Means { token, scopes, clock, fetch } = means;
        let now = clock.wall();
        let keys = KeyRing::new(settings.keys.clone(), now);
        let keys_file = settings.keys_file.clone().map(KeysFile::new);
        let keys_file = keys_file.map(|file| file.allow_group_read(settings.allow_group_read));
        if let Some(file) = &keys_file {
            let read = file.read()?;
            keys.set_from_file(read.clone().unwrap_or_default(), read.is_some(), now);
        }
        Ok(Arc::new(Self {
            local: settings.local,
            step_up: settings.step_up,
            configured: token.is_some() || settings.asks_for_credentials(),
            keys: Arc::new(keys),
            keys_file,
            token,
            issuers: Arc::new(Issuers::new(settings, Arc::clone(&clock), fetch)),
            proxy: settings.proxy.as_ref().and_then(Proxy::new),
            challenges: ArcSwap::from_pointee(Challenges::new(settings, &scopes)),
            throttle: Throttle::default(),
            failures: Failures::default(),
            clock,
        }))
    }

    /// The authenticator of a listener. `local` knows which users of this machine may call without credentials, where that is
    /// allowed at all.
    pub fn authenticator(
        self: &Arc<Self>,
        auth: Option<ListenerAuth>,
        local: LocalUser,
    ) -> Box<dyn Authenticator> {
        Box::new(ListenerAuthenticator { credentials: Arc::clone(self), auth, local })
    }

    /// The background work, for as long as it is polled: watches the keys file, ends what holders of expired keys have open,
    /// reads the keys of issuers, and reports failed sign-ins, once per address and minute.
    pub async fn run(self: Arc<Self>, report: impl Fn(FailedSignIns) + Send) {
        let watching = keys::watch(self.keys_file.clone(), Arc::clone(&self.keys), Arc::clone(&self.clock));
        let refreshing = async {
            if self.issuers.is_empty() {
                return;
            }
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.issuers.refresh_due().await;
            }
        };
        let reporting = async {
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.failures.take(self.clock.monotonic()).into_iter().for_each(&report);
            }
        };
        let rechecking = async {
            if self.issuers.is_empty() {
                return;
            }
            let mut ticks = interval(TICK);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                self.issuers.recheck_open().await;
            }
        };
        tokio::join!(watching, refreshing, rechecking, reporting);
    }

    /// The failed sign-ins that [`run`](Self::run) has not reported yet: those of the last minute, for a gateway that stops.
    pub fn unreported(&self) -> Vec<FailedSignIns> {
        self.failures.take_all()
    }

    /// Replaces the keys of the configuration, after a reload. Those of the keys file stay.
    pub fn set_keys(&self, keys: Vec<ApiKey>) {
        self.keys.set_configured(keys, self.clock.wall());
    }

    /// Replaces the scopes that rules use, after a reload: clients that sign in from now on are asked for these.
    pub fn set_scopes(&self, scopes: &[String]) {
        self.challenges.store(Arc::new(self.challenges.load().with(scopes)));
    }

    /// Whether callers must show credentials, unless a listener or `auth.local` says otherwise. A key that is made while the
    /// gateway runs makes it so, too.
    pub fn are_asked_for(&self) -> bool {
        self.configured || self.keys.is_used()
    }

    /// Which issuers cannot be read, and why.
    pub fn issuer_problems(&self) -> Vec<(String, String)> {
        self.issuers.problems()
    }

    /// The principal of a request with an `Authorization` header.
    fn judge<'a>(self: &'a Arc<Self>, headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a> {
        let origin = self.origin(headers, peer);
        let Some(shown) = bearer_token(headers).filter(|shown| !shown.is_empty()) else {
            let reason = "one `Authorization: Bearer …` header is expected";
            return Either::Left(ready(Err(self.invalid(origin, reason))));
        };
        if shown.starts_with(keys::PREFIX.as_bytes()) {
            return Either::Left(ready(self.by_key(shown, origin)));
        }
        if let Some(token) = self.token.as_ref().filter(|token| token.matches(shown)) {
            return Either::Left(ready(Ok(token.principal().clone())));
        }
        let text = std::str::from_utf8(shown).ok().filter(|text| text.len() <= LONGEST_TOKEN);
        let Some(text) = text.filter(|_| !self.issuers.is_empty()) else {
            return Either::Left(ready(Err(self.unknown(origin, "the credential is not known here"))));
        };
        let digest = keys::digest(shown);
        if let Some(verdict) = self.issuers.known(&digest, self.clock.now()) {
            return Either::Left(ready(self.decided(verdict, origin)));
        }
        let is_stranger = !self.issuers.was_good(&digest, self.clock.now());
        if let Some(refusal) = is_stranger.then(|| self.admitted(origin).err()).flatten() {
            return Either::Left(ready(Err(refusal)));
        }
        Either::Right(Box::pin(async move {
            let _turn = match is_stranger {
                true => self.throttle.turn(origin, self.clock.monotonic()).await,
                false => None,
            };
            if is_stranger {
                // Others may have shown the same token, or failed, while this one waited.
                if let Some(verdict) = self.issuers.known(&digest, self.clock.now()) {
                    return self.decided(verdict, origin);
                }
                self.admitted(origin)?;
            }
            match self.issuers.check(Secret::new(text), digest).await {
                Ok(verdict) => {
                    if matches!(verdict, Verdict::Inactive) {
                        self.throttle.fail(origin, self.clock.monotonic());
                    }
                    self.decided(verdict, origin)
                }
                Err(TokenError::Invalid(reason)) => {
                    self.throttle.fail(origin, self.clock.monotonic());
                    Err(self.invalid(origin, reason))
                }
                Err(TokenError::Unavailable) => Err(Refusal::new(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "the issuer of the token does not answer, so the token cannot be checked now",
                )
                .retrying(ISSUER_RETRY)),
            }
        }))
    }

    fn by_key(&self, shown: &[u8], origin: Origin) -> Result<Principal, Refusal> {
        // The checksum is for people who mistype a key: one that is known needs none.
        match self.keys.find(&keys::digest(shown), self.clock.wall()) {
            Lookup::Valid(principal) => Ok(principal),
            Lookup::Expired => Err(self.invalid(origin, "the key has expired")),
            Lookup::Unknown => {
                let reason = keys::check(shown).err().map(|error| error.to_string().into());
                Err(self
                    .unknown(origin, reason.unwrap_or(Cow::Borrowed("the key is not known, or was revoked"))))
            }
        }
    }

    fn decided(&self, verdict: Verdict, origin: Origin) -> Result<Principal, Refusal> {
        match verdict {
            Verdict::Good(principal) => Ok(principal),
            Verdict::Inactive => Err(self.invalid(origin, "the issuer says that the token is not valid")),
            Verdict::LacksScopes { required, held } => {
                let reason = format!("the token lacks scopes that every request needs: {required}");
                let challenge = self.challenges.load().lacking(&required, &held);
                Err(Refusal::new(StatusCode::FORBIDDEN, reason).challenging(challenge))
            }
        }
    }

    /// The principal that a proxy names; `None` if it names none, or if it is not believed.
    fn by_proxy(&self, headers: &HeaderMap, peer: Peer) -> Option<Result<Principal, Refusal>> {
        let proxy = self.proxy.as_ref()?;
        let user = proxy.user.as_ref().filter(|user| headers.contains_key(*user))?;
        if !proxy.is(peer) {
            if !proxy.told.swap(true, Ordering::Relaxed) {
                let (header, peer) = (user.as_str(), peer.address);
                warn!(
                    header,
                    ?peer,
                    "ignoring the proxy's header from a peer that `auth.proxy.proxies` does not list; this is logged once"
                );
            }
            return None;
        }
        let principal = proxy.principal(headers, user);
        Some(principal.ok_or_else(|| {
            self.invalid(self.origin(headers, peer), "the proxy's headers name no user, or more than one")
        }))
    }

    fn missing(&self) -> Refusal {
        self.asking("credentials are required; send a key or a token as `Authorization: Bearer …`")
    }

    fn asking(&self, reason: &'static str) -> Refusal {
        Refusal::new(StatusCode::UNAUTHORIZED, reason).challenging(self.challenges.load().missing.clone())
    }

    fn invalid(&self, origin: Origin, reason: impl Into<Cow<'static, str>>) -> Refusal {
        let reason = reason.into();
        self.failures.count(origin, &reason, self.clock.monotonic());
        Refusal::new(StatusCode::UNAUTHORIZED, reason).challenging(self.challenges.load().invalid.clone())
    }

    /// Counts an unknown credential, and refuses it.
    fn unknown(&self, origin: Origin, reason: impl Into<Cow<'static, str>>) -> Refusal {
        if let Err(refusal) = self.admitted(origin) {
            return refusal;
        }
        self.throttle.fail(origin, self.clock.monotonic());
        self.invalid(origin, reason)
    }

    /// Refuses an address that has shown too many wrong credentials, before any work is done for it.
    fn admitted(&self, origin: Origin) -> Result<(), Refusal> {
        let now = self.clock.monotonic();
        self.throttle.admit(origin, now).map_err(|wait| {
            let reason = "this address has shown too many unknown credentials; try again later";
            self.failures.count(origin, reason, now);
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, reason).retrying(wait)
        })
    }

    /// Whom a failed attempt counts against: the peer, or whom a trusted proxy names as its own peer.
    fn origin(&self, headers: &HeaderMap, peer: Peer) -> Origin {
        let trusted = self.proxy.as_ref().is_some_and(|proxy| proxy.is(peer));
        let forwarded = || {
            let last = headers.get_all("x-forwarded-for").iter().next_back()?;
            address(last.to_str().ok()?.rsplit(',').next()?.trim())
        };
        Origin::of(if trusted { forwarded().or(peer.address) } else { peer.address })
    }
}

impl Proxy {
    fn new(settings: &TrustedProxy) -> Option<Self> {
        let name = |text: &str| HeaderName::try_from(text).ok();
        let groups = settings.groups_header.as_deref().and_then(name);
        let user = match &settings.user_header {
            Some(user) => Some(name(user)?),
            None => None,
        };
        Some(Self { settings: settings.clone(), user, groups, told: AtomicBool::new(false) })
    }

    /// Whether a peer is the proxy. A Unix socket has permissions, which decide who connects to it.
    fn is(&self, peer: Peer) -> bool {
        peer.address
            .is_none_or(|address| self.settings.proxies.iter().any(|network| network.contains(address)))
    }

    /// The user that the headers name; `None` unless each header names exactly one thing.
    fn principal(&self, headers: &HeaderMap, user: &HeaderName) -> Option<Principal> {
        let name = only(headers, user)?;
        if name.is_empty() || name.len() > LONGEST_PROXY_NAME {
            return None;
        }
        let principal = Principal::new(&format!("proxy:{name}"), PrincipalKind::Proxy).called(name);
        match self.groups.as_ref().filter(|groups| headers.contains_key(*groups)) {
            None => Some(principal),
            Some(groups) => {
                let groups =
                    only(headers, groups)?.split(',').map(str::trim).filter(|group| !group.is_empty());
                Some(principal.in_groups(groups))
            }
        }
    }
}

/// The value of a header that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let (value, more) = (values.next()?, values.next());
    value.to_str().ok().map(str::trim).filter(|_| more.is_none())
}

/// An address as proxies write it: with or without brackets and a port.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.trim_start_matches('[').trim_end_matches(']');
    bare.parse().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|address| address.ip()))
}

/// Whether a request says that it came through a proxy.
fn is_forwarded(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name == header::FORWARDED || name.as_str().starts_with("x-forwarded-"))
}

impl ListenerAuthenticator {
    /// Whether the local user may call here without credentials.
    fn admits_local(&self) -> bool {
        match self.auth {
            Some(ListenerAuth::Open) => true,
            Some(ListenerAuth::Required) => false,
            None => self.credentials.local || !self.credentials.are_asked_for(),
        }
    }

    /// The principal of a request without an `Authorization` header.
    fn without_credentials(&self, headers: &HeaderMap, peer: Peer) -> Result<Principal, Refusal> {
        if let Some(named) = self.credentials.by_proxy(headers, peer) {
            return named;
        }
        // A proxy on this machine must not turn strangers into the local user, whether it says what it is or only connects.
        let is_proxy =
            self.auth.is_none() && self.credentials.proxy.as_ref().is_some_and(|proxy| proxy.is(peer));
        let is_here = peer.address.is_none_or(|address| address.to_canonical().is_loopback());
        if !self.admits_local() || !is_here || is_proxy {
            return Err(self.credentials.missing());
        }
        if is_forwarded(headers) {
            let reason = "a proxy has forwarded this request, so it does not count as the local user's; send a key, which \
                          `bridgehead key new NAME` makes, or a token as `Authorization: Bearer …`";
            return Err(self.credentials.asking(reason));
        }
        match peer.user {
            // Another user of this machine may still have credentials.
            PeerUser::Refused(_) if self.credentials.are_asked_for() => Err(self.credentials.missing()),
            _ => self.local.principal(peer),
        }
    }
}

impl Authenticator for ListenerAuthenticator {
    fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> PeerUser {
        // Looking the user up asks the kernel, so it is done only where the answer matters.
        match self.admits_local() && peer.ip().to_canonical().is_loopback() {
            true => self.local.meet(peer, ours),
            false => PeerUser::Refused(None),
        }
    }

    fn meet_user(&self, user: Option<u32>) -> PeerUser {
        self.local.meet_user(user)
    }

    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a> {
        match headers.contains_key(header::AUTHORIZATION) {
            true => self.credentials.judge(headers, peer),
            false => Either::Left(ready(self.without_credentials(headers, peer))),
        }
    }

    fn asks_for_secret(&self) -> bool {
        !self.admits_local()
    }

    fn metadata(&self) -> Option<Bytes> {
        self.credentials.challenges.load().metadata.clone()
    }

    fn issuer_metadata(&self) -> Option<Bytes> {
        self.credentials.issuers.served_document()
    }

    fn step_up(&self, scope: &str) -> Option<HeaderValue> {
        match self.credentials.step_up {
            StepUp::Http => Some(self.credentials.challenges.load().insufficient(scope)),
            StepUp::InBand => None,
        }
    }
}
