//! What proves to a remote server who asks: the one place for a sign-in at an upstream.
//!
//! Every request to a remote server, over whatever transport, carries the headers that its [`Credentials`] present for it,
//! and every refusal of them (401, 403) is told to them. Headers of the configuration never change
//! ([`ConfiguredHeaders`]). A token that is refreshed is another implementation, given to a gateway by a
//! [`CredentialSource`]. Nothing here is ever shown: neither headers nor credentials print their values.

use std::fmt;
use std::sync::Arc;

use bridgehead_config::{Remote, Secret};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};

use crate::link::LinkError;

/// The credentials of one remote server.
///
/// They are asked by many requests at once, each of which may be given up while it waits. So what is done for all of them,
/// such as one refresh of a token, must not depend on whichever asked first.
pub trait Credentials: Send + Sync + 'static {
    /// What the next request carries. Asked once for each request, just before it leaves; one that is sent again, or
    /// after a redirect, is another request. As long as nothing changes, give clones of the same headers: then the
    /// prepared head of requests is used as it is.
    fn present(&self) -> Presented<'_>;

    /// The server refused what a request carried. Says whether the same request is worth sending again, which happens
    /// once and with what is presented then. By default it is not.
    fn refused<'a>(&'a self, refusal: Refusal<'a>) -> BoxFuture<'a, AfterRefusal> {
        drop(refusal);
        Box::pin(std::future::ready(AfterRefusal::GiveUp))
    }
}

/// What to put on a request.
pub enum Presented<'a> {
    /// This.
    Now(CredentialHeaders),
    /// What comes of this, for which the request waits.
    Later(BoxFuture<'a, Result<CredentialHeaders, NoCredentials>>),
}

/// Headers that a request carries. Clones are the same headers; others are not, even with the same values.
#[derive(Clone, Default)]
pub struct CredentialHeaders(Arc<[(HeaderName, HeaderValue)]>);

/// There is nothing to present, so the request is not sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoCredentials(String);

/// How a server refused a request.
#[derive(Debug)]
pub struct Refusal<'a> {
    /// 401 or 403.
    pub status: u16,
    /// The values of `WWW-Authenticate` as they came, from whoever answers at that address.
    pub challenges: Vec<&'a str>,
    /// What the request carried. By now others may be presented: then it is worth sending again.
    pub presented: &'a CredentialHeaders,
    /// Whether the request was sent a second time already, and will not be sent a third time.
    pub is_final: bool,
}

/// What becomes of a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterRefusal {
    /// It is sent once more.
    TryAgain,
    /// It ends, in words about its status.
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
    /// Headers by their names. What cannot be a header is left out.
    pub fn new<'a>(headers: impl IntoIterator<Item = (&'a str, &'a Secret)>) -> Self {
        let header = |(name, value): (&str, &Secret)| {
            let mut value = HeaderValue::from_str(value.expose()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::try_from(name).ok()?, value))
        };
        Self(headers.into_iter().filter_map(header).collect())
    }

    /// Whether these are the same headers, and not only equal ones.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

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
    /// Says why, and what helps, in words that show no secret.
    pub fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

impl From<NoCredentials> for LinkError {
    fn from(NoCredentials(reason): NoCredentials) -> Self {
        Self::Refused { reason: reason.into(), transient: false }
    }
}

impl ConfiguredHeaders {
    /// Those of a server.
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
    /// Servers have the credentials that `choose` gives for them; where it gives none, their configured headers. Asked
    /// whenever a server is connected to: what is to outlive a connection is for `choose` to keep and give again.
    pub fn new(choose: impl Fn(&Remote) -> Option<Arc<dyn Credentials>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(choose))
    }

    pub(crate) fn choose(&self, remote: &Remote) -> Option<Arc<dyn Credentials>> {
        (self.0)(remote)
    }

    /// A number that no other source has as long as this one exists.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).cast::<()>().addr()
    }
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialSource")
    }
}

/// The credentials of a server. For whom a process or session runs is not asked yet: a source that has credentials for
/// each principal gets its [`Scope`](crate::sharing::key::Scope) here.
pub(crate) fn of(remote: &Remote, source: Option<&CredentialSource>) -> Arc<dyn Credentials> {
    let chosen = source.and_then(|source| source.choose(remote));
    chosen.unwrap_or_else(|| Arc::new(ConfiguredHeaders::of(remote)))
}

/// Tells credentials of an answer, if it refuses them, and says whether the request is sent again. `sent_again` says that
/// it was already.
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
    let refusal = Refusal {
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

    /// GATE-7: no credentials show a value, in whatever form they are printed.
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
        assert!(presented.is_same(&configured.0), "as long as nothing changes");
        assert!(!presented.is_same(&ConfiguredHeaders::of(&remote).0));
        let refusal = Refusal { status: 401, challenges: vec![], presented: &presented, is_final: false };
        let later = Presented::Later(Box::pin(std::future::ready(Ok(presented.clone()))));
        let source = CredentialSource::new(|_| None);
        let chosen = of(&remote, Some(&source));
        let all = format!("{refusal:?} {later:?} {source:?} {chosen:?} {:?}", presented.iter().next());
        assert!(all.contains("Later CredentialSource Credentials") && !all.contains("hunter2"), "{all}");
        assert_eq!(configured.refused(refusal).await, AfterRefusal::GiveUp, "they have no others");
    }

    /// GATE-7: a refusal is an answer of 401 or 403, and a request is sent again no more than once.
    #[tokio::test]
    async fn what_is_a_refusal() {
        struct Eager;
        impl Credentials for Eager {
            fn present(&self) -> Presented<'_> {
                Presented::Now(CredentialHeaders::default())
            }

            fn refused<'a>(&'a self, refusal: Refusal<'a>) -> BoxFuture<'a, AfterRefusal> {
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
