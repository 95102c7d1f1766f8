//! The bridge client over real HTTP: refusals of servers, and which of them are retried.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]

mod remote;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bridgehead_config::{Launch, Remote, RemoteTransport, Retry};
use bridgehead_testkit::peer::{Asked, Part, Peer, json_reply, reply};
use bridgehead_upstream::bridge::{
    AttemptOptions, Bridge, BridgeError, Cause, ConnectOptions, Sleep, call_tool, connect_to_endpoint,
    connect_to_server,
};
use parking_lot::Mutex;
use remote::{legacy, modern, result};
use serde_json::{Value, json};
use tokio::time::Instant;

type Script = fn() -> Vec<Part>;

/// Refusals, whether a retry may succeed, and the words that name the cure.
const REFUSALS: &[(Script, bool, &str)] = &[
    (
        || reply("401 Unauthorized", &["www-authenticate: Bearer realm=\"hunter2\""], "hunter2"),
        false,
        "wants a sign-in (401 with a challenge)",
    ),
    (|| reply("401 Unauthorized", &[], ""), false, "wants credentials (401)"),
    (|| reply("403 Forbidden", &[], "hunter2"), false, "forbids it (403)"),
    (|| reply("404 Not Found", &[], ""), false, "nothing at this path (404)"),
    (|| reply("409 Conflict", &[], ""), false, "in conflict with another client (409)"),
    (|| reply("500 Internal Server Error", &[], "hunter2"), false, "a fault of its own (500"),
    (
        || reply("200 OK", &["content-type: text/html"], "<p>hunter2</p>"),
        false,
        "`text/html` where JSON or an event stream was expected",
    ),
    (|| reply("302 Found", &["location: https://evil.example/?hunter2"], ""), false, "not followed"),
    (|| reply("429 Too Many Requests", &[], ""), true, "too many requests (429): call less often"),
    (|| reply("429 Too Many Requests", &["retry-after: 3600"], ""), true, "too many requests (429)"),
    (|| reply("502 Bad Gateway", &[], ""), true, "a fault of its own (502"),
    (|| reply("503 Service Unavailable", &[], ""), true, "a fault of its own (503"),
    (|| reply("504 Gateway Timeout", &[], ""), true, "a fault of its own (504"),
];

fn options() -> ConnectOptions {
    ConnectOptions::default().header("Authorization", "Bearer hunter2").timeout_ms(20_000)
}

async fn connect(peer: &Peer) -> Result<Bridge, BridgeError> {
    connect_to_server(&peer.url("/mcp?key=hunter2"), options()).await
}

/// Options for a call whose pauses take no time, and the recorded pauses.
fn patient(retry: Retry) -> (AttemptOptions, Arc<Mutex<Vec<u64>>>) {
    let pauses = Arc::new(Mutex::new(Vec::new()));
    let ours = Arc::clone(&pauses);
    let sleep = Sleep::new(move |pause: Duration| {
        ours.lock().push(pause.as_secs());
        async {}
    });
    (AttemptOptions::default().retry(retry).sleep(sleep).timeout_ms(20_000), pauses)
}

/// A modern server that answers its first `count` calls with `script`.
async fn refusing(count: usize, script: Script) -> (Peer, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let ours = Arc::clone(&calls);
    let peer = Peer::start(move |asked| {
        modern(asked, |asked| match ours.fetch_add(1, Ordering::SeqCst) < count {
            true => script(),
            false => json_reply(&result(asked, "well")),
        })
    })
    .await;
    (peer, calls)
}

fn text(result: &bridgehead_wire::Raw) -> String {
    let result: Value = result.decode().unwrap();
    result["content"][0]["text"].as_str().unwrap().to_owned()
}

