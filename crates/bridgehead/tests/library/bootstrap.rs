//! The library's server from the outside: building, starting, stopping, over a transport in this process.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bridgehead::config::{HttpSettings, Launch, Secret, ServerConfig, Stdio};
use bridgehead::{
    Clock, Ending, GatewaySettings, LineSink, Mode, NativeTool, Need, RegisterError, Registry, RunError,
    Server, StartError, Transport,
};
use bridgehead_testkit::{Behaviour, FakeClock, LeakCheck, Mock, Recorder};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::Dispatch;

use crate::common::MemoryClient;

const OBJECT: &str = r#"{"type": "object"}"#;

fn tool(name: &str) -> NativeTool {
    NativeTool::new(name, "", serde_json::from_str(OBJECT).unwrap(), |_, _| async { Ok(json!(null)) })
}

fn memory() -> (MemoryClient, Transport) {
    let (client, theirs) = tokio::io::duplex(64 * 1024);
    (MemoryClient::new(client), Transport::Memory(theirs))
}

/// A free port. Another process could take it, but hardly within this test.
fn free_port() -> HttpSettings {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    HttpSettings { listen: listener.local_addr().unwrap(), ..HttpSettings::default() }
}

/// The debug output for a bug report shows only the kind of each part, and no setting that may be a secret.
#[test]
fn servers_and_transports_show_their_kind_only() {
    let server = Server::builder().build().unwrap();
    let shown = format!("{server:?}");
    assert!(shown.starts_with("Server { version: ") && shown.ends_with("connected: false, .. }"), "{shown}");
    let (_client, memory) = memory();
    let deferred = Transport::Deferred(Box::pin(std::future::pending()));
    let kinds = [Transport::Stdio, Transport::http(free_port()), memory, deferred];
    assert_eq!(format!("{kinds:?}"), "[Stdio, Http, Memory, Deferred]");
}

/// SRV-1: everything has a default, and building neither needs a runtime nor takes the port.
#[test]
fn building_has_no_side_effect() {
    let plain = Server::builder().build().unwrap();
    assert_eq!(plain.version(), env!("CARGO_PKG_VERSION"));
    assert_eq!((plain.mode(), plain.is_connected()), (Mode::Full, false));

    let registry = Registry::new();
    let settings = free_port();
    let upstream = ServerConfig::new(
        "never".parse().unwrap(),
        Launch::Stdio(Stdio::new("/no/such/program", [""; 0])),
        &GatewaySettings::default(),
    );
    let server = Server::builder()
        .transport(Transport::http(settings.clone()))
        .upstream(upstream)
        .version("9.9.9")
        .mode(Mode::Readonly)
        .clock(Arc::new(FakeClock::new()))
        .boot(Duration::ZERO)
        .audit(Arc::new(Recorder::new()))
        .registry(registry.clone())
        .logger(Dispatch::none())
        .startup_timeout(Duration::from_secs(1))
        .process_handlers(false)
        .build()
        .unwrap();
    assert_eq!((server.version(), server.mode(), server.is_connected()), ("9.9.9", Mode::Readonly, false));
    assert!(server.gateway().upstreams().is_empty() && registry.is_empty(), "no server is started");
    drop(std::net::TcpListener::bind(settings.listen).expect("the port is still free"));
}

/// Collects log lines.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn logger(&self) -> Dispatch {
        // If a process has only one dispatcher, `tracing` asks the thread that first reaches a log line whether it is
        // wanted, and caches a "no" for every thread. Parallel tests need it to ask all dispatchers, so there is a second.
        static SECOND: LazyLock<Dispatch> =
            LazyLock::new(|| Dispatch::new(tracing_subscriber::fmt().with_writer(io::sink).finish()));
        LazyLock::force(&SECOND);
        let lines = self.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || lines.clone())
            .with_ansi(false)
            .with_target(false)
            .without_time();
        Dispatch::new(subscriber.finish())
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

