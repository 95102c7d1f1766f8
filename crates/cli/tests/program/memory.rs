//! The memory that the gateway needs for a large result, and for many calls that wait for their clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use bridgehead_testkit::client::HttpClient;
use bridgehead_testkit::peer::{Asked, Part, Peer, event, json_reply, last_chunk, stream_head};
use bridgehead_testkit::{Behaviour, Carrier, Mock};
use futures_util::future::join_all;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Place, signal};

const LARGE: usize = 10_000_000;

/// A server over HTTP whose tools return the requested number of bytes: `whole` as one JSON text, `events` in an event
/// stream.
fn serve(asked: &Asked) -> Vec<Part> {
    let message = asked.json();
    let params = &message["params"];
    let result = match asked.rpc().as_str() {
        "server/discover" => json!({"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}),
        "tools/list" => {
            let tool = |name| json!({"name": name, "inputSchema": {"type": "object"}});
            json!({"tools": [tool("whole"), tool("events")]})
        }
        _ => {
            let size = params["arguments"]["size"].as_u64().unwrap_or_default();
            json!({"content": [{"type": "text", "text": "x".repeat(usize::try_from(size).unwrap())}]})
        }
    };
    let mut answer = json!({"jsonrpc": "2.0", "id": message["id"], "result": result});
    for (name, value) in
        [("resultType", json!("complete")), ("ttlMs", json!(0)), ("cacheScope", json!("private"))]
    {
        answer["result"][name] = value;
    }
    match params["name"].as_str() {
        Some("events") => vec![stream_head(&[]), event(&answer), last_chunk()],
        _ => json_reply(&answer),
    }
}

async fn call(http: HttpClient, tool: &str, size: usize) {
    let params = json!({"name": tool, "arguments": {"size": size}});
    let answer: Value = http.post_modern("/mcp", "tools/call", params).await.json();
    let text = answer["result"]["content"][0]["text"].as_str().map(str::len);
    assert_eq!(text, Some(size), "{}", answer.to_string().chars().take(200).collect::<String>());
}

/// A value from the status of a process, in bytes.
fn status(pid: u32, name: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024
}

/// Samples the memory of a process continuously.
struct Watched {
    over: Arc<AtomicBool>,
    most: JoinHandle<usize>,
}

impl Watched {
    fn begin(pid: u32) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&over);
        let most = std::thread::spawn(move || {
            let mut most = 0;
            while !until.load(Ordering::Acquire) {
                most = most.max(status(pid, "RssAnon"));
                std::thread::yield_now();
            }
            most
        });
        Self { over, most }
    }

    /// The most that was seen.
    fn end(self) -> usize {
        self.over.store(true, Ordering::Release);
        self.most.join().unwrap()
    }
}

/// LINK-2: a result of 10 MB from a server over HTTP needs at most twice its size. The test measures how much the gateway's
/// anonymous memory grows, after a small call has touched everything that a first call needs. The kernel's peak value is
/// not used, because it also contains the program's code, which comes and goes.
#[tokio::test]
async fn a_large_result_passes_in_little_memory() {
    let peer = Peer::start(serve).await;
    let place = Place::new();
    let config = place.file("bridgehead.toml", &format!("[servers.far]\nurl = {:?}\n", peer.url("/mcp")));
    let config = config.display().to_string();
    for tool in ["whole", "events"] {
        // A new gateway for each tool: an allocator keeps freed memory for a while.
        let (mut gateway, address) = place.serve_http(&["--config", &config], &[]).await;
        let (http, pid) = (HttpClient::new(address), gateway.pid().unwrap());
        call(http, tool, 100_000).await;
        let idle = status(pid, "RssAnon");
        let watched = Watched::begin(pid);
        call(http, tool, LARGE).await;
        let seen = watched.end().saturating_sub(idle);
        println!("`{tool}`: {} kB for a result of {} kB", seen / 1000, LARGE / 1000);
        assert!(seen <= 2 * LARGE, "`{tool}`: {seen} bytes for a result of {LARGE}");
        assert!(seen >= LARGE / 2, "`{tool}`: only {seen} bytes were seen, so nothing was measured");
        signal(&gateway, Signal::TERM);
        assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
    }
}

/// ERA-2: a thousand calls over HTTP that wait for their clients, all on one legacy server over streamable HTTP, take less
/// than 50 MB of the gateway's memory. Each call gets its answer.
#[tokio::test]
async fn a_thousand_calls_that_wait_for_their_clients() {
    const CALLS: usize = 1_000;
    const AT_ONCE: usize = 50;
    let form = json!({"message": "who?", "requestedSchema": {"type": "object", "properties": {}}});
    let served = Mock::legacy().tool("form", Behaviour::ask("elicitation/create", form)).serve(Carrier::Http);
    let place = Place::new();
    let config = place.file("bridgehead.toml", &format!("[servers.far]\nurl = {:?}\n", served.url()));
    let (mut gateway, address) = place.serve_http(&["--config", &config.display().to_string()], &[]).await;
    let (http, pid) = (HttpClient::new(address), gateway.pid().unwrap());
    let ask = |answer: Option<Value>| async move {
        let meta = json!({"io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}});
        let mut params = json!({"name": "form", "arguments": {}, "_meta": meta});
        if let Some(asked) = answer {
            let key = asked["inputRequests"].as_object().unwrap().keys().next().unwrap().clone();
            params["inputResponses"] = json!({key: {"action": "decline"}});
            params["requestState"] = asked["requestState"].clone();
        }
        http.post_modern("/mcp", "tools/call", params).await.json()["result"].take()
    };
    let first = ask(None).await;
    assert_eq!(ask(Some(first)).await["resultType"], "complete");
    let before = status(pid, "VmRSS");
    let mut asked = Vec::new();
    while asked.len() < CALLS {
        asked.extend(join_all((0..AT_ONCE).map(|_| ask(None))).await);
    }
    assert!(asked.iter().all(|result| result["resultType"] == "input_required"));
    let grown = status(pid, "VmRSS").saturating_sub(before);
    println!("{CALLS} calls that wait for their clients: {} kB", grown / 1024);
    assert!(grown < 50 << 20, "{grown} bytes");
    for some in asked.chunks(AT_ONCE) {
        let answers = join_all(some.iter().map(|asked| ask(Some(asked.clone())))).await;
        assert!(answers.iter().all(|result| result["resultType"] == "complete"));
    }
    signal(&gateway, Signal::TERM);
    assert_eq!(gateway.wait().await.code(), Some(0), "{}", gateway.stderr());
}