/// BRG-4, BRG-5: of the refusals of a call only 429, 502, 503 and 504 are retried. The error names the tool, the cause
/// and its cure, and no secret; the next call is unaffected.
#[tokio::test]
async fn refusals_of_a_call() {
    for (script, retryable, words) in REFUSALS {
        let (peer, calls) = refusing(3, *script).await;
        let bridge = connect(&peer).await.unwrap();
        let (options, pauses) = patient(Retry::Always);
        let error = call_tool(&bridge, "echo", &json!({}), &options).await.unwrap_err();
        let attempts = if *retryable { 3 } else { 1 };
        assert_eq!((error.attempts, error.retryable()), (attempts, *retryable), "{error}");
        assert_eq!(calls.load(Ordering::SeqCst), attempts as usize, "{error}");
        assert_eq!(*pauses.lock(), if *retryable { vec![1, 2] } else { vec![] }, "{error}");
        let said = error.to_string();
        assert!(said.starts_with("tool `echo` failed after "), "{said}");
        assert!(said.contains(words) && !said.contains("hunter2"), "`{words}`: {said}");
        calls.store(3, Ordering::SeqCst);
        assert_eq!(text(&call_tool(&bridge, "echo", &json!({}), &options).await.unwrap()), "well");
        bridge.close().await;
    }
}

/// BRG-6: a call that the server turned away provably did not run, so it may be retried even if running it twice would
/// do harm. A fault on the way proves nothing.
#[tokio::test]
async fn what_was_turned_away_never_ran() {
    let table: [(Script, u32); 3] = [
        (|| reply("429 Too Many Requests", &[], ""), 2),
        (|| reply("502 Bad Gateway", &[], ""), 1),
        (|| vec![Part::Close], 1),
    ];
    for (script, calls_made) in table {
        let (peer, calls) = refusing(1, script).await;
        let bridge = connect(&peer).await.unwrap();
        let (options, _) = patient(Retry::Safe);
        let outcome = call_tool(&bridge, "echo", &json!({}), &options).await;
        assert_eq!(outcome.is_ok(), calls_made == 2, "{outcome:?}");
        assert_eq!(calls.load(Ordering::SeqCst), calls_made as usize, "{outcome:?}");
        bridge.close().await;
    }
}

/// BRG-6: an attempt waits out a `Retry-After` if it has the time. If not, the attempt ends and says so, and the call
/// counts as never sent.
#[tokio::test]
async fn a_server_that_asks_to_wait() {
    let (peer, calls) = refusing(1, || reply("429 Too Many Requests", &["retry-after: 1"], "")).await;
    let bridge = connect(&peer).await.unwrap();
    let (options, pauses) = patient(Retry::Never);
    let began = Instant::now();
    assert_eq!(text(&call_tool(&bridge, "echo", &json!({}), &options).await.unwrap()), "well");
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!((calls.load(Ordering::SeqCst), pauses.lock().len()), (2, 0), "it was one attempt");
    bridge.close().await;

    let (peer, calls) = refusing(9, || reply("429 Too Many Requests", &["retry-after: 50"], "")).await;
    let bridge = connect(&peer).await.unwrap();
    let (options, pauses) = patient(Retry::Safe);
    let options = options.timeout_ms(1_500).max_attempts(2);
    let error = call_tool(&bridge, "echo", &json!({}), &options).await.unwrap_err();
    assert_eq!((error.attempts, error.retryable()), (2, true), "{error}");
    assert!(error.to_string().contains("it asks to wait"), "{error}");
    assert_eq!(*pauses.lock(), [1]);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "a server that asked to wait is not called again");
    bridge.close().await;
}