/// SRV-2: start logs one line with mode and version, then `ready`; stop logs its end. SRV-3: stop closes the transport and
/// returns once it is closed.
#[tokio::test]
async fn a_life_in_lines() {
    let lines = Lines::default();
    let (mut client, transport) = memory();
    let options = Server::builder().version("1.2.3").mode(Mode::Test).logger(lines.logger());
    let server = options.transport(transport).build().unwrap();
    assert_eq!(lines.text(), "");

    let running = server.start().await.unwrap();
    assert!(server.is_connected());
    assert_eq!(lines.text(), " INFO starting mode=test version=\"1.2.3\"\n INFO ready\n");
    assert!(client.call("server_ping").await["isError"] != json!(true));

    running.stop().await;
    assert!(!server.is_connected());
    assert_eq!(client.recv().await, None);
    assert!(lines.text().ends_with(" INFO stopped\n"), "{}", lines.text());
    assert!(matches!(server.start().await, Err(StartError::AlreadyStarted)));
}

/// SRV-2: the transport is connected within the startup timeout, 30 000 ms by default, or not at all.
#[tokio::test(start_paused = true)]
async fn a_start_that_takes_too_long() {
    #[track_caller]
    fn check(error: &StartError, expected: Duration, since: tokio::time::Instant) {
        assert!(matches!(error, StartError::Timeout(limit) if *limit == expected), "{error}");
        assert_eq!(since.elapsed(), expected);
    }
    let never = || Transport::deferred(std::future::pending::<io::Result<tokio::io::DuplexStream>>());
    let since = tokio::time::Instant::now();
    let server = Server::builder().transport(never()).process_handlers(false).build().unwrap();
    check(&server.start().await.unwrap_err(), Duration::from_millis(30_000), since);
    assert!(!server.is_connected());

    let since = tokio::time::Instant::now();
    let options = Server::builder().transport(never()).startup_timeout(Duration::from_millis(5));
    let error = options.process_handlers(false).build().unwrap().start().await.unwrap_err();
    check(&error, Duration::from_millis(5), since);
    for words in
        ["within 5 ms", "BRIDGEHEAD_STARTUP_TIMEOUT_MS", "explain the-gateway-itself-does-not-start-in-time"]
    {
        assert!(error.to_string().contains(words), "{error}");
    }

    let broken = Transport::deferred(async { Err::<tokio::io::DuplexStream, _>(io::Error::other("no")) });
    let server = Server::builder().transport(broken).process_handlers(false).build().unwrap();
    assert!(matches!(server.start().await, Err(StartError::Connect(_))));
}

/// BOUND-3: a line may be as long as `max_message_mb`; the error for a longer line names that limit.
#[tokio::test]
async fn a_line_may_have_what_the_settings_say() {
    let settings = GatewaySettings { max_message_bytes: 2_000, ..GatewaySettings::default() };
    let (mut client, transport) = memory();
    let server = Server::builder().settings(settings).transport(transport).process_handlers(false);
    let running = server.build().unwrap().start().await.unwrap();
    let answer = client.request("tools/list", json!({"x": "y".repeat(2_000)})).await;
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("more than the 2000 that"), "{answer}");
    assert_eq!(client.call("server_ping").await["structuredContent"]["ok"], true);
    running.stop().await;
}

/// SRV-2: the end of the only client is a clean stop of all transports.
#[tokio::test]
async fn the_clients_end_is_the_servers() {
    let (client, transport) = memory();
    let options = Server::builder().transport(transport).transport(Transport::http(free_port()));
    let server = options.build().unwrap();
    let running = server.start().await.unwrap();
    let address = running.addresses()[0];
    drop(client);
    assert_eq!(running.wait().await.unwrap(), Ending::ClientGone);
    assert!(!server.is_connected());
    assert!(tokio::net::TcpStream::connect(address).await.is_err());
}

