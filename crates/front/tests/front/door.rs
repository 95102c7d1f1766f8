//! What a front shows before anybody has signed in, and how it asks for a sign-in.

use std::sync::atomic::Ordering;

use bridgehead_config::HttpSettings;
use bridgehead_front::{Authenticating, Authenticator, Peer, Refusal, bearer_token};
use bridgehead_gateway::Principal;
use bytes::Bytes;
use futures_util::future::{Either, ready};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::Full;

use crate::client::{Answer, Server, mirrored};
use crate::fake::{ENVELOPE, Fake, legacy, modern};

const METADATA: &str =
    r#"{"resource":"https://gate.example/mcp","authorization_servers":["https://id.example/"]}"#;
const ISSUER: &str = r#"{"issuer":"https://id.example/"}"#;
const CHALLENGE: &str =
    r#"Bearer resource_metadata="https://gate.example/.well-known/oauth-protected-resource/mcp""#;

/// Admits the holder of one token, and says where others sign in.
#[derive(Default)]
struct Signed {
    in_band: bool,
    without_metadata: bool,
}

impl Authenticator for Signed {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Peer) -> Authenticating<'a> {
        Either::Left(ready(match bearer_token(headers) {
            Some(b"good") => Ok(Principal::named("ada")),
            _ => Err(Refusal::new(StatusCode::UNAUTHORIZED, "sign in")
                .challenging(HeaderValue::from_static(CHALLENGE))),
        }))
    }

    fn asks_for_secret(&self) -> bool {
        true
    }

    fn metadata(&self) -> Option<Bytes> {
        (!self.without_metadata).then_some(Bytes::from_static(METADATA.as_bytes()))
    }

    fn issuer_metadata(&self) -> Option<Bytes> {
        self.in_band.then_some(Bytes::from_static(ISSUER.as_bytes()))
    }

    fn step_up(&self, scope: &str) -> Option<HeaderValue> {
        let challenge = format!("Bearer error=\"insufficient_scope\", scope=\"{scope}\"");
        (!self.in_band).then(|| challenge.parse().unwrap())
    }
}

async fn start(fake: &Fake, authenticator: Signed) -> Server {
    let settings =
        HttpSettings { allowed_origins: vec!["https://app.example".to_owned()], ..HttpSettings::default() };
    Server::known_by(fake, settings, Box::new(authenticator)).await
}

/// Sends a request without a body to any path.
async fn ask(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    server.exchange(request.body(Full::new(Bytes::new())).unwrap()).await.answer().await
}

/// ACC-1 (case 2): the metadata is at both places, byte for byte, without credentials and for pages of every origin.
#[tokio::test]
async fn metadata_is_served_at_both_places() {
    let server = start(&Fake::new(), Signed::default()).await;
    let page = [("host", "evil.example"), ("origin", "https://elsewhere.example")];
    for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
        for headers in [&page[..1], &page[..]] {
            let answer = ask(&server, "GET", path, headers).await;
            assert_eq!((answer.status.as_u16(), answer.text.as_str()), (200, METADATA), "{path}");
            assert_eq!(answer.headers["content-type"], "application/json");
            assert_eq!(answer.headers["access-control-allow-origin"], "*");
            assert_eq!(answer.headers["cache-control"], "max-age=300");
        }
        let asked = [
            page[0],
            page[1],
            ("access-control-request-method", "GET"),
            ("access-control-request-headers", "mcp-protocol-version, x-other"),
        ];
        let answer = ask(&server, "OPTIONS", path, &asked).await;
        assert_eq!(answer.status, 204, "{path}");
        assert_eq!(answer.headers["access-control-allow-origin"], "*");
        assert_eq!(answer.headers["access-control-allow-methods"], "GET");
        assert_eq!(answer.headers["access-control-allow-headers"], "mcp-protocol-version");
        let answer = ask(&server, "POST", path, &page).await;
        assert_eq!((answer.status.as_u16(), &answer.headers["allow"]), (405, &"GET, HEAD".parse().unwrap()));
    }
    for path in [
        "/.well-known/oauth-protected-resource/other",
        "/.well-known/oauth-protected-resources",
        "/.well-known/oauth-authorization-server",
        "/.well-known/other",
    ] {
        assert_eq!(ask(&server, "GET", path, &page).await.status, 404, "{path}");
    }
    let bare = start(&Fake::new(), Signed { without_metadata: true, ..Signed::default() }).await;
    assert_eq!(ask(&bare, "GET", "/.well-known/oauth-protected-resource", &page).await.status, 404);
    let old = start(&Fake::new(), Signed { in_band: true, ..Signed::default() }).await;
    for path in ["/.well-known/oauth-authorization-server", "/.well-known/oauth-authorization-server/mcp"] {
        assert_eq!(ask(&old, "GET", path, &page).await.text, ISSUER);
    }
}

