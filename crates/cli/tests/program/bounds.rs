//! How much of the gateway's memory its peers can occupy.
//!
//! In each test the peers try to make the gateway hold 200 MB, while the limit is 32 MB. The peak memory of the gateway's
//! process, as the kernel counts it, may grow by 128 MB: held data, data in transit, and memory that the allocator keeps.
//! Data in transit is limited by the number of concurrent calls, which is two here.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bridgehead_testkit::client::{HttpClient, HttpStream, StdioClient};
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use crate::common::{Place, signal};

const MB: usize = 1 << 20;
/// How much the peers try to make the gateway hold.
const ATTEMPTED: usize = 200 * MB;
/// How much the peak may grow.
const MOST_GROWTH: usize = 128 * MB;
/// The size of one body or answer; less than the limit for one peer.
const EACH: usize = 5 * MB;
const PEERS: usize = ATTEMPTED / EACH;
/// How many of them fit into the limit.
const MOST_HELD: usize = 32 / 5;
/// How long a busy machine may take.
const PATIENCE: Duration = Duration::from_secs(60);
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"large","arguments":{}}}"#;

/// A gateway with low limits, and a server whose tool answers with [`EACH`] bytes once the test lets it.
struct Bounded {
    gateway: StdioClient,
    address: SocketAddr,
    before: usize,
    peer: Peer,
    _place: Place,
}

/// The peak memory of a process, in bytes.
fn peak(pid: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

impl Bounded {
    async fn start(answers: watch::Receiver<bool>) -> Self {
        let filler = "x".repeat(EACH);
        let peer = Peer::start(move |asked| serve(asked, &filler, &answers)).await;
        let place = Place::new();
        let text = format!(
            "[limits]\nheld_mb = 32\nheld_per_peer_mb = 8\n[queues.few]\nconcurrency = 2\n\
             [servers.far]\nurl = {:?}\nera = \"modern\"\nqueue = \"few\"\n",
            peer.url("/mcp")
        );
        let config = place.file("bridgehead.toml", &text).display().to_string();
        let (gateway, address) = place.serve_http(&["--config", &config], &[]).await;
        let listed = HttpClient::new(address).post_modern("/mcp", "tools/list", json!({})).await;
        assert_eq!(listed.json()["result"]["tools"][0]["name"], "large");
        let before = peak(gateway.pid().unwrap());
        Self { gateway, address, before, peer, _place: place }
    }

    /// How much the peak has grown.
    fn grown(&self) -> usize {
        peak(self.gateway.pid().unwrap()) - self.before
    }

    /// Waits until the calls of all peers have reached the server and none is in progress. A call that waits for its turn
    /// does not count as in progress.
    async fn until_all_called(&self) {
        for _ in 0..10_000 {
            let params = json!({"name": "server_health", "arguments": {}});
            let health =
                HttpClient::new(self.address).post_modern("/mcp", "tools/call", params).await.answer();
            let all = self.peer.asked_for("tools/call").len() == PEERS;
            if all && health["result"]["structuredContent"]["data"]["upstreams"][0]["inFlight"] == 0 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("a call never ends");
    }

    /// Asserts how much the peak has grown.
    fn judge(&self, what: &str) {
        let grown = self.grown();
        let tried = ATTEMPTED / MB;
        assert!(grown < MOST_GROWTH, "{what}: {tried} MB attempted, the peak grew by {} MB", grown / MB);
        assert!(grown > 16 * MB, "{what}: only {} MB, so nothing was held", grown / MB);
    }

    /// Asserts that the gateway still works, and stops it.
    async fn end(mut self) {
        let listed = HttpClient::new(self.address).post_modern("/mcp", "tools/list", json!({})).await;
        assert_eq!(listed.status, 200);
        signal(&self.gateway, Signal::TERM);
        assert_eq!(self.gateway.wait().await.code(), Some(0), "{}", self.gateway.stderr());
    }
}

fn serve(asked: &Asked, filler: &str, answers: &watch::Receiver<bool>) -> Vec<Part> {
    let message = asked.json();
    let id = &message["id"];
    let result = match asked.rpc().as_str() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => json!({"tools": [{"name": "large", "inputSchema": {"type": "object"}}]}),
        _ => {
            // Written by hand: an unoptimized JSON writer would dominate the test's time.
            let content = format!(r#"[{{"type":"text","text":"{filler}"}}]"#);
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{id},"result":{{"resultType":"complete","content":{content}}}}}"#
            );
            let mut parts = vec![Part::Until(answers.clone())];
            parts.extend(reply("200 OK", &["content-type: application/json"], &body));
            return parts;
        }
    };
    let mut answer = json!({"jsonrpc": "2.0", "id": id, "result": result});
    for (name, value) in
        [("resultType", json!("complete")), ("ttlMs", json!(0)), ("cacheScope", json!("private"))]
    {
        answer["result"][name] = value;
    }
    json_reply(&answer)
}

