//! Decides which requests may reach the endpoint: by `Host`, by `Origin`, then by the [`Authenticator`].
//!
//! `Host` and `Origin` keep out web pages that reach a local port through a browser (DNS rebinding, cross-site
//! requests). Where a secret is required any `Host` is served: a page that gets here by its own host name does not have
//! the secret.

use std::net::{IpAddr, SocketAddr};

use bridgehead_config::HttpSettings;
use bridgehead_gateway::Principal;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, StatusCode, header};

use super::super::api::{Api, Operator};
use super::{Authenticator, Peer, Refusal, authenticator};

/// The rules of one endpoint.
pub(crate) struct Guard {
    /// Its address; `None` at a Unix socket.
    listen: Option<SocketAddr>,
    /// Its text, the `Host` of nearly all requests: it needs no parsing.
    listen_text: String,
    /// Whether no browser reaches the endpoint, so that neither `Host` nor `Origin` says anything.
    unreachable: bool,
    any_host: bool,
    hosts: Vec<(String, Option<u16>)>,
    any_origin: bool,
    origins: Vec<String>,
    authenticator: Box<dyn Authenticator>,
}

fn bad_host() -> Refusal {
    let reason = "this `Host` is not served here; add it to `http.allowed_hosts` to admit it";
    Refusal::new(StatusCode::FORBIDDEN, reason)
}

fn bad_origin() -> Refusal {
    let reason = "this `Origin` is not admitted; add it to `http.allowed_origins` to admit it";
    Refusal::new(StatusCode::FORBIDDEN, reason)
}

impl Guard {
    /// The rules of an endpoint at `listen`, or at a Unix socket. No browser opens a socket, and a proxy that forwards to one
    /// chooses the `Host` itself: there the `Origin` alone counts.
    pub(crate) fn new(
        settings: &HttpSettings,
        listen: Option<SocketAddr>,
        authenticator: Box<dyn Authenticator>,
    ) -> Self {
        let hosts = settings.allowed_hosts.iter().filter_map(|host| {
            let (name, port) = split_authority(host)?;
            Some((name.to_ascii_lowercase(), port))
        });
        Self {
            listen,
            listen_text: listen.map(|listen| listen.to_string()).unwrap_or_default(),
            unreachable: false,
            any_host: listen.is_none() || settings.allowed_hosts.iter().any(|host| host == "*"),
            hosts: hosts.collect(),
            any_origin: settings.allowed_origins.iter().any(|origin| origin == "*"),
            origins: settings.allowed_origins.clone(),
            authenticator,
        }
    }

    /// The rules of the control socket, which no browser and no other user can open: everybody there is the gateway's own
    /// user, whatever the headers say.
    pub(crate) fn of_control_socket() -> Self {
        let any = || vec!["*".to_owned()];
        let settings =
            HttpSettings { allowed_hosts: any(), allowed_origins: any(), ..HttpSettings::default() };
        Self { unreachable: true, ..Self::new(&settings, None, authenticator(&settings, None)) }
    }

    /// Finds out who connects, once for all requests of the connection.
    pub(crate) fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> Peer {
        Peer { address: Some(peer.ip().to_canonical()), user: self.authenticator.meet(peer, ours) }
    }

    /// The same for a connection over a Unix socket.
    pub(crate) fn meet_user(&self, user: Option<u32>) -> Peer {
        Peer { address: None, user: self.authenticator.meet_user(user) }
    }

    /// The authenticator of the endpoint.
    pub(crate) fn authenticator(&self) -> &dyn Authenticator {
        &*self.authenticator
    }

    /// Whether pages of other origins are admitted by name.
    pub(crate) fn lists_origins(&self) -> bool {
        !self.origins.is_empty()
    }

    /// The origin of a request, if it is listed. A `*` in the list counts only where a secret is required too.
    pub(crate) fn listed_origin(&self, headers: &HeaderMap) -> Option<HeaderValue> {
        let mut values = headers.get_all(header::ORIGIN).iter();
        let (Some(value), None) = (values.next(), values.next()) else { return None };
        let listed = self.origins.iter().any(|known| known.as_bytes() == value.as_bytes());
        (listed || (self.any_origin && self.authenticator.asks_for_secret())).then(|| value.clone())
    }

    /// Whether a request names a host that is served here.
    pub(crate) fn serves_host(&self, parts: &Parts) -> bool {
        self.host(parts).is_ok()
    }

    /// The principal of a request, or why it is refused.
    pub(crate) async fn admit(&self, parts: &Parts, peer: Peer) -> Result<Principal, Refusal> {
        let host = self.host(parts)?;
        self.origin(&parts.headers, host)?;
        self.authenticator.authenticate(&parts.headers, peer).await
    }

