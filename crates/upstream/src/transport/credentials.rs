//! Credentials for remote servers: the one place for a sign-in at an upstream.
//!
//! Every request to a remote server, over any transport, carries the headers that its [`Credentials`] present, and
//! every refusal (401, 403) is reported to them. Configured headers never change ([`ConfiguredHeaders`]). A token
//! that is refreshed is another implementation, which a gateway gets from a [`CredentialSource`]. Values are never
//! shown: neither headers nor credentials print them.

use std::fmt;
use std::sync::Arc;

use bridgehead_config::{Remote, Secret};
use futures_util::future::BoxFuture;
#[cfg(feature = "http")]
use http::{HeaderMap, StatusCode, header};
use http::{HeaderName, HeaderValue};

use crate::link::LinkError;

/// The credentials of one remote server.
///
/// Many requests ask at once, and each may be dropped while it waits. So work that is done for all of them, such as
/// refreshing a token, must not depend on the request that asked first.
pub trait Credentials: Send + Sync + 'static {
    /// The headers of the next request. Called once per request, just before it leaves; a retry or a redirect is
    /// another request. While nothing changes, return clones of the same headers: then the prepared head of
    /// requests can be reused.
    fn present(&self) -> Presented<'_>;

    /// The server refused the credentials of a request. Returns whether to send the same request again, which
    /// happens at most once and with newly presented headers. By default it is not sent again.
    fn refused<'a>(&'a self, refusal: CredentialRefusal<'a>) -> BoxFuture<'a, AfterRefusal> {
        drop(refusal);
        Box::pin(std::future::ready(AfterRefusal::GiveUp))
    }
}

/// The headers for a request.
pub enum Presented<'a> {
    /// Available now.
    Now(CredentialHeaders),
    /// Available later; the request waits.
    Later(BoxFuture<'a, Result<CredentialHeaders, NoCredentials>>),
}

/// Headers that a request carries. Clones count as the same headers; others do not, even with equal values.
#[derive(Clone, Default)]
pub struct CredentialHeaders(Arc<[(HeaderName, HeaderValue)]>);

/// There are no credentials, so the request is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCredentials(String);

/// How a server refused a request.
#[derive(Debug)]
pub struct CredentialRefusal<'a> {
    /// 401 or 403.
    pub status: u16,
    /// The values of `WWW-Authenticate`, unchanged and untrusted: whatever answers at that address wrote them.
    pub challenges: Vec<&'a str>,
    /// What the request carried. If other headers would be presented by now, the request is worth sending again.
    pub presented: &'a CredentialHeaders,
    /// Whether this was the second attempt, so that there is no third.
    pub is_final: bool,
}

/// What to do with a refused request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRefusal {
    /// Send it once more.
    TryAgain,
    /// Fail it, with an error that explains the status.
    GiveUp,
}

/// The headers of the configuration, which never change.
#[derive(Debug)]
pub struct ConfiguredHeaders(CredentialHeaders);

/// Chooses the credentials of remote servers.
#[derive(Clone)]
pub struct CredentialSource(Arc<Choose>);

type Choose = dyn Fn(&Remote) -> Option<Arc<dyn Credentials>> + Send + Sync;

impl fmt::Debug for dyn Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

#[cfg(feature = "http")]
impl Presented<'_> {
    pub(crate) async fn wait(self) -> Result<CredentialHeaders, NoCredentials> {
        match self {
            Self::Now(headers) => Ok(headers),
            Self::Later(headers) => headers.await,
        }
    }
}

impl fmt::Debug for Presented<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(headers) => f.debug_tuple("Now").field(headers).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

impl CredentialHeaders {
    /// Headers by name. Invalid names and values are left out.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a Secret)>) -> Self {
        let header = |(name, value): (&str, &Secret)| {
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name).ok()?, value))
        };
        Self(headers.into_iter().filter_map(header).collect())
    }

    /// Whether these are clones of the same headers; equal values are not enough.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    #[cfg(feature = "http")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        self.0.iter().cloned()
    }
}

impl fmt::Debug for CredentialHeaders {
    /// Shows the names.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl NoCredentials {
    /// The reason and the cure, as text without secrets.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<NoCredentials> for LinkError {
    fn from(NoCredentials(reason): NoCredentials) -> Self {
        Self::Refused { reason: reason.into(), transient: false, denied: false }
    }
}

impl ConfiguredHeaders {
    /// The configured headers of a server.
    pub fn of(remote: &Remote) -> Self {
        let headers = remote.headers.iter().map(|(name, value)| (name.as_str(), value));
        Self(CredentialHeaders::new(headers))
    }
}

impl Credentials for ConfiguredHeaders {
    fn present(&self) -> Presented<'_> {
        Presented::Now(self.0.clone())
    }
}

