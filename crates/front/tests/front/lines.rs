//! The line-based front from outside: what goes in, what comes out. The clock is paused: a wait in vain fails at once.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::fake::{Fake, code_of, id_of, initialize, legacy, modern, told};
use bridgehead_front::{DRAIN_AFTER_END, LineOptions, serve_lines};
use bridgehead_gateway::{ClientTransport, Lists, Principal};
use serde_json::Value;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadBuf,
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

const LIMIT: usize = 1024 * 1024;

pub(crate) struct Client {
    write: Option<DuplexStream>,
    read: Lines<BufReader<DuplexStream>>,
    shutdown: CancellationToken,
    server: JoinHandle<io::Result<()>>,
}

impl Client {
    pub(crate) fn start(fake: &Fake) -> Self {
        let (write, server_read) = tokio::io::duplex(64 * 1024);
        let (server_write, read) = tokio::io::duplex(64 * 1024);
        let shutdown = CancellationToken::new();
        let options = LineOptions {
            principal: Principal::local(),
            transport: ClientTransport::Memory,
            max_message_bytes: LIMIT,
        };
        let server =
            tokio::spawn(serve_lines(server_read, server_write, fake.clone(), options, shutdown.clone()));
        Self { write: Some(write), read: BufReader::new(read).lines(), shutdown, server }
    }

    pub(crate) async fn legacy(fake: &Fake, revision: &str) -> Self {
        let mut client = Self::start(fake);
        client.send(&initialize("\"i\"", revision)).await;
        let answer = client.next().await;
        assert_eq!(answer["result"]["protocolVersion"], revision);
        client.send(&told("notifications/initialized", "")).await;
        client
    }

    pub(crate) async fn send(&mut self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes()).await;
    }

    async fn send_bytes(&mut self, bytes: &[u8]) {
        self.write.as_mut().unwrap().write_all(bytes).await.unwrap();
    }

    async fn line(&mut self) -> Option<String> {
        let line = tokio::time::timeout(Duration::from_secs(60), self.read.next_line()).await;
        line.expect("a line in time").unwrap()
    }

    pub(crate) async fn next(&mut self) -> Value {
        serde_json::from_str(&self.line().await.expect("a line")).expect("a message")
    }

    /// The connection still works, and nothing else was waiting to be read.
    pub(crate) async fn check_usable(&mut self) {
        self.send(&legacy("\"probe\"", "ping", "")).await;
        assert_eq!(self.line().await.unwrap(), r#"{"jsonrpc":"2.0","id":"probe","result":{}}"#);
    }

    pub(crate) async fn end(mut self) -> io::Result<()> {
        drop(self.write.take());
        bridgehead_testkit::soon("the end of the connection", self.server).await.unwrap()
    }
}

