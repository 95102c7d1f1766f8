//! Who may speak: paths, methods, Host, Origin and token, over real sockets.

use std::net::SocketAddr;

use bridgehead_config::{HttpSettings, LocalUsers, Secret};
use bridgehead_front::Token;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

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
    // Refused before anything else is checked.
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

/// A user that is not ours.
const OTHER: u32 = 65_534;

/// Connects as another user: a socket belongs to the user of the thread that creates it.
fn connect_as_another(address: SocketAddr) -> Option<std::net::TcpStream> {
    let connecting = std::thread::spawn(move || {
        let other = rustix::process::Uid::from_raw(OTHER);
        rustix::thread::set_thread_res_uid(other, other, other).ok()?;
        std::net::TcpStream::connect(address).ok()
    });
    connecting.join().unwrap()
}

/// Sends requests on one connection and gives the status and body of each answer.
async fn ask_twice(stream: std::net::TcpStream, token: &str) -> Vec<(u16, String)> {
    stream.set_nonblocking(true).unwrap();
    let io = TokioIo::new(tokio::net::TcpStream::from_std(stream).unwrap());
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let mut answers = Vec::new();
    for _ in 0..2 {
        let mut request = Request::builder().method("POST").uri("/mcp").header("host", "localhost");
        request = request.header("accept", "application/json, text/event-stream");
        request = request.header("content-type", "application/json").header("authorization", token);
        for (name, value) in mirrored("tools/list", "") {
            request = request.header(name, value);
        }
        let body = Full::new(Bytes::from(modern("1", "tools/list", "")));
        let answer = sender.send_request(request.body(body).unwrap()).await.unwrap();
        let status = answer.status().as_u16();
        let text = answer.into_body().collect().await.unwrap().to_bytes();
        answers.push((status, String::from_utf8_lossy(&text).into_owned()));
    }
    answers
}

/// WALL-6: over loopback only the users that `http.local_users` names may call; the holder of the connection counts.
#[tokio::test]
async fn other_users_of_the_machine_are_refused() {
    let own = rustix::process::geteuid().as_raw();
    let with = async |local_users: LocalUsers, token: Option<Token>| {
        let settings = HttpSettings { local_users, ..HttpSettings::default() };
        Server::with(&Fake::new(), settings, token).await
    };
    let check = async |server: &Server, mine: u16, theirs: u16| {
        let answers = ask_twice(std::net::TcpStream::connect(server.address).unwrap(), "Bearer s3cret").await;
        assert_eq!(
            answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(),
            [mine, mine],
            "{answers:?}"
        );
        // Only root can act as another user.
        let Some(stream) = connect_as_another(server.address) else { return };
        let answers = ask_twice(stream, "Bearer s3cret").await;
        assert_eq!(answers.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [theirs, theirs]);
        for (_, text) in answers.iter().filter(|_| theirs == 403) {
            assert!(text.contains("65534") && text.contains("http.local_users"), "{text}");
        }
    };
    check(&with(LocalUsers::Same, None).await, 200, 403).await;
    check(&with(LocalUsers::Any, None).await, 200, 200).await;
    check(&with(LocalUsers::These(vec![own, OTHER]), None).await, 200, 200).await;
    check(&with(LocalUsers::These(vec![own + 1]), None).await, 403, 403).await;
    let token = Token::new("token", Secret::new("s3cret"));
    check(&with(LocalUsers::Same, Some(token)).await, 200, 200).await;
}

/// ACC-1: each user of the machine is a principal of its own, even where all may call.
#[tokio::test]
async fn each_local_user_is_a_principal() {
    let fake = Fake::new();
    let settings = HttpSettings { local_users: LocalUsers::Any, ..HttpSettings::default() };
    let server = Server::with(&fake, settings, None).await;
    ask_twice(std::net::TcpStream::connect(server.address).unwrap(), "").await;
    let own = format!("local:{} 2026-07-28", rustix::process::geteuid().as_raw());
    assert_eq!(*fake.callers.lock().unwrap(), [own.clone(), own.clone()]);
    // Only root can act as another user.
    let Some(stream) = connect_as_another(server.address) else { return };
    ask_twice(stream, "").await;
    let other = format!("local:{OTHER} 2026-07-28");
    assert_eq!(*fake.callers.lock().unwrap(), [own.clone(), own, other.clone(), other]);
    let sessions = fake.sessions.lock().unwrap().clone();
    assert_ne!(sessions[0], sessions[2], "and has a session of its own");
}

