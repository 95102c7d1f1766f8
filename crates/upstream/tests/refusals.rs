//! What may answer at an address instead of a server: each case gets a state and an error that names the cure, and
//! delays no other server.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_config::RemoteTransport;
use bridgehead_testkit::peer::{Asked, Part, Peer, chunk, event, json_reply, reply, stream_head};
use bridgehead_upstream::LinkError;
use remote::{Running, call, legacy, modern, open, result};
use serde_json::json;
use tokio::time::Instant;

type Script = fn(&Asked) -> Vec<Part>;

#[track_caller]
fn names_cure(found: &str, words: &[&str]) {
    for words in words {
        assert!(found.contains(words), "`{words}` is not in: {found}");
    }
    assert!(!found.contains("hunter2"), "a secret is shown: {found}");
}

/// LINK-2, LINK-5, LINK-6: answers that keep a server from starting. Only one that does not accept the configured credentials is not tried
/// again.
#[tokio::test]
async fn a_peer_that_is_not_an_mcp_server() {
    let table: &[(Script, &[&str])] = &[
        (
            |_| reply("401 Unauthorized", &["www-authenticate: Bearer realm=\"hunter2\""], ""),
            &["wants a sign-in (401 with a challenge)", "headers = { Authorization"],
        ),
        (|_| reply("401 Unauthorized", &[], ""), &["wants credentials (401)", "`headers`"]),
        (|_| reply("403 Forbidden", &[], ""), &["forbids it (403)", "check the credentials"]),
        (|_| reply("404 Not Found", &[], ""), &["nothing at this path (404)", "check the `url`"]),
        (|_| reply("409 Conflict", &[], ""), &["in conflict with another client (409)"]),
        (|_| reply("429 Too Many Requests", &["retry-after: 3600"], ""), &["too many requests (429)"]),
        (|_| reply("500 Internal Server Error", &[], ""), &["a fault of its own (500"]),
        (
            |_| reply("200 OK", &["content-type: text/html"], "<p>hunter2</p>"),
            &[
                "`text/html` where JSON or an event stream was expected",
                "check that `url` is an MCP endpoint",
            ],
        ),
        (
            |_| reply("302 Found", &["location: https://evil.example/?hunter2"], ""),
            &["redirects to https://evil.example/… (302)", "not followed"],
        ),
        (|_| vec![Part::Close], &["the connection to http://127.0.0.1:", "broke before an answer came"]),
        (
            |_| {
                json_reply(
                    &json!({"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "no"}}),
                )
            },
            &["the server refused `initialize`: no"],
        ),
        (|_| json_reply(&json!([1])), &["answered with something that is not a message"]),
    ];
    for (script, words) in table {
        let peer = Peer::start(*script).await;
        let running = Running::start(&peer, |_, _| {});
        let reason = running.outage().await;
        names_cure(&reason, words);
        assert_eq!(running.is_given_up(), reason.contains("(401") || reason.contains("(403"), "{reason}");
        running.end().await;
    }
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, words) in [
        (format!("http://{refusing}/"), "is the server running there?"),
        (format!("ws://{refusing}/"), "is the server running there?"),
        ("http://no-such-host.invalid/".to_owned(), "cannot be found"),
    ] {
        let running = Running::at(&url, |_, _| {});
        names_cure(&running.outage().await, &[words]);
        running.end().await;
    }
}

/// LINK-2: TLS fails against a server without TLS.
#[tokio::test]
async fn no_encryption() {
    let peer = Peer::start(|_| vec![]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let plain = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        }
    });
    for scheme in ["https", "wss"] {
        let running = Running::at(&format!("{scheme}://{address}/mcp?hunter2"), |_, _| {});
        names_cure(&running.outage().await, &["no encrypted connection", "`SSL_CERT_FILE`"]);
        running.end().await;
    }
    plain.abort();
    drop(peer);
}

