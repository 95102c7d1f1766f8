//! The operators' API over real sockets, with a gateway whose servers cannot start.

use std::path::PathBuf;

use bridgehead_config::{GatewaySettings, HttpSettings, Launch, Secret, ServerConfig};
use bridgehead_events::Counter;
use bridgehead_front::{Api, Token, Workers, authenticator, router, serve, serve_socket};
use bridgehead_gateway::{Gateway, Options};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::Server;
use crate::fake::{code_of, modern};

const TOKEN: (&str, &str) = ("authorization", "Bearer operators-only");

/// A front and a socket over the same gateway.
struct Place {
    server: Server,
    socket: PathBuf,
    gateway: Gateway,
    on_socket: tokio::task::JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let launch = Launch::Unusable { reason: "not for real".to_owned() };
        let servers = vec![ServerConfig::new("files".parse().unwrap(), launch, &GatewaySettings::default())];
        let gateway = Gateway::new(Options { servers, ..Options::default() }).unwrap();
        gateway.start();
        gateway.settled().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let token = Token::new("operator", Secret::new("operators-only"));
        let api = Api::new(gateway.clone(), Some(token), shutdown.clone());
        let settings = HttpSettings::default();
        let routes = router(gateway.clone(), &settings, authenticator(&settings, None), shutdown.clone())
            .with_api(api.clone());
        let ending = shutdown.clone();
        let serving =
            tokio::spawn(async move { serve(listener, routes, &Workers::start(0).unwrap(), ending).await });
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let open = HttpSettings { allowed_hosts: vec!["*".to_owned()], ..HttpSettings::default() };
        let clients = router(gateway.clone(), &open, authenticator(&open, None), shutdown.clone());
        let on_socket = tokio::spawn(serve_socket(listener, api, clients, shutdown.clone()));
        Self { server: Server { address, shutdown, serving }, socket, gateway, on_socket, _folder: folder }
    }

    /// Asks over HTTP; the status and the decoded body.
    async fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.server.address.to_string());
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(body.as_bytes()))).unwrap();
        let answer = self.server.exchange(request).await.answer().await;
        (answer.status.as_u16(), answer.json())
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        self.ask("GET", path, &[TOKEN], "").await
    }
}

/// AUD-5: without a token nobody is an operator, whatever the endpoint requires of clients.
#[tokio::test]
async fn only_operators_are_answered() {
    let place = Place::new().await;
    for path in ["/api/v1/status", "/api/v1/nothing"] {
        assert_eq!(place.ask("GET", path, &[], "").await.0, 401);
        assert_eq!(place.ask("GET", path, &[("authorization", "Bearer wrong")], "").await.0, 401);
        assert_eq!(place.ask("GET", path, &[TOKEN, ("origin", "http://evil.example")], "").await.0, 403);
    }
    let (status, told) = place.get("/api/v1/status").await;
    assert_eq!((status, &told["instance"]), (200, &json!(place.gateway.instance())));
    assert_eq!(told["upstreams"][0]["state"], "failed");
}

/// GATE-6: a client or operator that is refused is counted once.
#[tokio::test]
async fn who_is_turned_away_is_counted() {
    let place = Place::new().await;
    let turned_away = || place.gateway.signals().metrics().count(Counter::SignInsRefused);
    assert_eq!(place.ask("GET", "/api/v1/status", &[], "").await.0, 401);
    assert_eq!(turned_away(), 1);
    assert_eq!(place.ask("POST", "/mcp", &[("origin", "http://evil.example")], "").await.0, 403);
    assert_eq!(turned_away(), 2);
    assert_eq!(place.get("/api/v1/status").await.0, 200);
    assert_eq!(turned_away(), 2);
}

