//! The HTTP client against a minimal server that answers with fixed bytes.

#![expect(clippy::unwrap_used, reason = "a fault of the server in this file is a failed test")]

use bridgehead_testkit::client::HttpClient;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Answers one request that ends in `end` with these bytes; returns the received request.
async fn serve(end: &'static str, reply: &'static str) -> (HttpClient, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = HttpClient::new(listener.local_addr().unwrap());
    let served = tokio::spawn(async move {
        let mut stream = listener.accept().await.unwrap().0;
        let mut received = Vec::new();
        while !received.ends_with(end.as_bytes()) {
            assert_ne!(stream.read_buf(&mut received).await.unwrap(), 0);
        }
        stream.write_all(reply.as_bytes()).await.unwrap();
        String::from_utf8(received).unwrap()
    });
    (client, served)
}

#[tokio::test]
async fn posts_a_body_with_the_usual_headers_unless_given() {
    let reply = "HTTP/1.1 202 Accepted\r\nx-one: 1\r\ncontent-length: 7\r\n\r\n{\"a\":1}";
    let (client, served) = serve("BODY", reply).await;
    let reply = client.post("/mcp", &[("Accept", "nothing"), ("x-two", "2")], "BODY").await;
    assert_eq!((reply.status, reply.header("x-one")), (202, Some("1")));
    assert_eq!((reply.json(), reply.answer()), (json!({"a": 1}), json!({"a": 1})));
    let received = served.await.unwrap();
    assert!(received.starts_with("POST /mcp HTTP/1.1\r\n"), "{received}");
    for line in ["accept: nothing", "x-two: 2", "content-type: application/json", "content-length: 4"] {
        assert!(received.contains(&format!("{line}\r\n")), "{line} in {received}");
    }
    assert_eq!(received.matches("accept").count(), 1, "{received}");
    assert_eq!(received.matches("host: 127.0.0.1:").count(), 1, "{received}");
}

#[tokio::test]
async fn reads_events_one_by_one_or_all_together() {
    const REPLY: &str = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
        : alive\n\ndata: {\"a\":1}\n\ndata: {\"a\":2}\n\n";
    let (client, served) = serve("}", REPLY).await;
    let mut stream = client.open_modern("/", "tools/call", json!({"name": "add"})).await;
    assert_eq!(stream.next_event().await.unwrap().comment.as_deref(), Some("alive"));
    assert_eq!(stream.next_message().await, Some(json!({"a": 1})));
    assert_eq!(stream.next_message().await, Some(json!({"a": 2})));
    assert_eq!(stream.next_message().await, None);
    let received = served.await.unwrap();
    for line in ["mcp-protocol-version: 2026-07-28", "mcp-method: tools/call", "mcp-name: add"] {
        assert!(received.contains(&format!("{line}\r\n")), "{line} in {received}");
    }

    let (client, _served) = serve("\r\n\r\n", REPLY).await;
    let reply = client.get("/", &[]).await;
    assert_eq!((reply.events.len(), reply.answer()), (3, json!({"a": 2})));
}

#[tokio::test]
async fn sends_any_bytes() {
    let (client, served) = serve("END", "whatever").await;
    assert_eq!(client.exchange_bytes(b"NO HTTP\0END").await, b"whatever");
    assert_eq!(served.await.unwrap(), "NO HTTP\0END");
}