/// LINK-3, LINK-4: endpoints that are not an HTTP+SSE server or not a WebSocket.
#[tokio::test]
async fn a_peer_that_opens_no_stream() {
    let table: &[(Script, RemoteTransport, &[&str])] = &[
        (
            |_| reply("200 OK", &["content-type: text/html"], ""),
            RemoteTransport::Sse,
            &["`text/html` where an event stream was expected"],
        ),
        (|_| reply("404 Not Found", &[], ""), RemoteTransport::Sse, &["nothing at this path (404)"]),
        (
            |_| {
                vec![
                    stream_head(&[]),
                    chunk("event: endpoint\ndata: https://evil.example/m?hunter2\n\n"),
                    Part::Hang,
                ]
            },
            RemoteTransport::Sse,
            &["another server, which is not followed"],
        ),
        (
            |_| vec![stream_head(&[]), chunk("event: endpoint\ndata: a b\n\n"), Part::Hang],
            RemoteTransport::Sse,
            &["invalid address"],
        ),
        (
            |_| vec![stream_head(&[]), Part::Close],
            RemoteTransport::Sse,
            &["without saying where messages go"],
        ),
        (|_| reply("404 Not Found", &[], ""), RemoteTransport::WebSocket, &["nothing at this path (404)"]),
        (
            |_| reply("401 Unauthorized", &["www-authenticate: Bearer"], ""),
            RemoteTransport::WebSocket,
            &["wants a sign-in"],
        ),
        (|_| reply("200 OK", &[], ""), RemoteTransport::WebSocket, &["check `url`"]),
        (
            |_| vec![Part::Close],
            RemoteTransport::WebSocket,
            &["did not open a WebSocket", "check the `url` and the `type`"],
        ),
    ];
    for (script, transport, words) in table {
        let peer = Peer::start(*script).await;
        let scheme = if *transport == RemoteTransport::WebSocket { "ws" } else { "http" };
        let running = Running::at(&format!("{scheme}://{}/x?hunter2", peer.address()), |_, remote| {
            remote.transport = *transport;
        });
        names_cure(&running.outage().await, words);
        running.end().await;
    }
}

/// LINK-2: what a server may do to a single call; the next call is unaffected.
#[tokio::test]
async fn what_is_no_answer() {
    let table: &[(Script, &[&str])] = &[
        (|_| reply("403 Forbidden", &[], ""), &["forbids it (403)"]),
        (|_| reply("500 Internal Server Error", &[], "x"), &["a fault of its own"]),
        (|_| reply("200 OK", &["content-type: text/html"], "<p>"), &["check that `url` is an MCP endpoint"]),
        (|_| reply("200 OK", &["content-type: application/json"], "{"), &["not a message"]),
        (
            |_| json_reply(&json!({"jsonrpc": "2.0", "id": "foreign", "result": {}})),
            &["does not answer the request"],
        ),
        (
            |_| {
                vec![
                    stream_head(&[]),
                    event(&json!({"jsonrpc": "2.0", "id": "foreign", "result": {}})),
                    Part::Write(b"0\r\n\r\n".to_vec()),
                ]
            },
            &["ended the stream of the answer"],
        ),
        (
            |_| vec![stream_head(&[]), chunk("data:\n\nevent: ping\n\n: x\n\n"), Part::Close],
            &["ended the stream of the answer"],
        ),
        (|_| vec![Part::Close], &["broke before an answer came"]),
        (
            |_| {
                vec![
                    Part::Write(
                        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"
                            .to_vec(),
                    ),
                    Part::Close,
                ]
            },
            &["broke off"],
        ),
        (
            |_| {
                let mut parts = vec![stream_head(&[]), chunk("data: ")];
                parts.extend((0..20).map(|_| chunk(&"x".repeat(1 << 20))));
                parts.push(Part::Hang);
                parts
            },
            &["more than the limit", "`max_message_mb`"],
        ),
        (
            |_| {
                vec![Part::Write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99999999\r\n\r\n".to_vec()), Part::Hang]
            },
            &["more than the limit"],
        ),
        (
            |_| {
                vec![
                    Part::Write(
                        format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20)).into_bytes(),
                    ),
                    Part::Hang,
                ]
            },
            &["broke before an answer came"],
        ),
        (
            |asked| {
                reply("400 Bad Request", &["content-type: application/json"], &json!({"jsonrpc": "2.0", "id": asked.json()["id"], "error": {"code": -32020, "message": "mismatch"}}).to_string())
            },
            &["-32020"],
        ),
    ];
    for (script, words) in table {
        let script = *script;
        let calls = Arc::new(AtomicUsize::new(0));
        let peer = Peer::start(move |asked| {
            let calls = Arc::clone(&calls);
            modern(asked, move |asked| match calls.fetch_add(1, Ordering::SeqCst) {
                0 => script(asked),
                _ => json_reply(&result(asked, "well")),
            })
        })
        .await;
        let running = Running::start(&peer, |_, _| {});
        let ready = running.ready().await;
        names_cure(&call(&ready, "echo").await.unwrap_err(), words);
        assert_eq!(call(&ready, "echo").await.unwrap(), "well");
        running.end().await;
    }
}

