//! A link over lines, tested from both ends.

use serde_json::json;

use super::*;
use crate::testing;

/// A link is open until it ends; the first reason stays, and every request fails with it.
#[tokio::test]
async fn a_link_is_open_until_it_ends() {
    let (link, _far) = testing::link();
    let mut waits = link.open(Purpose::Ordinary);
    assert!(link.is_open() && link.ended().is_none());
    assert_eq!(link.in_flight(), 1);
    let first = LinkError::Closed("first".into());
    link.end(first.clone());
    link.end(LinkError::Closed("second".into()));
    assert!(!link.is_open());
    assert_eq!((link.ended(), link.in_flight()), (Some(first.clone()), 0));
    assert_eq!(waits.answer().await.unwrap_err(), first);
    assert_eq!(
        link.open(Purpose::Ordinary).answer().await.unwrap_err(),
        first,
        "a later request fails with it too"
    );
}

/// ERA-1: the level is requested only when it brings more log lines.
#[tokio::test(start_paused = true)]
async fn a_level_is_sent_where_it_brings_more() {
    let (link, mut far) = testing::link();
    for (level, sent) in [(Level::Error, true), (Level::Alert, false), (Level::Info, true)] {
        let wanting = async {
            link.want_level(level).await;
            link.notify(&Method::Initialized, None).await;
        };
        let hearing = async {
            let mut heard = far.next().await;
            if sent {
                assert_eq!(heard["method"], "logging/setLevel", "{heard}");
                assert_eq!(heard["params"]["level"], level.as_str());
                far.say(json!({"jsonrpc": "2.0", "id": heard["id"], "result": {}})).await;
                heard = far.next().await;
            }
            assert_eq!(heard["method"], "notifications/initialized", "{level:?}: {heard}");
        };
        tokio::join!(wanting, hearing);
    }
}

/// A request for a client that can be asked, with questions for roots under these ids.
async fn asked(link: &Link, far: &mut testing::Far, ids: &[u64]) -> Exchange {
    let mut exchange = link.open_for(Purpose::Ordinary, Abilities::ALL);
    exchange.send(&Method::ToolsCall, &Raw::literal("{}").into()).await;
    assert_eq!(far.next().await["method"], "tools/call");
    for id in ids {
        far.say(json!({"jsonrpc": "2.0", "id": id, "method": "roots/list"})).await;
    }
    exchange
}

/// ERA-1: every question gets exactly one answer: the client's, or a refusal when its call has ended, even if the
/// question was never looked at. A withdrawn question gets no answer.
#[tokio::test(start_paused = true)]
async fn every_question_is_answered_once() {
    let (link, mut far) = testing::link();
    let mut exchange = asked(&link, &mut far, &[7, 8, 9]).await;
    for _ in 0..2 {
        assert!(matches!(exchange.next().await, Event::Asked(_)));
    }
    let answer = Spliced::from(Raw::literal(r#"{"roots":[]}"#));
    for id in [8, 8, 5] {
        exchange.reply(&id.into(), Ok(&answer));
    }
    assert_eq!(far.next().await, json!({"jsonrpc": "2.0", "id": 8, "result": {"roots": []}}));
    // The reader has had its turn, so the last question is queued.
    tokio::time::sleep(Duration::from_millis(1)).await;
    drop(exchange);
    for id in [7, 9] {
        let refused = far.next().await;
        assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(id), &json!(-32603)), "{refused}");
    }
    assert_eq!(far.next().await["method"], "notifications/cancelled");

    let mut exchange = asked(&link, &mut far, &[7, 8]).await;
    let taken_back =
        json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}});
    far.say(taken_back).await;
    for _ in 0..3 {
        exchange.next().await;
    }
    exchange.reply(&7.into(), Ok(&answer));
    drop(exchange);
    let refused = far.next().await;
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(8), &json!(-32603)), "{refused}");
    assert_eq!(far.next().await["method"], "notifications/cancelled");
}

/// POOL-10: dropping a request cancels it at the peer if it was sent and has no answer, but never during a
/// handshake.
#[tokio::test(start_paused = true)]
async fn what_is_cancelled() {
    for (purpose, sent, answered, cancelled) in [
        (Purpose::Ordinary, true, false, true),
        (Purpose::Standing, true, false, true),
        (Purpose::Handshake, true, false, false),
        (Purpose::Ordinary, false, false, false),
        (Purpose::Ordinary, true, true, false),
    ] {
        let (link, mut far) = testing::link();
        let mut exchange = link.open(purpose);
        if sent {
            exchange.send(&Method::Ping, &Raw::literal("{}").into()).await;
            far.next().await;
        }
        assert_eq!(exchange.was_sent(), sent);
        if answered {
            far.say(json!({"jsonrpc": "2.0", "id": exchange.id(), "result": {}})).await;
            exchange.answer().await.unwrap().unwrap();
        }
        let id = exchange.id();
        drop(exchange);
        link.notify(&Method::Initialized, None).await;
        let told = far.next().await;
        let expected = if cancelled { "notifications/cancelled" } else { "notifications/initialized" };
        assert_eq!(told["method"], expected, "{purpose:?}, sent: {sent}, answered: {answered}");
        assert!(!cancelled || told["params"]["requestId"] == id, "{told}");
    }
}