/// SRV-2: requests in progress are drained for ten seconds at most, then cut off.
#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_so_long() {
    let recorder = Recorder::new();
    let (mut client, transport) = memory();
    let endless = NativeTool::new("endless", "", json!({"type": "object"}), |_, _| std::future::pending());
    let options = Server::builder().register(endless).audit(Arc::new(recorder.clone()));
    let server = options.transport(transport).process_handlers(false).build().unwrap();
    let running = server.start().await.unwrap();
    client.send("tools/call", json!({"name": "endless", "arguments": {}})).await;
    while recorder.enters().is_empty() {
        tokio::task::yield_now().await;
    }
    let since = tokio::time::Instant::now();
    running.stop().await;
    assert_eq!(since.elapsed(), Duration::from_secs(10));
    assert_eq!(client.recv().await, None);
    recorder.assert_paired();
}

/// A connection whose reader panics.
struct PanickingClock;

impl AsyncRead for PanickingClock {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        panic!("a panic outside of any handler");
    }
}

impl AsyncWrite for PanickingClock {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// SRV-2: a panic outside a handler is logged with its location and ends the server with an error.
#[tokio::test]
async fn a_panic_of_the_front_ends_the_server() {
    let lines = Lines::default();
    let transport = Transport::deferred(async { Ok(PanickingClock) });
    let server = Server::builder().transport(transport).logger(lines.logger()).build().unwrap();
    let running = server.start().await.unwrap();
    assert!(matches!(running.wait().await, Err(RunError::Panicked)));
    let logged = lines.text();
    assert!(logged.contains("ERROR panic: a panic outside of any handler"), "{logged}");
    assert!(logged.contains("bootstrap.rs:"), "{logged}");
    assert!(logged.contains("ERROR stopping error=the gateway panicked; its log says where"), "{logged}");
}

/// A connection that delivers a request, and whose writer panics.
struct CursedWriter(&'static [u8]);

impl AsyncRead for CursedWriter {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            // Nothing wakes this reader; only the end of the writer ends the connection.
            return Poll::Pending;
        }
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for CursedWriter {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        panic!("a panic outside of any handler");
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// SRV-2: a panic in a task of the front is logged. It ends the server with an error only if process-wide handling is
/// installed; otherwise it ends only that client.
#[tokio::test]
async fn a_panic_of_a_fronts_task_ends_only_whoever_asked_for_it() {
    for handlers in [false, true] {
        let lines = Lines::default();
        let transport = Transport::deferred(async { Ok(CursedWriter(b"{}\n")) });
        let server = Server::builder().transport(transport).process_handlers(handlers);
        let server = server.logger(lines.logger()).build().unwrap();
        let ended = server.start().await.unwrap().wait().await;
        assert_eq!(matches!(ended, Err(RunError::Panicked)), handlers, "{ended:?}");
        assert_eq!(matches!(ended, Ok(Ending::ClientGone)), !handlers, "{ended:?}");
        let logged = lines.text();
        let told = r#"ERROR serving a client panicked panic="a panic outside of any handler""#;
        assert!(logged.contains(told), "{logged}");
    }
}

/// A clock that panics once, when its flag is set.
struct CursedClock(FakeClock, Arc<AtomicBool>);

impl Clock for CursedClock {
    fn wall(&self) -> jiff::Timestamp {
        assert!(!self.1.swap(false, Ordering::SeqCst), "a panic on the way of a call");
        self.0.wall()
    }

    fn monotonic(&self) -> Duration {
        self.0.monotonic()
    }
}

/// SRV-2: a panic while a request is handled answers that request with an error. It ends the server with an error (exit
/// code 1 of the program) only if process-wide handling is installed.
#[tokio::test]
async fn a_panic_answers_its_request_and_ends_only_whoever_asked_for_it() {
    for handlers in [false, true] {
        let curse = Arc::new(AtomicBool::new(false));
        let clock = Arc::new(CursedClock(FakeClock::new(), Arc::clone(&curse)));
        let (mut client, transport) = memory();
        let server = Server::builder().clock(clock).transport(transport).process_handlers(handlers);
        let server = server.build().unwrap();
        let running = tokio::spawn(server.start().await.unwrap().wait());
        curse.store(true, Ordering::SeqCst);
        let params = json!({"name": "server_ping", "arguments": {}});
        let answer = client.request("tools/call", params.clone()).await;
        assert_eq!(
            (&answer["error"]["code"], &answer["error"]["data"]["code"]),
            (&json!(-32603), &json!("HANDLER_ERROR"))
        );
        if handlers {
            assert!(matches!(running.await.unwrap(), Err(RunError::Panicked)));
        } else {
            let answer = client.request("tools/call", params).await;
            assert_eq!(answer["result"]["structuredContent"]["ok"], true, "{answer}");
            drop(client);
            assert!(matches!(running.await.unwrap(), Ok(Ending::ClientGone)));
        }
    }
}

/// SRV-3: protocol requests are answered immediately while a server still starts. The first list waits for it only for
/// `list_wait`, and its TTL is 0, so that clients ask again soon.
#[tokio::test]
async fn answers_come_while_servers_warm_up() {
    let settings = GatewaySettings { list_wait: Duration::from_millis(50), ..GatewaySettings::default() };
    let silent = Launch::Stdio(Stdio::new("sleep", ["60"]));
    let upstream = ServerConfig::new("silent".parse().unwrap(), silent, &settings);
    let (mut client, transport) = memory();
    let path = std::env::var("PATH").unwrap_or_default();
    let server = Server::builder()
        .settings(settings)
        .upstream(upstream)
        .environment([("PATH".to_owned(), path)].into())
        .transport(transport)
        .build()
        .unwrap();
    let running = server.start().await.unwrap();
    let discovered = client.request("server/discover", json!({})).await;
    assert_eq!(discovered["result"]["supportedVersions"], json!(["2026-07-28"]));
    let listed = client.request("tools/list", json!({})).await;
    let names: Vec<_> =
        listed["result"]["tools"].as_array().unwrap().iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["server_ping", "server_health"]);
    assert_eq!(listed["result"]["ttlMs"], 0);
    running.stop().await;
}

/// SRV-5: a tool that the mode does not admit is refused when the server is built. SRV-8: so are an invalid name, a schema
/// that is not an object's, and a duplicate, each with its own message.
#[test]
fn what_cannot_be_registered_cannot_be_built() {
    #[track_caller]
    fn check(mode: Mode, tools: Vec<NativeTool>, expected: &str) {
        let options = tools.into_iter().fold(Server::builder().mode(mode), |all, tool| all.register(tool));
        assert_eq!(options.build().unwrap_err().to_string(), expected);
    }
    check(
        Mode::Readonly,
        vec![tool("write").needs(Need::Write)],
        "tool `write` needs to change something, which mode `readonly` does not admit",
    );
    check(Mode::Full, vec![tool("a"), tool("a")], "a tool named `a` is registered already");
    check(Mode::Full, vec![tool("server_ping")], "a tool named `server_ping` is registered already");
    let bad_name = Server::builder().register(tool("No")).build().unwrap_err();
    assert_eq!(bad_name, RegisterError::BadName("No".to_owned()));
    let text = NativeTool::new("a", "", json!({"type": "string"}), |_, _| async { Ok(json!(null)) });
    let bad_schema = Server::builder().register(text).build().unwrap_err();
    assert!(matches!(bad_schema, RegisterError::BadSchema { .. }));
}

/// SRV-7, ENV-1: `server_ping` answers with version, mode and uptime by the monotonic clock, in the envelope: as structured
/// content, and as the same JSON in text.
#[tokio::test]
async fn ping_tells_the_time_since_boot() {
    let clock = FakeClock::new();
    let recorder = Recorder::new();
    let (mut client, transport) = memory();
    clock.advance(Duration::from_secs(2));
    let server = Server::builder()
        .clock(Arc::new(clock.clone()))
        .boot(Duration::from_secs(1))
        .version("1.2.3")
        .mode(Mode::Readonly)
        .audit(Arc::new(recorder.clone()))
        .transport(transport)
        .build()
        .unwrap();
    let running = server.start().await.unwrap();
    clock.advance(Duration::from_millis(500));
    clock.set_wall("1999-01-01T00:00:00Z".parse().unwrap());
    let result = client.call("server_ping").await;
    let expected = json!({"ok": true, "data": {"version": "1.2.3", "mode": "readonly", "uptime_ms": 1500}});
    assert_eq!(result["structuredContent"], expected);
    let text = result["content"][0]["text"].as_str().unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(text).unwrap(), expected);
    running.stop().await;
    recorder.assert_paired();
}

/// PIPE-5: a handler's panic is `HANDLER_ERROR`; its backtrace is shown in mode `test` alone.
#[tokio::test]
async fn a_backtrace_in_mode_test_only() {
    for (mode, shown) in [(Mode::Full, false), (Mode::Test, true)] {
        let (mut client, transport) = memory();
        let cursed = NativeTool::new("cursed", "", json!({"type": "object"}), |_, _| async {
            panic!("inside of a handler")
        });
        let server = Server::builder().mode(mode).register(cursed).transport(transport).build().unwrap();
        let running = server.start().await.unwrap();
        let result = client.call("cursed").await;
        assert_eq!(result["isError"], true);
        let error = &result["structuredContent"]["error"];
        assert_eq!(error["code"], "HANDLER_ERROR");
        let backtrace = error["details"]["backtrace"].as_str();
        assert_eq!(backtrace.is_some_and(|trace| trace.contains("bootstrap")), shown, "{error}");
        // The server still works.
        assert_eq!(client.call("server_ping").await["structuredContent"]["ok"], true);
        running.stop().await;
    }
}

/// PIPE-6, SRV-1: an exit that fails is logged to the embedder's logger, as an error that names the call.
#[tokio::test]
async fn a_failing_exit_reaches_the_logger() {
    let (lines, recorder) = (Lines::default(), Recorder::new());
    recorder.fail_exit(true);
    let (mut client, transport) = memory();
    let options = Server::builder().process_handlers(false).logger(lines.logger());
    let server = options.audit(Arc::new(recorder)).transport(transport).build().unwrap();
    let running = server.start().await.unwrap();
    assert_eq!(client.call("server_ping").await["structuredContent"]["ok"], true);
    let logged = lines.text();
    let line = logged.lines().find(|line| line.contains("the end of a call could not be recorded"));
    let line = line.unwrap_or_else(|| panic!("{logged}"));
    assert!(
        line.contains("ERROR") && line.contains("subject=\"server_ping\"") && line.contains("correlationId="),
        "{line}"
    );
    running.stop().await;
}

/// SRV-8: a tool may have a title, and may be registered on a built or a running server. A refused registration changes
/// nothing.
#[tokio::test]
async fn tools_are_registered_on_a_built_server() {
    let (mut client, transport) = memory();
    let server = Server::builder().process_handlers(false).mode(Mode::Readonly).transport(transport);
    let server = server.register(tool("early").title("The first")).build().unwrap();
    server.register(tool("built")).unwrap();
    let running = server.start().await.unwrap();
    let mut changes = server.gateway().catalog_changes();
    server.register(tool("late").title("The last")).unwrap();
    assert!(changes.has_changed().unwrap());
    changes.mark_unchanged();
    assert_eq!(server.register(tool("late")), Err(RegisterError::Duplicate("late".to_owned())));
    assert_eq!(server.register(tool("server_ping")), Err(RegisterError::Duplicate("server_ping".to_owned())));
    assert_eq!(server.register(tool("Bad")), Err(RegisterError::BadName("Bad".to_owned())));
    let writing = server.register(tool("writing").needs(Need::Write));
    assert!(matches!(writing, Err(RegisterError::NotAdmitted { .. })), "{writing:?}");
    assert!(!changes.has_changed().unwrap());
    let listed = client.request("tools/list", json!({})).await;
    let listed = listed["result"]["tools"].as_array().unwrap().iter();
    let listed: Vec<_> = listed.map(|tool| (tool["name"].clone(), tool.get("title").cloned())).collect();
    let expected = [
        ("server_ping", None),
        ("server_health", None),
        ("early", Some("The first")),
        ("built", None),
        ("late", Some("The last")),
    ];
    assert_eq!(listed, expected.map(|(name, title)| (json!(name), title.map(|title| json!(title)))));
    assert_eq!(client.call("late").await["structuredContent"]["ok"], true);
    running.stop().await;
}

/// POOL-9: an embedding program gets the log lines about its servers through a callback.
#[tokio::test]
async fn lines_of_servers_go_to_the_embedder() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sink = {
        let seen = Arc::clone(&seen);
        LineSink::new(move |line| seen.lock().unwrap().push(format!("{} {}", line.server, line.text)))
    };
    let launch = Launch::Stdio(Stdio::new("no-such-program-anywhere", [""; 0]));
    let upstream = ServerConfig::new("gone".parse().unwrap(), launch, &GatewaySettings::default());
    let (_client, transport) = memory();
    let options = Server::builder().process_handlers(false).log_lines(sink).upstream(upstream);
    let server = options.transport(transport).build().unwrap();
    let running = server.start().await.unwrap();
    server.gateway().settled().await;
    running.stop().await;
    let seen = seen.lock().unwrap().join("\n");
    assert!(seen.contains("gone ") && seen.contains("no-such-program-anywhere"), "{seen}");
}

