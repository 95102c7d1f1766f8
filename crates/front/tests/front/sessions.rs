//! Legacy sessions over HTTP.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bridgehead_config::HttpSettings;
use bridgehead_front::{authenticator, router};
use bridgehead_gateway::{Lists, Principal};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::client::{Direct, Server, events, piece};
use crate::fake::{Fake, code_of, initialize, legacy, modern, told};

#[tokio::test]
async fn a_session_from_initialize_to_delete() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let session = server.session("2025-06-18").await;
    assert_eq!(
        server.in_session(&session, &legacy("1", "ping", "")).await.text,
        r#"{"jsonrpc":"2.0","id":1,"result":{}}"#
    );
    let call = legacy("\"c\"", "tools/call", r#""name":"echo","arguments":{"n":1}"#);
    assert_eq!(server.in_session(&session, &call).await.json()["result"]["n"], 1);
    assert_eq!(fake.callers.lock().unwrap()[0], format!("{} 2025-06-18", Principal::local()));
    let ended = server.send("DELETE", &[("mcp-session-id", &session)], "").await;
    assert_eq!(ended.status, 204);
    assert_eq!(server.in_session(&session, &call).await.error(), (404, -32600, Some("\"c\"".to_owned())));
    assert_eq!(server.send("DELETE", &[("mcp-session-id", &session)], "").await.status, 404);
}

