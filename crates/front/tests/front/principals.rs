//! What belongs to one principal is refused to every other, whichever authenticator names them.

use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_front::{Authenticating, Authenticator, Peer, Refusal};
use bridgehead_gateway::{Principal, PrincipalKind, Validity};
use futures_util::FutureExt;
use futures_util::future::Either;
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::client::{Direct, Server, mirrored, piece};
use crate::fake::{ENVELOPE, Fake, code_of, initialize, legacy, modern};

/// When a token with `x-expires` expires.
const SOON: Duration = Duration::from_secs(5);

/// Believes the `x-user` header, after a wait as for an answer from elsewhere. `revoked` ends the credentials of `ada`. The
/// same `x-scopes` and `x-groups` of `bob` are the same token.
#[derive(Default)]
struct ByHeader {
    revoked: CancellationToken,
    tokens: std::sync::Mutex<std::collections::HashMap<[String; 2], Principal>>,
}

impl ByHeader {
    fn bob(&self, headers: &HeaderMap) -> Principal {
        let words = ["x-scopes", "x-groups"].map(|name| {
            headers.get(name).and_then(|words| words.to_str().ok()).unwrap_or_default().to_owned()
        });
        let mut tokens = self.tokens.lock().unwrap();
        let token = tokens.entry(words).or_insert_with_key(|[scopes, groups]| {
            let bob = Principal::new("bob", PrincipalKind::Token);
            bob.with_scopes(scopes.split_whitespace()).in_groups(groups.split_whitespace())
        });
        token.clone()
    }
}

impl Authenticator for ByHeader {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Peer) -> Authenticating<'a> {
        let looking = async move {
            tokio::task::yield_now().await;
            match headers.get("x-user").and_then(|user| user.to_str().ok()) {
                Some("mallory") => Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "not so fast")
                    .challenging(HeaderValue::from_static("Bearer error=\"invalid_token\""))
                    .retrying(Duration::from_millis(1500))),
                Some("ada") if self.revoked.is_cancelled() => {
                    Err(Refusal::new(StatusCode::UNAUTHORIZED, "revoked"))
                }
                // The other key of the same principal.
                Some("ada2") => Ok(Principal::new("ada", PrincipalKind::Token)),
                Some("ada") => {
                    let expires = headers.get("x-expires").map(|_| Instant::now() + SOON);
                    let validity = Validity::new(Some(self.revoked.clone()), expires);
                    Ok(Principal::new("ada", PrincipalKind::Token).valid(validity))
                }
                Some("bob") => Ok(self.bob(headers)),
                Some(user) => Ok(Principal::new(user, PrincipalKind::Token)),
                None => Err(Refusal::new(StatusCode::UNAUTHORIZED, "who are you?")),
            }
        };
        Either::Right(looking.boxed())
    }

    fn asks_for_secret(&self) -> bool {
        true
    }

    fn step_up(&self, scope: &str) -> Option<HeaderValue> {
        Some(HeaderValue::from_str(scope).unwrap())
    }
}

async fn start(fake: &Fake) -> Server {
    Server::known_by(fake, HttpSettings::default(), Box::new(ByHeader::default())).await
}

/// GATE-3: the authenticator names the principal, even if it has to wait for that, and the client sees the text of its
/// refusal.
#[tokio::test]
async fn an_authenticator_names_the_principal() {
    let fake = Fake::new();
    let server = start(&fake).await;
    let body = modern("1", "tools/list", "");
    for user in ["ada", "bob", "ada"] {
        let headers: Vec<_> = [&mirrored("tools/list", "")[..], &[("x-user", user)]].concat();
        assert_eq!(server.post(&headers, &body).await.status, 200);
    }
    let callers = fake.callers.lock().unwrap().clone();
    assert_eq!(callers, ["ada 2026-07-28", "bob 2026-07-28", "ada 2026-07-28"]);
    let refused = server.post(&mirrored("tools/list", ""), &body).await;
    assert_eq!(refused.error(), (401, -32600, None));
    assert!(refused.text.contains("who are you?") && refused.headers["www-authenticate"] == "Bearer");
    assert!(!refused.headers.contains_key("retry-after"));
    let headers: Vec<_> = [&mirrored("tools/list", "")[..], &[("x-user", "mallory")]].concat();
    let refused = server.post(&headers, &body).await;
    assert_eq!(refused.error(), (429, -32600, None));
    assert_eq!(refused.headers["www-authenticate"], "Bearer error=\"invalid_token\"");
    assert_eq!(refused.headers["retry-after"], "2", "rounded up");
    // A modern principal has the same session from request to request, and shares it with no other.
    let sessions = fake.sessions.lock().unwrap().clone();
    assert_eq!(sessions[0], sessions[2]);
    assert_ne!(sessions[0], sessions[1]);
}

