//! Who may speak: paths, methods, Host, Origin and token, over real sockets.

use bridgehead_config::{HttpSettings, Secret};
use bridgehead_front::Token;
use bytes::Bytes;
use http::Request;
use http_body_util::Full;

use crate::client::{Server, mirrored};
use crate::fake::{Fake, modern};

#[tokio::test]
async fn other_paths_and_methods() {
    let server = Server::start(&Fake::new()).await;
    let get = |path: &str| {
        let request = Request::builder().uri(path).header("host", "evil.example");
        server.exchange(request.body(Full::new(Bytes::new())).unwrap())
    };
    let health = get("/healthz").await.answer().await;
    assert_eq!((health.status.as_u16(), health.text.as_str()), (200, "ok"));
    let lost = get("/").await.answer().await;
    assert_eq!(lost.error(), (404, -32600, None));
    assert!(lost.text.contains("/mcp"));
    let put = server.send("PUT", &[], "").await;
    assert_eq!((put.status.as_u16(), &put.headers["allow"]), (405, &"GET, POST, DELETE".parse().unwrap()));
}

#[tokio::test]
async fn foreign_hosts_and_origins_are_refused_first() {
    let server = Server::start(&Fake::new()).await;
    let body = modern("1", "tools/list", "");
    let check = async |extra: &[(&str, &str)], status: u16, hint: &str| {
        let headers: Vec<_> = [&mirrored("tools/list", "")[..], extra].concat();
        let answer = server.post(&headers, &body).await;
        assert_eq!(answer.status, status, "{extra:?}");
        assert!(answer.text.contains(hint), "{answer:?}");
        if status != 200 {
            assert_eq!(answer.error(), (status, -32600, None));
        }
    };
    let own = format!("http://{}", server.address);
    check(&[("origin", &own)], 200, "").await;
    check(&[("origin", "http://localhost:3000")], 200, "").await;
    check(&[("origin", "http://evil.example")], 403, "http.allowed_origins").await;
    check(&[("host", "evil.example")], 403, "http.allowed_hosts").await;
    // Before anything else is looked at.
    check(&[("host", "evil.example"), ("accept", "text/plain")], 403, "http.allowed_hosts").await;
    check(&[("origin", "http://evil.example"), ("content-type", "text/plain")], 403, "http.allowed_origins")
        .await;
}

#[tokio::test]
async fn a_token_is_asked_for_and_names_the_principal() {
    let fake = Fake::new();
    let token = Token::new("token", Secret::new("s3cret"));
    let server = Server::with(&fake, HttpSettings::default(), Some(token)).await;
    let body = modern("1", "tools/list", "");
    for headers in [vec![], vec![("authorization", "Bearer wrong")]] {
        let all: Vec<_> = [mirrored("tools/list", ""), headers].concat();
        let refused = server.post(&all, &body).await;
        assert_eq!(refused.error(), (401, -32600, None));
        assert_eq!(refused.headers["www-authenticate"], "Bearer");
    }
    let all: Vec<_> = [mirrored("tools/list", ""), vec![("authorization", "Bearer s3cret")]].concat();
    assert_eq!(server.post(&all, &body).await.status, 200);
    assert_eq!(*fake.callers.lock().unwrap(), ["token 2026-07-28"]);
    assert_eq!(server.send("GET", &[], "").await.status, 401, "streams need it too");
}
