//! Shared by the tests of remote servers: a started upstream, and the parts of MCP that a scripted peer plays.

#![allow(dead_code, clippy::allow_attributes, reason = "each test program uses a part of it")]

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{GatewaySettings, Launch, Remote, ServerConfig};
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use bridgehead_upstream::credentials::CredentialSource;
use bridgehead_upstream::{Exchange, Purpose, Ready, Surroundings, Upstream, UpstreamState};
use bridgehead_wire::{Method, Raw, Revision, Spliced};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore};

pub(crate) const LIMIT: usize = 16 << 20;

pub(crate) struct Running {
    pub(crate) upstream: Upstream,
}

impl Running {
    /// Starts an upstream at the peer, configured by `edit`.
    pub(crate) fn start(peer: &Peer, edit: impl FnOnce(&mut ServerConfig, &mut Remote)) -> Self {
        Self::at(&peer.url("/mcp?key=hunter2"), edit)
    }

    pub(crate) fn at(url: &str, edit: impl FnOnce(&mut ServerConfig, &mut Remote)) -> Self {
        Self::with(None, url, edit)
    }

    /// The same with credentials that `source` chooses.
    pub(crate) fn with(
        source: Option<CredentialSource>,
        url: &str,
        edit: impl FnOnce(&mut ServerConfig, &mut Remote),
    ) -> Self {
        let mut remote = Remote::new(url.parse().unwrap());
        let launch = Launch::Unusable { reason: String::new() };
        let mut server = ServerConfig::new("far".parse().unwrap(), launch, &GatewaySettings::default());
        edit(&mut server, &mut remote);
        server.launch = Launch::Remote(remote);
        Self { upstream: Upstream::start(server, surroundings(source)) }
    }

    pub(crate) async fn ready(&self) -> Arc<Ready> {
        self.upstream.settled().await;
        match self.upstream.state() {
            UpstreamState::Ready(ready) => ready,
            other => panic!("not ready: {other:?}"),
        }
    }

    /// Why it did not start.
    pub(crate) async fn outage(&self) -> String {
        self.upstream.settled().await;
        match self.upstream.state() {
            UpstreamState::Restarting(outage) => outage.reason.clone(),
            UpstreamState::Failed(failure) => failure.reason.clone(),
            other => panic!("not down: {other:?}"),
        }
    }

    /// Whether it is not tried again.
    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.upstream.state(), UpstreamState::Failed(_))
    }

    pub(crate) async fn end(self) {
        tokio::time::timeout(Duration::from_secs(60), self.upstream.stop()).await.unwrap();
    }
}

/// The surroundings of an upstream, with credentials that `source` chooses.
pub(crate) fn surroundings(source: Option<CredentialSource>) -> Surroundings {
    Surroundings {
        environment: Arc::default(),
        limit: LIMIT,
        credentials: source,
        changed: Arc::new(Notify::new()),
        notices: None,
        warm_up: Arc::new(Semaphore::new(8)),
        signals: bridgehead_events::Signals::default(),
        records: bridgehead_upstream::ServerRecords::default(),
        shelf: None,
        policy: bridgehead_upstream::RestartPolicy::REGISTRY,
    }
}

pub(crate) async fn open(ready: &Ready, tool: &str) -> Exchange {
    let mut exchange = ready.link.open(Purpose::Ordinary);
    let mut params = json!({"name": tool, "arguments": {}, "_meta": {"progressToken": exchange.id()}});
    if ready.peer.revision == Revision::MODERN {
        params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
        params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = json!({});
    }
    exchange.send(&Method::ToolsCall, &Spliced::from(Raw::encode(&params))).await;
    exchange
}