/// GATE-3, ACC-1: a legacy session, its stream and the events of that exist only for the principal that opened it. They are
/// unknown to every other, whatever it does with the id.
#[tokio::test]
async fn a_session_is_unknown_to_others() {
    let fake = Fake::new();
    let server = start(&fake).await;
    let opened = server.post(&[("x-user", "ada")], &initialize("0", "2025-06-18")).await;
    let id = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let call = legacy("1", "tools/call", r#""name":"echo""#);
    let cancel = r#"{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}"#;
    let answer = r#"{"jsonrpc":"2.0","id":"q","result":{}}"#;
    let bob = [("mcp-session-id", id.as_str()), ("x-user", "bob")];
    for body in [&call, cancel, answer] {
        assert_eq!(server.post(&bob, body).await.status, 404, "{body}");
    }
    for resumed in [None, Some(("last-event-id", "0-0"))] {
        let headers: Vec<_> = bob.into_iter().chain(resumed).collect();
        assert_eq!(server.send("GET", &headers, "").await.status, 404);
    }
    assert_eq!(server.send("DELETE", &bob, "").await.status, 404);
    assert!(fake.callers.lock().unwrap().is_empty(), "nothing of it reached the gateway");

    let ada = [("mcp-session-id", id.as_str()), ("x-user", "ada")];
    assert_eq!(server.post(&ada, &call).await.status, 200);
    assert_eq!(server.send("DELETE", &ada, "").await.status, 204);
}

/// ACC-1, ACC-3: each request of a legacy session has the rights of the token that it shows itself, alone and in a batch: a
/// token with more scopes cures a challenge, one with fewer scopes takes rights away, and so does one without a group.
#[tokio::test]
async fn a_session_gives_no_rights() {
    let fake = Fake::new();
    let server = start(&fake).await;
    let opened = server.post(&[("x-user", "bob")], &initialize("0", "2025-03-26")).await;
    let id = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let ask = async |tool: &str, (scopes, groups): (&str, &str)| {
        let headers =
            [("mcp-session-id", id.as_str()), ("x-user", "bob"), ("x-scopes", scopes), ("x-groups", groups)];
        let call = legacy("1", "tools/call", &format!(r#""name":"{tool}""#));
        let alone = server.post(&headers, &call).await;
        let batch = server.post(&headers, &format!("[{call}]")).await.json();
        assert_eq!(code_of(&batch[0]), code_of(&alone.json()), "{batch}");
        (alone.status.as_u16(), code_of(&alone.json()))
    };
    assert_eq!(ask("write", ("", "")).await, (403, -32603), "it was opened with this one");
    assert_eq!(ask("write", ("write", "")).await, (200, 0), "more scopes");
    assert_eq!(ask("write", ("read", "")).await, (403, -32603), "fewer scopes");
    assert_eq!(ask("of_the_ops", ("", "ops")).await, (200, 0));
    assert_eq!(ask("of_the_ops", ("", "")).await, (200, -32602), "no longer in the group");
}

/// ACC-3: what a legacy session is told is judged by the token that it showed last: it is noted once for each change, and when
/// the stream opens.
#[tokio::test]
async fn the_feed_of_a_session_follows_its_token() {
    let fake = Fake::new();
    let server = start(&fake).await;
    let opened = server.post(&[("x-user", "bob"), ("x-scopes", "a")], &initialize("0", "2025-06-18")).await;
    let id = opened.headers["mcp-session-id"].to_str().unwrap().to_owned();
    let ping = legacy("1", "ping", "");
    for scopes in ["a", "b", "b", "a"] {
        let headers = [("mcp-session-id", id.as_str()), ("x-user", "bob"), ("x-scopes", scopes)];
        assert_eq!(server.post(&headers, &ping).await.status, 200);
    }
    assert_eq!(*fake.fed.lock().unwrap(), ["bob a", "bob b", "bob a"]);
    let headers = [("mcp-session-id", id.as_str()), ("x-user", "bob"), ("x-scopes", "c")];
    let _stream = server.open("GET", &headers, "").await;
    assert_eq!(fake.fed.lock().unwrap()[3..], ["bob c", "bob c"]);
}

/// A front, on a paused clock, and what revokes the credential of `ada`.
fn direct(fake: &Fake) -> (Direct, CancellationToken) {
    let by_header = ByHeader::default();
    let revoked = by_header.revoked.clone();
    (Direct::known_by(fake, Box::new(by_header)), revoked)
}

async fn session_of(front: &Direct, user: &str) -> String {
    let opened = front.send("POST", &[("x-user", user)], &initialize("0", "2025-06-18")).await;
    opened.headers["mcp-session-id"].to_str().unwrap().to_owned()
}

/// Reads a body to its end.
async fn drained(mut body: bridgehead_front::Body) -> String {
    let mut text = String::new();
    while let Some(more) = piece(&mut body).await {
        text += &more;
    }
    text
}

/// ACC-2 (case 11): when a credential is revoked, its session is gone and its streams end within a second, while its running
/// calls finish. What other credentials opened stays, even those of the same principal.
#[tokio::test(start_paused = true)]
async fn a_revoked_credential_loses_what_is_open() {
    let fake = Fake::new();
    let (front, revoked) = direct(&fake);
    let (id, kept) = (session_of(&front, "ada").await, session_of(&front, "ada2").await);
    let ada = [("mcp-session-id", id.as_str()), ("x-user", "ada")];
    let own_stream = front.open("GET", &ada, "").await.into_body();
    let kept_stream = front.open("GET", &[("mcp-session-id", kept.as_str()), ("x-user", "ada2")], "").await;
    let listen: Vec<_> = [&mirrored("subscriptions/listen", "")[..], &[("x-user", "ada")]].concat();
    let asked = modern("9", "subscriptions/listen", r#""notifications":{}"#);
    let mut listening = front.open("POST", &listen, &asked).await.into_body();
    assert!(piece(&mut listening).await.unwrap().contains("acknowledged"));
    let noted = format!(r#""name":"step_then_gate","_meta":{{"progressToken":7,{ENVELOPE}}}"#);
    let call: Vec<_> = [&mirrored("tools/call", "step_then_gate")[..], &[("x-user", "ada")]].concat();
    let mut calling = front.open("POST", &call, &legacy("1", "tools/call", &noted)).await.into_body();
    assert!(piece(&mut calling).await.unwrap().contains("progress"));
    let gated = legacy("1", "tools/call", r#""name":"gate""#);
    let plain = front.open("POST", &ada, &gated);
    let revoking = async {
        fake.until(|fake| &fake.begun, 2).await;
        revoked.cancel();
        let began = Instant::now();
        drained(own_stream).await;
        assert!(drained(listening).await.contains("listened"), "with its result");
        assert_eq!(drained(calling).await, "", "nothing more is sent");
        assert!(began.elapsed() < Duration::from_secs(1));
        let again = [("mcp-session-id", id.as_str()), ("x-user", "ada2")];
        for (method, body) in [("POST", legacy("2", "ping", "")), ("GET", String::new())] {
            assert_eq!(front.send(method, &again, &body).await.status, 404, "{method}");
        }
        assert_eq!(fake.cancelled.load(std::sync::atomic::Ordering::SeqCst), 0);
        fake.gate.notify_one();
        fake.gate.notify_one();
        fake.until(|fake| &fake.finished, 2).await;
    };
    let (plain, ()) = tokio::join!(plain, revoking);
    assert!(drained(plain.into_body()).await.contains("open"), "its client waits for the answer");
    let body = kept_stream.into_body();
    assert!(
        tokio::time::timeout(Duration::from_secs(2), drained(body)).await.is_err(),
        "the other one stays"
    );
    let again = [("mcp-session-id", kept.as_str()), ("x-user", "ada2")];
    assert_eq!(front.send("POST", &again, &legacy("2", "ping", "")).await.status, 200);
}

/// ACC-2: streams end when the token expires that opened them. A running call is answered, and the session goes on with the next
/// token.
#[tokio::test(start_paused = true)]
async fn a_token_that_expires_ends_its_streams() {
    let fake = Fake::new();
    let (front, _revoked) = direct(&fake);
    let id = session_of(&front, "ada").await;
    let expiring = [("mcp-session-id", id.as_str()), ("x-user", "ada"), ("x-expires", "")];
    let began = Instant::now();
    let stream = front.open("GET", &expiring, "").await.into_body();
    let listen: Vec<_> =
        [&mirrored("subscriptions/listen", "")[..], &[("x-user", "ada"), ("x-expires", "")]].concat();
    let asked = modern("9", "subscriptions/listen", r#""notifications":{}"#);
    let listening = front.open("POST", &listen, &asked).await.into_body();
    let noted = r#""name":"step_then_gate","_meta":{"progressToken":7}"#;
    let calling = front.open("POST", &expiring, &legacy("1", "tools/call", noted)).await.into_body();
    drained(stream).await;
    assert!(drained(listening).await.contains("listened"));
    assert_eq!(began.elapsed(), SOON);
    fake.gate.notify_one();
    assert!(drained(calling).await.contains("open"));
    let next = [("mcp-session-id", id.as_str()), ("x-user", "ada")];
    assert_eq!(front.send("POST", &next, &legacy("2", "ping", "")).await.status, 200);
}