/// A method that the gateway does not have is not found; one that it has is found, whatever the state of its servers.
#[tokio::test]
async fn methods_that_the_gateway_does_not_serve_are_not_found() {
    let place = Place::new().await;
    for (method, status, code) in [
        ("tools/list", 200, 0),
        ("server/discover", 200, 0),
        ("no/such", 404, -32601),
        ("prompts/list", 404, -32601),
        ("resources/list", 404, -32601),
    ] {
        let answer = place.server.modern(method, "", &modern("1", method, "")).await;
        assert_eq!((answer.status.as_u16(), code_of(&answer.json())), (status, code), "{method}: {answer:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_answered_says_why() {
    #[track_caller]
    fn check((status, body): (u16, Value), expected: u16, words: &str) {
        let message = body["error"]["message"].as_str().unwrap_or_default();
        assert!(status == expected && message.contains(words), "{status} {body}");
    }
    let place = Place::new().await;
    check(
        place.get("/api/v1/nothing").await,
        404,
        "the routes are /api/v1/{status,configuration,events,logs,restart}",
    );
    check(place.get("/api/v1/restart").await, 405, "wants POST");
    check(place.ask("POST", "/api/v1/status", &[TOKEN], "").await, 405, "wants GET");
    check(place.get("/api/v1/logs").await, 400, "?server=NAME");
    check(place.get("/api/v1/logs?server=files&tail=many").await, 400, "a number of lines");
    check(place.get("/api/v1/logs?server=fiels").await, 404, "did you mean `files`?");
    check(place.get("/api/v1/events?server=nobody").await, 404, "no server is called `nobody`");
    check(
        place.get("/api/v1/events?topic=nothing").await,
        400,
        "the topics are provider.mcp.tools.discovered",
    );
    for body in ["", "{}", "[", "{\"server\":5}", &"x".repeat(5000)] {
        check(place.ask("POST", "/api/v1/restart", &[TOKEN], body).await, 400, "{\"server\": NAME}");
    }
    let (status, body) = place.ask("POST", "/api/v1/restart", &[TOKEN], r#"{"server":"file"}"#).await;
    assert_eq!((status, &body["error"]["near"]), (404, &json!(["files"])));
    let (status, body) = place.ask("POST", "/api/v1/restart", &[TOKEN], r#"{"server":"files"}"#).await;
    assert_eq!((status, body), (202, json!({"server": "files", "restarting": true})));
}

/// AUD-5: the socket serves the same routes, without a token; streams end when the gateway does.
#[tokio::test]
async fn the_socket_serves_the_same() {
    let place = Place::new().await;
    let record = place.gateway.record("files").unwrap();
    record.line(bridgehead_gateway::LineSource::Stderr, "one");
    let mut streams = Vec::new();
    for path in ["/api/v1/logs?server=files&follow=1&tail=1", "/api/v1/events?topic=provider.mcp.restart"] {
        let stream = UnixStream::connect(&place.socket).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let driving = AbortOnDropHandle::new(tokio::spawn(connection));
        let request = Request::get(path).header("host", "localhost").body(Full::<Bytes>::default()).unwrap();
        let response = sender.send_request(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        let mut body = response.into_body();
        let first = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert!(first.starts_with(b": connected"));
        streams.push((body, driving));
    }
    record.line(bridgehead_gateway::LineSource::Stderr, "two");
    let cause = bridgehead_audit::CorrelationId::mint();
    let name = "files".into();
    place.gateway.signals().hear(&bridgehead_gateway::events::ServerSignal::StartBegan, &name, cause);
    place.server.shutdown.cancel();
    let mut texts = Vec::new();
    for (body, _driving) in streams {
        texts.push(String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap());
    }
    place.on_socket.await.unwrap();
    let (one, two) = (texts[0].find("\"text\":\"one\""), texts[0].find("\"text\":\"two\""));
    assert!(one.is_some(), "{texts:?}");
    assert!(two.is_none_or(|two| one < Some(two)), "{texts:?}");
    assert!(!texts[1].contains("provider.mcp.init.started"), "not asked for: {texts:?}");
}
