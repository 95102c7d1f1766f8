//! The events that the gateway publishes on the bus.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bridgehead_config::{Limits, Mode, ToolOverride};
use bridgehead_events::{Delivery, Event, Filter, Subscription, Topic};
use bridgehead_gateway::NativeTool;
use bridgehead_testkit::{Behaviour, Crash, FakeClock, Mock, Tool};
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

/// BUS-2: every call outcome publishes exactly one completed or failed event with the call's own id. That includes
/// refused, unknown and cancelled calls. BUS-1: the members of these events.
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
    bridgehead_testkit::until("the ends of both calls", || fixture.recorder.exits().len() >= 5).await;
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

/// BUS-1, BUS-2: the events of a server's life, each with the id of the attempt it belongs to.
#[tokio::test]
async fn the_life_of_a_server_is_told() {
    let mock =
        Mock::legacy().tool("die", Behaviour::Crash(Crash::Exit { status: 3 })).tool("a", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let mut told = fixture.gateway.events().subscribe(256);
    fixture.settled().await;
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

/// A Rust tool that takes `ms` by the gateway's clock and then ends with `ends`.
fn working(name: &str, clock: &FakeClock, ms: u64, ends: fn() -> Result<Value, &'static str>) -> NativeTool {
    let clock = clock.clone();
    NativeTool::new(name, "", json!({"type": "object"}), move |_, _| {
        clock.advance(Duration::from_millis(ms));
        async move { ends().map_err(Into::into) }
    })
}

/// BUS-1, BUS-2: every outcome is one event with what the client got. A result has its beginning, at most 1 KiB, and
/// its duration to the millisecond; a failure has its code, whether it is retryable, and its message. Every event has
/// the call's id, the time by the gateway's clock, and the server if there is one.
#[tokio::test]
async fn an_outcome_tells_what_the_client_is_told() {
    let clock = FakeClock::new();
    let strict = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let mock = Mock::legacy()
        .full_tool(Tool::new("echo", Behaviour::Echo).input_schema(strict))
        .tool("long", Behaviour::Text("x".repeat(5_000)))
        .tool("failing", Behaviour::IsError("no such file".to_owned()))
        .tool("own", Behaviour::error(1234, "theirs, token=hunter2"))
        .tool("hang", Behaviour::Hang)
        .tool("die", Behaviour::Crash(Crash::Exit { status: 3 }));
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.settings.prefix = bridgehead_config::Prefix::Always;
        options.clock = Arc::new(clock.clone());
        options.tools.push(working("work", &clock, 250, || Ok(json!({"sum": 3}))));
        options.tools.push(working("refuse", &clock, 40, || Err("not today")));
        let limits = Limits { execution: Some(Duration::from_millis(100)), ..Limits::default() };
        options.servers[0]
            .tools
            .insert("hang".to_owned(), ToolOverride { limits, ..ToolOverride::default() });
    });
    fixture.settled().await;
    let filter = Filter { topics: vec!["provider.mcp.tool".to_owned()], server: None };
    let mut told = fixture.gateway.events().subscribe_to(filter, 64);
    for (tool, arguments, failed) in [
        ("work", json!({}), None),
        ("m__echo", json!({"n": 7}), None),
        ("m__long", json!({}), None),
        ("m__failing", json!({}), None),
        ("refuse", json!({}), Some(("HANDLER_ERROR", false))),
        ("m__echo", json!({"n": "many"}), Some(("INVALID_PARAMS", false))),
        ("m__nobody", json!({}), Some(("PROVIDER_TOOL_UNKNOWN", false))),
        ("m__own", json!({}), Some(("1234", false))),
        ("m__hang", json!({}), Some(("PROVIDER_TIMEOUT", true))),
        ("m__die", json!({}), Some(("PROVIDER_CRASHED", true))),
    ] {
        let answer = fixture.call(tool, arguments).await;
        let events = drain(&mut told);
        assert_eq!(events.len(), 1, "{tool}: {events:?}");
        let event = json!(*events[0]);
        let exit = fixture.recorder.exits().pop().unwrap();
        assert_eq!(event["correlationId"], exit.correlation().to_string(), "{tool}");
        let server = tool.starts_with("m__") && tool != "m__nobody";
        assert_eq!(event["server"], if server { json!("m") } else { Value::Null }, "{event}");
        assert!(event["time"].as_str().unwrap().starts_with("2026-01-01T00:00:00."), "{event}");
        assert_eq!(event["tool"], tool);
        assert!(event["principal"].as_str().is_some_and(|principal| !principal.is_empty()), "{event}");
        assert!(!event.to_string().contains("hunter2"), "{event}");
        let Some((code, retryable)) = failed else {
            assert_eq!(
                (&event["topic"], event.as_object().unwrap().len()),
                (&json!("provider.mcp.tool.completed"), 9)
            );
            assert_eq!(event["durationMs"], if tool == "work" { 250 } else { 0 }, "{event}");
            let summary = event["summary"].as_str().unwrap();
            let part = match tool {
                "work" => r#"{\"sum\":3}"#,
                "m__echo" => r#"{\"n\":7}"#,
                "m__failing" => "no such file",
                _ => "xxxxxx",
            };
            assert!(summary.contains(part) && summary.len() <= 1_024, "{event}");
            assert_eq!(summary.ends_with('…') && summary.len() > 1_000, tool == "m__long", "{event}");
            continue;
        };
        assert_eq!(
            (&event["topic"], event.as_object().unwrap().len()),
            (&json!("provider.mcp.tool.failed"), 10)
        );
        assert_eq!((&event["code"], &event["retryable"]), (&json!(code), &json!(retryable)), "{event}");
        let message = event["message"].as_str().unwrap();
        match answer {
            // The model gets the error as a result.
            Ok(result) => {
                let text = result["content"][0]["text"].as_str().unwrap();
                let error = serde_json::from_str::<Value>(text).unwrap()["error"].clone();
                assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)), "{event}");
            }
            Err(error) if code == "1234" => {
                assert_eq!((&error["code"], message), (&json!(1234), "theirs, token=[redacted]"));
            }
            Err(error) => {
                let data = &error["data"];
                assert_eq!((&data["code"], &data["retryable"]), (&json!(code), &json!(retryable)), "{error}");
                assert_eq!(
                    (&error["message"], &data["correlationId"]),
                    (&json!(message), &event["correlationId"])
                );
            }
        }
    }
    drop(told);
    fixture.end().await;
}
