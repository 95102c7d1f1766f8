//! Turns what a request shows into a [`Principal`].
//!
//! The [`guard`] refuses a wrong `Host` or `Origin`. Then the [`Authenticator`] of the endpoint names the principal. There
//! is only one: if it refuses, no other one is tried.

pub(crate) mod guard;
pub(crate) mod peer;

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_gateway::Principal;
use bytes::Bytes;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::{HeaderMap, HeaderValue, StatusCode, header};

pub use self::peer::{LocalRule, Peer, PeerUser};
use crate::Token;

/// Names the principal of a request. Each listener has one.
pub trait Authenticator: Send + Sync + 'static {
    /// Looks at who connects over TCP, once for all requests of the connection. The default looks nobody up and admits every
    /// connection.
    fn meet(&self, _peer: SocketAddr, _ours: SocketAddr) -> PeerUser {
        PeerUser::Admitted(None)
    }

    /// The same for a connection over a Unix socket, whose user the kernel names.
    fn meet_user(&self, user: Option<u32>) -> PeerUser {
        PeerUser::Admitted(user)
    }

    /// Finds out who makes a request, by its headers and by who connected.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a>;

    /// Whether requests must show a secret. If so, any `Host` is served: a web page that reaches us by its own host name
    /// does not have the secret.
    fn asks_for_secret(&self) -> bool;

    /// The protected-resource metadata (RFC 9728), if clients can sign in somewhere. Anybody may read it.
    fn metadata(&self) -> Option<Bytes> {
        None
    }

    /// The metadata of the authorization server, for clients of 2025-03-26 that look for it here; usually none.
    fn issuer_metadata(&self) -> Option<Bytes> {
        None
    }

    /// The challenge to a request whose credential lacks scopes (403), where `scope` lists all that it needs. `None` leaves
    /// the answer to JSON-RPC.
    fn step_up(&self, _scope: &str) -> Option<HeaderValue> {
        None
    }
}

/// The principal of a request, or why it is refused. An answer that is known at once costs no allocation; the boxed form is
/// for an authenticator that must ask elsewhere first.
pub type Authenticating<'a> =
    Either<Ready<Result<Principal, Refusal>>, BoxFuture<'a, Result<Principal, Refusal>>>;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// 401 where other credentials may help, 403 where none do, 429 or 503 where the same ones may help later.
    pub status: StatusCode,
    /// In words, with the cure.
    pub reason: Cow<'static, str>,
    /// The `WWW-Authenticate` header. A 401 without one gets a plain `Bearer`.
    pub challenge: Option<HeaderValue>,
    /// When to try again.
    pub retry_after: Option<Duration>,
}

impl Refusal {
    /// A refusal without a challenge.
    pub fn new(status: StatusCode, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason: reason.into(), challenge: None, retry_after: None }
    }

    /// Says how to prove who one is.
    #[must_use]
    pub fn challenging(mut self, challenge: HeaderValue) -> Self {
        self.challenge = Some(challenge);
        self
    }

    /// Says when to try again.
    #[must_use]
    pub const fn retrying(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Puts the challenge and the time into the headers of an answer.
    pub(crate) fn mark(&self, headers: &mut HeaderMap) {
        let plain = || (self.status == StatusCode::UNAUTHORIZED).then(|| HeaderValue::from_static("Bearer"));
        if let Some(challenge) = self.challenge.clone().or_else(plain) {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        if let Some(after) = self.retry_after {
            // Rounded up: a client that comes back on the second must not be too early.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

/// The authenticator of an endpoint with these settings: by the token or, without one, by the local user.
pub fn authenticator(settings: &HttpSettings, token: Option<Token>) -> Box<dyn Authenticator> {
    match token {
        Some(token) => Box::new(token),
        None => Box::new(LocalUser::new(settings)),
    }
}

fn no_token() -> Refusal {
    Refusal::new(
        StatusCode::UNAUTHORIZED,
        "a valid bearer token is required; send it as `Authorization: Bearer …`",
    )
}

/// One bearer token: its holder is its principal, from any address.
impl Authenticator for Token {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Peer) -> Authenticating<'a> {
        Either::Left(ready(match bearer_token(headers) {
            Some(offered) if self.matches(offered) => Ok(self.principal().clone()),
            _ => Err(no_token()),
        }))
    }

    fn asks_for_secret(&self) -> bool {
        true
    }
}

/// The users of this machine who may call without a secret. Each is a principal of its own.
#[derive(Debug)]
pub struct LocalUser {
    rule: LocalRule,
    /// The principals that are known at the start: making one costs an allocation.
    known: Vec<(u32, Principal)>,
}

impl LocalUser {
    /// The users that `http.local_users` admits.
    pub fn new(settings: &HttpSettings) -> Self {
        let rule = LocalRule::new(settings);
        let known = rule.named().iter().map(|user| (*user, Principal::local_user(Some(*user)))).collect();
        Self { rule, known }
    }

    /// The principal of a peer.
    ///
    /// # Errors
    /// If its user is not admitted.
    pub fn principal(&self, peer: Peer) -> Result<Principal, Refusal> {
        match peer.user {
            PeerUser::Admitted(user) => {
                let known = self.known.iter().find(|(known, _)| Some(*known) == user);
                Ok(known.map_or_else(|| Principal::local_user(user), |(_, principal)| principal.clone()))
            }
            PeerUser::Refused(user) => Err(not_a_caller(user)),
        }
    }
}

impl Authenticator for LocalUser {
    fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> PeerUser {
        self.rule.judge(peer, ours)
    }

    fn meet_user(&self, user: Option<u32>) -> PeerUser {
        self.rule.judge_user(user)
    }

    fn authenticate<'a>(&'a self, _headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a> {
        Either::Left(ready(self.principal(peer)))
    }

    fn asks_for_secret(&self) -> bool {
        false
    }
}

fn not_a_caller(user: Option<u32>) -> Refusal {
    let reason = match user {
        Some(user) => format!(
            "user {user} of this machine may not call; add {user} to `http.local_users` to admit that user, or \
             require a token with `http.token_file`"
        ),
        None => "the user at the other end cannot be determined, so `http.local_users` admits nobody here; require a \
                 token with `http.token_file`, or set `http.local_users` to \"any\""
            .to_owned(),
    };
    Refusal::new(StatusCode::FORBIDDEN, reason)
}

/// The one bearer token that a request carries: none if there are two `Authorization` headers.
pub fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| rest.trim_ascii())
}
