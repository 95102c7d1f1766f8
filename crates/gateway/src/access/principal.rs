//! Who a request is made for.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, LazyLock};

use arc_swap::ArcSwapOption;
use bridgehead_config::Who;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::views::Class;

/// How a principal was authenticated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PrincipalKind {
    /// As a user of this machine, or as the program that embeds the gateway.
    Local,
    /// By the bearer token of the endpoint.
    Token,
    /// By a named API key: `key:NAME`.
    Key,
    /// By a token of an issuer: `ISSUER/SUB`.
    Issuer,
    /// By the header of a trusted proxy: `proxy:NAME`.
    Proxy,
}

/// The principal that a request is made for, as an authenticator of the front found it. Clones share the
/// data. Two principals are equal if their ids are: sessions, parked calls and tasks of one are refused to
/// every other.
#[derive(Debug, Clone)]
pub struct Principal(Arc<Identity>);

#[derive(Debug, Clone)]
struct Identity {
    id: Arc<str>,
    kind: PrincipalKind,
    /// The display name, if it differs from the id.
    name: Option<Arc<str>>,
    groups: Vec<Arc<str>>,
    scopes: Vec<Arc<str>>,
    required: Vec<Arc<str>>,
    claims: Vec<(Arc<str>, Arc<str>)>,
    validity: Validity,
    class: RememberedClass,
}

/// The class that a principal was last found to be in, so that a request does not look it up again.
#[derive(Default)]
struct RememberedClass(ArcSwapOption<Class>);

/// What is changed of a principal may change its class.
impl Clone for RememberedClass {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl fmt::Debug for RememberedClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// How long what a principal showed is good. Whoever keeps something open for the principal ends it when this ends.
#[derive(Debug, Clone, Default)]
pub struct Validity {
    /// Cancelled when the credential is revoked.
    revoked: Option<CancellationToken>,
    /// When it expires.
    expires: Option<Instant>,
    /// Lives as long as anybody keeps something for the credential.
    _kept: Option<Arc<()>>,
}

impl Validity {
    /// Until the token is cancelled or the time has come, whichever is first.
    pub const fn new(revoked: Option<CancellationToken>, expires: Option<Instant>) -> Self {
        Self { revoked, expires, _kept: None }
    }

    /// The same, and whoever holds `kept` can tell whether anybody keeps something for the credential.
    #[must_use]
    pub fn counted(self, kept: Arc<()>) -> Self {
        Self { _kept: Some(kept), ..self }
    }

    /// Whether it has ended.
    pub fn has_ended(&self) -> bool {
        self.is_revoked() || self.expires.is_some_and(|expires| expires <= Instant::now())
    }

    /// The same, but it does not expire: for what a client may return to with a newer credential, such as a session.
    #[must_use]
    pub fn until_revoked(&self) -> Self {
        Self { expires: None, ..self.clone() }
    }

    /// Whether it can end at all.
    pub const fn can_end(&self) -> bool {
        self.revoked.is_some() || self.expires.is_some()
    }

    /// Whether the credential was revoked.
    pub fn is_revoked(&self) -> bool {
        self.revoked.as_ref().is_some_and(CancellationToken::is_cancelled)
    }

    /// Resolves when it ends; never, if it has no end.
    pub async fn ended(&self) {
        let revoked = async {
            match &self.revoked {
                Some(revoked) => revoked.cancelled().await,
                None => std::future::pending().await,
            }
        };
        match self.expires {
            Some(expires) => drop(tokio::time::timeout_at(expires, revoked).await),
            None => revoked.await,
        }
    }
}

impl Principal {
    /// The user that the gateway runs as, `local:UID`: the principal of stdio, of the control socket, and of the program that
    /// embeds the gateway.
    pub fn local() -> Self {
        static OWN: LazyLock<Principal> =
            LazyLock::new(|| Principal::local_user(Some(rustix::process::geteuid().as_raw())));
        OWN.clone()
    }

    /// A user of this machine, `local:UID`. Without an id it is `local`: some local user, whom the system does not name.
    pub fn local_user(user: Option<u32>) -> Self {
        match user {
            Some(user) => Self::new(&format!("local:{user}"), PrincipalKind::Local),
            None => Self::new("local", PrincipalKind::Local),
        }
    }

    /// The principal that a token names.
    pub fn named(name: &str) -> Self {
        Self::new(name, PrincipalKind::Token)
    }

    /// A principal by its stable id: everything else about it may change.
    pub fn new(id: &str, kind: PrincipalKind) -> Self {
        Self(Arc::new(Identity {
            id: id.into(),
            kind,
            name: None,
            groups: Vec::new(),
            scopes: Vec::new(),
            required: Vec::new(),
            claims: Vec::new(),
            validity: Validity::default(),
            class: RememberedClass::default(),
        }))
    }

