//! Calls that wait for their turn.

use std::time::Duration;

use bridgehead_config::{Queue, ToolOverride};
use bridgehead_gateway::Gateway;
use bridgehead_testkit::{Behaviour, Mock};
use bridgehead_wire::Revision;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::{Fixture, ask};

fn call(gateway: &Gateway, tool: &'static str) -> JoinHandle<Result<Value, Value>> {
    let gateway = gateway.clone();
    tokio::spawn(async move {
        let params = json!({"name": tool, "arguments": {}});
        match ask(&gateway, Revision::V2025_11_25, "tools/call", params, None).await {
            Ok(result) => Ok(result.decode().unwrap()),
            Err(error) => Err(error.body().decode().unwrap()),
        }
    })
}

#[track_caller]
fn until(gateway: &Gateway, seen: impl Fn(&Value) -> bool) -> impl Future<Output = ()> {
    bridgehead_testkit::until("what the health should show", move || seen(&gateway.health()))
}

fn narrow(name: Option<&str>, max_waiting: usize) -> Queue {
    Queue { name: name.map(Into::into), concurrency: 1, max_waiting }
}

/// POOL-7: calls beyond the bound wait after their enter. A call that finds the queue full is refused as retryable. A
/// cancelled call leaves the queue, and the depth is reported.
#[tokio::test]
async fn calls_wait_in_line() {
    let mock = Mock::legacy().tool("slow", Behaviour::HangUntilCancelled).tool("fast", Behaviour::Echo);
    let fixture = Fixture::start(&[("m", mock)], |options| options.servers[0].queue = narrow(None, 1));
    let gateway = &fixture.gateway;
    gateway.settled().await;

    let running = call(gateway, "slow");
    until(gateway, |health| health["upstreams"][0]["queue"]["running"] == 1).await;
    let waiting = call(gateway, "fast");
    until(gateway, |health| health["upstreams"][0]["queue"]["waiting"] == 1).await;
    assert_eq!(fixture.recorder.enters().len(), 2, "it waits after its enter");

    let refused = call(gateway, "fast").await.unwrap().unwrap_err();
    assert_eq!(refused["data"]["code"], "PROVIDER_UNAVAILABLE", "{refused}");
    assert_eq!(
        (&refused["data"]["retryable"], &refused["data"]["mayHaveRun"]),
        (&json!(true), &json!(false))
    );
    assert!(refused["message"].as_str().unwrap().contains("its queue is full"), "{refused}");

    let impatient = waiting;
    impatient.abort();
    assert!(impatient.await.unwrap_err().is_cancelled());
    until(gateway, |health| health["upstreams"][0]["queue"]["waiting"] == 0).await;
    let patient = call(gateway, "fast");
    until(gateway, |health| health["upstreams"][0]["queue"]["waiting"] == 1).await;
    running.abort();
    assert!(patient.await.unwrap().is_ok(), "its turn comes when the call before it leaves");
    fixture.end().await;
}

/// AUD-1: the time a call waited for the tool lock and the time it waited in the queue are added up.
#[tokio::test]
async fn the_lock_and_the_queue_are_waited_for_together() {
    const RUN: u64 = 100;
    let slow = || Behaviour::Echo.after(RUN);
    let mock = Mock::legacy().tool("hang", Behaviour::HangUntilCancelled);
    let mock = mock.tool("locked", slow()).tool("free", slow());
    let fixture = Fixture::start(&[("m", mock)], |options| {
        options.servers[0].queue = narrow(None, 8);
        options.servers[0].tools.entry("locked".to_owned()).or_default().lock = Some(true);
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let hanging = call(gateway, "hang");
    until(gateway, |health| health["upstreams"][0]["queue"]["running"] == 1).await;
    let holds_the_lock = call(gateway, "locked");
    until(gateway, |health| health["upstreams"][0]["queue"]["waiting"] == 1).await;
    let in_between = call(gateway, "free");
    until(gateway, |health| health["upstreams"][0]["queue"]["waiting"] == 2).await;
    // It gets the lock after one run, and then waits in the queue for another.
    let last = call(gateway, "locked");
    until(gateway, |health| health["counters"]["calls"] == 4).await;
    hanging.abort();
    for call in [holds_the_lock, in_between, last] {
        assert!(call.await.unwrap().is_ok());
    }
    let exits = fixture.recorder.exits();
    let last = exits.last().unwrap();
    let (queued, duration) = (last.queued_ms(), last.duration_ms());
    assert_eq!(last.tool(), "locked");
    assert!(queued >= 2 * RUN - 2, "{queued} ms of waiting, {duration} ms from enter to exit");
    assert!(duration >= 2 * RUN - 2, "the queue comes after the enter: {duration} ms");
    fixture.end().await;
}

/// POOL-7: by default 64 calls of a server run at once, and further calls wait.
#[tokio::test]
async fn sixty_four_calls_run_at_once_by_default() {
    let mock = Mock::legacy().tool("slow", Behaviour::HangUntilCancelled);
    let fixture = Fixture::start(&[("m", mock)], |_| ());
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let calls: Vec<_> = (0..66).map(|_| call(gateway, "slow")).collect();
    let depth = |health: &Value| {
        let queue = &health["upstreams"][0]["queue"];
        (queue["running"].as_u64().unwrap(), queue["waiting"].as_u64().unwrap())
    };
    for (called, expected) in [(66, (64, 2)), (65, (64, 1))] {
        until(gateway, |health| depth(health).0 + depth(health).1 == called).await;
        assert_eq!(depth(&gateway.health()), expected);
        calls[0].abort();
    }
    for call in calls {
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
    }
    fixture.end().await;
}

/// POOL-7: servers and tools that name the same queue share it, a tool's setting overrides its server's, and the time
/// in the queue is recorded separately.
#[tokio::test]
async fn a_queue_by_name_is_shared() {
    let slow = || Mock::legacy().tool("slow", Behaviour::HangUntilCancelled).tool("fast", Behaviour::Echo);
    let fixture = Fixture::start(&[("a", slow()), ("b", slow())], |options| {
        options.servers[0].queue = narrow(Some("narrow"), 8);
        options.servers[1].tools.insert(
            "slow".to_owned(),
            ToolOverride { queue: Some(narrow(Some("narrow"), 8)), ..ToolOverride::default() },
        );
    });
    let gateway = &fixture.gateway;
    gateway.settled().await;
    let first = call(gateway, "a__slow");
    until(gateway, |health| health["queues"][0]["running"] == 1).await;
    let second = call(gateway, "b__slow");
    until(gateway, |health| health["queues"][0]["waiting"] == 1).await;
    assert_eq!(gateway.health()["queues"][0]["name"], "narrow");
    assert!(call(gateway, "b__fast").await.unwrap().is_ok(), "the server's other tools do not wait");
    // The recorded wait is in whole milliseconds, so the wait must be long enough to show.
    tokio::time::sleep(Duration::from_millis(3)).await;
    first.abort();
    until(gateway, |health| {
        health["queues"][0]["running"] == 1
            && health["queues"][0]["waiting"] == 0
            && health["upstreams"][1]["inFlight"] == 1
    })
    .await;
    second.abort();
    let _ = second.await;
    let waited: Vec<u64> = fixture.recorder.exits().iter().map(|exit| exit.queued_ms()).collect();
    assert!(waited.iter().any(|waited| *waited >= 3) && waited.contains(&0), "{waited:?}");
    fixture.end().await;
}
