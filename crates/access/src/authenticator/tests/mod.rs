mod issuer;
mod local;
mod signed;
mod vouched;

use std::sync::Arc;

use bridgehead_config::{AuthSettings, HttpSettings, Issuer, ListenerAuth, LocalUsers, Secret};
use bridgehead_front::LocalUser;
use bridgehead_testkit::FakeClock;
use serde_json::{Value, json};

use self::issuer::{Signer, TestIssuer};
use super::*;
use crate::tokens::HttpFetch;

const PUBLIC: &str = "https://gate.example/mcp";
/// What the fake clock shows at first.
const NOW: i64 = 1_767_225_600;

/// A gateway's credentials, and the clock that they use.
struct Gate {
    credentials: Arc<AcceptedCredentials>,
    clock: FakeClock,
    door: Box<dyn Authenticator>,
}

/// What a client sees of a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Refused {
    status: u16,
    challenge: String,
    retry_after: Option<Duration>,
    reason: String,
}

fn auth(change: impl FnOnce(&mut AuthSettings)) -> AuthSettings {
    let mut settings = AuthSettings::default();
    change(&mut settings);
    settings
}

/// Settings with one issuer, by its name `corp`.
fn corp(issuer: &TestIssuer, change: impl FnOnce(&mut Issuer)) -> AuthSettings {
    let mut known = Issuer::new("corp", &issuer.url);
    change(&mut known);
    auth(|settings| {
        settings.public_url = Some(PUBLIC.to_owned());
        settings.issuers.push(known);
    })
}

impl Gate {
    fn new(settings: &AuthSettings) -> Self {
        Self::with(settings, None, None)
    }

    fn with(settings: &AuthSettings, token: Option<&str>, auth: Option<ListenerAuth>) -> Self {
        let clock = FakeClock::new();
        let means = Means {
            token: token.map(|token| Token::new("token", Secret::new(token))),
            scopes: vec!["repo:write".to_owned()],
            clock: Arc::new(clock.clone()),
            fetch: Arc::new(HttpFetch),
        };
        let credentials = AcceptedCredentials::new(settings, means).unwrap();
        let http = HttpSettings { local_users: LocalUsers::Any, ..HttpSettings::default() };
        let door = credentials.authenticator(auth, LocalUser::new(&http));
        Self { credentials, clock, door }
    }

    fn advance(&self, seconds: u64) {
        self.clock.advance(Duration::from_secs(seconds));
    }

    async fn principal(&self, headers: &[(&str, &str)], peer: Peer) -> Result<Principal, Refused> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::try_from(*name).unwrap(), HeaderValue::from_str(value).unwrap());
        }
        let found = self.door.authenticate(&map, peer).await;
        found.map_err(|refusal| Refused {
            status: refusal.status.as_u16(),
            challenge: refusal.challenge.map(|text| text.to_str().unwrap().to_owned()).unwrap_or_default(),
            retry_after: refusal.retry_after,
            reason: refusal.reason.into_owned(),
        })
    }

    async fn ask(&self, headers: &[(&str, &str)], peer: Peer) -> Result<String, Refused> {
        self.principal(headers, peer).await.map(|principal| principal.as_str().to_owned())
    }

    /// A request with a bearer credential, each from another address, so that no attempt slows down another.
    async fn bearer(&self, credential: &str) -> Result<String, Refused> {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0x0a00_0000);
        let address = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
        self.bearer_from(credential, IpAddr::from(address)).await
    }

    async fn bearer_from(&self, credential: &str, address: IpAddr) -> Result<String, Refused> {
        let value = format!("Bearer {credential}");
        self.ask(&[("authorization", &value)], from(address)).await
    }

    #[track_caller]
    fn is_refused(found: &Result<String, Refused>, status: u16, challenge: &str) {
        let refused = found.as_ref().unwrap_err();
        assert_eq!(refused.status, status, "{refused:?}");
        assert!(refused.challenge.contains(challenge), "{refused:?}");
    }
}

fn from(address: IpAddr) -> Peer {
    Peer { address: Some(address), user: PeerUser::Refused(None) }
}

fn claims(issuer: &TestIssuer, changed: &Value) -> Value {
    let mut claims = json!({"iss": issuer.url, "aud": PUBLIC, "sub": "ada", "exp": NOW + 3600});
    for (name, value) in changed.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    claims
}
