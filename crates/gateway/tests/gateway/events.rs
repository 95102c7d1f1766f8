//! What the bus is told.

use std::collections::HashMap;
use std::sync::Arc;

use bridgehead_config::Mode;
use bridgehead_events::{Delivery, Event, Filter, Subscription, Topic};
use bridgehead_gateway::NativeTool;
use bridgehead_testkit::{Behaviour, Crash, Mock};
use serde_json::{Value, json};

use crate::support::Fixture;

fn drain(subscription: &mut Subscription) -> Vec<Arc<Event>> {
    std::iter::from_fn(|| subscription.try_next())
        .map(|delivery| match delivery {
            Delivery::Event(event) => event,
            Delivery::Missed(count) => panic!("{count} events were missed"),
        })
        .collect()
}

/// BUS-2: every call outcome, refused, unknown and cancelled ones too, publishes exactly one completed or
/// failed event with the call's own id. BUS-1: what they carry.
#[tokio::test]
async fn every_outcome_is_told_once() {
    let hang = NativeTool::new("hang", "", json!({"type": "object", "maxProperties": 0}), |_, _| {
        std::future::pending()
    });
    let fixture = Arc::new(Fixture::start(&[], |options| {
        options.settings.mode = Mode::Test;
        options.tools.push(hang);
    }));
    let filter = Filter { topics: vec!["provider.mcp.tool".to_owned()], server: None };
    let mut told = fixture.gateway.events().subscribe_to(filter, 64);
    fixture.call("server_ping", json!({})).await.unwrap();
    fixture.call("hang", json!({"surplus": 1})).await.unwrap();
    fixture.call("nobody", json!({})).await.unwrap_err();
    let call = || {
        let fixture = Arc::clone(&fixture);
        tokio::spawn(async move { fixture.call("hang", json!({})).await })
    };
    let (running, queued) = (call(), call());
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    for call in [queued, running] {
        call.abort();
        let _ = call.await;
    }
    while fixture.recorder.exits().len() < 5 {
        tokio::task::yield_now().await;
    }
    let events = drain(&mut told);
    let exits: HashMap<_, _> = fixture
        .recorder
        .exits()
        .into_iter()
        .map(|exit| (exit.correlation(), exit.tool().to_owned()))
        .collect();
    assert_eq!((events.len(), exits.len()), (5, 5));
    let mut codes = Vec::new();
    for event in &events {
        assert!(exits.contains_key(&event.correlation()), "the id is that of the call");
        let json: Value = serde_json::to_value(&**event).unwrap();
        codes.push(json["code"].as_str().unwrap_or("completed").to_owned());
    }
    assert_eq!(codes, ["completed", "INVALID_PARAMS", "PROVIDER_TOOL_UNKNOWN", "cancelled", "cancelled"]);
    let first: Value = serde_json::to_value(&*events[0]).unwrap();
    assert_eq!(first["topic"], "provider.mcp.tool.completed");
    assert!(first["summary"].as_str().is_some_and(|text| text.contains("uptime_ms") && text.len() <= 1024));
    drop(told);
    Arc::into_inner(fixture).unwrap().end().await;
}

/// BUS-1, BUS-2: the life of a server, each event with the id of the attempt it belongs to.
#[tokio::test]
async fn the_life_of_a_server_is_told() {
    let mock =
        Mock::legacy().tool("die", Behaviour::Crash(Crash::Exit { status: 3 })).tool("a", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let mut told = fixture.gateway.events().subscribe(256);
    fixture.gateway.settled().await;
    fixture.call("die", json!({})).await.unwrap_err();
    fixture.call("a", json!({})).await.unwrap();
    let events = drain(&mut told);
    let topics: Vec<&str> = events.iter().map(|event| event.topic().as_str()).collect();
    let place = |topic: Topic| topics.iter().position(|name| *name == topic.as_str());
    for (before, after) in [
        (Topic::InitFinished, Topic::ToolsDiscovered),
        (Topic::ToolsDiscovered, Topic::Disconnected),
        (Topic::Disconnected, Topic::ProcessExited),
        (Topic::Disconnected, Topic::Restart),
        (Topic::Restart, Topic::ToolsRefreshed),
        (Topic::ToolsRefreshed, Topic::Reconnected),
    ] {
        assert!(
            place(before).is_some() && place(before) < place(after),
            "{before:?} before {after:?}: {topics:?}"
        );
    }
    let attempts: std::collections::HashSet<_> = events
        .iter()
        .filter(|event| matches!(event.topic(), Topic::InitStarted | Topic::InitFinished))
        .map(|event| event.correlation())
        .collect();
    assert_eq!(attempts.len(), 2, "one id for each attempt");
    assert!(events.iter().all(|event| event.server() == Some("m")));
    drop(told);
    fixture.end().await;
}
