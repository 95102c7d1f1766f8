//! The log, the bus, the counters and the record agree about every event.

use std::sync::Arc;
use std::time::Duration;

use bridgehead_call::Outcome;
use bridgehead_config::Queue;
use bridgehead_events::{Counter, Delivery, Event, Filter, Measure, Subscription, Topic};
use bridgehead_gateway::{NativeTool, ToolContext};
use bridgehead_testkit::{Behaviour, Crash, Mock, Tool};
use serde_json::{Value, json};

use crate::support::{Fixture, until};
use crate::telemetry::Lines;

fn drain(subscription: &mut Subscription) -> Vec<Arc<Event>> {
    std::iter::from_fn(|| subscription.try_next())
        .map(|delivery| match delivery {
            Delivery::Event(event) => event,
            Delivery::Missed(count) => panic!("{count} events were missed"),
        })
        .collect()
}

/// GATE-6: calls that end in every possible way have one row, one event and one log line each. The three agree, and the
/// counters match their numbers.
#[tokio::test]
async fn logs_bus_counters_and_record_agree() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let strict = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    let mock = Mock::legacy()
        .full_tool(Tool::new("echo", Behaviour::Echo).input_schema(strict))
        .tool("say", Behaviour::IsError("no".to_owned()))
        .tool("hang", Behaviour::HangUntilCancelled);
    let fixture = Arc::new(Fixture::start(&[("m", mock)], |options| {
        options.servers[0].queue = Queue { name: None, concurrency: 1, max_waiting: 0 };
    }));
    fixture.settled().await;
    let filter = Filter { topics: vec!["provider.mcp.tool".to_owned()], server: None };
    let mut told = fixture.gateway.events().subscribe_to(filter, 64);
    fixture.call("echo", json!({"n": 7})).await.unwrap();
    fixture.call("say", json!({})).await.unwrap();
    fixture.call("echo", json!({"n": "many"})).await.unwrap();
    fixture.call("nobody", json!({})).await.unwrap_err();
    let hanging = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move { fixture.call("hang", json!({})).await }
    });
    until(|| fixture.gateway.health()["upstreams"][0]["queue"]["running"] == 1).await;
    fixture.call("echo", json!({})).await.unwrap_err();
    hanging.abort();
    assert!(hanging.await.unwrap_err().is_cancelled());

    let exits = fixture.recorder.exits();
    assert_eq!(fixture.recorder.enters().len(), 6);
    let events = drain(&mut told);
    let rows: Vec<_> = exits.iter().map(|exit| exit.correlation()).collect();
    let events_of: Vec<_> = events.iter().map(|event| event.correlation()).collect();
    assert_eq!(rows, events_of, "each row has its event");
    let mut outcomes = Vec::new();
    let text = String::from_utf8(lines.0.lock().clone()).unwrap();
    for (exit, event) in exits.iter().zip(&events) {
        let event: Value = json!(**event);
        let code = event["code"].as_str().unwrap_or("completed");
        let (in_row, in_line) = match exit.outcome() {
            Outcome::Result { is_error: false, .. } => ("completed", "result"),
            Outcome::Result { is_error: true, .. } => ("completed", "tool error"),
            Outcome::Error { code, .. } => (&**code, &**code),
            Outcome::Cancelled => ("cancelled", "cancelled"),
        };
        assert_eq!((code, &event["tool"]), (in_row, &json!(exit.tool())));
        let id = format!("correlationId={}", exit.correlation());
        let ended = |line: &&str| line.contains(": call ended ") && line.contains(&id);
        let ended: Vec<&str> = text.lines().filter(ended).collect();
        assert_eq!(ended.len(), 1, "{ended:?}");
        for part in [format!("outcome=\"{in_line}\""), format!("durationMs={}", exit.duration_ms())] {
            assert!(ended[0].contains(&part), "{part}: {}", ended[0]);
        }
        outcomes.push(in_line.to_owned());
    }
    assert_eq!(
        outcomes,
        [
            "result",
            "tool error",
            "INVALID_PARAMS",
            "PROVIDER_TOOL_UNKNOWN",
            "PROVIDER_UNAVAILABLE",
            "cancelled"
        ]
    );
    assert_eq!(lines.levels(": call ended ").len(), exits.len());

    let metrics = fixture.gateway.signals().metrics();
    let count = |counter| usize::try_from(metrics.count(counter)).unwrap();
    let failed =
        outcomes.iter().filter(|outcome| !["result", "cancelled"].contains(&outcome.as_str())).count();
    assert_eq!((count(Counter::Calls), count(Counter::Failed)), (exits.len(), failed));
    assert_eq!((count(Counter::Cancelled), count(Counter::Requests)), (1, 0));
    assert_eq!(metrics.measure(Measure::Call).count(), 6);
    let refused =
        [Counter::RefusedByCheck, Counter::RefusedByPolicy, Counter::RefusedByRecord, Counter::QueueFull];
    assert_eq!(refused.map(count), [2, 0, 0, 1]);
    let shown = &fixture.gateway.health()["counters"];
    for counter in [Counter::Calls, Counter::Failed, Counter::Cancelled] {
        assert_eq!(shown[counter.as_str()], json!(count(counter)), "{}", counter.as_str());
    }
    drop(told);
    Arc::into_inner(fixture).unwrap().end().await;
}