/// ACC-1: where no secret is asked for, a foreign host gets no metadata either.
#[tokio::test]
async fn a_local_endpoint_has_no_metadata() {
    let server = Server::start(&Fake::new()).await;
    let path = "/.well-known/oauth-protected-resource";
    assert_eq!(ask(&server, "GET", path, &[("host", "localhost")]).await.status, 404);
    assert_eq!(ask(&server, "GET", path, &[("host", "evil.example")]).await.status, 403);
}

/// ACC-6: anybody may ask whether the gateway lives and whether it is ready, from any host, and learns nothing else.
#[tokio::test]
async fn health_and_readiness_need_nothing() {
    let fake = Fake::new();
    let server = start(&fake, Signed::default()).await;
    let strange = [("host", "evil.example"), ("origin", "https://evil.example")];
    let check = async |path: &str, status: u16, text: &str| {
        let answer = ask(&server, "GET", path, &strange).await;
        assert_eq!((answer.status.as_u16(), answer.text.as_str()), (status, text), "{path}");
    };
    check("/healthz", 200, "ok").await;
    check("/readyz", 200, "ready").await;
    fake.starting.store(true, Ordering::SeqCst);
    check("/healthz", 200, "ok").await;
    check("/readyz", 503, "not ready").await;
}

/// ACC-6 (case 13): a page of a listed origin can ask for `Mcp-Param-*`, and can read the challenge of a 401 and the headers of
/// a stream.
#[tokio::test]
async fn a_page_can_read_what_it_needs() {
    let server = start(&Fake::new(), Signed::default()).await;
    let page = ("origin", "https://app.example");
    let asked = [
        page,
        ("access-control-request-method", "POST"),
        ("access-control-request-headers", "mcp-param-x, authorization, cookie"),
    ];
    let answer = server.send("OPTIONS", &asked, "").await;
    assert_eq!(answer.status, 204, "without credentials");
    assert_eq!(answer.headers["access-control-allow-headers"], "mcp-param-x, authorization");
    let steps = modern("1", "tools/call", r#""name":"steps""#)
        .replace("\"_meta\":{", "\"_meta\":{\"progressToken\":7,");
    let headers = mirrored("tools/call", "steps");
    for (token, status, kind) in
        [("Bearer good", 200, "text/event-stream"), ("Bearer bad", 401, "application/json")]
    {
        let all: Vec<_> = [&headers[..], &[page, ("authorization", token)]].concat();
        let answer = server.post(&all, &steps).await;
        assert_eq!(
            (answer.status.as_u16(), &answer.headers["content-type"]),
            (status, &kind.parse().unwrap())
        );
        assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(answer.headers["vary"], "Origin");
        assert_eq!(
            answer.headers["access-control-expose-headers"],
            "WWW-Authenticate, Mcp-Session-Id, Mcp-Protocol-Version, Retry-After, RateLimit, RateLimit-Policy"
        );
    }
}

/// ACC-6 (case 14): a foreign origin is refused before anybody looks at credentials, and so is a foreign host where no
/// secret is asked for.
#[tokio::test]
async fn strangers_are_refused_before_their_credentials() {
    let server = start(&Fake::new(), Signed::default()).await;
    let body = modern("1", "tools/list", "");
    for token in ["Bearer good", "Bearer bad"] {
        let evil = [("origin", "https://evil.example"), ("authorization", token)];
        let answer = server.post(&[&mirrored("tools/list", "")[..], &evil].concat(), &body).await;
        assert_eq!(answer.error(), (403, -32600, None), "{token}");
        assert!(!answer.headers.contains_key("www-authenticate") && answer.text.contains("allowed_origins"));
    }
    let open = Server::start(&Fake::new()).await;
    let answer =
        open.post(&[&mirrored("tools/list", "")[..], &[("host", "evil.example")]].concat(), &body).await;
    assert_eq!(answer.error(), (403, -32600, None));
}

/// ACC-1 (cases 9, 10): a token counts only in the one `Authorization` header, not in the query and not twice.
#[tokio::test]
async fn a_token_counts_in_one_place() {
    let server = start(&Fake::new(), Signed::default()).await;
    let body = modern("1", "tools/list", "");
    let post = async |path: &str, headers: &[(&str, &str)]| {
        let mut request = Request::builder().method("POST").uri(path).header("host", "gate.example");
        let common =
            [("accept", "application/json, text/event-stream"), ("content-type", "application/json")];
        for (name, value) in
            common.into_iter().chain(mirrored("tools/list", "")).chain(headers.iter().copied())
        {
            request = request.header(name, value);
        }
        server.exchange(request.body(Full::new(Bytes::from(body.clone()))).unwrap()).await.answer().await
    };
    let good = ("authorization", "Bearer good");
    assert_eq!(post("/mcp", &[good]).await.status, 200);
    for query in ["/mcp?access_token=good", "/mcp?token=good&Authorization=Bearer%20good"] {
        assert_eq!(post(query, &[]).await.status, 401, "{query}");
        assert_eq!(post(query, &[good]).await.status, 200, "a query is ignored");
    }
    assert_eq!(post("/mcp", &[good, good]).await.status, 401);
    assert_eq!(post("/mcp", &[good, ("authorization", "Bearer bad")]).await.status, 401);
}

/// ACC-1 (case 15): nothing that a client or a proxy says about the address changes the challenge or the metadata.
#[tokio::test]
async fn addresses_come_from_the_configuration() {
    let server = start(&Fake::new(), Signed::default()).await;
    let forwarded = [
        ("host", "evil.example"),
        ("x-forwarded-host", "evil.example"),
        ("x-forwarded-proto", "http"),
        ("x-forwarded-for", "127.0.0.1"),
        ("forwarded", "host=evil.example;proto=http"),
    ];
    let refused = server.post(&forwarded, &modern("1", "tools/list", "")).await;
    assert_eq!(
        (refused.status.as_u16(), &refused.headers["www-authenticate"]),
        (401, &CHALLENGE.parse().unwrap())
    );
    assert!(!refused.text.contains("evil"));
    let metadata = ask(&server, "GET", "/.well-known/oauth-protected-resource/mcp", &forwarded).await;
    assert_eq!(metadata.text, METADATA);
}

/// ACC-3 (case 16): a call that lacks a scope is answered by 403 and all scopes that it needs, in both eras, with the JSON-RPC
/// error as the body; or in band, by choice. An upstream cannot ask for scopes this way.
#[tokio::test]
async fn a_missing_scope_is_asked_for() {
    let good = ("authorization", "Bearer good");
    for in_band in [false, true] {
        let server = start(&Fake::new(), Signed { in_band, ..Signed::default() }).await;
        let opened = server.post(&[good], &crate::fake::initialize("0", "2025-06-18")).await;
        let session = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
        let check = |answer: &Answer, challenged: bool| {
            let challenge = answer.headers.get("www-authenticate").map(|value| value.to_str().unwrap());
            let expected = challenged.then_some("Bearer error=\"insufficient_scope\", scope=\"read write\"");
            assert_eq!((answer.status.as_u16(), challenge), (if challenged { 403 } else { 200 }, expected));
            assert_eq!(answer.json()["error"]["data"]["code"], "INSUFFICIENT_SCOPE");
        };
        for (tool, challenged) in [("scoped", !in_band), ("scoped_upstream", false)] {
            let named = format!(r#""name":"{tool}""#);
            let headers: Vec<_> = [&mirrored("tools/call", tool)[..], &[good]].concat();
            check(&server.post(&headers, &modern("1", "tools/call", &named)).await, challenged);
            // A client that may get notes is answered in the same way, as long as none came.
            let noted = format!(r#"{named},"_meta":{{"progressToken":7,{ENVELOPE}}}"#);
            check(&server.post(&headers, &legacy("2", "tools/call", &noted)).await, challenged);
            let headers = [good, ("mcp-session-id", session.as_str())];
            check(&server.post(&headers, &legacy("3", "tools/call", &named)).await, challenged);
        }
    }
}