/// A session of a legacy client.
struct Session {
    address: SocketAddr,
    http: HttpClient,
    id: String,
}

impl Session {
    async fn open(address: SocketAddr) -> Self {
        let http = HttpClient::new(address);
        let params = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
        let opened = http.post("/mcp", &[], body.to_string()).await;
        Self { address, http, id: opened.header("mcp-session-id").expect("a session").to_owned() }
    }

    fn headers<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        let mut all = vec![("mcp-session-id", self.id.as_str()), ("mcp-protocol-version", "2025-11-25")];
        all.extend_from_slice(more);
        all
    }

    /// Calls the tool on a resumable stream; returns once the first event id has arrived.
    async fn call(&self) -> (HttpStream, String) {
        let headers = self.headers(&[("accept", "text/event-stream, application/json")]);
        let mut stream = self.http.open_post("/mcp", &headers, CALL).await;
        let first = stream.next_event().await.expect("an event without a message");
        (stream, first.id.expect("an id"))
    }

    /// Calls the tool and reads the stream to its end: the first id and the number of bytes.
    async fn call_and_read(&self) -> (String, usize) {
        let head = self.head("POST", &[("accept", "text/event-stream, application/json")]);
        let request =
            format!("{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{CALL}", CALL.len());
        let read = self.http.exchange_bytes(request.as_bytes()).await;
        let first = String::from_utf8_lossy(&read[..read.len().min(1_000)]).into_owned();
        let id = first.split("\nid: ").nth(1).and_then(|rest| rest.lines().next());
        (id.unwrap_or_else(|| panic!("no id: {first}")).to_owned(), read.len())
    }

    /// Resumes a stream and reads it to its end.
    async fn resume(&self, last: &str) -> Vec<u8> {
        let head = self.head("GET", &[("accept", "text/event-stream"), ("last-event-id", last)]);
        self.http.exchange_bytes(format!("{head}\r\n").as_bytes()).await
    }

    /// The head of a request that closes the connection after it.
    fn head(&self, method: &str, more: &[(&str, &str)]) -> String {
        let mut head = format!("{method} /mcp HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n", self.address);
        for (name, value) in self.headers(more) {
            head += &format!("{name}: {value}\r\n");
        }
        head
    }
}

/// BOUND-3: a body above the limit for one client is refused, with the cure; other clients are not affected.
#[tokio::test]
async fn a_body_may_have_what_is_held_for_one_peer() {
    let place = Place::new();
    let config =
        place.config(&["one"], "[limits]\nheld_mb = 64\nheld_per_peer_mb = 1\n").display().to_string();
    let (mut gateway, address) = place.serve_http(&["--config", &config], &[]).await;
    let http = HttpClient::new(address);
    let refused = http.post("/mcp", &[], format!("{{}}{}", " ".repeat(3 * MB))).await;
    assert_eq!((refused.status, refused.header("retry-after")), (413, Some("5")), "{refused:?}");
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(
        message.contains("more than 1 MB would be held for this peer (`limits.held_per_peer_mb`)"),
        "{message}"
    );
    assert_eq!(http.post_modern("/mcp", "tools/list", json!({})).await.status, 200);
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}