/// GATE-6: a call whose enter or exit cannot be recorded is counted as such.
#[tokio::test]
async fn what_the_record_refuses_is_counted() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let fixture = Fixture::start(&[], |_| ());
    fixture.recorder.fail_enter(true);
    fixture.call("server_ping", json!({})).await.unwrap_err();
    fixture.call("nobody", json!({})).await.unwrap_err();
    fixture.recorder.fail_enter(false);
    fixture.recorder.fail_exit(true);
    fixture.call("server_ping", json!({})).await.unwrap();
    let metrics = fixture.gateway.signals().metrics();
    for (counter, expected) in [
        (Counter::Calls, 3),
        (Counter::Failed, 2),
        (Counter::RefusedByRecord, 1),
        (Counter::RefusedByCheck, 1),
        (Counter::AuditEnterFailures, 2),
        (Counter::AuditExitFailures, 1),
    ] {
        assert_eq!(metrics.count(counter), expected, "{}", counter.as_str());
    }
    assert_eq!(lines.levels("the end of a call could not be recorded"), ["ERROR"]);
    fixture.end_unpaired().await;
}

/// GATE-6: the wait for a tool lock is measured, and a call that does not get the lock is counted at that stage.
#[tokio::test(start_paused = true)]
async fn what_the_lock_refuses_is_counted() {
    // Progress keeps the first call alive beyond its limit, while the second one waits for the lock.
    let hang = NativeTool::new("hang", "", json!({"type": "object"}), |_, cx: ToolContext| async move {
        for step in 1.. {
            tokio::time::sleep(Duration::from_millis(20)).await;
            cx.progress(f64::from(step), None, None);
        }
        Ok(json!({}))
    });
    let fixture = Arc::new(Fixture::start(&[], |options| {
        options.settings.request_timeout = Duration::from_millis(50);
        options.tools.push(hang);
    }));
    let running = tokio::spawn({
        let fixture = Arc::clone(&fixture);
        async move { fixture.call("hang", json!({})).await }
    });
    until(|| fixture.recorder.enters().len() == 1).await;
    let _refused = fixture.call("hang", json!({})).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    let metrics = fixture.gateway.signals().metrics();
    let counted = [Counter::Calls, Counter::Failed, Counter::RefusedByLock, Counter::WaitsTimedOut];
    assert_eq!(counted.map(|counter| metrics.count(counter)), [2, 1, 1, 1]);
    let waits = metrics.measure(Measure::LockWait);
    assert!(waits.count() == 1 && waits.sum >= Duration::from_millis(50), "{waits:?}");
    Arc::into_inner(fixture).unwrap().end().await;
}

/// GATE-6: the counter of each server event equals the number of its bus events, log lines and status entries.
#[tokio::test]
async fn the_life_of_a_server_is_counted_as_it_is_told() {
    let lines = Lines::default();
    let _listening = lines.listen();
    let mock =
        Mock::legacy().tool("die", Behaviour::Crash(Crash::Exit { status: 3 })).tool("a", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let mut told = fixture.gateway.events().subscribe(256);
    fixture.settled().await;
    fixture.call("die", json!({})).await.unwrap_err();
    fixture.call("a", json!({})).await.unwrap();
    let (metrics, events) = (fixture.gateway.signals().metrics(), drain(&mut told));
    let topic = |topic| events.iter().filter(|event| event.topic() == topic).count() as u64;
    for (counter, told, line, expected) in [
        (Counter::Starts, Topic::InitStarted, " serves ", 2),
        (Counter::Listings, Topic::ToolsDiscovered, " its tools ", 2),
        (Counter::Lost, Topic::Disconnected, " lost server=", 1),
        (Counter::Restarts, Topic::Restart, " restart scheduled ", 1),
        (Counter::ProcessExits, Topic::ProcessExited, "", 1),
    ] {
        let told = match told {
            Topic::ToolsDiscovered => topic(told) + topic(Topic::ToolsRefreshed),
            told => topic(told),
        };
        assert_eq!((metrics.count(counter), told), (expected, expected), "{}", counter.as_str());
        if !line.is_empty() {
            assert_eq!(lines.levels(line).len() as u64, expected, "{line}");
        }
    }
    let became = [Counter::BecameReady, Counter::BecameDown, Counter::BecameFailed];
    assert_eq!(became.map(|counter| metrics.count(counter)), [2, 1, 0]);
    assert_eq!(metrics.measure(Measure::Start).count(), topic(Topic::InitFinished));
    assert_eq!(metrics.measure(Measure::Probe).count(), topic(Topic::Probe));
    let status = json!(fixture.gateway.status().upstreams[0]);
    assert_eq!(status["restarts"], 1, "{status}");
    drop(told);
    fixture.end().await;
}