    /// The same for operators: a principal that is listed as one.
    pub(crate) async fn admit_operator(
        &self,
        parts: &Parts,
        peer: Peer,
        api: &Api,
    ) -> Result<Operator, Refusal> {
        let host = self.host(parts)?;
        self.origin(&parts.headers, host)?;
        let principal = self.authenticator.authenticate(&parts.headers, peer).await?;
        api.operators().admit(principal).ok_or_else(|| {
            Refusal::new(
                StatusCode::FORBIDDEN,
                "this caller is no operator; list it under `operators` or `operators_read` in `[auth]`",
            )
        })
    }

    /// The requested host, if it is one of those served here by name.
    fn host<'a>(&self, parts: &'a Parts) -> Result<Option<&'a str>, Refusal> {
        let mut values = parts.headers.get_all(header::HOST).iter();
        let (value, more) = (values.next(), values.next());
        let host = value.and_then(|value| value.to_str().ok()).unwrap_or_default();
        if self.any_host {
            return Ok(None);
        }
        let served = |text: &str| {
            text == self.listen_text
                || split_authority(text).is_some_and(|(name, port)| {
                    is_loopback(name)
                        || self.listen.is_some_and(|listen| ip(name) == Some(listen.ip()))
                        || self.hosts.iter().any(|(known, wanted)| {
                            name.eq_ignore_ascii_case(known) && (wanted.is_none() || *wanted == port)
                        })
                })
        };
        // A request target in absolute form names a host too; both must be ours.
        let target_served = || parts.uri.authority().is_none_or(|target| served(target.as_str()));
        match more.is_none() && served(host) && target_served() {
            true => Ok(Some(host)),
            false if self.authenticator.asks_for_secret() => Ok(None),
            false => Err(bad_host()),
        }
    }

    fn is_loopback(&self) -> bool {
        self.listen.is_some_and(|listen| listen.ip().is_loopback())
    }

    fn origin(&self, headers: &HeaderMap, host: Option<&str>) -> Result<(), Refusal> {
        let mut values = headers.get_all(header::ORIGIN).iter();
        let Some(value) = values.next() else { return Ok(()) };
        // Where no secret is required, `*` would let every page in a browser on this machine call.
        if self.any_origin && (self.unreachable || self.authenticator.asks_for_secret()) {
            return Ok(());
        }
        let admitted = values.next().is_none()
            && value.to_str().is_ok_and(|origin| {
                let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
                let name = authority.and_then(split_authority).map(|(name, _)| name);
                self.origins.iter().any(|known| known == origin)
                    || (self.is_loopback() && name.is_some_and(is_loopback))
                    // A page of the same host that was just admitted by name.
                    || authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
            });
        if admitted { Ok(()) } else { Err(bad_origin()) }
    }
}

/// Splits `name`, `name:port`, `[v6]` or `[v6]:port`; the name comes without brackets.
fn split_authority(text: &str) -> Option<(&str, Option<u16>)> {
    let (name, rest) = match text.strip_prefix('[') {
        Some(text) => text.split_once(']')?,
        None => match text.find(':') {
            Some(at) => text.split_at(at),
            None => (text, ""),
        },
    };
    let port = match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        _ => return None,
    };
    (!name.is_empty()).then_some((name, port))
}

fn ip(name: &str) -> Option<IpAddr> {
    name.parse().ok()
}

