//! The operators' API over real sockets, with a gateway whose servers cannot start.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bridgehead_call::{AuditSink, Outcome};
use bridgehead_config::{GatewaySettings, HttpSettings, Launch, ServerConfig, Who};
use bridgehead_events::Counter;
use bridgehead_front::{
    Api, Authenticating, Authenticator, LocalUser, Operators, Peer, PeerUser, Refusal, Workers,
    authenticator, bearer_token, router, serve, serve_socket,
};
use bridgehead_gateway::{Gateway, Options, Principal, PrincipalKind, Validity};
use bridgehead_testkit::Recorder;
use bytes::Bytes;
use futures_util::future::{Either, ready};
use http::{HeaderMap, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::client::Server;
use crate::fake::{code_of, modern};

/// The key of an operator who may do everything.
const TOKEN: (&str, &str) = ("authorization", "Bearer chief");

/// Knows the keys by their names, and else the local user.
struct ByName {
    revoked: CancellationToken,
    local: LocalUser,
}

impl Authenticator for ByName {
    fn meet(&self, peer: SocketAddr, ours: SocketAddr) -> PeerUser {
        self.local.meet(peer, ours)
    }

    fn authenticate<'a>(&'a self, headers: &'a HeaderMap, peer: Peer) -> Authenticating<'a> {
        let validity = Validity::new(Some(self.revoked.clone()), None);
        Either::Left(ready(match bearer_token(headers) {
            Some(b"ops") => Ok(Principal::new("key:ops", PrincipalKind::Key).valid(validity)),
            Some(b"chief") => Ok(Principal::new("key:chief", PrincipalKind::Key)),
            Some(b"seer") => Ok(Principal::new("key:seer", PrincipalKind::Key).in_groups(["see"])),
            Some(b"client") => Ok(Principal::new("key:client", PrincipalKind::Key)),
            Some(_) => Err(Refusal::new(StatusCode::UNAUTHORIZED, "no such key")
                .challenging(HeaderValue::from_static("Bearer error=\"invalid_token\""))),
            None => self.local.principal(peer),
        }))
    }

    fn asks_for_secret(&self) -> bool {
        false
    }
}

/// A front and a socket over the same gateway.
struct Place {
    server: Server,
    socket: PathBuf,
    gateway: Gateway,
    on_socket: tokio::task::JoinHandle<()>,
    recorder: Arc<Recorder>,
    /// Revokes the credential of the key `ops`.
    revoked: CancellationToken,
    operators: Operators,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn new() -> Self {
        let launch = Launch::Unusable { reason: "not for real".to_owned() };
        let servers = vec![ServerConfig::new("files".parse().unwrap(), launch, &GatewaySettings::default())];
        let recorder = Arc::new(Recorder::new());
        let audit: Arc<dyn AuditSink> = recorder.clone();
        let gateway = Gateway::new(Options { servers, audit, ..Options::default() }).unwrap();
        let revoked = CancellationToken::new();
        gateway.start();
        gateway.settled().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let all = ["ops", "chief"].map(|name| Who::Key(name.to_owned()));
        let operators = Operators::new(all.to_vec(), vec![Who::Group("see".to_owned())]);
        let api = Api::new(gateway.clone(), operators.clone(), shutdown.clone());
        let settings = HttpSettings::default();
        let by_name = ByName { revoked: revoked.clone(), local: LocalUser::new(&settings) };
        let routes =
            router(gateway.clone(), &settings, Box::new(by_name), shutdown.clone()).with_api(api.clone());
        let ending = shutdown.clone();
        let serving =
            tokio::spawn(async move { serve(listener, routes, &Workers::start(0).unwrap(), ending).await });
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("api.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let open = HttpSettings { allowed_hosts: vec!["*".to_owned()], ..HttpSettings::default() };
        let clients = router(gateway.clone(), &open, authenticator(&open, None), shutdown.clone());
        let on_socket = tokio::spawn(serve_socket(listener, api, clients, 1000, shutdown.clone()));
        let server = Server { address, shutdown, serving };
        Self { server, socket, gateway, on_socket, recorder, revoked, operators, _folder: folder }
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

/// AUD-5, ACC-7: nobody is an operator who is not listed as one, whatever the endpoint requires of clients.
#[tokio::test]
async fn only_operators_are_answered() {
    let place = Place::new().await;
    for path in ["/api/v1/status", "/api/v1/nothing"] {
        assert_eq!(place.ask("GET", path, &[], "").await.0, 403, "a client, but no operator");
        assert_eq!(place.ask("GET", path, &[bearer("Bearer client")], "").await.0, 403);
        assert_eq!(place.ask("GET", path, &[("authorization", "Bearer wrong")], "").await.0, 401);
        assert_eq!(place.ask("GET", path, &[TOKEN, ("origin", "http://evil.example")], "").await.0, 403);
    }
    let (status, told) = place.get("/api/v1/status").await;
    assert_eq!((status, &told["instance"]), (200, &json!(place.gateway.instance())));
    assert_eq!(told["upstreams"][0]["state"], "failed");
}

/// ACC-4: operators see every tool by all of its names, and whether it says that it only reads.
#[tokio::test]
async fn operators_see_all_tools() {
    let place = Place::new().await;
    let (status, told) = place.get("/api/v1/tools").await;
    assert_eq!(status, 200);
    let tools = told["tools"].as_array().unwrap();
    let ping = tools.iter().find(|tool| tool["name"] == "server_ping");
    let expected = json!({"name": "server_ping", "server": null, "ownName": "server_ping", "readOnly": true});
    assert_eq!(ping, Some(&expected), "{told}");
    assert_eq!(place.ask("POST", "/api/v1/tools", &[TOKEN], "").await.0, 405);
}

fn bearer(value: &str) -> (&str, &str) {
    ("authorization", value)
}

/// ACC-7: a listed operator may do everything, one that is listed for reading may see but not restart, and the challenge of a
/// refusal goes out here too.
#[tokio::test]
async fn operators_have_their_rights() {
    let place = Place::new().await;
    let asked = r#"{"server":"files"}"#;
    for (key, status, restart) in [
        ("Bearer ops", 200, 202),
        ("Bearer seer", 200, 403),
        ("Bearer client", 403, 403),
        ("Bearer x", 401, 401),
    ] {
        assert_eq!(place.ask("GET", "/api/v1/status", &[bearer(key)], "").await.0, status, "{key}");
        assert_eq!(place.ask("POST", "/api/v1/restart", &[bearer(key)], asked).await.0, restart, "{key}");
    }
    let request = Request::builder().uri("/api/v1/status").header("host", "localhost");
    let request = request.header("authorization", "Bearer x").body(Full::new(Bytes::new())).unwrap();
    let refused = place.server.exchange(request).await.answer().await;
    assert_eq!(refused.headers["www-authenticate"], "Bearer error=\"invalid_token\"");
}

/// ACC-7: operators that are withdrawn are refused at once, and their streams carry nothing more; those that stay are not
/// concerned.
#[tokio::test]
async fn operators_are_withdrawn_at_once() {
    let place = Place::new().await;
    let open = async |credential: (&str, &str)| {
        let request = Request::builder().uri("/api/v1/events").header("host", "localhost");
        let request = request.header(credential.0, credential.1).body(Full::new(Bytes::new())).unwrap();
        let mut stream = place.server.exchange(request).await;
        assert!(stream.next().await.unwrap().contains("connected"));
        stream
    };
    let (mut lost, mut kept) = (open(bearer("Bearer ops")).await, open(TOKEN).await);
    let mut seeing = open(bearer("Bearer seer")).await;
    place.operators.set(vec![Who::Key("chief".to_owned())], vec![Who::Group("see".to_owned())]);
    let status = async |key| place.ask("GET", "/api/v1/status", &[bearer(key)], "").await.0;
    assert_eq!((status("Bearer ops").await, status("Bearer seer").await), (403, 200));
    assert_eq!(place.get("/api/v1/status").await.0, 200);
    let (began, name) = (bridgehead_gateway::events::ServerSignal::StartBegan, "files".into());
    place.gateway.signals().hear(&began, &name, bridgehead_audit::CorrelationId::mint());
    assert_eq!(lost.next().await, None);
    assert!(kept.next().await.is_some() && seeing.next().await.is_some());
}

/// ACC-9, ACC-7: what an operator changes and each stream that one opens leave a pair in the record, with who did it and over
/// what. Looking at the status leaves none.
#[tokio::test]
async fn what_operators_do_is_recorded() {
    let place = Place::new().await;
    let ops = bearer("Bearer ops");
    assert_eq!(place.ask("GET", "/api/v1/status", &[ops], "").await.0, 200);
    assert_eq!(place.ask("GET", "/api/v1/logs?server=files", &[ops], "").await.0, 200);
    assert_eq!(
        place.ask("POST", "/api/v1/restart", &[bearer("Bearer seer")], r#"{"server":"files"}"#).await.0,
        403
    );
    assert!(place.recorder.enters().is_empty());
    assert_eq!(place.ask("POST", "/api/v1/restart", &[ops], r#"{"server":"files"}"#).await.0, 202);
    assert_eq!(place.ask("POST", "/api/v1/restart", &[ops], r#"{"server":"nobody"}"#).await.0, 404);
    for path in ["/api/v1/events?server=files", "/api/v1/logs?server=files&follow=1"] {
        let request = Request::builder().uri(path).header("host", "localhost").header(ops.0, ops.1);
        let mut stream = place.server.exchange(request.body(Full::new(Bytes::new())).unwrap()).await;
        assert!(stream.next().await.unwrap().contains("connected"));
    }
    let rows: Vec<_> = place
        .recorder
        .enters()
        .iter()
        .map(|enter| {
            let call = enter.call();
            format!("{} {} {} {}", enter.principal(), call.transport, call.method(), call.subject())
        })
        .collect();
    let expected = [
        "key:ops http operator/restart files",
        "key:ops http operator/restart nobody",
        "key:ops http operator/events files",
        "key:ops http operator/logs files",
    ];
    assert_eq!(rows, expected);
    let ends: Vec<_> =
        place.recorder.exits().iter().map(|exit| matches!(exit.outcome(), Outcome::Result { .. })).collect();
    assert_eq!(ends, [true, false, true, true]);
}

/// ACC-9: an operator's action that cannot be recorded is not done.
#[tokio::test]
async fn what_cannot_be_recorded_is_not_done() {
    let place = Place::new().await;
    place.recorder.fail_enter(true);
    let ops = bearer("Bearer ops");
    let (status, told) = place.ask("POST", "/api/v1/restart", &[ops], r#"{"server":"files"}"#).await;
    assert_eq!(status, 503);
    assert!(told["error"]["message"].as_str().unwrap().contains("AUDIT_ENTER_FAILED"), "{told}");
    for path in ["/api/v1/events", "/api/v1/logs?server=files&follow=1"] {
        assert_eq!(place.ask("GET", path, &[ops], "").await.0, 503, "{path}");
    }
    assert!(place.recorder.exits().is_empty());
    place.recorder.fail_enter(false);
    place.recorder.fail_exit(true);
    let restarted = place.ask("POST", "/api/v1/restart", &[ops], r#"{"server":"files"}"#).await;
    assert_eq!(restarted.0, 202, "a failing exit fails nothing");
}

/// ACC-2: the stream of an operator ends when the credential that opened it is revoked.
#[tokio::test]
async fn an_operators_stream_ends_with_the_credential() {
    let place = Place::new().await;
    let request = Request::builder().uri("/api/v1/events").header("host", "localhost");
    let request = request.header("authorization", "Bearer ops").body(Full::new(Bytes::new())).unwrap();
    let mut stream = place.server.exchange(request).await;
    assert!(stream.next().await.unwrap().contains("connected"));
    place.revoked.cancel();
    assert_eq!(stream.next().await, None);
}

/// GATE-6: a client or operator that is refused is counted once.
#[tokio::test]
async fn who_is_turned_away_is_counted() {
    let place = Place::new().await;
    let turned_away = || place.gateway.signals().metrics().count(Counter::SignInsRefused);
    assert_eq!(place.ask("GET", "/api/v1/status", &[], "").await.0, 403);
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
        "the routes are /api/v1/{status,configuration,rules,tools,events,logs,restart}",
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

/// Asks to join with this body, and sends more at once; returns the status line, and the connection after the head.
async fn ask_to_join(place: &Place, head: &str, body: &str, more: &str) -> (String, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(&place.socket).await.unwrap();
    let length = body.len();
    let request = format!("{head}\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}{more}");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut stream = BufReader::new(stream);
    let mut status = String::new();
    stream.read_line(&mut status).await.unwrap();
    let mut line = String::new();
    while stream.read_line(&mut line).await.unwrap() > 2 {
        line.clear();
    }
    (status.trim_end().to_owned(), stream)
}

const JOIN: &str = "POST /api/v1/join HTTP/1.1\r\nconnection: upgrade\r\nupgrade: bridgehead-lines";

/// JOIN-4: on the control socket, and only there, a client with the same identity joins and is served over lines of its own session,
/// also those that came together with the request. A client that differs is told what, without values.
#[tokio::test]
async fn clients_join_on_the_socket() {
    let place = Place::new().await;
    let identity = json!({"version": "1", "variables": {"PATH": "d1"}});
    let (status, _) = ask_to_join(&place, JOIN, &identity.to_string(), "").await;
    assert_eq!(status, "HTTP/1.1 409 Conflict", "this gateway may not be joined");
    place.gateway.set_identity(Some(identity.clone()));
    for wrong in [
        "POST /api/v1/join HTTP/1.1",
        &JOIN.replace("POST", "GET"),
        &JOIN.replace("bridgehead-lines", "websocket"),
    ] {
        let (status, _) = ask_to_join(&place, wrong, &identity.to_string(), "").await;
        assert_eq!(status, "HTTP/1.1 426 Upgrade Required", "{wrong}");
    }
    let other = json!({"version": "1", "variables": {"PATH": "d2", "LANG": "d3"}});
    let (status, mut refused) = ask_to_join(&place, JOIN, &other.to_string(), "").await;
    assert_eq!(status, "HTTP/1.1 409 Conflict");
    let mut said = vec![0; 1000];
    let length = refused.read(&mut said).await.unwrap();
    let said: Value = serde_json::from_slice(&said[..length]).unwrap();
    assert_eq!(said["error"]["differs"], json!(["variables.LANG", "variables.PATH"]), "{said}");
    let (status, _) = ask_to_join(&place, JOIN, "not JSON", "").await;
    assert_eq!(status, "HTTP/1.1 409 Conflict");
    let headers = [TOKEN, ("upgrade", "bridgehead-lines"), ("connection", "upgrade")];
    let (status, _) = place.ask("POST", "/api/v1/join", &headers, &identity.to_string()).await;
    assert_eq!(status, 404, "not over HTTP");
    assert_eq!(place.gateway.joined_count(), 0);

    let initialize = |name: &str| {
        let params =
            json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": name}});
        format!("{}\n", json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}))
    };
    let (status, mut early) = ask_to_join(&place, JOIN, &identity.to_string(), &initialize("early")).await;
    assert_eq!(status, "HTTP/1.1 101 Switching Protocols");
    let (_, mut late) = ask_to_join(&place, JOIN, &identity.to_string(), "").await;
    late.write_all(initialize("late").as_bytes()).await.unwrap();
    for client in [&mut early, &mut late] {
        let mut line = String::new();
        client.read_line(&mut line).await.unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["result"]["protocolVersion"], "2025-11-25", "{answer}");
    }
    let mut names: Vec<_> =
        place.gateway.status().clients.into_iter().filter_map(|client| client.name).collect();
    names.sort();
    assert_eq!(names, ["early", "late"]);
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"{}\"}}\n", "x".repeat(1000));
    late.write_all(long.as_bytes()).await.unwrap();
    let mut line = String::new();
    late.read_line(&mut line).await.unwrap();
    assert!(line.contains("more than the 1000 that are accepted"), "{line}");
    drop(early);
    bridgehead_testkit::until("the end of the others", || place.gateway.joined_count() <= 1).await;
    // An operator still gets an answer, and a gateway that stops says so.
    let (status, _) = ask_to_join(&place, "GET /api/v1/status HTTP/1.1", "", "").await;
    assert_eq!(status, "HTTP/1.1 200 OK");
    place.server.shutdown.cancel();
    line.clear();
    late.read_to_string(&mut line).await.unwrap();
    assert_eq!(line, "#stopped\n");
    place.on_socket.await.unwrap();
    assert_eq!(place.gateway.joined_count(), 0);
}