/// LINK-4: a socket closed in the middle of a call, and a frame that is not text.
#[tokio::test]
async fn what_a_web_socket_may_do() {
    use futures_util::{SinkExt, StreamExt};
    use tokio_tungstenite::tungstenite::Message;
    let table: &[(Option<Message>, &[&str])] = &[
        (Some(Message::binary(vec![1, 2, 3])), &["a binary frame", "check that MCP is spoken there"]),
        (Some(Message::Close(None)), &["closed the WebSocket"]),
        (
            Some(Message::Close(Some(tokio_tungstenite::tungstenite::protocol::CloseFrame {
                code: 1011_u16.into(),
                reason: "out of order".into(),
            }))),
            &["closed the WebSocket (code 1011): out of order"],
        ),
        (None, &["the WebSocket to ws://127.0.0.1:"]),
    ];
    for (last, words) in table {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("ws://{}/", listener.local_addr().unwrap());
        let last = last.clone();
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { continue };
                while let Some(Ok(frame)) = socket.next().await {
                    let Message::Text(text) = frame else { continue };
                    let asked = Asked {
                        method: "POST".into(),
                        target: String::new(),
                        headers: [].into(),
                        body: text.to_string(),
                        connection: 0,
                    };
                    if asked.rpc() == "tools/call" {
                        if let Some(last) = last.clone() {
                            let _ = socket.send(last).await;
                        }
                        break;
                    }
                    let Some(Part::Write(reply)) = modern(&asked, |_| vec![]).pop() else { continue };
                    let reply = String::from_utf8(reply).unwrap();
                    let body = reply.split("\r\n\r\n").nth(1).unwrap().to_owned();
                    if !body.is_empty() {
                        let _ = socket.send(Message::text(body)).await;
                    }
                }
            }
        });
        let running = Running::at(&url, |_, _| {});
        let ready = running.ready().await;
        let mut exchange = open(&ready, "echo").await;
        let Err(LinkError::Closed(reason)) = exchange.answer().await else { panic!("an answer") };
        names_cure(&reason, words);
        assert!(exchange.was_sent());
        assert!(
            running.upstream.acquire(Instant::now() + Duration::from_secs(60)).await.is_ok(),
            "the server is back"
        );
        running.end().await;
        serving.abort();
    }
}

/// POOL-8: a server that does not answer delays no other server.
#[tokio::test]
async fn nobody_waits_for_another() {
    let silent = Peer::start(|_| vec![Part::Hang]).await;
    let well = Peer::start(|asked| legacy(asked, |asked| json_reply(&result(asked, "well")))).await;
    let began = Instant::now();
    let hanging: Vec<_> = (0..4).map(|_| Running::start(&silent, |_, _| {})).collect();
    let running = Running::start(&well, |_, _| {});
    let ready = running.ready().await;
    assert_eq!(call(&ready, "echo").await.unwrap(), "well");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    running.end().await;
    for hanging in hanging {
        hanging.end().await;
    }
}
