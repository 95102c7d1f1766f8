//! Panics while a client is served: the request is answered, the backend is told, and the next request is served.

use bridgehead_front::{LineOptions, serve_lines};
use bridgehead_gateway::{ClientTransport, Principal};
use serde_json::{Value, json};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio_util::sync::CancellationToken;

use crate::client::Server;
use crate::fake::{ENVELOPE, Fake, initialize, legacy, modern};
use crate::lines::Client;

/// A call of a tool.
fn named(tool: &str) -> String {
    format!(r#""name":"{tool}","arguments":{{}}"#)
}

/// Checks that the backend was told of the panic, exactly once.
#[track_caller]
fn check_told(fake: &Fake, place: &str) {
    let told = std::mem::take(&mut *fake.panics.lock().unwrap());
    assert_eq!(told, [format!("a panic at `{place}`")]);
}

/// Checks for an internal error that says nothing of the panic but where to look.
#[track_caller]
fn check_answer(answer: &Value, id: &Value) {
    let expected = json!({"jsonrpc": "2.0", "id": id, "error": {
        "code": -32603,
        "message": "the gateway panicked while it served this request; its log says where",
        "data": {
            "source": "gateway", "code": "HANDLER_ERROR", "retryable": false, "mayHaveRun": true,
            "hint": "`bridgehead explain HANDLER_ERROR` tells cause and cure",
        },
    }});
    assert_eq!(*answer, expected);
}

/// SRV-2, ERR-1: when the HTTP front panics, the modern request is answered with an internal error; as an event if events
/// have begun.
#[tokio::test]
async fn a_panic_answers_a_modern_request_over_http() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    *fake.curse.lock().unwrap() = Some("serves");
    let answer = server.modern("tools/list", "", &modern("7", "tools/list", "")).await;
    assert_eq!(answer.status, 200);
    check_answer(&answer.json(), &json!(7));
    check_told(&fake, "serves");
    let answer = server.modern("tools/call", "panic", &modern("8", "tools/call", &named("panic"))).await;
    assert_eq!(answer.status, 200);
    check_answer(&answer.json(), &json!(8));
    check_told(&fake, "call");
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":"n","method":"tools/call","params":{{{},"_meta":{{{ENVELOPE},"progressToken":1}}}}}}"#,
        named("step_then_panic")
    );
    let events = server.modern("tools/call", "step_then_panic", &body).await.events();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["method"], "notifications/progress");
    check_answer(&events[1], &json!("n"));
    check_told(&fake, "call");
    let answer = server.modern("tools/call", "echo", &modern("9", "tools/call", &named("echo"))).await;
    assert_eq!(answer.json()["result"], json!({}));
}

/// SRV-2: the same for a legacy session, which goes on; a request that has no id gets status 500.
#[tokio::test]
async fn a_panic_answers_a_legacy_request_over_http() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    *fake.curse.lock().unwrap() = Some("initialize");
    let answer = server.post(&[], &initialize("7", "2025-06-18")).await;
    assert_eq!(answer.status, 200);
    check_answer(&answer.json(), &json!(7));
    check_told(&fake, "initialize");
    let session = server.session("2025-03-26").await;
    let answer = server.in_session(&session, &legacy("8", "tools/call", &named("panic"))).await;
    assert_eq!(answer.status, 200);
    check_answer(&answer.json(), &json!(8));
    check_told(&fake, "call");
    let params = format!(r#"{},"_meta":{{"progressToken":1}}"#, named("step_then_panic"));
    let events = server.in_session(&session, &legacy("9", "tools/call", &params)).await.events();
    assert_eq!(events.len(), 2, "{events:?}");
    check_answer(&events[1], &json!(9));
    check_told(&fake, "call");
    let batch = format!(
        "[{},{}]",
        legacy("10", "tools/call", &named("panic")),
        legacy("11", "tools/call", &named("echo"))
    );
    let answers = server.in_session(&session, &batch).await.json();
    check_answer(&answers[0], &json!(10));
    assert_eq!(answers[1], json!({"jsonrpc": "2.0", "id": 11, "result": {}}));
    check_told(&fake, "call");
    *fake.curse.lock().unwrap() = Some("feed");
    let answer = server.send("GET", &[("mcp-session-id", &session)], "").await;
    assert_eq!(answer.status, 500);
    assert_eq!((crate::fake::code_of(&answer.json()), crate::fake::id_of(&answer.text)), (-32603, None));
    check_told(&fake, "feed");
    // The same id may be used again: the panic has left nothing in progress.
    let answer = server.in_session(&session, &legacy("8", "tools/call", &named("echo"))).await;
    assert_eq!(answer.json()["result"], json!({}));
}

/// SRV-2: when the line front panics, the request is answered, in both eras and in a batch; the connection goes on.
#[tokio::test]
async fn a_panic_answers_a_request_on_lines() {
    let fake = Fake::new();
    let mut client = Client::legacy(&fake, "2025-03-26").await;
    *fake.curse.lock().unwrap() = Some("initialize");
    client.send(&initialize("7", "2025-03-26")).await;
    check_answer(&client.next().await, &json!(7));
    check_told(&fake, "initialize");
    for (id, request) in [
        (8, legacy("8", "tools/call", &named("panic"))),
        (9, modern("9", "tools/call", &named("panic"))),
        // The id is free again.
        (8, legacy("8", "tools/call", &named("panic"))),
    ] {
        client.send(&request).await;
        check_answer(&client.next().await, &json!(id));
        check_told(&fake, "call");
    }
    let batch = format!(
        "[{},{}]",
        legacy("10", "tools/call", &named("panic")),
        legacy("11", "tools/call", &named("echo"))
    );
    client.send(&batch).await;
    let answers = client.next().await;
    check_answer(&answers[0], &json!(10));
    assert_eq!(answers[1], json!({"jsonrpc": "2.0", "id": 11, "result": {}}));
    check_told(&fake, "call");
    client.check_usable().await;
    client.end().await.unwrap();
}

/// A writer that panics.
struct PanickingClock;

impl tokio::io::AsyncWrite for PanickingClock {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<std::io::Result<usize>> {
        panic!("a panic at `write`");
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// SRV-2: if nothing can be written any more, the backend is still told of the panic, and the front ends.
#[tokio::test]
async fn a_panic_of_the_writer_is_told() {
    let fake = Fake::new();
    let (mut write, read) = tokio::io::duplex(1024);
    let options = LineOptions {
        principal: Principal::local(),
        transport: ClientTransport::Memory,
        max_message_bytes: 1024,
    };
    tokio::io::AsyncWriteExt::write_all(&mut write, b"{}\n").await.unwrap();
    let serving = serve_lines(read, PanickingClock, fake.clone(), options, CancellationToken::new());
    tokio::time::timeout(std::time::Duration::from_secs(60), serving).await.unwrap().unwrap();
    check_told(&fake, "write");
}