fn is_loopback(name: &str) -> bool {
    name.eq_ignore_ascii_case("localhost") || ip(name).is_some_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use bridgehead_config::{Secret, Who};
    use futures_util::FutureExt;
    use tokio_util::sync::CancellationToken;

    use super::super::super::api::Operators;
    use super::super::PeerUser;
    use super::*;
    use crate::Token;

    const ADMITTED: Peer = Peer { address: None, user: PeerUser::Admitted(Some(7)) };

    fn guard(listen: &str, hosts: &[&str], origins: &[&str], token: Option<&str>) -> Guard {
        let owned = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect();
        let settings = HttpSettings {
            listen: listen.parse().unwrap(),
            allowed_hosts: owned(hosts),
            allowed_origins: owned(origins),
            ..HttpSettings::default()
        };
        let token = token.map(|token| Token::new("token", Secret::new(token)));
        Guard::new(&settings, Some(settings.listen), authenticator(&settings, token))
    }

    fn ask(guard: &Guard, target: &str, headers: &[(&str, &str)]) -> Result<String, u16> {
        let mut request = http::Request::builder().uri(target);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (parts, ()) = request.body(()).unwrap().into_parts();
        let admitted = guard.admit(&parts, ADMITTED).now_or_never().unwrap();
        admitted.map(|principal| principal.as_str().to_owned()).map_err(|refusal| refusal.status.as_u16())
    }

    #[test]
    fn hosts() {
        #[track_caller]
        fn check(listen: &str, allowed: &[&str], host: &str, admitted: bool) {
            let outcome = ask(&guard(listen, allowed, &[], None), "/mcp", &[("host", host)]);
            assert_eq!(outcome.is_ok(), admitted, "{host}: {outcome:?}");
        }
        let local = "127.0.0.1:4848";
        for host in
            ["localhost", "LocalHost:1", "127.0.0.1", "127.0.0.1:4848", "127.9.9.9", "[::1]", "[::1]:9"]
        {
            check(local, &[], host, true);
        }
        for host in [
            "evil.example",
            "localhost.evil.example",
            "localhost:x",
            "localhost:+1",
            "127.0.0.1.evil",
            "[::1",
            "",
            "10.0.0.1",
            "::1",
        ] {
            check(local, &[], host, false);
        }
        check("10.0.0.1:80", &[], "10.0.0.1:80", true);
        check("10.0.0.1:80", &[], "10.0.0.1:81", true);
        check("10.0.0.1:80", &[], "10.0.0.1:8x", false);
        check("10.0.0.1:80", &[], "10.0.0.2", false);
        check(local, &["gate.example"], "Gate.Example:443", true);
        check(local, &["gate.example:443"], "gate.example:443", true);
        check(local, &["gate.example:443"], "gate.example", false);
        check(local, &["*"], "anything.example", true);
    }

    /// HOUR-10: a holder of the token may use any host name, but that does not admit a page of that host.
    #[test]
    fn with_a_token_any_host_is_served() {
        let guard = guard("0.0.0.0:4848", &[], &[], Some("s3cret"));
        let token = ("authorization", "Bearer s3cret");
        for host in ["192.168.1.2:4848", "gate.example", "[fe80::1]:4848"] {
            assert_eq!(ask(&guard, "/mcp", &[("host", host), token]).as_deref(), Ok("token"), "{host}");
            assert_eq!(ask(&guard, "/mcp", &[("host", host)]), Err(401), "{host}");
        }
        let page = [("host", "evil.example"), ("origin", "http://evil.example"), token];
        assert_eq!(ask(&guard, "/mcp", &page), Err(403));
    }

    #[test]
    fn a_second_host_does_not_slip_through() {
        let guard = guard("127.0.0.1:1", &[], &[], None);
        assert_eq!(ask(&guard, "/mcp", &[]), Err(403), "no host at all");
        assert_eq!(ask(&guard, "/mcp", &[("host", "localhost"), ("host", "evil.example")]), Err(403));
        assert_eq!(ask(&guard, "http://evil.example/mcp", &[("host", "localhost")]), Err(403));
        assert!(ask(&guard, "http://localhost:1/mcp", &[("host", "localhost:1")]).is_ok());
    }

    #[test]
    fn origins() {
        #[track_caller]
        fn check(listen: &str, allowed: &[&str], origin: &str, admitted: bool) {
            let guard = guard(listen, &["gate.example"], allowed, None);
            let outcome = ask(&guard, "/mcp", &[("host", "gate.example"), ("origin", origin)]);
            assert_eq!(outcome.is_ok(), admitted, "{origin}: {outcome:?}");
        }
        let (local, remote) = ("127.0.0.1:1", "10.0.0.1:1");
        check(local, &[], "http://localhost:3000", true);
        check(local, &[], "https://127.0.0.1", true);
        check(local, &[], "http://[::1]:5", true);
        check(local, &[], "http://evil.example", false);
        check(local, &[], "null", false);
        check(local, &[], "http://localhost.evil.example", false);
        check(local, &[], "vscode-webview://localhost", false);
        check(remote, &[], "http://localhost:3000", false);
        check(remote, &[], "https://gate.example", true);
        check(remote, &["https://app.example"], "https://app.example", true);
        check(remote, &["https://app.example"], "https://app.example:1", false);
        check(remote, &["*"], "null", false);
        let with_token = guard(remote, &[], &["*"], Some("s3cret"));
        let page = [("host", "gate.example"), ("origin", "null"), ("authorization", "Bearer s3cret")];
        assert_eq!(
            ask(&with_token, "/mcp", &page).as_deref(),
            Ok("token"),
            "`*` counts where a secret is asked for"
        );
        let control = Guard::of_control_socket();
        assert!(ask(&control, "/mcp", &[("host", "anything"), ("origin", "null")]).is_ok());
    }

    /// ACC-7, AUD-5: the API opens to listed principals only, not to the endpoint's token by itself, and operators pass the same
    /// checks of `Host` and `Origin` as clients.
    #[test]
    fn operators() {
        let gateway = bridgehead_gateway::Gateway::new(bridgehead_gateway::Options::default()).unwrap();
        let check = |front: Option<&str>,
                     operators: (&[Who], &[Who]),
                     headers: &[(&str, &str)],
                     expected: Result<(&str, bool), u16>| {
            let guard = guard("127.0.0.1:1", &[], &[], front);
            let operators = Operators::new(operators.0.to_vec(), operators.1.to_vec());
            let api = Api::new(gateway.clone(), operators, CancellationToken::new());
            let mut request = http::Request::builder().uri("/api/v1/status");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            let (parts, ()) = request.body(()).unwrap().into_parts();
            let outcome = guard.admit_operator(&parts, ADMITTED, &api).now_or_never().unwrap();
            let outcome = outcome
                .map(|operator| (operator.principal.to_string(), operator.may_change))
                .map_err(|refusal| refusal.status.as_u16());
            assert_eq!(outcome, expected.map(|(name, change)| (name.to_owned(), change)), "{headers:?}");
        };
        let (host, token) = (("host", "localhost"), ("authorization", "Bearer front"));
        let nobody: (&[Who], &[Who]) = (&[], &[]);
        let evil = ("origin", "http://evil.example");
        check(Some("front"), nobody, &[host, token], Err(403));
        check(Some("front"), (&[Who::Token], &[]), &[host, token], Ok(("token", true)));
        check(Some("front"), (&[], &[Who::Token]), &[host, token], Ok(("token", false)));
        check(Some("front"), (&[Who::Token], &[Who::Token]), &[host, token], Ok(("token", true)));
        check(Some("front"), (&[Who::LocalUser(7)], &[]), &[host], Err(401));
        check(None, (&[Who::LocalUser(7)], &[]), &[host], Ok(("local:7", true)));
        check(None, nobody, &[host], Err(403));
        check(Some("front"), (&[Who::Everyone], &[]), &[host, ("authorization", "Bearer ")], Err(401));
        check(None, (&[Who::LocalUser(7)], &[]), &[host, evil], Err(403));
        check(None, (&[Who::LocalUser(7)], &[]), &[("host", "evil.example")], Err(403));
    }

    #[test]
    fn tokens() {
        #[track_caller]
        fn check(headers: &[(&str, &str)], expected: Result<&str, u16>) {
            let guard = guard("127.0.0.1:1", &[], &[], Some("s3cret"));
            let headers: Vec<_> = [&[("host", "localhost")], headers].concat();
            assert_eq!(ask(&guard, "/mcp", &headers).as_deref(), expected.as_deref());
        }
        check(&[("authorization", "Bearer s3cret")], Ok("token"));
        check(&[("authorization", "bearer  s3cret")], Ok("token"));
        check(&[], Err(401));
        check(&[("authorization", "Bearer")], Err(401));
        check(&[("authorization", "Bearer wrong")], Err(401));
        check(&[("authorization", "Basic s3cret")], Err(401));
        check(&[("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")], Err(401));
        let open = guard("127.0.0.1:1", &[], &[], None);
        assert_eq!(ask(&open, "/mcp", &[("host", "localhost")]).as_deref(), Ok("local:7"));
    }

    /// WALL-6: the refusal names the user and the key; with a token no user is looked up.
    #[test]
    fn users() {
        let request = http::Request::builder().uri("/mcp").header("host", "localhost");
        let (parts, ()) = request.header("authorization", "Bearer s3cret").body(()).unwrap().into_parts();
        let open = guard("127.0.0.1:1", &[], &[], None);
        for (user, named) in [(Some(4711), "user 4711"), (None, "cannot be determined")] {
            let refusal = open
                .admit(&parts, Peer { user: PeerUser::Refused(user), ..ADMITTED })
                .now_or_never()
                .unwrap()
                .unwrap_err();
            assert_eq!(refusal.status, StatusCode::FORBIDDEN);
            assert!(refusal.reason.contains(named) && refusal.reason.contains("`http.local_users`"));
        }
        let nowhere = "127.0.0.1:1".parse().unwrap();
        let unknown = Peer { address: Some([127, 0, 0, 1].into()), user: PeerUser::Refused(None) };
        assert_eq!(open.meet(nowhere, nowhere), unknown);
        let by_token = guard("127.0.0.1:1", &[], &[], Some("s3cret"));
        let peer = by_token.meet(nowhere, nowhere);
        let admitted = by_token.admit(&parts, peer).now_or_never().unwrap();
        assert_eq!(admitted.unwrap().as_str(), "token");
    }
}