    /// Sets the display name.
    #[must_use]
    pub fn called(self, name: &str) -> Self {
        Self(Arc::new(Identity { name: Some(name.into()), ..Identity::clone(&self.0) }))
    }

    /// Sets the groups.
    #[must_use]
    pub fn in_groups<'a>(self, groups: impl IntoIterator<Item = &'a str>) -> Self {
        let groups = groups.into_iter().map(Arc::from).collect();
        Self(Arc::new(Identity { groups, ..Identity::clone(&self.0) }))
    }

    /// Sets the scopes.
    #[must_use]
    pub fn with_scopes<'a>(self, scopes: impl IntoIterator<Item = &'a str>) -> Self {
        let scopes = scopes.into_iter().map(Arc::from).collect();
        Self(Arc::new(Identity { scopes, ..Identity::clone(&self.0) }))
    }

    /// Sets the scopes that every request of it needs.
    #[must_use]
    pub fn requiring<'a>(self, scopes: impl IntoIterator<Item = &'a str>) -> Self {
        let required = scopes.into_iter().map(Arc::from).collect();
        Self(Arc::new(Identity { required, ..Identity::clone(&self.0) }))
    }

    /// Sets how long the shown credential is good.
    #[must_use]
    pub fn valid(self, validity: Validity) -> Self {
        Self(Arc::new(Identity { validity, ..Identity::clone(&self.0) }))
    }

    /// Adds a proven claim.
    #[must_use]
    pub fn with_claim(self, name: &str, value: &str) -> Self {
        let mut identity = Identity::clone(&self.0);
        identity.claims.push((name.into(), value.into()));
        Self(Arc::new(identity))
    }

    /// Whether somebody holds another clone of it.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Its id.
    pub fn as_str(&self) -> &str {
        &self.0.id
    }

    /// Its id, as it is shared.
    pub fn id(&self) -> &Arc<str> {
        &self.0.id
    }

    /// Its id, shared.
    pub fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0.id)
    }

    /// How it was authenticated.
    pub fn kind(&self) -> PrincipalKind {
        self.0.kind
    }

    /// The display name; the id if there is none.
    pub fn name(&self) -> &str {
        self.0.name.as_ref().unwrap_or(&self.0.id)
    }

    /// The groups that it is in.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.0.groups.iter().map(|group| &**group)
    }

    /// The scopes that it has, with those that they include.
    pub fn scopes(&self) -> impl Iterator<Item = &str> {
        self.0.scopes.iter().map(|scope| &**scope)
    }

    /// The scopes that every request of it needs. It has them; a credential in its place needs them too.
    pub fn required_scopes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.0.required.iter()
    }

    /// Whether it is one of those that `who` speaks of. Ids are compared together with the kind of the credential, so that no
    /// credential can pass for one of another kind.
    pub fn is(&self, who: &Who) -> bool {
        let named = |kind, start: &str, name: &str| {
            self.0.kind == kind && self.0.id.strip_prefix(start).is_some_and(|rest| rest == name)
        };
        match who {
            Who::Everyone => true,
            Who::Local => self.0.kind == PrincipalKind::Local && *self == Self::local(),
            Who::LocalUser(user) => {
                let own = self.0.id.strip_prefix("local:").and_then(|own| own.parse::<u32>().ok());
                self.0.kind == PrincipalKind::Local && own == Some(*user)
            }
            Who::Token => named(PrincipalKind::Token, "", "token"),
            Who::Key(name) => named(PrincipalKind::Key, "key:", name),
            Who::Group(name) => self.groups().any(|group| group == name),
            Who::Subject { issuer, subject } => {
                let own = self.0.id.strip_prefix(issuer.as_str()).and_then(|rest| rest.strip_prefix('/'));
                self.0.kind == PrincipalKind::Issuer
                    && own.is_some_and(|own| subject == "*" || own == subject)
            }
            Who::Proxy(name) => named(PrincipalKind::Proxy, "proxy:", name),
        }
    }

    /// How long the credential is good with which it was authenticated.
    pub fn validity(&self) -> &Validity {
        &self.0.validity
    }

    /// The class that was remembered last, by whichever gateway.
    pub(super) fn class(&self) -> &ArcSwapOption<Class> {
        &self.0.class.0
    }

    /// Whether it was authenticated by the same look at the same credential. Two principals with equal ids may have shown
    /// different ones.
    pub fn shares_credential(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The value of a proven claim.
    pub fn claim(&self, name: &str) -> Option<&str> {
        self.0.claims.iter().find(|(known, _)| **known == *name).map(|(_, value)| &**value)
    }
}

