//! Streams that are read, left and taken up again, under a clock that the tests turn.

use bridgehead_wire::held::Budget;
use http::StatusCode;
use http_body_util::BodyExt;

use super::*;
use crate::http::running::OnDisconnect;

const MANNER: Manner =
    Manner { revision: Revision::V2025_11_25, keep_alive: Duration::from_secs(15), poll_after: None };

fn streams() -> Streams {
    Streams::new(Account::new(&Budget::new(64 << 20, 64 << 20)))
}

fn done(body: &'static str) -> Option<Answer> {
    Some(Answer { status: StatusCode::OK, body: bridgehead_wire::Raw::literal(body).into() })
}

async fn text(reply: Reply) -> String {
    String::from_utf8(reply.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

fn finished(body: &'static str) -> Running<Option<Answer>> {
    Running::new(OnDisconnect::Finish, async move { done(body) })
}

/// ERA-1: events have ids, the client learns when to come back, and whoever comes back reads on.
#[tokio::test(start_paused = true)]
async fn a_stream_is_taken_up_again() {
    let streams = streams();
    let (tell, notes) = mpsc::channel(4);
    let (go, gate) = tokio::sync::oneshot::channel::<()>();
    let call = Running::new(OnDisconnect::Finish, async move {
        tell.send(Bytes::from_static(b"1")).await.unwrap();
        gate.await.unwrap();
        tell.send(Bytes::from_static(b"2")).await.unwrap();
        done("3")
    });
    let mut reply = answer(call, Some(notes), &streams, MANNER, false).await;
    let mut seen = String::new();
    while !seen.contains("data: 1\n") {
        let frame = reply.body_mut().frame().await.unwrap().unwrap();
        seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    assert_eq!(seen, "id: 1-0\nretry: 1000\ndata: \n\nid: 1-1\nevent: message\ndata: 1\n\n");
    drop(reply);
    go.send(()).unwrap();
    let (log, next) = streams.find("1-1").unwrap();
    let rest = "id: 1-2\nevent: message\ndata: 2\n\nid: 1-3\nevent: message\ndata: 3\n\n";
    assert_eq!(text(body(log, next, MANNER)).await, rest);
    let (log, next) = streams.find("1-1").unwrap();
    assert_eq!(text(body(log, next, MANNER)).await, rest, "and again");
    for foreign in ["1-4", "2-0", "0-0", "x", "1-", "-1", "1-x", ""] {
        assert!(streams.find(foreign).is_none(), "{foreign}");
    }
}

/// ERA-1: whoever stays away for too long is told nothing more, and who asks it something learns that; the answer is
/// still kept for it.
#[tokio::test(start_paused = true)]
async fn whoever_stays_away_is_given_up() {
    let streams = streams();
    let (tell, notes) = mpsc::channel(4);
    let call = Running::new(OnDisconnect::Finish, async move {
        tell.send(Bytes::from_static(b"1")).await.unwrap();
        tell.closed().await;
        done("2")
    });
    let mut reply = answer(call, Some(notes), &streams, MANNER, true).await;
    let mut seen = String::new();
    while !seen.contains("data: 1\n") {
        let frame = reply.body_mut().frame().await.unwrap().unwrap();
        seen.push_str(std::str::from_utf8(frame.data_ref().unwrap()).unwrap());
    }
    drop(reply);
    sleep(GRACE - Duration::from_millis(1)).await;
    assert!(streams.find("1-2").is_none(), "it may still come back");
    sleep(Duration::from_millis(2)).await;
    let (log, next) = streams.find("1-1").unwrap();
    assert_eq!(text(body(log, next, MANNER)).await, "id: 1-2\nevent: message\ndata: 2\n\n");
}

#[tokio::test(start_paused = true)]
async fn plain_unless_there_is_something_to_stream() {
    let streams = streams();
    let reply = answer(finished("2"), None, &streams, MANNER, false).await;
    assert_eq!(reply.headers()["content-type"], "application/json");
    let reply = answer(finished("2"), None, &streams, MANNER, true).await;
    assert_eq!(text(reply).await, "id: 1-0\nretry: 1000\ndata: \n\nid: 1-1\nevent: message\ndata: 2\n\n");
    let older = Manner { revision: Revision::V2025_06_18, ..MANNER };
    let reply = answer(finished("2"), None, &streams, older, true).await;
    assert_eq!(text(reply).await, "id: 2-0\nevent: message\ndata: 2\n\n", "no event without a message");
    let (tell, notes) = mpsc::channel(4);
    tell.try_send(Bytes::from_static(b"1")).unwrap();
    drop(tell);
    let cancelled = Running::new(OnDisconnect::Finish, async { None });
    let reply = answer(cancelled, Some(notes), &streams, older, false).await;
    assert_eq!(text(reply).await, "id: 3-0\nevent: message\ndata: 1\n\n");
    let nothing = Running::new(OnDisconnect::Finish, async { None });
    assert_eq!(text(answer(nothing, None, &streams, MANNER, false).await).await, "");
}

/// A client that waits in silence is sent away and comes back for the answer.
#[tokio::test(start_paused = true)]
async fn a_silent_stream_sends_its_client_away() {
    let streams = streams();
    let manner = Manner { poll_after: Some(Duration::from_secs(60)), ..MANNER };
    let call = Running::new(OnDisconnect::Finish, async {
        sleep(Duration::from_secs(100)).await;
        done("2")
    });
    let seen = text(answer(call, None, &streams, manner, true).await).await;
    assert!(seen.starts_with("id: 1-0\n") && seen.contains(": keep-alive") && !seen.contains("data: 2"));
    let (log, next) = streams.find("1-0").unwrap();
    assert!(text(body(log, next, manner)).await.ends_with("data: 2\n\n"));
}

/// What is kept is bounded, and a panic ends the stream.
#[tokio::test(start_paused = true)]
async fn logs_are_bounded() {
    let streams = streams();
    let log = streams.open();
    for _ in 0..5 {
        log.push(&vec![b'x'; MOST_BYTES / 2]).unwrap();
    }
    assert!(log.written.lock().bytes <= MOST_BYTES && log.written.lock().events.len() == 1);
    log.finish();
    let (log, next) = streams.find("1-0").unwrap();
    assert!(text(body(log, next, MANNER)).await.starts_with("id: 1-4\n"), "reads on with what is left");
    for _ in 0..MOST_STREAMS {
        streams.open();
    }
    assert!(streams.find("1-4").is_none());
    assert_eq!(streams.calls.lock().kept.len(), MOST_STREAMS);
    let panics = Running::new(OnDisconnect::Finish, async {
        assert!(streams_are_fine(), "on purpose");
        done("1")
    });
    let reply = answer(panics, None, &streams, MANNER, true).await;
    assert!(!text(reply).await.contains("data: 1"));
}

/// BOUND-3: what streams hold is bounded for a session and for all. What was read goes first, then answers that
/// nobody has come for, then an answer is an error that says why.
#[tokio::test(start_paused = true)]
async fn what_streams_hold_is_bounded() {
    let budget = Budget::new(10 << 20, 4 << 20);
    let (one, other) = (Streams::new(Account::new(&budget)), Streams::new(Account::new(&budget)));
    let large = format!("{{\"jsonrpc\":\"2.0\",\"id\":7,\"result\":\"{}\"}}", "x".repeat(3 << 19));
    let call = || {
        let body = bridgehead_wire::Raw::parse(large.clone()).unwrap().into();
        Running::new(OnDisconnect::Finish, async move { Some(Answer { status: StatusCode::OK, body }) })
    };
    let read = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(read.len() > large.len());
    // Calls whose clients are gone.
    for _ in 0..20 {
        drop(answer(call(), None, &one, MANNER, true).await);
        tokio::task::yield_now().await;
        drop(answer(call(), None, &other, MANNER, true).await);
        tokio::task::yield_now().await;
        assert!(one.account.held() <= 4 << 20 && other.account.held() <= 4 << 20);
    }
    assert!(one.find("1-0").is_none(), "what was read went first");
    assert_eq!(one.account.held() / large.len(), 2, "the latest are kept");
    assert!(one.find("21-1").is_some() && one.find("19-1").is_none());
    assert!(budget.peak() <= 10 << 20, "{}", budget.peak());
    // Whoever is being read does not go: then there is no room for another.
    let mut bodies: Vec<_> =
        [20, 21].map(|log| body(one.find(&format!("{log}-0")).unwrap().0, 0, MANNER)).into();
    let refused = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(refused.contains("\"id\":7") && refused.contains("limits.held_per_peer_mb"), "{refused}");
    bodies.clear();
    let kept = text(answer(call(), None, &one, MANNER, true).await).await;
    assert!(kept.len() > large.len());
    drop((one, other));
    assert_eq!(budget.held(), 0, "all is given back with the sessions");
}

fn streams_are_fine() -> bool {
    false
}