impl CredentialSource {
    /// Servers get the credentials that `choose` returns for them, or their configured headers if it returns none.
    /// It is called for every new connection: to keep something across connections, `choose` must store it and
    /// return it again.
    pub fn new(choose: impl Fn(&Remote) -> Option<Arc<dyn Credentials>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }

    pub(crate) fn choose(&self, remote: &Remote) -> Option<Arc<dyn Credentials>> {
        (self.0)(remote)
    }

    /// A number that no other source has while this one exists.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>().addr()
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialSource")
    }
}

/// The credentials of a server. The client is not considered yet: a source with credentials per principal would get
/// the [`Scope`](crate::sharing::key::Scope) here.
pub(crate) fn of(remote: &Remote, source: Option<&CredentialSource>) -> Arc<dyn Credentials> {
    let chosen = source.and_then(|source| source.choose(remote));
    chosen.unwrap_or_else(|| Arc::new(ConfiguredHeaders::of(remote)))
}

/// Reports a refusing answer to the credentials, and returns whether to send the request again. `sent_again` says
/// that it was already sent twice.
#[cfg(feature = "http")]
pub(crate) async fn is_worth_another(
    credentials: &dyn Credentials,
    (status, headers): (StatusCode, &HeaderMap),
    presented: &CredentialHeaders,
    sent_again: bool,
) -> bool {
    if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return false;
    }
    let challenges = headers.get_all(header::WWW_AUTHENTICATE).iter();
    let refusal = CredentialRefusal {
        status: status.as_u16(),
        challenges: challenges.filter_map(|challenge| challenge.to_str().ok()).collect(),
        presented,
        is_final: sent_again,
    };
    credentials.refused(refusal).await == AfterRefusal::TryAgain && !sent_again
}

#[cfg(test)]
mod tests {
    use super::*;

    /// GATE-7: credentials never show a value, in any debug output.
    #[tokio::test]
    async fn nothing_is_shown() {
        let mut remote = Remote::new("https://h/mcp".parse().unwrap());
        remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
        remote.headers.insert("not a name".to_owned(), Secret::new("hunter2"));
        remote.headers.insert("X-Broken".to_owned(), Secret::new("hunter2\n"));
        let configured = ConfiguredHeaders::of(&remote);
        assert_eq!(format!("{configured:?}"), "ConfiguredHeaders([\"authorization\"])");
        let presented = configured.present();
        assert_eq!(format!("{presented:?}"), "Now([\"authorization\"])");
        let presented = presented.wait().await.unwrap();
        assert!(presented.iter().all(|(_, value)| value == "Bearer hunter2" && value.is_sensitive()));
        assert!(presented.is_same(&configured.0), "the headers stay the same while nothing changes");
        assert!(!presented.is_same(&ConfiguredHeaders::of(&remote).0));
        let refusal =
            CredentialRefusal { status: 401, challenges: vec![], presented: &presented, is_final: false };
        let later = Presented::Later(Box::pin(std::future::ready(Ok(presented.clone()))));
        let source = CredentialSource::new(|_| None);
        let chosen = of(&remote, Some(&source));
        let all = format!("{refusal:?} {later:?} {source:?} {chosen:?} {:?}", presented.iter().next());
        assert!(all.contains("Later CredentialSource Credentials") && !all.contains("hunter2"), "{all}");
        assert_eq!(
            configured.refused(refusal).await,
            AfterRefusal::GiveUp,
            "configured headers have no replacement"
        );
    }

    /// GATE-7: only 401 and 403 count as refusals, and a request is sent again at most once.
    #[tokio::test]
    async fn what_is_a_refusal() {
        struct Eager;
        impl Credentials for Eager {
            fn present(&self) -> Presented<'_> {
                Presented::Now(CredentialHeaders::default())
            }

            fn refused<'a>(&'a self, refusal: CredentialRefusal<'a>) -> BoxFuture<'a, AfterRefusal> {
                assert_eq!(refusal.challenges, ["Bearer a", "Basic b"]);
                Box::pin(std::future::ready(AfterRefusal::TryAgain))
            }
        }
        let mut headers = HeaderMap::new();
        for challenge in ["Bearer a", "Basic b"] {
            headers.append(header::WWW_AUTHENTICATE, HeaderValue::from_static(challenge));
        }
        let presented = CredentialHeaders::default();
        for (status, again) in
            [(200, false), (400, false), (401, true), (403, true), (407, false), (500, false)]
        {
            let answer = (StatusCode::from_u16(status).unwrap(), &headers);
            assert_eq!(is_worth_another(&Eager, answer, &presented, false).await, again, "{status}");
            assert!(!is_worth_another(&Eager, answer, &presented, true).await, "{status}");
        }
    }
}
