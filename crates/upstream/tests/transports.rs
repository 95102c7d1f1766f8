//! One scripted server over every transport: what holds for one holds for all.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{RemoteTransport, Secret};
use bridgehead_testkit::{Behaviour, Carrier, Mock, Served, Tool};
use bridgehead_upstream::{Event, LinkError, UpstreamState};
use bridgehead_wire::Revision;
use parking_lot::Mutex;
use remote::{Running, call, heads, open, overheard};
use serde_json::Value;
use tokio::time::Instant;

fn mock(mock: Mock) -> Mock {
    mock.tool("echo", Behaviour::Text("hello".to_owned()))
        .tool("slow", Behaviour::Text("done".to_owned()).with_progress(3))
        .tool("hang", Behaviour::HangUntilCancelled)
        .tool("cancelled", Behaviour::ReportCancelled)
        .tool("wrong", Behaviour::WrongId)
        .tool("double", Behaviour::DoubleAnswer)
        .tool("ask", Behaviour::Ask { method: "ping".to_owned(), params: None })
        .tool("add", Behaviour::AddTool(Box::new(Tool::new("added", Behaviour::Echo))))
        .tool("crash", Behaviour::Crash(bridgehead_testkit::Crash::Exit { status: 3 }))
}

async fn every_behaviour(
    served: &Served,
    revision: Revision,
    transport: &str,
    configured: Option<RemoteTransport>,
) {
    let running = Running::at(&served.url(), |_, remote| {
        remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
        remote.transport = configured.unwrap_or(remote.transport);
    });
    let ready = running.ready().await;
    assert_eq!((ready.peer.revision, ready.transport), (revision, transport));
    let legacy = revision != Revision::MODERN;
    for _ in 0..3 {
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello", "{transport}");
        let mut exchange = open(&ready, "slow").await;
        let mut progress = 0;
        loop {
            match exchange.next().await {
                Event::Progress(_) => progress += 1,
                Event::Answer(answer) => break assert!(answer.unwrap().as_str().contains("done")),
                Event::Lost(error) => panic!("{transport}: {error}"),
                Event::Log(_) | Event::Acknowledged => panic!("nothing of this was requested"),
                Event::Asked(_) | Event::Withdrawn(_) => panic!("this client cannot be asked"),
            }
        }
        assert_eq!(progress, 3, "{transport}");
    }
    assert!(call(&ready, "wrong").await.is_ok(), "{transport}: a foreign id is ignored");
    assert!(call(&ready, "double").await.is_ok(), "{transport}: a second answer is ignored");
    assert_eq!(call(&ready, "echo").await.unwrap(), "hello", "{transport}");
    if legacy {
        assert_eq!(call(&ready, "ask").await.unwrap(), r#"{"result":{}}"#, "{transport}");
    }
    let mut exchange = open(&ready, "hang").await;
    let id = exchange.id();
    assert!(tokio::time::timeout(Duration::from_millis(100), exchange.next()).await.is_err());
    assert_eq!(ready.link.in_flight(), 1, "{transport}");
    drop(exchange);
    let told = async {
        loop {
            let text = call(&ready, "cancelled").await.unwrap();
            let cancelled: Value = serde_json::from_str(&text).unwrap();
            if cancelled["cancelled"].as_array().unwrap().contains(&id.into()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), told).await.unwrap();
    if legacy {
        call(&ready, "add").await.unwrap();
        let mut states = running.upstream.watch();
        let has = |state: &UpstreamState| matches!(state, UpstreamState::Ready(ready) if ready.tools.iter().any(|tool| tool.name == "added"));
        tokio::time::timeout(Duration::from_secs(60), states.wait_for(has)).await.unwrap().unwrap();
    }
    running.end().await;
}

/// LINK-2, LINK-3, LINK-4, LINK-5: every transport, configured or detected, behaves the same in both eras.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_transport_behaves_alike() {
    let (modern, legacy) = (mock(Mock::modern()), mock(Mock::legacy()));
    let old = Revision::V2025_11_25;
    let rounds = [
        (&modern, Carrier::Http, Revision::MODERN, "http", None),
        (&modern, Carrier::Http, Revision::MODERN, "http", Some(RemoteTransport::Http)),
        (&legacy, Carrier::Http, old, "http", None),
        (&legacy, Carrier::Sse, old, "sse", None),
        (&legacy, Carrier::Sse, old, "sse", Some(RemoteTransport::Sse)),
        (&modern, Carrier::WebSocket, Revision::MODERN, "websocket", None),
        (&legacy, Carrier::WebSocket, old, "websocket", None),
    ];
    for (mock, carrier, revision, transport, configured) in rounds {
        every_behaviour(&mock.serve(carrier), revision, transport, configured).await;
    }
}

/// POOL-6: a server that dies during a call fails the call, and is reconnected when it is back.
#[tokio::test]
async fn a_crash_and_a_return() {
    for carrier in [Carrier::Http, Carrier::Sse, Carrier::WebSocket] {
        let mut served = mock(Mock::legacy()).serve(carrier);
        let running = Running::at(&served.url(), |_, _| {});
        let ready = running.ready().await;
        let mut exchange = open(&ready, "crash").await;
        let Err(LinkError::Closed(reason)) = exchange.answer().await else { panic!("{carrier:?}: no loss") };
        assert!(exchange.was_sent(), "{carrier:?}: {reason}");
        served.restart();
        let back = async {
            loop {
                let ready = running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.unwrap();
                if call(&ready, "echo").await.is_ok() {
                    return;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(60), back).await.unwrap();
        running.end().await;
    }
}

/// LINK-2, LINK-3, LINK-4: every request of every transport has the configured headers: over SSE the GET that opens the
/// stream and each POST, over a WebSocket the request that opens it.
#[tokio::test]
async fn configured_headers_stand_on_every_request() {
    let (old, new) = (mock(Mock::legacy()), mock(Mock::modern()));
    for (era, carrier, configured, transport, methods) in [
        (&old, Carrier::Http, None, "http", &["get", "post", "delete"][..]),
        (&new, Carrier::Http, Some(RemoteTransport::Http), "http", &["post"]),
        (&old, Carrier::Sse, Some(RemoteTransport::Sse), "sse", &["get", "post"]),
        // The requests that detect the transport have them too.
        (&old, Carrier::Sse, None, "sse", &["get", "post"]),
        (&old, Carrier::WebSocket, None, "websocket", &["get"]),
        (&new, Carrier::WebSocket, Some(RemoteTransport::WebSocket), "websocket", &["get"]),
    ] {
        let served = era.serve(carrier);
        let url = served.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let (address, path) = rest.split_once('/').unwrap();
        let (door, heard) = overheard(address.to_owned()).await;
        let running = Running::at(&format!("{scheme}://{door}/{path}"), |_, remote| {
            remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
            remote.headers.insert("X-Tenant".to_owned(), Secret::new("blue"));
            remote.transport = configured.unwrap_or(remote.transport);
        });
        let ready = running.ready().await;
        assert_eq!(ready.transport, transport);
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello", "{transport}");
        drop(ready);
        running.end().await;
        let requests: Vec<String> = heard.lock().iter().flat_map(|bytes| heads(bytes)).collect();
        for method in methods {
            let of_method = |head: &&String| head.starts_with(&format!("{method} "));
            assert!(requests.iter().any(|head| of_method(&head)), "{transport}: no {method} in {requests:?}");
        }
        for head in &requests {
            let has = |header: &str| head.lines().any(|line| line == header);
            assert!(has("authorization: bearer hunter2"), "{transport}: {head}");
            assert!(has("x-tenant: blue"), "{transport}: {head}");
        }
    }
}

/// GATE-7: the heads of requests with configured headers, in their order: they do not depend on which credentials
/// provide the headers.
#[tokio::test]
async fn the_heads_of_requests() {
    let (old, new) = (mock(Mock::legacy()), mock(Mock::modern()));
    for (era, expected) in [
        (
            &old,
            &[
                "post / http/1.1|host: HOST|content-type: application/json|accept: application/json, text/event-stream|\
                 authorization: bearer hunter2|x-tenant: blue|mcp-protocol-version: 2025-11-25|mcp-session-id: ID|\
                 content-length: N",
                "get / http/1.1|host: HOST|mcp-session-id: ID|accept: text/event-stream|authorization: bearer hunter2|\
                 x-tenant: blue|mcp-protocol-version: 2025-11-25",
                "delete / http/1.1|host: HOST|content-type: application/json|accept: application/json, \
                 text/event-stream|authorization: bearer hunter2|x-tenant: blue|mcp-protocol-version: 2025-11-25|\
                 mcp-session-id: ID",
            ][..],
        ),
        (
            &new,
            &[
                "post / http/1.1|host: HOST|content-type: application/json|accept: application/json, text/event-stream|\
               authorization: bearer hunter2|x-tenant: blue|mcp-protocol-version: 2026-07-28|mcp-method: tools/call|\
               content-length: N",
            ],
        ),
    ] {
        let served = era.serve(Carrier::Http);
        let url = served.url();
        let (address, path) = url.strip_prefix("http://").unwrap().split_once('/').unwrap();
        let (door, heard) = overheard(address.to_owned()).await;
        let running = Running::at(&format!("http://{door}/{path}"), |_, remote| {
            remote.headers.insert("Authorization".to_owned(), Secret::new("Bearer hunter2"));
            remote.headers.insert("X-Tenant".to_owned(), Secret::new("blue"));
        });
        let ready = running.ready().await;
        assert_eq!(call(&ready, "echo").await.unwrap(), "hello");
        running.end().await;
        let shown = |head: String| {
            let head = head.replace(&door, "HOST").replace(&format!("/{path} "), "/ ");
            let line = |line: &str| match line.split_once(": ") {
                Some(("mcp-session-id", _)) => "mcp-session-id: ID".to_owned(),
                Some(("content-length", _)) => "content-length: N".to_owned(),
                _ => line.to_owned(),
            };
            head.lines().map(line).collect::<Vec<_>>().join("|")
        };
        let heads: Vec<String> = heard.lock().iter().flat_map(|bytes| heads(bytes)).map(shown).collect();
        for expected in expected {
            assert!(heads.iter().any(|head| head == expected), "{expected}\n{heads:#?}");
        }
    }
}

/// LINK-4: over a WebSocket every outgoing message is its own text frame, however many are sent at once. An incoming
/// frame is one message, whatever line breaks it contains.
#[tokio::test]
async fn a_frame_is_a_message() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("ws://{}/", listener.local_addr().unwrap());
    let frames: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&frames);
    let serving = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut socket = tokio_tungstenite::accept_async(stream).await.unwrap();
        while let Some(Ok(frame)) = socket.next().await {
            match frame {
                Message::Text(text) => {
                    seen.lock().push(text.to_string());
                    let asked: Value = serde_json::from_str(&text).unwrap();
                    let result = match asked["method"].as_str().unwrap() {
                        "server/discover" => serde_json::json!({
                            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}},
                            "ttlMs": 0, "cacheScope": "public",
                        }),
                        "tools/list" => serde_json::json!({
                            "tools": [{"name": "echo", "inputSchema": {"type": "object"}}], "resultType": "complete",
                            "ttlMs": 0, "cacheScope": "public",
                        }),
                        "tools/call" => serde_json::json!({
                            "content": [{"type": "text", "text": "hello"}], "resultType": "complete",
                        }),
                        _ => continue,
                    };
                    let answer = serde_json::json!({"jsonrpc": "2.0", "id": asked["id"], "result": result});
                    let pretty = serde_json::to_string_pretty(&answer).unwrap();
                    assert!(pretty.contains('\n'));
                    socket.send(Message::text(pretty)).await.unwrap();
                }
                Message::Binary(bytes) => panic!("a binary frame: {bytes:?}"),
                _ => {}
            }
        }
    });
    let running = Running::at(&url, |_, _| {});
    let ready = running.ready().await;
    let calls = (0..20).map(|_| call(&ready, "echo"));
    for answer in futures_util::future::join_all(calls).await {
        assert_eq!(answer.unwrap(), "hello");
    }
    running.end().await;
    let frames = frames.lock().clone();
    let calls = frames.iter().filter(|frame| frame.contains("\"tools/call\"")).count();
    assert_eq!(calls, 20, "a frame for each call");
    assert!(
        frames.iter().all(|frame| !frame.contains('\n') && frame.starts_with('{') && frame.ends_with('}'))
    );
    serving.abort();
}