#[tokio::test]
async fn bad_requests_get_the_exact_status_and_code() {
    let server = Server::start(&Fake::new()).await;
    let session = server.session("2025-06-18").await;
    let with = [("mcp-session-id", session.as_str())];
    let version = |version| [("mcp-session-id", session.as_str()), ("mcp-protocol-version", version)];
    let unknown = [("mcp-session-id", "00000000-0000-4000-8000-000000000000")];
    let one = || Some("1".to_owned());
    let list = legacy("1", "tools/list", "");
    let check = async |headers: &[(&str, &str)], body: &str, expected: (u16, i64, Option<String>)| {
        let answer = server.post(headers, body).await;
        assert_eq!(answer.error(), expected, "{headers:?} {body}: {answer:?}");
    };
    check(&[], &list, (400, -32600, one())).await;
    check(&unknown, &list, (404, -32600, one())).await;
    check(&[("mcp-session-id", "nonsense")], &list, (404, -32600, one())).await;
    check(&version("1999-01-01"), &list, (400, -32600, one())).await;
    check(&version("next"), &list, (400, -32600, one())).await;
    check(&[("accept", "application/json"), with[0]], &list, (406, -32600, None)).await;
    check(&[("content-type", "text/plain"), with[0]], &list, (415, -32600, None)).await;
    check(&with, "{", (400, -32700, None)).await;
    check(&with, &format!("[{list}]"), (400, -32600, None)).await;
    check(&with, r#"{"jsonrpc":"2.0","id":1}"#, (400, -32600, one())).await;
    // Errors of JSON-RPC itself travel with status 200.
    check(&with, &legacy("1", "no/such", ""), (200, -32601, one())).await;
    check(&with, &legacy("1", "server/discover", ""), (200, -32601, one())).await;
    check(&with, &legacy("1", "tools/call", r#""name":"nope""#), (200, -32602, one())).await;
    check(&with, &legacy("1", "tools/call", r#""_meta":7"#), (200, -32602, one())).await;
    check(&[], &legacy("1", "initialize", ""), (200, -32602, one())).await;
    // Any known legacy revision is accepted, and the session stays usable.
    for revision in ["2024-11-05", "2025-06-18", "2025-11-25"] {
        assert_eq!(server.post(&version(revision), &list).await.status, 200);
    }
    // A modern request does not care about the session.
    let headers = [&crate::client::mirrored("tools/list", "")[..], &unknown].concat();
    assert_eq!(server.post(&headers, &modern("1", "tools/list", "")).await.status, 200);
    // Responses and notifications have no answer, but need the session.
    for body in [r#"{"jsonrpc":"2.0","id":1,"result":{}}"#.to_owned(), told("notifications/x", "")] {
        assert_eq!(server.post(&with, &body).await.status, 202);
        assert_eq!(server.post(&unknown, &body).await.status, 404);
        assert_eq!(server.post(&[], &body).await.status, 400);
    }
}

#[tokio::test]
async fn get_and_delete_are_for_sessions_only() {
    let server = Server::start(&Fake::new()).await;
    let session = server.session("2025-06-18").await;
    let id = ("mcp-session-id", session.as_str());
    for method in ["GET", "DELETE"] {
        for headers in [vec![], vec![id, ("mcp-protocol-version", "2026-07-28")]] {
            let refused = server.send(method, &headers, "").await;
            assert_eq!((refused.status.as_u16(), &refused.headers["allow"]), (405, &"POST".parse().unwrap()));
        }
        assert_eq!(server.send(method, &[id, ("mcp-protocol-version", "nope")], "").await.status, 400);
        assert_eq!(server.send(method, &[("mcp-session-id", "nope")], "").await.status, 404);
    }
    assert_eq!(server.send("GET", &[id, ("accept", "application/json")], "").await.status, 406);
}

#[tokio::test]
async fn the_number_of_sessions_is_bounded() {
    let settings = HttpSettings { max_sessions: 2, ..HttpSettings::default() };
    let server = Server::with(&Fake::new(), settings, None).await;
    let mut first = String::new();
    // BOUND-4: sessions that never sent a request make way, the others do not.
    for asks in [false, false, true, true] {
        first = server.session("2025-06-18").await;
        if asks {
            let session = [("mcp-session-id", first.as_str())];
            assert_eq!(server.post(&session, &legacy("1", "ping", "")).await.status, 200);
        }
    }
    let refused = server.post(&[], &initialize("7", "2025-06-18")).await;
    assert_eq!(refused.error(), (503, -32603, Some("7".to_owned())));
    assert!(
        refused.text.contains("http.max_sessions") && refused.headers["retry-after"] == "30",
        "{refused:?}"
    );
    server.send("DELETE", &[("mcp-session-id", &first)], "").await;
    server.session("2025-06-18").await;
}

/// SRV-3: the answer to `initialize` waits for instructions, over stdio and over HTTP, and no other answer does.
#[tokio::test(start_paused = true)]
async fn a_handshake_waits_for_instructions() {
    let fake = Fake::new();
    fake.instructions_ms.store(200, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    let elapsed = || began.elapsed().as_millis();
    let mut client = crate::lines::Client::legacy(&fake, "2025-06-18").await;
    assert!((200..210).contains(&elapsed()), "{} ms", elapsed());
    client.check_usable().await;
    let settings = HttpSettings::default();
    let service = router(fake.clone(), &settings, authenticator(&settings, None), CancellationToken::new());
    let post = async |session: Option<&str>, body: String| {
        let request = Request::post("/mcp")
            .header("host", "localhost")
            .header("accept", "*/*")
            .header("content-type", "application/json")
            .header("mcp-session-id", session.unwrap_or("none"));
        let answer = service.answer(request.body(Full::new(Bytes::from(body))).unwrap()).await;
        assert_eq!(answer.status(), 200);
        answer.headers().get("mcp-session-id").map(|id| id.to_str().unwrap().to_owned())
    };
    let session = post(None, initialize("1", "2025-06-18")).await;
    assert!((400..420).contains(&elapsed()), "{} ms", elapsed());
    post(session.as_deref(), legacy("2", "tools/list", "")).await;
    assert!(elapsed() < 420, "{} ms", elapsed());
}

/// Without a socket, so that the clock can be paused.
#[tokio::test(start_paused = true)]
async fn idle_sessions_expire_unless_a_call_is_in_flight() {
    const IDLE: Duration = Duration::from_secs(60);
    let fake = Fake::new();
    let settings = HttpSettings { session_idle: IDLE, ..HttpSettings::default() };
    let service = router(fake.clone(), &settings, authenticator(&settings, None), CancellationToken::new());
    let post = async |session: &str, body: String| {
        let request = Request::post("/mcp")
            .header("host", "localhost")
            .header("accept", "*/*")
            .header("content-type", "application/json")
            .header("mcp-session-id", session);
        service.answer(request.body(Full::new(Bytes::from(body))).unwrap()).await
    };
    let open = async || {
        let answer = post("none", initialize("1", "2025-06-18")).await;
        answer.headers()["mcp-session-id"].to_str().unwrap().to_owned()
    };
    let (idle, busy) = (open().await, open().await);
    let ping = || legacy("2", "ping", "");
    let (answer, ()) = tokio::join!(post(&busy, legacy("1", "tools/call", r#""name":"gate""#)), async {
        tokio::time::sleep(IDLE * 3).await;
        assert_eq!(post(&idle, ping()).await.status(), 404);
        fake.gate.notify_one();
    });
    assert_eq!(answer.status(), 200);
    assert_eq!(post(&busy, ping()).await.status(), 200);
    tokio::time::sleep(IDLE * 3).await;
    assert_eq!(post(&busy, ping()).await.status(), 404);
}

#[tokio::test]
async fn progress_comes_on_the_stream_of_its_post() {
    let server = Server::start(&Fake::new()).await;
    let session = server.session("2025-11-25").await;
    for tool in ["steps", "burst"] {
        let call = legacy("1", "tools/call", &format!(r#""name":"{tool}","_meta":{{"progressToken":9}}"#));
        let found = server.in_session(&session, &call).await.events();
        let steps: Vec<_> = found[..5].iter().map(|note| note["params"]["progress"].clone()).collect();
        assert_eq!(steps, [1, 2, 3, 4, 5]);
        assert_eq!((found.len(), &found[5]["result"][tool]), (6, &5.into()));
        let call = legacy("1", "tools/call", &format!(r#""name":"{tool}""#));
        let plain = server.in_session(&session, &call).await.json();
        assert_eq!(plain["result"][tool], 5, "without a token nothing comes before the answer");
    }
}

#[tokio::test]
async fn a_disconnect_is_not_a_cancellation() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let session = server.session("2025-06-18").await;
    let id = [("mcp-session-id", session.as_str())];
    let plain = legacy("1", "tools/call", r#""name":"gate""#);
    tokio::select! {
        exchange = server.open("POST", &id, &plain) => panic!("answered {}", exchange.response.status()),
        () = fake.until(|fake| &fake.begun, 1) => {}
    }
    let streamed = legacy("2", "tools/call", r#""name":"step_then_gate","_meta":{"progressToken":1}"#);
    let mut exchange = server.open("POST", &id, &streamed).await;
    exchange.next().await.unwrap();
    drop(exchange);
    // Both are still in flight: their ids are taken.
    for call in [&plain, &streamed] {
        let refused = server.in_session(&session, call).await;
        assert_eq!((refused.error().0, refused.error().1), (200, -32600));
    }
    fake.gate.notify_one();
    fake.until(|fake| &fake.finished, 1).await;
    fake.gate.notify_one();
    fake.until(|fake| &fake.finished, 2).await;
    assert_eq!(fake.cancelled.load(Ordering::SeqCst), 0);
    let again = legacy("1", "tools/call", r#""name":"echo""#);
    assert_eq!(code_of(&server.in_session(&session, &again).await.json()), 0, "the id is free again");
}

#[tokio::test(start_paused = true)]
async fn a_notification_cancels_and_the_post_ends_without_an_answer() {
    let fake = Fake::new();
    let front = Direct::start(&fake);
    let (session, other) = (front.session("2025-06-18").await, front.session("2025-06-18").await);
    let post =
        async |session: &str, body: &str| front.send("POST", &[("mcp-session-id", session)], body).await;
    let call = legacy("1", "tools/call", r#""name":"hang""#);
    let cancel = told("notifications/cancelled", r#""requestId":1"#);
    let (answer, ()) = tokio::join!(post(&session, &call), async {
        fake.until(|fake| &fake.begun, 1).await;
        assert_eq!(post(&other, &cancel).await.status, 202);
        assert_eq!(fake.cancelled.load(Ordering::SeqCst), 0, "another session's id is another id");
        assert_eq!(post(&session, &cancel).await.status, 202);
    });
    assert_eq!((answer.status.as_u16(), answer.events().len()), (200, 0));
    fake.until(|fake| &fake.cancelled, 1).await;
}

#[tokio::test]
async fn ending_a_session_cancels_its_calls_and_closes_its_stream() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let session = server.session("2025-06-18").await;
    let id = [("mcp-session-id", session.as_str())];
    let mut stream = server.open("GET", &id, "").await;
    let call = legacy("1", "tools/call", r#""name":"hang""#);
    let (answer, ()) = tokio::join!(server.in_session(&session, &call), async {
        fake.until(|fake| &fake.begun, 1).await;
        assert_eq!(server.send("DELETE", &id, "").await.status, 204);
    });
    assert_eq!(answer.events().len(), 0);
    fake.until(|fake| &fake.cancelled, 1).await;
    assert_eq!(stream.next().await, None);
}

/// SRV-3: a change of the catalog is announced on the session's stream, also one that came before the
/// stream was opened.
#[tokio::test]
async fn catalog_changes_are_announced_on_the_stream() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let session = server.session("2025-06-18").await;
    let id = [("mcp-session-id", session.as_str())];
    fake.feeds.changed(Lists::TOOLS);
    let mut stream = server.open("GET", &id, "").await;
    assert_eq!(stream.response.headers()["content-type"], "text/event-stream");
    let announced = |text: Option<String>| {
        let found = events(&text.unwrap());
        assert_eq!(found[0]["method"], "notifications/tools/list_changed");
    };
    announced(stream.next().await);
    fake.feeds.changed(Lists::TOOLS);
    announced(stream.next().await);
    assert_eq!(server.send("GET", &id, "").await.error(), (409, -32600, None));
    server.shutdown.cancel();
    assert_eq!(stream.next().await, None);
    server.serving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_silent_session_stream_carries_comments_and_can_be_opened_again() {
    let settings = HttpSettings { keep_alive: Duration::from_millis(20), ..HttpSettings::default() };
    let server = Server::with(&Fake::new(), settings, None).await;
    let session = server.session("2025-06-18").await;
    let id = [("mcp-session-id", session.as_str())];
    let mut stream = server.open("GET", &id, "").await;
    assert_eq!(stream.next().await.unwrap(), ": keep-alive\n\n");
    drop(stream);
    let reopened = async {
        while server.open("GET", &id, "").await.response.status() != 200 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reopened).await.expect("the stream is free again");
}

#[tokio::test]
async fn batches_where_the_revision_has_them() {
    let server = Server::start(&Fake::new()).await;
    let session = server.session("2025-03-26").await;
    let items = [
        legacy("1", "tools/call", r#""name":"steps","_meta":{"progressToken":7}"#),
        told("notifications/x", ""),
        "5".to_owned(),
        legacy("2", "ping", ""),
        initialize("3", "2025-06-18"),
        modern("4", "tools/list", ""),
    ];
    let answer = server.in_session(&session, &format!("[{}]", items.join(","))).await.json();
    let found: Vec<(i64, Value)> =
        answer.as_array().unwrap().iter().map(|answer| (code_of(answer), answer["id"].clone())).collect();
    let expected = [
        (0, Value::from(1)),
        (-32600, Value::Null),
        (0, Value::from(2)),
        (-32600, Value::from(3)),
        (-32600, Value::from(4)),
    ];
    assert_eq!(found, expected);
    let told_only = format!("[{}]", told("notifications/x", ""));
    assert_eq!(server.in_session(&session, &told_only).await.status, 202);
    let many = |count| format!("[{}]", vec![legacy("1", "ping", ""); count].join(","));
    assert_eq!(server.in_session(&session, &many(256)).await.json().as_array().unwrap().len(), 256);
    assert_eq!(server.in_session(&session, &many(257)).await.error(), (400, -32600, None));
}

/// POOL-1: the gateway has one session for each legacy session, until that ends, and one for all modern clients of a
/// principal.
#[tokio::test]
async fn what_the_gateway_knows_a_client_as() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let call = legacy("1", "tools/call", r#""name":"echo","arguments":{}"#);
    let [one, two] = [server.session("2025-06-18").await, server.session("2025-06-18").await];
    for session in [&one, &one, &two] {
        server.in_session(session, &call).await.json();
    }
    for _ in 0..2 {
        let call = modern("1", "tools/call", r#""name":"echo","arguments":{}"#);
        server.modern("tools/call", "echo", &call).await.json();
    }
    let known = fake.sessions.lock().unwrap().clone();
    assert_eq!(known.len(), 5);
    assert!(known[0] == known[1] && known[0] != known[2] && known[3] == known[4] && known[3] != known[0]);
    server.send("DELETE", &[("mcp-session-id", &one)], "").await;
    assert!(known[0].is_ended() && !known[2].is_ended() && !known[3].is_ended());
}

/// ERA-1: a call whose stream broke goes on, and its client reads on from the last event it saw; so does a client that
/// comes back to the session's own stream. An id that was never given out is refused.
#[tokio::test]
async fn a_broken_stream_is_taken_up_again() {
    let fake = Fake::new();
    let server = Server::start(&fake).await;
    let session = server.session("2025-11-25").await;
    let id = [("mcp-session-id", session.as_str())];
    let call = legacy("1", "tools/call", r#""name":"step_then_gate","_meta":{"progressToken":1}"#);
    let mut exchange = server.open("POST", &id, &call).await;
    let mut seen = String::new();
    while !seen.contains("notifications/progress") {
        seen.push_str(&exchange.next().await.unwrap());
    }
    assert!(seen.starts_with("id: 1-0\nretry: "), "{seen}");
    assert!(seen.contains("\n\nid: 1-1\n"), "{seen}");
    drop(exchange);
    fake.gate.notify_one();
    let resumed = |last: &'static str| [("mcp-session-id", session.as_str()), ("last-event-id", last)];
    let rest = server.send("GET", &resumed("1-1"), "").await;
    assert!(rest.text.starts_with("id: 1-2\n"), "{}", rest.text);
    let found = rest.events();
    assert_eq!(found[0]["params"]["progress"], 2);
    assert_eq!(found[1]["result"]["gate"], "open");
    for unknown in ["1-9", "7-0", "nonsense"] {
        assert_eq!(server.send("GET", &resumed(unknown), "").await.error(), (400, -32600, None), "{unknown}");
    }
    let mut stream = server.open("GET", &id, "").await;
    let mut seen = stream.next().await.unwrap();
    assert!(seen.starts_with("id: 0-0\nretry: "), "{seen}");
    fake.feeds.changed(Lists::PROMPTS);
    while !seen.contains("prompts/list_changed") {
        seen.push_str(&stream.next().await.unwrap());
    }
    drop(stream);
    let again = async {
        loop {
            let mut stream = server.open("GET", &resumed("0-0"), "").await;
            if stream.response.status() == 200 {
                break stream.next().await.unwrap();
            }
            // The front has not seen yet that the first one is gone.
            assert_eq!(stream.response.status(), 409);
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await.expect("the stream is free again");
    assert!(again.starts_with("id: 0-1\n") && again.contains("prompts/list_changed"), "{again}");
}

/// ERA-1: a client that comes back to the stream of a call gets that stream to its end, while the session's own stream is
/// open.
#[tokio::test(start_paused = true)]
async fn the_stream_of_a_call_is_not_that_of_its_session() {
    let fake = Fake::new();
    let front = Direct::start(&fake);
    let session = front.session("2025-11-25").await;
    let id = ("mcp-session-id", session.as_str());
    let mut own = front.open("GET", &[id], "").await.into_body();
    assert!(piece(&mut own).await.unwrap().starts_with("id: 0-0\n"));
    let call = legacy("1", "tools/call", r#""name":"step_then_gate","_meta":{"progressToken":1}"#);
    let mut answer = front.open("POST", &[id], &call).await.into_body();
    let mut seen = String::new();
    while !seen.contains("notifications/progress") {
        seen.push_str(&piece(&mut answer).await.unwrap());
    }
    drop(answer);
    fake.gate.notify_one();
    let rest = front.send("GET", &[id, ("last-event-id", "1-1")], "").await;
    assert!(rest.text.starts_with("id: 1-2\n"), "{}", rest.text);
    assert_eq!(rest.events()[1]["result"]["gate"], "open");
    let again = front.open("GET", &[id, ("last-event-id", "0-0")], "").await;
    assert_eq!(again.status(), 409, "its own is open already");
    drop(own);
    fake.feeds.changed(Lists::TOOLS);
    let mut again = front.open("GET", &[id, ("last-event-id", "0-0")], "").await.into_body();
    let told = piece(&mut again).await.unwrap();
    assert!(told.starts_with("id: 0-1\n") && told.contains("tools/list_changed"), "{told}");
}

/// A client that prefers events gets them, and one on a silent stream is sent away if that is configured.
#[tokio::test]
async fn a_client_that_prefers_events() {
    let fake = Fake::new();
    let settings = HttpSettings { poll_after: Some(Duration::from_millis(20)), ..HttpSettings::default() };
    let server = Server::with(&fake, settings, None).await;
    let session = server.session("2025-11-25").await;
    let headers = [("mcp-session-id", session.as_str()), ("accept", "text/event-stream, application/json")];
    let listed = server.post(&headers, &legacy("1", "tools/list", "")).await;
    assert_eq!(listed.events().len(), 1);
    let away = server.post(&headers, &legacy("2", "tools/call", r#""name":"gate""#)).await;
    assert_eq!(away.events().len(), 0, "sent away before the answer");
    assert!(away.text.starts_with("id: 2-0\nretry: "), "{}", away.text);
    fake.gate.notify_one();
    let back = [("mcp-session-id", session.as_str()), ("last-event-id", "2-0")];
    let answered = server.send("GET", &back, "").await;
    assert_eq!(answered.events()[0]["result"]["gate"], "open");
}
