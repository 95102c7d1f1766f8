//! What belongs to one principal is refused to every other, whichever authenticator names them.

use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_front::{Authenticating, Authenticator, Peer, Refusal};
use bridgehead_gateway::{Principal, PrincipalKind};
use futures_util::FutureExt;
use futures_util::future::Either;
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::client::{Server, mirrored};
use crate::fake::{Fake, initialize, legacy, modern};

/// Believes the `x-user` header, after a wait as for an answer from elsewhere.
struct ByHeader;

impl Authenticator for ByHeader {
    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, _peer: Peer) -> Authenticating<'a> {
        let looking = async move {
            tokio::task::yield_now().await;
            match headers.get("x-user").and_then(|user| user.to_str().ok()) {
                Some("mallory") => Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "not so fast")
                    .challenging(HeaderValue::from_static("Bearer error=\"invalid_token\""))
                    .retrying(Duration::from_millis(1500))),
                Some(user) => Ok(Principal::new(user, PrincipalKind::Token)),
                None => Err(Refusal::new(StatusCode::UNAUTHORIZED, "who are you?")),
            }
        };
        Either::Right(looking.boxed())
    }

    fn asks_for_secret(&self) -> bool {
        true
    }
}

async fn start(fake: &Fake) -> Server {
    Server::known_by(fake, HttpSettings::default(), Box::new(ByHeader)).await
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

/// GATE-3: a legacy session, its stream and the events of that exist only for the principal that opened it. They are
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