/// WALL-6: every user may ask for the health of the gateway.
#[tokio::test]
async fn everybody_may_ask_for_the_health() {
    let settings = HttpSettings { local_users: LocalUsers::These(Vec::new()), ..HttpSettings::default() };
    let server = Server::with(&Fake::new(), settings, None).await;
    let request = Request::builder().uri("/healthz").body(Full::new(Bytes::new())).unwrap();
    assert_eq!(server.exchange(request).await.answer().await.status, 200);
    let refused = server.modern("tools/list", "", &modern("1", "tools/list", "")).await;
    assert_eq!(refused.error(), (403, -32600, None));
}

/// HOUR-10: a page of a listed origin may use the endpoint from a browser: its preflight is answered without
/// credentials, and it may read every answer, including refusals and streams. Other origins get none of that.
#[tokio::test]
async fn pages_of_listed_origins_work_in_a_browser() {
    let settings =
        HttpSettings { allowed_origins: vec!["https://app.example".to_owned()], ..HttpSettings::default() };
    let token = Token::new("token", Secret::new("s3cret"));
    let server = Server::with(&Fake::new(), settings, Some(token)).await;
    let preflight = async |origin: &str| {
        let asked = [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization, content-type, mcp-param-city, x-other"),
        ];
        server.send("OPTIONS", &asked, "").await
    };
    let answer = preflight("https://app.example").await;
    assert_eq!((answer.status.as_u16(), answer.text.as_str()), (204, ""));
    let header = |name: &str| answer.headers[name].to_str().unwrap();
    assert_eq!(header("access-control-allow-origin"), "https://app.example");
    assert_eq!(header("access-control-allow-methods"), "GET, POST, DELETE");
    assert_eq!(header("access-control-allow-headers"), "authorization, content-type, mcp-param-city");
    assert_eq!(header("access-control-max-age"), "7200");
    assert!(!answer.headers.contains_key("access-control-allow-credentials"));
    let vary: Vec<_> = answer.headers.get_all("vary").iter().collect();
    assert!(vary.contains(&&"Origin".parse().unwrap()), "{vary:?}");

    let body = modern("1", "tools/list", "");
    let post = async |extra: &[(&str, &str)]| {
        server.post(&[&mirrored("tools/list", "")[..], extra].concat(), &body).await
    };
    let page = ("origin", "https://app.example");
    let with_token = ("authorization", "Bearer s3cret");
    for (extra, status) in [(vec![page, with_token], 200), (vec![page], 401)] {
        let answer = post(&extra).await;
        assert_eq!(answer.status, status);
        assert_eq!(answer.headers["access-control-allow-origin"], "https://app.example");
        assert_eq!(answer.headers["vary"], "Origin");
        let read = answer.headers["access-control-expose-headers"].to_str().unwrap();
        assert!(read.contains("WWW-Authenticate") && read.contains("Mcp-Session-Id"), "{read}");
    }
    let plain = post(&[with_token]).await;
    assert_eq!((plain.status.as_u16(), &plain.headers["vary"]), (200, &"Origin".parse().unwrap()));
    assert!(!plain.headers.contains_key("access-control-allow-origin"));

    for origin in ["https://evil.example", "http://localhost:3000"] {
        let refused = preflight(origin).await;
        assert_ne!(refused.status, 204, "{origin}");
        assert!(!refused.headers.contains_key("access-control-allow-origin"), "{origin}");
    }
    assert_eq!(server.send("OPTIONS", &[page, with_token], "").await.status, 405, "no preflight");

    let closed = Server::start(&Fake::new()).await;
    let asked = [page, ("access-control-request-method", "POST")];
    let refused = closed.send("OPTIONS", &asked, "").await;
    assert_eq!(refused.status, 403);
    assert!(!refused.headers.contains_key("vary"));
}