/// BOUND-3: forty clients each send 5 MB of a body that they do not finish. The gateway waits for clients within the limit,
/// and tells the others that there is no room.
#[tokio::test]
async fn half_sent_bodies_take_little_memory() {
    let (_answers, wait) = watch::channel(true);
    let bounded = Bounded::start(wait).await;
    let address = bounded.address;
    let filler = vec![b' '; EACH];
    let send = async || {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let head = format!(
            "POST /mcp HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
             accept: application/json, text/event-stream\r\ncontent-length: {}\r\n\r\n",
            EACH + 1
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The gateway may stop reading from a client that it refused.
        let sent = tokio::time::timeout(PATIENCE, stream.write_all(&filler)).await;
        sent.expect("the body is taken or refused").is_ok().then_some(stream)
    };
    let open: Vec<_> = join_all((0..PEERS).map(|_| send())).await.into_iter().flatten().collect();
    let cut_off = PEERS - open.len();
    // A refused client gets its answer after some seconds, in which the gateway reads and discards the rest of the body.
    let mut heard = vec![String::new(); open.len()];
    let began = Instant::now();
    loop {
        for (stream, heard) in open.iter().zip(&mut heard) {
            let mut some = [0; 1_000];
            if let Ok(read) = stream.try_read(&mut some) {
                heard.push_str(&String::from_utf8_lossy(&some[..read]));
            }
        }
        let waited_for = heard.iter().filter(|heard| heard.is_empty()).count();
        if waited_for <= MOST_HELD {
            break;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "{waited_for} bodies of 5 MB are held, {} MB",
            bounded.grown() / MB
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    bounded.judge("half-sent bodies");
    let refused = heard.iter().filter(|heard| heard.starts_with("HTTP/1.1 503 ")).count();
    let waited_for = heard.iter().filter(|heard| heard.is_empty()).count();
    println!("{waited_for} are waited for, {refused} heard that there is no room, {cut_off} were cut off");
    // With many clients at once, each may be refused because of the others, so it is possible that all are refused.
    assert_eq!(waited_for + refused + cut_off, PEERS, "{heard:?}");
    bounded.end().await;
    drop(open);
}

/// BOUND-3: forty sessions each read an answer of 5 MB on a resumable stream. The replay logs are limited: the last session
/// can resume its stream, the first cannot.
#[tokio::test]
async fn replay_logs_take_little_memory() {
    let (_answers, wait) = watch::channel(true);
    let bounded = Bounded::start(wait).await;
    let mut called = Vec::new();
    for _ in 0..PEERS {
        let session = Session::open(bounded.address).await;
        let (first, read) = session.call_and_read().await;
        assert!(read > EACH, "only {read} bytes came");
        called.push((session, first));
    }
    bounded.judge("resumable streams");
    let (last, first) = called.last().unwrap();
    assert!(last.resume(first).await.len() > EACH, "the stream is still there");
    let (earliest, first) = &called[0];
    let gone = earliest.resume(first).await;
    assert!(gone.starts_with(b"HTTP/1.1 400 "), "the oldest replay log is dropped first");
    bounded.end().await;
}

/// BOUND-3: forty sessions each call for 5 MB and disconnect before the answer comes. Answers wait for them, within the
/// limit: some sessions find their answer, the others get an error.
#[tokio::test]
async fn answers_for_clients_that_are_gone_take_little_memory() {
    let (answers, wait) = watch::channel(false);
    let bounded = Bounded::start(wait).await;
    let called = join_all((0..PEERS).map(async |_| {
        let session = Session::open(bounded.address).await;
        let (stream, first) = session.call().await;
        drop(stream);
        (session, first)
    }))
    .await;
    bounded.peer.until("calls wait at the server", |peer| !peer.asked_for("tools/call").is_empty()).await;
    answers.send(true).unwrap();
    bounded.until_all_called().await;
    bounded.judge("answers for clients that are gone");
    let mut found = 0;
    for (session, first) in called.iter().rev() {
        let reply = session.resume(first).await;
        let answered = reply.len() > EACH;
        let refused = String::from_utf8_lossy(&reply[..reply.len().min(10_000)]);
        let refused = refused.starts_with("HTTP/1.1 400 ") || refused.contains("limits.held_mb");
        assert!(answered || refused, "{}", String::from_utf8_lossy(&reply));
        found += usize::from(answered);
    }
    println!("{found} of {PEERS} answers were kept");
    assert!((1..=MOST_HELD).contains(&found), "{found} answers of 5 MB were kept");
    bounded.end().await;
}