/// BRG-1, BRG-4: the same refusals of a handshake fail the connect after one attempt, retryable or not.
#[tokio::test]
async fn refusals_of_a_handshake() {
    for (script, retryable, words) in REFUSALS {
        let script = *script;
        let peer = Peer::start(move |_: &Asked| script()).await;
        let error = connect(&peer).await.unwrap_err();
        assert_eq!((error.attempts, error.retryable()), (1, *retryable), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("connecting to http://127.0.0.1:"), "{said}");
        assert!(peer.asked().iter().all(|asked| asked.method == "POST"), "only streamable HTTP is tried");
        assert!(said.contains(words) && !said.contains("hunter2"), "`{words}`: {said}");
    }
    let refusing = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (url, words) in [
        (format!("http://{refusing}/"), "is the server running there?"),
        ("http://no-such-host.invalid/".to_owned(), "cannot be found"),
        (format!("ws://{refusing}/"), "is the server running there?"),
    ] {
        let error = connect_to_server(&url, options()).await.unwrap_err();
        assert_eq!((error.attempts, error.retryable()), (1, true), "{error}");
        assert!(error.to_string().contains(words), "{error}");
    }
    for (scheme, transport) in [("http", RemoteTransport::Sse), ("ws", RemoteTransport::WebSocket)] {
        for (status, retryable) in [("403 Forbidden", false), ("503 Service Unavailable", true)] {
            let peer = Peer::start(move |_: &Asked| reply(status, &[], "")).await;
            let remote = Remote::new(format!("{scheme}://{}/", peer.address()).parse().unwrap());
            let endpoint = Launch::Remote(Remote { transport, ..remote });
            let error = connect_to_endpoint(endpoint, options()).await.unwrap_err();
            assert_eq!((error.attempts, error.retryable()), (1, retryable), "{scheme}: {error}");
        }
    }
}

/// BRG-3, LINK-2: arguments that a modern tool wants in headers are sent there, encoded if necessary and omitted if
/// null. A legacy server gets none.
#[tokio::test]
async fn arguments_in_headers() {
    let peer = Peer::start(|asked| modern(asked, |asked| json_reply(&result(asked, "well")))).await;
    let bridge = connect(&peer).await.unwrap();
    let (options, _) = patient(Retry::Never);
    for (arguments, header) in [
        (json!({"region": "eu-1"}), "eu-1"),
        (json!({"region": "日本"}), "=?base64?5pel5pys?="),
        (json!({"region": null}), ""),
        (json!({}), ""),
    ] {
        call_tool(&bridge, "echo", &arguments, &options).await.unwrap();
        let asked = peer.asked_for("tools/call").pop().unwrap();
        assert_eq!(asked.header("mcp-param-region"), header, "{arguments}");
        assert_eq!(asked.headers.contains_key("mcp-param-region"), !header.is_empty(), "{arguments}");
        assert_eq!((asked.header("mcp-name"), asked.header("mcp-method")), ("echo", "tools/call"));
        assert_eq!(asked.header("authorization"), "Bearer hunter2");
        assert_eq!(asked.json()["params"]["arguments"], arguments);
    }
    assert_eq!(peer.asked_for("tools/list").len(), 1, "the tool list is read once");
    bridge.close().await;

    let peer = Peer::start(|asked| legacy(asked, |asked| json_reply(&result(asked, "well")))).await;
    let bridge = connect(&peer).await.unwrap();
    call_tool(&bridge, "echo", &json!({"region": "eu-1"}), &options).await.unwrap();
    let asked = peer.asked_for("tools/call").pop().unwrap();
    assert!(
        asked.headers.keys().all(|name| !name.starts_with("mcp-param") && name != "mcp-name"),
        "{asked:?}"
    );
    bridge.close().await;
    assert!(peer.asked().iter().any(|asked| asked.method == "DELETE"), "the session is ended");
}

/// BRG-2, BRG-4: silence is a timeout and is retried; a lost connection is re-established.
#[tokio::test]
async fn silence_and_loss() {
    let (peer, calls) = refusing(2, || vec![Part::Hang]).await;
    let bridge = connect(&peer).await.unwrap();
    let (options, pauses) = patient(Retry::Always);
    let options = options.timeout_ms(1_500);
    assert_eq!(text(&call_tool(&bridge, "echo", &json!({}), &options).await.unwrap()), "well");
    assert_eq!((calls.load(Ordering::SeqCst), pauses.lock().as_slice()), (3, &[1, 2][..]));
    bridge.close().await;
    let error = call_tool(&bridge, "echo", &json!({}), &options).await.unwrap_err();
    assert!(matches!(error.cause, Cause::Closed), "{error}");
}