/// SRV-4: every line that is written is a protocol message, whatever came in; the connection goes on.
#[tokio::test(start_paused = true)]
async fn bad_lines_get_the_exact_error() {
    let fake = Fake::new();
    let mut client = Client::legacy(&fake, "2025-06-18").await;
    let deep = legacy("9", "tools/list", &format!("\"a\":{}{}", "[".repeat(20_000), "]".repeat(20_000)));
    let long = legacy("17", "tools/call", &format!("\"a\":\"{}\"", "x".repeat(LIMIT)));
    let envelope_version = |version: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{{"_meta":{{"io.modelcontextprotocol/protocolVersion":{version},"io.modelcontextprotocol/clientCapabilities":{{}}}}}}}}"#
        )
    };
    let cases: Vec<(Vec<u8>, i64, Option<&str>)> = vec![
        (b"{\"jsonrpc\":".to_vec(), -32700, None),
        (b"hello".to_vec(), -32700, None),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}".to_vec(), -32700, None),
        (br#"{"jsonrpc":"1.0","id":3,"method":"ping"}"#.to_vec(), -32600, Some("3")),
        (br#"{"id":"a","method":"ping"}"#.to_vec(), -32600, Some("\"a\"")),
        (br#"{"jsonrpc":"2.0","id":4}"#.to_vec(), -32600, Some("4")),
        (br#"{"jsonrpc":"2.0","id":null,"method":"ping"}"#.to_vec(), -32600, None),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#.to_vec(), -32600, None),
        (br#"[{"jsonrpc":"2.0","id":1,"method":"ping"}]"#.to_vec(), -32600, None),
        (b"[]".to_vec(), -32600, None),
        (deep.into_bytes(), -32600, None),
        (long.into_bytes(), -32600, Some("17")),
        (br#"{"jsonrpc":"2.0","id":5,"method":"tools/list","params":[1]}"#.to_vec(), -32602, Some("5")),
        (legacy("6", "no/such", "").into_bytes(), -32601, Some("6")),
        (legacy("7", "server/discover", "").into_bytes(), -32601, Some("7")),
        (legacy("8", "tools/call", "\"name\":\"nope\"").into_bytes(), -32602, Some("8")),
        (legacy("8", "initialize", "").into_bytes(), -32602, Some("8")),
        (modern("1", "initialize", "").into_bytes(), -32601, Some("1")),
        (modern("1", "ping", "").into_bytes(), -32601, Some("1")),
        (modern("1", "logging/setLevel", "").into_bytes(), -32601, Some("1")),
        (envelope_version("\"2025-11-25\"").into_bytes(), -32022, Some("8")),
        (envelope_version("7").into_bytes(), -32602, Some("8")),
        (
            br#"{"jsonrpc":"2.0","id":8,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}}"#.to_vec(),
            -32602,
            Some("8"),
        ),
    ];
    for (line, code, id) in cases {
        let shown = String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned();
        client.send_bytes(&line).await;
        client.send_bytes(b"\n").await;
        let answer = client.line().await.unwrap();
        let value: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(code_of(&value), code, "{shown}: {answer}");
        assert_eq!(id_of(&answer).as_deref(), id, "{shown}: {answer}");
        client.check_usable().await;
    }
    client.end().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hundred_megabyte_line_is_refused_and_forgotten() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    let chunk = vec![b'x'; 1024 * 1024];
    client.send_bytes(br#"{"jsonrpc":"2.0","id":"big","method":"tools/call","params":{"a":""#).await;
    for _ in 0..100 {
        client.send_bytes(&chunk).await;
    }
    client.send_bytes(b"\"}}\n").await;
    let answer = client.next().await;
    assert_eq!((code_of(&answer), &answer["id"]), (-32600, &Value::from("big")));
    client.check_usable().await;
}

#[tokio::test(start_paused = true)]
async fn both_eras_share_a_connection() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&legacy("1", "tools/list", "")).await;
    let refused = client.next().await;
    assert_eq!(code_of(&refused), -32600);
    assert!(refused["error"]["message"].as_str().unwrap().contains("initialize"), "{refused}");
    client.send(&legacy("1", "ping", "")).await;
    assert_eq!(code_of(&client.next().await), 0, "ping needs no handshake");
    client.send(&modern("\"a\\u0062\"", "tools/list", "")).await;
    assert_eq!(client.line().await.unwrap(), r#"{"jsonrpc":"2.0","id":"a\u0062","result":{"tools":[]}}"#);
    client.send(&modern("2", "server/discover", "")).await;
    assert_eq!(code_of(&client.next().await), 0);
    client.send(&initialize("3", "2024-11-05")).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2024-11-05");
    client.send(&legacy("4", "tools/list", "")).await;
    assert_eq!(code_of(&client.next().await), 0);
    client.send(&initialize("5", "1999-01-01")).await;
    assert_eq!(client.next().await["result"]["protocolVersion"], "2025-11-25");
    client.send(&legacy("6", "tools/list", "")).await;
    assert_eq!(code_of(&client.next().await), 0);
    client.send(&modern("7", "tools/list", "")).await;
    assert_eq!(code_of(&client.next().await), 0);
    let callers = fake.callers.lock().unwrap().clone();
    let revisions = ["2026-07-28", "2026-07-28", "2024-11-05", "2025-11-25", "2026-07-28"];
    assert_eq!(callers, revisions.map(|revision| format!("{} {revision}", Principal::local())));
    let sessions = fake.sessions.lock().unwrap().clone();
    assert!(sessions.iter().all(|session| *session == sessions[0]), "POOL-1: a connection is one session");
    let other = Fake::new();
    let mut client = Client::start(&other);
    client.send(&modern("1", "tools/list", "")).await;
    client.next().await;
    assert_ne!(other.sessions.lock().unwrap()[0], sessions[0]);
}

#[tokio::test(start_paused = true)]
async fn progress_comes_before_the_answer() {
    let fake = Fake::new();
    let mut client = Client::legacy(&fake, "2025-11-25").await;
    for tool in ["steps", "burst"] {
        let params = format!(r#""name":"{tool}","_meta":{{"progressToken":"p"}}"#);
        client.send(&legacy("1", "tools/call", &params)).await;
        for step in 1..=5 {
            let note = client.next().await;
            assert_eq!(note["params"]["progress"], step);
            assert_eq!(note["params"]["progressToken"], "p");
        }
        assert_eq!(client.next().await["result"][tool], 5);
    }
    client.check_usable().await;
}

#[tokio::test(start_paused = true)]
async fn cancelled_requests_stop_and_are_not_answered() {
    let fake = Fake::new();
    let mut client = Client::legacy(&fake, "2025-11-25").await;
    client.send(&legacy("1", "tools/call", r#""name":"hang""#)).await;
    client.send(&modern("2", "tools/call", r#""name":"hang""#)).await;
    fake.until(|fake| &fake.begun, 2).await;
    client.send(&told("notifications/cancelled", r#""requestId":"1""#)).await;
    client.send(&told("notifications/cancelled", r#""requestId":99"#)).await;
    client.send(&told("notifications/cancelled", "")).await;
    client.check_usable().await;
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 0, "no such request");
    client.send(&told("notifications/cancelled", r#""requestId":1"#)).await;
    client.send(&told("notifications/cancelled", r#""requestId":2"#)).await;
    fake.until(|fake| &fake.cancelled, 2).await;
    // The ids are free again, and the only answers are those of the new requests.
    client.send(&legacy("1", "tools/call", r#""name":"echo","arguments":{"n":1}"#)).await;
    assert_eq!(client.next().await["result"]["n"], 1);
    client.check_usable().await;
}

#[tokio::test(start_paused = true)]
async fn an_id_in_flight_is_refused_and_the_first_goes_on() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"gate""#)).await;
    fake.until(|fake| &fake.begun, 1).await;
    client.send(&modern("1", "tools/call", r#""name":"echo""#)).await;
    let answer = client.next().await;
    assert_eq!((code_of(&answer), &answer["id"]), (-32600, &Value::from(1)));
    fake.gate.notify_one();
    assert_eq!(client.next().await["result"]["gate"], "open");
    client.send(&modern("1", "tools/list", "")).await;
    assert_eq!(code_of(&client.next().await), 0, "the id is free after its answer");
}

#[tokio::test(start_paused = true)]
async fn batches_where_the_revision_has_them() {
    let fake = Fake::new();
    let mut client = Client::legacy(&fake, "2025-03-26").await;
    let items = [
        legacy("1", "tools/call", r#""name":"steps","_meta":{"progressToken":7}"#),
        told("notifications/cancelled", r#""requestId":55"#),
        r#"{"jsonrpc":"2.0","id":9,"result":{}}"#.to_owned(),
        "5".to_owned(),
        legacy("2", "ping", ""),
        initialize("3", "2025-06-18"),
        modern("4", "tools/list", ""),
        legacy("2", "no/such", ""),
    ];
    client.send(&format!("[{}]", items.join(","))).await;
    for step in 1..=5 {
        assert_eq!(client.next().await["params"]["progress"], step);
    }
    let answers = client.next().await;
    let found: Vec<(i64, Value)> =
        answers.as_array().unwrap().iter().map(|answer| (code_of(answer), answer["id"].clone())).collect();
    let expected = [
        (0, Value::from(1)),
        (-32600, Value::Null),
        (0, Value::from(2)),
        (-32600, Value::from(3)),
        (-32600, Value::from(4)),
        (-32601, Value::from(2)),
    ];
    assert_eq!(found, expected);
    client.send(&format!("[{}]", told("notifications/initialized", ""))).await;
    client.check_usable().await;
    let many = |count| format!("[{}]", vec![legacy("1", "ping", ""); count].join(","));
    client.send(&many(256)).await;
    assert_eq!(client.next().await.as_array().unwrap().len(), 256);
    client.send(&many(257)).await;
    assert_eq!(code_of(&client.next().await), -32600);
    client.check_usable().await;
}

/// SRV-3: a change of the catalog is announced to initialized legacy clients, and to them only.
#[tokio::test(start_paused = true)]
async fn catalog_changes_are_announced() {
    let fake = Fake::new();
    let mut early = Client::start(&fake);
    early.send(&initialize("1", "2025-06-18")).await;
    early.next().await;
    let mut client = Client::legacy(&fake, "2025-06-18").await;
    client.check_usable().await;
    fake.feeds.changed(Lists::TOOLS);
    assert_eq!(
        client.line().await.unwrap(),
        r#"{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}"#
    );
    early.check_usable().await;
}

/// SRV-2: the end of input is a clean stop.
#[tokio::test(start_paused = true)]
async fn the_end_of_input_lets_answers_out_and_cancels_the_rest() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"gate""#)).await;
    client.send(&modern("2", "tools/call", r#""name":"hang""#)).await;
    // The last line needs no line break.
    client.send_bytes(modern("3", "tools/list", "").as_bytes()).await;
    let began = tokio::time::Instant::now();
    drop(client.write.take());
    assert_eq!(client.next().await["id"], 3);
    fake.gate.notify_one();
    assert_eq!(client.next().await["id"], 1);
    assert_eq!(client.line().await, None);
    client.server.await.unwrap().unwrap();
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 1);
    assert!(began.elapsed() >= DRAIN_AFTER_END && began.elapsed() < 2 * DRAIN_AFTER_END);
}

/// SRV-2: a listen gets its result when the client closes its end.
#[tokio::test(start_paused = true)]
async fn the_end_of_input_ends_who_listens() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "subscriptions/listen", "")).await;
    assert_eq!(client.next().await["method"], "notifications/subscriptions/acknowledged");
    client.check_usable().await;
    drop(client.write.take());
    assert_eq!(client.next().await["result"]["listened"], true);
    assert_eq!(client.line().await, None);
    client.server.await.unwrap().unwrap();
}

/// A stream that can be neither read nor written.
struct Broken(ErrorKind);

impl AsyncRead for Broken {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Err(self.0.into()))
    }
}

impl AsyncWrite for Broken {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Err(self.0.into()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// SRV-2: a client that is gone is a clean end; any other failure is returned to the caller.
#[tokio::test(start_paused = true)]
async fn a_failure_to_read_or_write_is_returned() {
    let options = || LineOptions {
        principal: Principal::local(),
        transport: ClientTransport::Memory,
        max_message_bytes: LIMIT,
    };
    for (kind, expected) in [(ErrorKind::BrokenPipe, None), (ErrorKind::TimedOut, Some(ErrorKind::TimedOut))]
    {
        let (fake, never) = (Fake::new(), CancellationToken::new());
        let read = serve_lines(Broken(kind), tokio::io::sink(), fake.clone(), options(), never.clone()).await;
        assert_eq!(read.err().map(|error| error.kind()), expected);
        let line = format!("{}\n", legacy("1", "ping", ""));
        let written = serve_lines(line.as_bytes(), Broken(kind), fake, options(), never).await;
        assert_eq!(written.err().map(|error| error.kind()), expected);
    }
}

/// SRV-3: a shutdown returns once the requests in progress are answered and the transport is closed.
#[tokio::test(start_paused = true)]
async fn shutdown_waits_for_what_is_in_progress() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"gate""#)).await;
    fake.until(|fake| &fake.begun, 1).await;
    client.shutdown.cancel();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(!client.server.is_finished());
    fake.gate.notify_one();
    assert_eq!(client.next().await["id"], 1);
    assert_eq!(client.line().await, None);
    client.server.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_while_its_answers_are_awaited_ends_the_wait() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"gate""#)).await;
    client.send(&modern("2", "tools/call", r#""name":"hang""#)).await;
    fake.until(|fake| &fake.begun, 2).await;
    client.shutdown.cancel();
    drop((client.read, client.write));
    fake.gate.notify_one();
    client.server.await.unwrap().unwrap();
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_server_cancels_its_requests() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"hang""#)).await;
    fake.until(|fake| &fake.begun, 1).await;
    client.server.abort();
    fake.until(|fake| &fake.cancelled, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_gone_is_a_clean_end() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    client.send(&modern("1", "tools/call", r#""name":"hang""#)).await;
    fake.until(|fake| &fake.begun, 1).await;
    drop(client.read);
    let write = client.write.as_mut().unwrap();
    write.write_all(format!("{}\n", legacy("2", "ping", "")).as_bytes()).await.unwrap();
    client.server.await.unwrap().unwrap();
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_not_read_from() {
    let fake = Fake::new();
    let mut client = Client::start(&fake);
    let mut write = client.write.take().unwrap();
    let total = 60;
    let sender = tokio::spawn(async move {
        for id in 0..total {
            let line = format!("{}\n", modern(&id.to_string(), "tools/call", r#""name":"big""#));
            write.write_all(line.as_bytes()).await.unwrap();
            tokio::task::yield_now().await;
        }
        write
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let begun = fake.begun.load(Ordering::SeqCst);
    assert!(begun < 30, "{begun} answers of 1 MiB were taken on while nobody read");
    let mut seen = 0;
    while seen < total {
        client.line().await.unwrap();
        seen += 1;
    }
    drop(sender.await.unwrap());
    client.server.await.unwrap().unwrap();
}