impl PartialEq for Principal {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Principal {}

impl Hash for Principal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.id.hash(state);
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// GATE-3: a principal is its id; names, groups and claims do not make it another one.
    #[test]
    fn a_principal_is_its_id() {
        let ada = Principal::new("corp/ada", PrincipalKind::Token);
        let known = ada.clone().called("Ada").in_groups(["build", "ops"]).with_claim("scope", "read");
        assert_eq!(ada, known);
        assert_eq!(HashSet::from([ada.clone(), known.clone()]).len(), 1);
        assert_ne!(ada, Principal::named("ada"));
        assert_eq!((known.as_str(), &*known.shared(), known.name()), ("corp/ada", "corp/ada", "Ada"));
        assert_eq!((ada.name(), ada.to_string().as_str()), ("corp/ada", "corp/ada"));
        assert_eq!(known.groups().collect::<Vec<_>>(), ["build", "ops"]);
        assert_eq!(
            (known.claim("scope"), known.claim("aud"), ada.claim("scope")),
            (Some("read"), None, None)
        );
        assert_eq!((known.kind(), Principal::local().kind()), (PrincipalKind::Token, PrincipalKind::Local));
        let own = format!("local:{}", rustix::process::geteuid().as_raw());
        assert_eq!(Principal::local().as_str(), own);
        assert_eq!(Principal::local_user(Some(7)).as_str(), "local:7");
        assert_eq!(Principal::local_user(None).as_str(), "local");
    }

    /// ACC-1: a rule speaks of a principal only if both its id and the kind of its credential fit.
    #[test]
    fn whom_a_rule_speaks_of() {
        #[track_caller]
        fn check(principal: &Principal, who: &Who, expected: bool) {
            assert_eq!(principal.is(who), expected, "{principal} {who}");
        }
        let subject = |issuer: &str, subject: &str| Who::Subject {
            issuer: issuer.to_owned(),
            subject: subject.to_owned(),
        };
        let own = rustix::process::geteuid().as_raw();
        let all = [
            (Principal::local(), Who::LocalUser(own)),
            (Principal::local_user(Some(own + 1)), Who::LocalUser(own + 1)),
            (Principal::new("token", PrincipalKind::Token), Who::Token),
            (Principal::new("key:ci", PrincipalKind::Key), Who::Key("ci".to_owned())),
            (Principal::new("corp/ada", PrincipalKind::Issuer), subject("corp", "ada")),
            (Principal::new("proxy:ada", PrincipalKind::Proxy), Who::Proxy("ada".to_owned())),
        ];
        for (at, (principal, _)) in all.iter().enumerate() {
            for (other, (_, who)) in all.iter().enumerate() {
                check(principal, who, at == other);
            }
            check(principal, &Who::Everyone, true);
            check(principal, &Who::Local, at == 0);
            check(principal, &subject("corp", "*"), at == 4);
            check(principal, &Who::Group("ops".to_owned()), false);
            check(&principal.clone().in_groups(["build", "ops"]), &Who::Group("ops".to_owned()), true);
            // The same id from a credential of another kind is not believed.
            if at != 4 {
                check(&Principal::new(principal.as_str(), PrincipalKind::Issuer), &all[at].1, false);
            }
        }
        check(&Principal::local_user(None), &Who::Local, false);
        check(&Principal::local_user(None), &Who::LocalUser(own), false);
        check(&Principal::new("corp/ada", PrincipalKind::Key), &subject("corp", "ada"), false);
        check(&Principal::new("corporate/ada", PrincipalKind::Issuer), &subject("corp", "*"), false);
        check(&Principal::named("operator"), &Who::Token, false);
    }

    /// ACC-2: what a principal keeps open ends when its credential is revoked or expires.
    #[tokio::test(start_paused = true)]
    async fn a_credential_ends() {
        let revoked = CancellationToken::new();
        let hour = std::time::Duration::from_secs(3600);
        let of = |revoked, expires| Principal::named("ada").valid(Validity::new(revoked, expires));
        let began = Instant::now();
        let expiring = of(Some(revoked.clone()), Some(began + hour));
        let forever = of(Some(revoked.clone()), None);
        assert!(!expiring.validity().has_ended() && !forever.validity().has_ended());
        expiring.validity().ended().await;
        assert_eq!(began.elapsed(), hour);
        assert!(expiring.validity().has_ended() && !forever.validity().has_ended());
        assert!(!expiring.validity().is_revoked() && !expiring.validity().until_revoked().has_ended());
        revoked.cancel();
        forever.validity().ended().await;
        assert!(forever.validity().has_ended() && forever.validity().is_revoked());
        let ends = |revoked, expires| of(revoked, expires).validity().can_end();
        assert!(ends(Some(revoked), None) && ends(None, Some(began)) && !ends(None, None));
        assert!(expiring.shares_credential(&expiring.clone()) && !expiring.shares_credential(&forever));
        let none = Principal::local();
        assert!(tokio::time::timeout(hour, none.validity().ended()).await.is_err(), "never ends");
    }
}