/// LIB-1: a running server that is dropped, also within a cancelled wait, leaves no upstream behind.
#[tokio::test]
async fn a_dropped_server_leaves_nothing() {
    for waits in [false, true] {
        let leaks = LeakCheck::start().required();
        let mock = Mock::legacy().tool("a", Behaviour::Echo);
        let (program, args) = mock.command();
        let mut stdio = Stdio::new(program.to_str().unwrap(), args);
        for (name, value) in mock.env().into_iter().chain([leaks.marker()]) {
            stdio.env.insert(name, Secret::new(value));
        }
        let upstream =
            ServerConfig::new("a".parse().unwrap(), Launch::Stdio(stdio), &GatewaySettings::default());
        let (_client, transport) = memory();
        let options = Server::builder().process_handlers(false).registry(Registry::new()).upstream(upstream);
        let server = options.transport(transport).build().unwrap();
        let running = server.start().await.unwrap();
        server.gateway().settled().await;
        if waits {
            let waited = tokio::time::timeout(Duration::from_millis(1), running.wait()).await;
            assert!(waited.is_err(), "nothing ends it");
        } else {
            drop(running);
        }
        assert!(!server.is_connected());
        leaks.assert_clean().await;
    }
}

/// LIB-1: a configuration adds its servers to those that were given before, and no two may have the same name.
#[tokio::test]
async fn servers_are_added_and_have_names_of_their_own() {
    let other = || ServerConfig::program("other", "no-such-program", [""; 0]).unwrap();
    let mut config = bridgehead::Config::demo();
    config.servers.push(ServerConfig::program("mine", "no-such-program", [""; 0]).unwrap());
    let options = || Server::builder().process_handlers(false).upstream(other()).configured(&config);
    let (_client, transport) = memory();
    let server = options().transport(transport).build().unwrap();
    let running = server.start().await.unwrap();
    let names: Vec<String> =
        server.gateway().status().upstreams.into_iter().map(|server| server.name).collect();
    assert_eq!(names, ["other", "mine"]);
    running.stop().await;
    let (_client, transport) = memory();
    let twice = options().upstream(other()).transport(transport).build().unwrap();
    let refused = twice.start().await.unwrap_err();
    assert!(refused.to_string().contains("two servers named `other`"), "{refused}");
}