/// The text of the answer, or the error.
pub(crate) async fn call(ready: &Ready, tool: &str) -> Result<String, String> {
    match open(ready, tool).await.answer().await {
        Ok(Ok(result)) => {
            let result: Value = result.decode().unwrap();
            Ok(result["content"][0]["text"].as_str().unwrap_or_default().to_owned())
        }
        Ok(Err(error)) => Err(error.body().as_str().to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// A tool result under the id of the request.
pub(crate) fn result(asked: &Asked, text: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": {
        "content": [{"type": "text", "text": text}], "resultType": "complete",
    }})
}

fn answer(asked: &Asked, result: &Value) -> Vec<Part> {
    json_reply(&json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": result}))
}

fn tools() -> Value {
    let region = |kind: &str| json!({"type": "object", "properties": {"region": {"type": kind, "x-mcp-header": "Region"}}});
    json!([
        {"name": "echo", "inputSchema": region("string")},
        {"name": "slow", "inputSchema": {"type": "object"}},
        {"name": "odd", "inputSchema": region("number")},
    ])
}

/// A modern server; `call` plays its tools.
pub(crate) fn modern(asked: &Asked, call: impl FnOnce(&Asked) -> Vec<Part>) -> Vec<Part> {
    match asked.rpc().as_str() {
        "server/discover" => answer(
            asked,
            &json!({
                "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                "ttlMs": 0, "cacheScope": "public",
            }),
        ),
        "tools/list" => answer(
            asked,
            &json!({
                "tools": tools(), "resultType": "complete", "ttlMs": 0, "cacheScope": "public",
            }),
        ),
        "tools/call" => call(asked),
        _ => reply("404 Not Found", &[], ""),
    }
}

/// A streamable server of the legacy era with a session; `call` plays its tools.
pub(crate) fn legacy(asked: &Asked, call: impl FnOnce(&Asked) -> Vec<Part>) -> Vec<Part> {
    let method = asked.rpc();
    if method == "initialize" {
        let result = json!({"jsonrpc": "2.0", "id": asked.json()["id"], "result": {
            "protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
            "serverInfo": {"name": "old", "version": "1"},
        }});
        return reply(
            "200 OK",
            &["content-type: application/json", "mcp-session-id: s1"],
            &result.to_string(),
        );
    }
    if asked.method == "GET" {
        return reply("405 Method Not Allowed", &[], "");
    }
    if asked.header("mcp-session-id") != "s1" {
        return reply("400 Bad Request", &["content-type: text/plain"], "no session");
    }
    match method.as_str() {
        "tools/list" => answer(asked, &json!({"tools": tools()})),
        "tools/call" => call(asked),
        "ping" => answer(asked, &json!({})),
        _ => reply("202 Accepted", &[], ""),
    }
}

/// A proxy in front of a server that records what clients send, by connection. It ends with the test.
pub(crate) async fn overheard(address: String) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let door = listener.local_addr().unwrap().to_string();
    let heard = Arc::new(Mutex::new(Vec::new()));
    let keeps = Arc::clone(&heard);
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = tokio::net::TcpStream::connect(&address).await.unwrap();
            let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
                (client.into_split(), server.into_split());
            let number = {
                let mut heard = keeps.lock();
                heard.push(Vec::new());
                heard.len() - 1
            };
            let keeps = Arc::clone(&keeps);
            tokio::spawn(async move {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from_client.read(&mut bytes).await {
                    keeps.lock()[number].extend_from_slice(&bytes[..count]);
                    if to_server.write_all(&bytes[..count]).await.is_err() {
                        return;
                    }
                }
            });
            tokio::spawn(async move { tokio::io::copy(&mut from_server, &mut to_client).await });
        }
    });
    (door, heard)
}

/// The heads of consecutive requests.
pub(crate) fn heads(mut bytes: &[u8]) -> Vec<String> {
    let mut heads = Vec::new();
    while let Some(end) = bytes.windows(4).position(|part| part == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        let upgrade = head.contains("upgrade: websocket");
        heads.push(head);
        if upgrade {
            break; // Frames follow.
        }
        bytes = bytes.get(end + 4 + length..).unwrap_or_default();
    }
    heads
}
