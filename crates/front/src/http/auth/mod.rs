//! Turns what a request shows into a [`Principal`].
//!
//! The [`guard`] refuses a wrong `Host` or `Origin`. Then the [`Authenticator`] of the endpoint names the principal. There
//! is only one: if it refuses, no other one is tried.

pub(crate) mod guard;
pub(crate) mod peer;

use std::borrow::Cow;
use std::net::SocketAddr;

use bridgehead_config::HttpSettings;
use bridgehead_gateway::Principal;
use futures_util::future::{BoxFuture, Either, Ready, ready};
use http::{HeaderMap, StatusCode, header};

use self::peer::LocalRule;
pub use self::peer::Peer;
use crate::Token;

/// Names the principal of a request.
pub trait Authenticator: Send + Sync + 'static {
    /// Looks at who connects, once for all requests of the connection. The default admits every connection, because it
    /// learns nothing from it.
    fn meet(&self, _peer: SocketAddr, _ours: SocketAddr) -> Peer {
        Peer::Admitted
    }

    /// Finds out who makes a request, by its headers and by who connected.
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a>;

    /// Whether requests must show a secret. If so, any `Host` is served: a web page that reaches us by its own host name
    /// does not have the secret.
    fn asks_for_secret(&self) -> bool;
}

/// The principal of a request, or why it is refused. An answer that is known at once costs no allocation; the boxed form is
/// for an authenticator that must ask elsewhere first.
pub type Authenticating<'a> =
    Either<Ready<Result<Principal, Refusal>>, BoxFuture<'a, Result<Principal, Refusal>>>;

/// Why a request is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// 401 where other credentials may help, 403 where none do.
    pub status: StatusCode,
    /// In words, with the cure.
    pub reason: Cow<'static, str>,
}

/// The authenticator of an endpoint with these settings: by the token or, without one, by the local user.
pub fn authenticator(settings: &HttpSettings, token: Option<Token>) -> Box<dyn Authenticator> {
    match token {
        Some(token) => Box::new(token),
        None => Box::new(LocalUser { rule: LocalRule::new(settings), principal: Principal::local() }),
    }
}

const NO_TOKEN: Refusal = Refusal {
    status: StatusCode::UNAUTHORIZED,
    reason: Cow::Borrowed("a valid bearer token is required; send it as `Authorization: Bearer …`"),
};

/// One bearer token: its holder is its principal, from any address.
impl Authenticator for Token {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Peer) -> Authenticating<'a> {
        Either::Left(ready(match bearer_token(headers) {
            Some(offered) if self.matches(offered) => Ok(self.principal().clone()),
            _ => Err(NO_TOKEN),
        }))
    }

    fn asks_for_secret(&self) -> bool {
        true
    }
}

/// The users of this machine who may call, all of them one principal.
#[derive(Debug)]
struct LocalUser {
    rule: LocalRule,
    principal: Principal,
}

impl Authenticator for LocalUser {
    fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> Peer {
        self.rule.judge(peer, ours)
    }

    fn authenticate<'a>(&'a self, _headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a> {
        Either::Left(ready(match peer {
            Peer::Admitted => Ok(self.principal.clone()),
            Peer::Refused(user) => Err(not_a_caller(user)),
        }))
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
    Refusal { status: StatusCode::FORBIDDEN, reason: reason.into() }
}

/// The one bearer token that a request carries.
fn bearer_token(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then(|| rest.trim_ascii())
}
